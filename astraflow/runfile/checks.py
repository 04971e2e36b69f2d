"""What the keys of a run file mean together: names that must exist, bounds between keys, folders.

No environment is built here (`environments.py`). Assumes that every key by itself is right (`decode.py`), or unknown
(`unknown.py`). Each check yields ConfigErrors that say how to fix it.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from astraflow.config import EnvSection, EvalSection, PolicySection, RunConfig, SourceSection, TrainerSection
from astraflow.dataflow.stop_rule import stop_rule
from astraflow.dataflow.submissions import PREFIX
from astraflow.dataflow.tasks import players_of, trained_by
from astraflow.errors import ConfigError
from astraflow.messages.sampling import why_untrainable
from astraflow.named import did_you_mean
from astraflow.paths import user_path
from astraflow.runfile.critic_checks import check_critic
from astraflow.runfile.decode import Where
from astraflow.runfile.gateway_checks import check_gateway
from astraflow.runfile.loss_checks import check_loss
from astraflow.runfile.sglang_checks import check_sglang
from astraflow.runfile.stages import stage_checks
from astraflow.runfile.transports import check_transport
from astraflow.runfile.unknown import forget, settled

FULLS_IN_WEIGHTS = 3
_SMALLEST_WEIGHTS_BYTES = 1 << 10  # the smallest model that there is takes more


def check(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    """Every mistake that is seen without building an environment."""
    for (table, name, key), link in list(_links(config, where)):
        mistakes = list(settled([link]))
        yield from mistakes
        if mistakes:
            config = forget(config, table, name, key)
    yield from settled(_checks(config, where))


def _links(config: RunConfig, where: Where) -> Iterator[tuple[tuple[str, str, str], Iterator[ConfigError]]]:
    """Names in a section that other sections must have, which many checks follow: table, section, key, its check."""
    for kind, sections in (("sources", config.sources), ("eval", config.eval)):
        for name, user in sections.items():
            yield (kind, name, "env"), _check_env(kind, name, user, config, where)
    for name, env in config.envs.items():
        yield ("envs", name, "args"), _check_policy_of_env(name, env, config, where)
        yield ("envs", name, "args"), _check_fed_names(name, env, where)
        yield ("envs", name, "roles"), _check_roles(name, env, config, where)


def _checks(config: RunConfig, where: Where) -> Iterator[Iterator[ConfigError]]:
    """Each by itself: what is unknown to one doesn't keep the others from going on."""
    yield _check_purpose(config, where)
    for name, evaluation in config.eval.items():
        yield _check_eval(name, evaluation, config, where)
    for name, source in config.sources.items():
        yield _check_source_name(name, where)
        yield _check_groups(name, source, config, where)
    for name, policy in config.policies.items():
        yield _check_model(name, policy, where)
        yield _check_room(name, policy, where)
        yield _check_toys(name, policy, where)
        yield check_sglang(name, policy, config, where)
        yield _check_sampling(name, policy, where)
        for check_trainer in (_check_prefetch, _check_warm_up, _check_ranks, check_critic, check_loss):
            yield _if_trained(check_trainer, name, policy, where)
        yield _check_weights_stream(name, policy, config, where)
        yield check_transport(name, policy, where)
    yield _check_feeding(config, where)
    yield check_gateway(config, where)
    yield from stage_checks(config, where)
    yield _check_bus(config, where)
    yield _check_deterministic(config, where)
    yield _check_goal(config, where)


def _if_trained(
    check_trainer: Callable[[str, TrainerSection, Where], Iterator[ConfigError]],
    name: str,
    policy: PolicySection,
    where: Where,
) -> Iterator[ConfigError]:
    if policy.trainer:
        yield from check_trainer(name, policy.trainer, where)


def trainable(config: RunConfig) -> dict[str, TrainerSection]:
    """The policies that are trained."""
    return {name: policy.trainer for name, policy in config.policies.items() if policy.trainer}


