"""Which policies play in an environment, and which of them its episodes train.

Invariant: sorted, so that every process agrees.
"""

from astraflow.config import RunConfig


def players_of(config: RunConfig, env: str) -> tuple[str, ...]:
    """Those that the environment's roles, or its own `policy` or `policies` argument, name; else all of the run's."""
    section = config.envs[env]
    named = set(section.roles.values())
    if not section.agent:  # an agent asks whom it will, whatever the environment by itself would do
        named |= {section.args.get("policy"), *section.args.get("policies", ())} & set(config.policies)
    return tuple(sorted(named or config.policies))


def feeds_of(config: RunConfig, env: str) -> tuple[str, ...]:
    """The players that are trained. Empty: such tasks take no credit and nothing is trained on them."""
    return tuple(name for name in players_of(config, env) if config.policies[name].trainer is not None)
