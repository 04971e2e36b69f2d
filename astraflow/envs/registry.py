"""From [envs.<name>] of the run file to an environment: the built-in kinds, or `module:Class` of the user's own."""

import math
from typing import cast

from astraflow.config import EXTERNAL, SESSIONS, EnvSection
from astraflow.envs.agents import Agent
from astraflow.envs.base import Environment
from astraflow.envs.single_turn import SingleTurnEnv
from astraflow.errors import ConfigError
from astraflow.named import build, load_named, module_found

KINDS = {
    "code": "astraflow.envs.code.code_env:CodeEnv",
    "math": "astraflow.envs.math_env:MathEnv",
    "reasoning-gym": "astraflow.envs.reasoning_gym_env:ReasoningGymEnv",
    "search": "astraflow.envs.search.search_env:SearchEnv",
    "tiny": "astraflow.envs.tiny_env:TinyEnv",
    "toy": "astraflow.envs.toy_env:ToyEnv",
}
PACKAGES = {"reasoning-gym": ("reasoning_gym",), "math": ("math_verify",)}
"""Packages without which a built-in kind can't be built."""


def missing_packages(section: EnvSection) -> list[str]:
    """Packages, or the user's modules, that the environment needs and that can't be found; imports no environment."""
    kinds = {section.kind} - set(KINDS) | {section.agent} - {"", EXTERNAL, SESSIONS}
    own = sorted(kind.partition(":")[0] for kind in kinds)
    served = ("aiohttp",) if section.by_http else ()
    return [name for name in (*PACKAGES.get(section.kind, ()), *served, *own) if not module_found(name)]


def build_env(section: EnvSection) -> Environment:
    """The environment that the section describes.

    A class of the user's own must be importable, from a package or from a file in the working directory, and take
    keyword arguments.

    Raises: ConfigError for an unknown kind, module, class or argument, for a missing extra, and for whatever the
        constructor raises.
    """
    env = build("environment", section.kind, section.args, KINDS)
    present = dir(env)  # unlike hasattr it computes no property: `size` may read a file
    missing = [name for name in ("size", "task", "run", "close") if name not in present]
    if missing:
        raise ConfigError(
            f"environment {section.kind} has no {', '.join(missing)}; subclass astraflow.envs.SingleTurnEnv "
            "or implement astraflow.envs.Environment"
        )
    if isinstance(env, SingleTurnEnv):
        _set_up(env, section)
    elif section.grade_deadline_s or section.part_weights:
        raise ConfigError(
            f"environment {section.kind} has no grade(), so grade_deadline_s and part_weights mean nothing; remove them"
        )
    return cast(Environment, env)


def _set_up(env: SingleTurnEnv, section: EnvSection) -> None:
    """What the run file says goes before what the class says."""
    if section.grade_deadline_s:
        env.grade_deadline_s = section.grade_deadline_s
    if section.part_weights:
        env.part_weights = {**env.part_weights, **section.part_weights}
    if broken := [name for name, weight in env.part_weights.items() if not math.isfinite(weight)]:
        raise ConfigError(f"part_weights.{broken[0]} is {env.part_weights[broken[0]]}, expected a finite number")


def find_agent(env: str, section: EnvSection) -> Agent | None:
    """The agent that the section names; None if the environment plays itself, or others play it: who joins, HTTP.

    Raises: ConfigError for a module or function that isn't there.
    """
    if section.agent in ("", EXTERNAL, SESSIONS):
        return None
    if ":" not in section.agent:
        raise ConfigError(
            f"agent {section.agent!r} of environment {env}: expected module:function, {EXTERNAL!r} or {SESSIONS!r}"
        )
    found = load_named(section.agent, what="agent")
    if not callable(found):
        raise ConfigError(f"agent {section.agent} of environment {env} is {found!r}, expected an async function")
    return found if isinstance(found, Agent) else Agent(function=found, env=env)
