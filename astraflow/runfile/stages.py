"""The data algorithms of a run file: built once to check their arguments, and told in a sentence for people.

It runs none of them. Assumes that every key by itself is right (`decode.py`).
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from astraflow.config import PolicySection, ReplaySection, RunConfig, SourceSection, TrainerSection
from astraflow.dataflow.buffer import ORDERS
from astraflow.dataflow.filters import FILTERS
from astraflow.dataflow.replay import RANKS
from astraflow.dataflow.select import SELECTS
from astraflow.dataflow.tasks import trained_by
from astraflow.errors import ConfigError
from astraflow.named import build, nearest
from astraflow.runfile.decode import Path, Where


def stage_checks(config: RunConfig, where: Where) -> Iterator[Iterator[ConfigError]]:
    """Every algorithm exists, takes its arguments, and has the method that it is there for."""
    for name, source in config.sources.items():
        yield _check_select(name, source, where)
        yield _check_extra(name, source, config, where)
    yield _check_order(config, where)
    for name, policy in config.policies.items():
        yield _check_filters(name, policy, where)
        yield _check_replay(name, policy, config, where)


def _check_select(name: str, source: SourceSection, where: Where) -> Iterator[ConfigError]:
    select, methods = source.select, ("take", "observe")
    yield from _built(("sources", name, "select"), where, "selector", select.kind, select.args, SELECTS, methods)


def _check_extra(name: str, source: SourceSection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    if config.run.deterministic and source.extra:
        problem = f"is {source.extra}; run.deterministic needs 0, because who is slowest differs from run to run"
        yield where.error(("sources", name, "extra"), problem)


def _check_order(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    yield from _built(("dataflow", "order"), where, "order", config.dataflow.order, {}, ORDERS, ("key",))


def _check_filters(name: str, policy: PolicySection, where: Where) -> Iterator[ConfigError]:
    path, trainer = ("policies", name, "trainer"), policy.trainer
    if trainer is None:
        return
    for kind, args in trainer.filter_args.items():
        if kind not in trainer.filters:
            problem = f"{kind} isn't among filters{nearest(kind, trainer.filters)}"
            yield where.error((*path, "filter_args"), problem)
        if not isinstance(args, Mapping):
            yield where.error((*path, "filter_args"), f"{kind}: expected a table of arguments, got {args!r}")
    for kind in trainer.filters:
        args = trainer.filter_args.get(kind, {})
        if isinstance(args, Mapping):
            yield from _built((*path, "filters"), where, "filter", kind, args, FILTERS, ("drops",))


def _check_replay(name: str, policy: PolicySection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    path, trainer = ("policies", name, "trainer", "replay"), policy.trainer
    if trainer is None or trainer.replay.kind == "none":
        return
    replay = trainer.replay
    yield from _built(path, where, "replay", replay.kind, replay.args, RANKS, ("rank",))
    if config.run.deterministic:
        yield where.error(path, f"is {replay.kind}; run.deterministic trains every group once, remove it")
    if not (replay.max_staleness or trainer.max_staleness):
        yield where.error(
            (*path, "max_staleness"), "is 0, and so is the trainer's own: nothing could be replayed; raise it"
        )
    if int(replay.share * trainer.batch_groups) == 0:
        yield where.error(
            (*path, "share"),
            f"is {replay.share:g} of batch_groups = {trainer.batch_groups}, less than one group; raise one of them",
        )


def _built(
    path: Path,
    where: Where,
    what: str,
    kind: str,
    args: Mapping[str, Any],
    kinds: Mapping[str, str],
    methods: tuple[str, ...],
) -> Iterator[ConfigError]:
    try:
        algorithm = build(what, kind, args, kinds)
    except ConfigError as exc:
        yield where.error(path, str(exc))
        return
    missing = [name for name in methods if not callable(getattr(algorithm, name, None))]
    if missing:
        yield where.error(path, f"{what} {kind} has no method {', '.join(missing)}")
    for name in methods:
        if inspect.iscoroutinefunction(getattr(algorithm, name, None)):
            yield where.error(path, f"{name}() of {what} {kind} is async, and nobody would await it; make it a def")


def pipeline(config: RunConfig) -> Iterator[str]:
    """A line per source and trained policy: what happens to tasks and groups, in order."""
    for name, source in config.sources.items():
        fed = ", ".join(trained_by(config, source.env)) or "nobody"
        yield f"source {name}: {_source(source)} ▸ feeds {fed}"
    for name, policy in config.policies.items():
        if policy.trainer is not None:
            yield f"policy {name}: {_policy(policy.trainer, config)}"


def _source(source: SourceSection) -> str:
    order = "shuffled" if source.shuffle else "in order"
    group = f"groups of {source.group_size}" + (f" + {source.extra} redundant" if source.extra else "")
    return f"{source.env} {order} × {source.weight:g} ▸ {_called(source.select.kind, source.select.args)} ▸ {group}"


def _policy(trainer: TrainerSection, config: RunConfig) -> str:
    least = config.dataflow.min_group_size
    steps = [
        f"at least {least} members" if least else "whole groups",
        *(f"not {_called(name, trainer.filter_args.get(name, {}))}" for name in trainer.filters),
        _advantages(trainer),
        f"{config.dataflow.order} order within staleness {trainer.max_staleness}",
        f"batches of {trainer.batch_groups} groups" + _replayed(trainer.replay, trainer),
    ]
    return " ▸ ".join(steps)


def _advantages(trainer: TrainerSection) -> str:
    critic = trainer.critic
    if critic is None:
        return f"{trainer.advantage} advantages"
    kept = "" if trainer.filters else "groups of equal rewards too ▸ "
    return f"{kept}advantages of a critic (GAE, gamma={critic.gamma:g}, lambda={critic.gae_lambda:g})"


def _replayed(replay: ReplaySection, trainer: TrainerSection) -> str:
    if replay.kind == "none":
        return ""
    most = int(replay.share * trainer.batch_groups)
    return f", at most {most} of them replayed ({_called(replay.kind, replay.args)})"


def _called(kind: str, args: Mapping[str, Any]) -> str:
    return kind + (f"({', '.join(f'{name}={value}' for name, value in args.items())})" if args else "")