def _check_purpose(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    for kind, sections in (("policies", config.policies), ("envs", config.envs)):
        if not sections:
            yield where.error((kind,), f"at least one table [{kind}.<name>] is needed")
    if trainable(config) and not config.sources:
        yield where.error(("sources",), "a policy is trained, so at least one table [sources.<name>] is needed")
    if not trainable(config) and not config.eval:
        yield where.error(("policies",), "no policy has a trainer and there is no [eval.<name>]: nothing to do")


def _check_env(
    kind: str, name: str, user: SourceSection | EvalSection, config: RunConfig, where: Where
) -> Iterator[ConfigError]:
    yield from _check_known((kind, name, "env"), user.env, config.envs, "envs", where)


def _check_known(
    path: tuple[str, ...], name: str, known: Iterable[str], table: str, where: Where
) -> Iterator[ConfigError]:
    known = list(known)
    if name not in known:
        there_are = f"; there are {', '.join(known)}" if known else ""
        hint = did_you_mean(name, known) or there_are
        yield where.error(path, f"there is no [{table}.{name}]{hint}")


def _check_source_name(name: str, where: Where) -> Iterator[ConfigError]:
    if name.startswith(PREFIX):
        yield where.error(
            ("sources", name), f"names that begin with {PREFIX} are for tasks that users submit; rename it"
        )


def _check_groups(name: str, source: SourceSection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    if config.dataflow.min_group_size > source.group_size:
        size = config.dataflow.min_group_size
        yield where.error(
            ("sources", name, "group_size"),
            f"is {source.group_size}, smaller than dataflow.min_group_size = {size}, so no group could be trained",
        )
    filtered = [policy for policy, t in trainable(config).items() if "zero-advantage" in t.filters]
    if source.group_size == 1 and filtered:
        yield where.error(
            ("sources", name, "group_size"),
            f"a group of 1 has advantage 0 and policies.{filtered[0]}.trainer.filters drops it; use at least 2",
        )


def _check_model(name: str, policy: PolicySection, where: Where) -> Iterator[ConfigError]:
    from astraflow.models.folder import check_folder
    from astraflow.models.hub import is_hub_id
    from astraflow.models.resolve import known_models

    path, folder = ("policies", name, "model"), user_path(policy.model)
    if policy.model in known_models() or (is_hub_id(policy.model) and not folder.is_dir()):
        return
    if not folder.is_dir():
        hint = did_you_mean(policy.model, known_models()) or f"; known models are {', '.join(known_models())}"
        yield where.error(path, f"model folder {folder} does not exist (looked in {Path.cwd()}){hint}")
        return
    try:
        check_folder(folder)
    except ConfigError as exc:
        yield where.error(path, str(exc))


def _check_eval(name: str, evaluation: EvalSection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    for player in players_of(config, evaluation.env):
        limit = config.policies[player].engine.context_length
        if limit and evaluation.max_new_tokens >= limit:
            yield where.error(
                ("eval", name, "max_new_tokens"),
                f"{evaluation.max_new_tokens} new tokens leave no room for a prompt in policies.{player}.engine"
                f".context_length = {limit}",
            )


def _check_room(name: str, policy: PolicySection, where: Where) -> Iterator[ConfigError]:
    limit, wanted = policy.engine.context_length, policy.sampling.max_new_tokens
    if limit and wanted >= limit:
        yield where.error(
            ("policies", name, "sampling", "max_new_tokens"),
            f"{wanted} new tokens leave no room for a prompt in engine.context_length = {limit}",
        )


def _check_sampling(name: str, policy: PolicySection, where: Where) -> Iterator[ConfigError]:
    """An evaluation samples as it likes."""
    if policy.trainer and (why := why_untrainable(policy.sampling)):
        yield where.error(("policies", name, "sampling", why.partition(" ")[0]), f"can't be trained: {why}")


def _check_toys(name: str, policy: PolicySection, where: Where) -> Iterator[ConfigError]:
    parts = {"engine.kind": policy.engine.kind == "toy", "model": policy.model == "toy"}
    if policy.trainer:
        parts["trainer.learner"] = policy.trainer.learner == "toy"
    if len(set(parts.values())) > 1:
        toy, real = (", ".join(k for k, is_toy in parts.items() if is_toy is wanted) for wanted in (True, False))
        yield where.error(
            ("policies", name), f"mixes toy parts ({toy}) with real ones ({real}); make all of them toy or none"
        )


def _check_prefetch(name: str, trainer: TrainerSection, where: Where) -> Iterator[ConfigError]:
    if trainer.max_staleness == 0 and trainer.prefetch > 0:
        yield where.error(
            ("policies", name, "trainer", "prefetch"),
            f"is {trainer.prefetch}, but max_staleness = 0 allows no batch to be bound ahead; set it to 0",
        )


def _check_ranks(name: str, trainer: TrainerSection, where: Where) -> Iterator[ConfigError]:
    ranks, path = trainer.ranks, ("policies", name, "trainer", "ranks")
    for key in ("tensor", "context", "experts"):
        if (value := getattr(ranks, key)) != 1:
            text = f"is {value}, but a model is cut among data × replicate ranks only so far; leave it at 1, raise data"
            yield where.error((*path, key), text)
    if ranks.min > ranks.size:
        yield where.error((*path, "min"), f"is {ranks.min}, more than the {ranks.size} ranks of data × replicate")
    if ranks.size > 1 and trainer.device != "cpu":
        at = ("policies", name, "trainer", "device")
        yield where.error(at, f'is "{trainer.device}", but several ranks compute on the CPU only so far; leave it out')
    if ranks.size > 1 and trainer.learner == "toy":
        yield where.error((*path, "data"), 'the toy learner is one process; ranks need learner = "torch"')


def _check_warm_up(name: str, trainer: TrainerSection, where: Where) -> Iterator[ConfigError]:
    if trainer.warmup_steps > trainer.steps:
        yield where.error(
            ("policies", name, "trainer", "warmup_steps"),
            f"is {trainer.warmup_steps}, more than the {trainer.steps} steps of the run",
        )


def _check_weights_stream(name: str, policy: PolicySection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    bound = config.bus.max_weights_bytes
    size = model_bytes(policy.model)
    if not size and 0 < bound < _SMALLEST_WEIGHTS_BYTES:  # a model that isn't here yet
        yield where.error(
            ("bus", "max_weights_bytes"),
            f"is {bound}, less than the parts of one version take; use {FULLS_IN_WEIGHTS} times the size of the "
            "largest model, or 0 to have it computed",
        )
        return
    if bound and size and bound < FULLS_IN_WEIGHTS * size:
        yield where.error(
            ("bus", "max_weights_bytes"),
            f"is {bound}, but {FULLS_IN_WEIGHTS} full versions of policy {name} take {FULLS_IN_WEIGHTS * size} bytes;"
            " use at least that, or 0 to have it computed",
        )


def model_bytes(model: str) -> int:
    """Bytes of a model folder's weights; 0 if it isn't a usable folder (yet)."""
    from astraflow.models.folder import weight_files

    folder = user_path(model)
    try:
        return sum(file.stat().st_size for file in weight_files(folder)) if folder.is_dir() else 0
    except ConfigError:  # said by the check of the model
        return 0


def _check_policy_of_env(name: str, env: EnvSection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    path, policy = ("envs", name, "args", "policy"), env.args.get("policy", "")
    if ":" in env.kind:  # the user's own class decides what its arguments mean
        return
    if not isinstance(policy, str):
        yield where.error(path, f"expected the name of a policy, got {policy!r}")
    elif policy:
        yield from _check_known(path, policy, config.policies, "policies", where)
    elif len(config.policies) > 1 and env.kind != "toy" and not env.agent:  # a toy talks to all, an agent as it likes
        yield where.error(path, f"is missing; say which of {', '.join(config.policies)} answers in this environment")


def _check_roles(name: str, env: EnvSection, config: RunConfig, where: Where) -> Iterator[ConfigError]:
    for role, policy in env.roles.items():
        path = ("envs", name, "roles", role)
        yield from _check_known(path, policy, config.policies, "policies", where)
        if role in config.policies and role != policy:
            yield where.error(path, f"gives policy {policy} the name of another policy; choose another name")
    if env.roles and not env.agent:
        yield where.error(("envs", name, "roles"), "roles are for agents, and this environment has none; set agent")


def _check_fed_names(name: str, env: EnvSection, where: Where) -> Iterator[ConfigError]:
    if not isinstance(env.args.get("policies", []), list):
        yield where.error(("envs", name, "args", "policies"), "expected a list of names of policies")


def _check_feeding(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    if not config.sources:  # said already
        return
    fed = {policy for source in config.sources.values() for policy in trained_by(config, source.env)}
    for policy in trainable(config):
        if policy not in fed:
            yield where.error(
                ("policies", policy, "trainer"),
                f"no source feeds this policy; add a source whose environment has args.policy = {policy!r}"
                " or remove the trainer table",
            )


def _check_bus(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    bus = config.bus
    given = [key for key in ("token_file", "credentials_file", "credentials_dir") if getattr(bus, key)]
    if len(given) > 1:
        yield where.error(("bus", given[1]), f"{given[0]} is given too; keep one of them")
    for key in (*given, "ca_file"):
        file = getattr(bus, key)
        if file and not bus.url:
            yield where.error(("bus", key), "is for an external server; set bus.url too, or remove it")
        elif key == "credentials_dir" and not user_path(file).is_dir():
            yield where.error(("bus", key), f"folder {file} does not exist")
        elif file and key != "credentials_dir" and not user_path(file).is_file():
            yield where.error(("bus", key), f"file {file} does not exist")


def _check_goal(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    try:
        stop_rule(config)
    except ConfigError as exc:
        yield where.error(("run", "stop_when"), str(exc))


def _check_deterministic(config: RunConfig, where: Where) -> Iterator[ConfigError]:
    if not config.run.deterministic:
        return
    if config.node.rollouts != 1:
        yield where.error(("node", "rollouts"), f"is {config.node.rollouts}; run.deterministic needs exactly 1")
    for name, policy in config.policies.items():
        if policy.engine.replicas != 1:
            path = ("policies", name, "engine", "replicas")
            yield where.error(path, f"is {policy.engine.replicas}; run.deterministic needs exactly 1")
        if policy.trainer and policy.trainer.max_staleness != 0:
            path = ("policies", name, "trainer", "max_staleness")
            yield where.error(path, f"is {policy.trainer.max_staleness}; run.deterministic needs 0")
        if policy.trainer and policy.trainer.device != "cpu":
            path = ("policies", name, "trainer", "device")
            yield where.error(path, f"is {policy.trainer.device}; run.deterministic needs cpu: GPUs add in any order")
    for env, size, what in _cohorts(config):
        room = config.node.episodes_per_rollout
        if size > room:
            yield where.error(
                ("node", "episodes_per_rollout"),
                f"is {room}; run.deterministic plays the {size} episodes of {what} together",
            )
        for name in players_of(config, env):
            if size > (slots := config.policies[name].engine.slots):
                path = ("policies", name, "engine", "slots")
                yield where.error(path, f"is {slots}; run.deterministic starts the {size} requests of {what} together")


def _cohorts(config: RunConfig) -> Iterator[tuple[str, int, str]]:
    """(env, tasks at most, its name) of everything that deterministic mode starts together."""
    for name, section in config.eval.items():
        yield section.env, section.size * section.repeats, f"an evaluation of {name}"
    batch = sum(
        trainer.batch_groups * max(source.group_size for source in config.sources.values() if source.env in fed)
        for policy, trainer in trainable(config).items()
        if (fed := {env for env in config.envs if policy in trained_by(config, env)} & _used(config))
    )
    for env in sorted(_used(config)):
        yield env, batch, "a batch"


def _used(config: RunConfig) -> set[str]:
    return {source.env for source in config.sources.values()}
