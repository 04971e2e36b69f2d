"""What the keys of a run file mean together: names that must exist, bounds between keys, folders.

No environment is built here (`environments.py`). Assumes that every key by itself is right (`decode.py`). Each check
raises a ConfigError that says how to fix it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from astraflow.algos.feeds import feeds_of, players_of
from astraflow.config import EnvSection, EvalSection, PolicySection, RunConfig, SourceSection, TrainerSection
from astraflow.runfile.critic_checks import check_critic
from astraflow.runfile.decode import Where, nearest
from astraflow.runfile.loss_checks import check_loss
from astraflow.runfile.sglang_checks import check_sglang
from astraflow.runfile.stages import check_stages
from astraflow.runfile.transports import check_transport

FULLS_IN_WEIGHTS = 3


def check(config: RunConfig, where: Where) -> None:
    """Everything that needs no environment. Raises ConfigError."""
    _check_purpose(config, where)
    for kind, sections in (("sources", config.sources), ("eval", config.eval)):
        for name, user in sections.items():
            _check_known((kind, name, "env"), user.env, config.envs, "envs", where)
    for name, evaluation in config.eval.items():
        _check_eval(name, evaluation, config, where)
    for name, source in config.sources.items():
        _check_groups(name, source, config, where)
    for name, policy in config.policies.items():
        _check_model(name, policy, where)
        _check_engine(name, policy, where)
        check_sglang(name, policy, where, deterministic=config.run.deterministic)
        if policy.trainer:
            _check_trainer(name, policy.trainer, where)
            check_critic(name, policy.trainer, where)
            check_loss(name, policy.trainer, where)
        _check_weights_stream(name, policy, config, where)
        check_transport(name, policy, where)
    for name, env in config.envs.items():
        _check_policy_of_env(name, env, config, where)
        _check_roles(name, env, config, where)
    _check_feeding(config, where)
    check_stages(config, where)
    _check_bus(config, where)
    if config.run.deterministic:
        _check_deterministic(config, where)


def trainable(config: RunConfig) -> dict[str, TrainerSection]:
    """The policies that are trained."""
    return {name: policy.trainer for name, policy in config.policies.items() if policy.trainer}


def _check_purpose(config: RunConfig, where: Where) -> None:
    for kind, sections in (("policies", config.policies), ("envs", config.envs)):
        if not sections:
            raise where.error((kind,), f"at least one table [{kind}.<name>] is needed")
    if trainable(config) and not config.sources:
        raise where.error(("sources",), "a policy is trained, so at least one table [sources.<name>] is needed")
    if not trainable(config) and not config.eval:
        raise where.error(("policies",), "no policy has a trainer and there is no [eval.<name>]: nothing to do")


def _check_known(path: tuple[str, ...], name: str, known: Iterable[str], table: str, where: Where) -> None:
    known = list(known)
    if name not in known:
        hint = nearest(name, known) or f"; there are {', '.join(known)}"
        raise where.error(path, f"there is no [{table}.{name}]{hint}")


def _check_groups(name: str, source: SourceSection, config: RunConfig, where: Where) -> None:
    if config.dataflow.min_group_size > source.group_size:
        size = config.dataflow.min_group_size
        raise where.error(
            ("sources", name, "group_size"),
            f"is {source.group_size}, smaller than dataflow.min_group_size = {size}, so no group could be trained",
        )
    filtered = [policy for policy, t in trainable(config).items() if "zero-advantage" in t.filters]
    if source.group_size == 1 and filtered:
        raise where.error(
            ("sources", name, "group_size"),
            f"a group of 1 has advantage 0 and policies.{filtered[0]}.trainer.filters drops it; use at least 2",
        )


def _check_model(name: str, policy: PolicySection, where: Where) -> None:
    from astraflow.models.resolve import known_models

    path, folder = ("policies", name, "model"), Path(policy.model)
    if policy.model in known_models():
        return
    if not folder.is_dir():
        hint = nearest(policy.model, known_models()) or f"; known models are {', '.join(known_models())}"
        raise where.error(path, f"model folder {policy.model} does not exist (looked in {Path.cwd()}){hint}")
    if not (folder / "config.json").is_file():
        raise where.error(path, f"model folder {policy.model} has no config.json; a Hugging Face folder is expected")


def _check_eval(name: str, evaluation: EvalSection, config: RunConfig, where: Where) -> None:
    for player in players_of(config, evaluation.env):
        limit = config.policies[player].engine.context_length
        if limit and evaluation.max_new_tokens >= limit:
            raise where.error(
                ("eval", name, "max_new_tokens"),
                f"{evaluation.max_new_tokens} new tokens leave no room for a prompt in policies.{player}.engine"
                f".context_length = {limit}",
            )


def _check_engine(name: str, policy: PolicySection, where: Where) -> None:
    limit, wanted = policy.engine.context_length, policy.sampling.max_new_tokens
    if limit and wanted >= limit:
        raise where.error(
            ("policies", name, "sampling", "max_new_tokens"),
            f"{wanted} new tokens leave no room for a prompt in engine.context_length = {limit}",
        )
    parts = {"engine.kind": policy.engine.kind == "toy", "model": policy.model == "toy"}
    if policy.trainer:
        parts["trainer.learner"] = policy.trainer.learner == "toy"
    if len(set(parts.values())) > 1:
        toy, real = (", ".join(k for k, is_toy in parts.items() if is_toy is wanted) for wanted in (True, False))
        raise where.error(
            ("policies", name), f"mixes toy parts ({toy}) with real ones ({real}); make all of them toy or none"
        )


def _check_trainer(name: str, trainer: TrainerSection, where: Where) -> None:
    if trainer.max_staleness == 0 and trainer.prefetch > 0:
        raise where.error(
            ("policies", name, "trainer", "prefetch"),
            f"is {trainer.prefetch}, but max_staleness = 0 allows no batch to be bound ahead; set it to 0",
        )
    if trainer.warmup_steps > trainer.steps:
        raise where.error(
            ("policies", name, "trainer", "warmup_steps"),
            f"is {trainer.warmup_steps}, more than the {trainer.steps} steps of the run",
        )


def _check_weights_stream(name: str, policy: PolicySection, config: RunConfig, where: Where) -> None:
    bound = config.bus.max_weights_bytes
    size = model_bytes(policy.model)
    if bound and size and bound < FULLS_IN_WEIGHTS * size:
        raise where.error(
            ("bus", "max_weights_bytes"),
            f"is {bound}, but {FULLS_IN_WEIGHTS} full versions of policy {name} take {FULLS_IN_WEIGHTS * size} bytes;"
            " use at least that, or 0 to have it computed",
        )


def model_bytes(model: str) -> int:
    """Bytes of a model folder's weights; 0 if it isn't a folder with safetensors (yet)."""
    return sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))


def _check_policy_of_env(name: str, env: EnvSection, config: RunConfig, where: Where) -> None:
    path, policy = ("envs", name, "args", "policy"), env.args.get("policy", "")
    if ":" in env.kind:  # the user's own class decides what its arguments mean
        return
    if not isinstance(policy, str):
        raise where.error(path, f"expected the name of a policy, got {policy!r}")
    if policy:
        _check_known(path, policy, config.policies, "policies", where)
    elif (
        len(config.policies) > 1 and env.kind != "toy" and not env.agent
    ):  # a toy talks to all, an agent to whom it will
        raise where.error(path, f"is missing; say which of {', '.join(config.policies)} answers in this environment")


def _check_roles(name: str, env: EnvSection, config: RunConfig, where: Where) -> None:
    for role, policy in env.roles.items():
        path = ("envs", name, "roles", role)
        _check_known(path, policy, config.policies, "policies", where)
        if role in config.policies and role != policy:
            raise where.error(path, f"gives policy {policy} the name of another policy; choose another name")
    if env.roles and not env.agent:
        raise where.error(("envs", name, "roles"), "roles are for agents, and this environment has none; set agent")


def _check_feeding(config: RunConfig, where: Where) -> None:
    for name, env in config.envs.items():
        if not isinstance(env.args.get("policies", []), list):
            raise where.error(("envs", name, "args", "policies"), "expected a list of names of policies")
    fed = {policy for source in config.sources.values() for policy in feeds_of(config, source.env)}
    for policy in trainable(config):
        if policy not in fed:
            raise where.error(
                ("policies", policy, "trainer"),
                f"no source feeds this policy; add a source whose environment has args.policy = {policy!r}"
                " or remove the trainer table",
            )


def _check_bus(config: RunConfig, where: Where) -> None:
    bus = config.bus
    given = [key for key in ("token_file", "credentials_file", "credentials_dir") if getattr(bus, key)]
    if len(given) > 1:
        raise where.error(("bus", given[1]), f"{given[0]} is given too; keep one of them")
    for key in (*given, "ca_file"):
        file = getattr(bus, key)
        if file and not bus.url:
            raise where.error(("bus", key), "is for an external server; set bus.url too, or remove it")
        if key == "credentials_dir" and not Path(file).is_dir():
            raise where.error(("bus", key), f"folder {file} does not exist")
        if file and key != "credentials_dir" and not Path(file).is_file():
            raise where.error(("bus", key), f"file {file} does not exist")


def _check_deterministic(config: RunConfig, where: Where) -> None:
    if config.node.rollouts != 1:
        raise where.error(("node", "rollouts"), f"is {config.node.rollouts}; run.deterministic needs exactly 1")
    for name, policy in config.policies.items():
        if policy.engine.replicas != 1:
            path = ("policies", name, "engine", "replicas")
            raise where.error(path, f"is {policy.engine.replicas}; run.deterministic needs exactly 1")
        if policy.trainer and policy.trainer.max_staleness != 0:
            path = ("policies", name, "trainer", "max_staleness")
            raise where.error(path, f"is {policy.trainer.max_staleness}; run.deterministic needs 0")
    for env, size, what in _cohorts(config):
        room = config.node.episodes_per_rollout
        if size > room:
            raise where.error(
                ("node", "episodes_per_rollout"),
                f"is {room}; run.deterministic plays the {size} episodes of {what} together",
            )
        for name in players_of(config, env):
            if size > (slots := config.policies[name].engine.slots):
                path = ("policies", name, "engine", "slots")
                raise where.error(path, f"is {slots}; run.deterministic starts the {size} requests of {what} together")


def _cohorts(config: RunConfig) -> Iterator[tuple[str, int, str]]:
    """(env, tasks at most, its name) of everything that deterministic mode starts together."""
    for name, section in config.eval.items():
        yield section.env, section.size * section.repeats, f"an evaluation of {name}"
    batch = sum(
        trainer.batch_groups * max(source.group_size for source in config.sources.values() if source.env in fed)
        for policy, trainer in trainable(config).items()
        if (fed := {env for env in config.envs if policy in feeds_of(config, env)} & _used(config))
    )
    for env in sorted(_used(config)):
        yield env, batch, "a batch"


def _used(config: RunConfig) -> set[str]:
    return {source.env for source in config.sources.values()}
