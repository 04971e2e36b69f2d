"""Which policies play in an environment, and which of them its episodes train.

Invariant: sorted, so that every process agrees.
"""

from astraflow.config import RunConfig


def players_of(config: RunConfig, env: str) -> tuple[str, ...]:
    """The environment's own `policy` argument if it names one of the run's policies, else all of them."""
    only = config.envs[env].args.get("policy")
    return (only,) if isinstance(only, str) and only in config.policies else tuple(sorted(config.policies))


def feeds_of(config: RunConfig, env: str) -> tuple[str, ...]:
    """The players that are trained. Empty: such tasks take no credit and nothing is trained on them."""
    return tuple(name for name in players_of(config, env) if config.policies[name].trainer is not None)
