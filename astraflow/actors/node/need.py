"""Which roles a joining node takes: what fits this machine, the longest queue per slot first. Pure but for `machine()`.

It starts nothing, and what it decides is decided once, when the node joins.
"""

import importlib.util
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astraflow.actors.base.metrics import POLICY_SLOTS, ROLLOUT_SLOTS
from astraflow.actors.view.run import RunView
from astraflow.config import EnvSection, RunConfig
from astraflow.envs.registry import missing_packages

COPIES_OF_A_MODEL = 3  # a replica's engine, its shadow, and the version that is being read


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a node has. `lacks_engine` and `lacks_env` say why a kind can't run here; absent = it can."""

    cores: int
    memory_bytes: int
    lacks_engine: Mapping[str, str]  # by policy
    lacks_env: Mapping[str, str]  # by environment


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A role that could be taken. `pressure` = messages that wait per slot that is there; inf = nobody serves it."""

    role: str
    pressure: float
    why_not: str = ""  # "" = it fits


def machine(config: RunConfig, *, cores: int) -> Machine:
    """This machine, for this run."""
    engines = {name: _lacks_engine(policy.engine.kind) for name, policy in config.policies.items()}
    envs = {name: lacks_env(section) for name, section in config.envs.items()}
    return Machine(
        cores=cores,
        memory_bytes=available_memory(),
        lacks_engine={name: reason for name, reason in engines.items() if reason},
        lacks_env={name: reason for name, reason in envs.items() if reason},
    )


def offers(view: RunView, here: Machine, model_bytes: Mapping[str, int]) -> list[Offer]:
    """A role for each policy and one for rollouts, the most needed first.

    Args: `model_bytes` of a full version by policy; a policy without one is taken to fit.
    """
    assert view.config is not None
    found = []
    for policy in view.config.policies:
        pressure = _pressure(view.queues.get(f"gen.{policy}", 0), _slots(view, "policy", POLICY_SLOTS, policy))
        needed = COPIES_OF_A_MODEL * model_bytes.get(policy, 0)
        why_not = here.lacks_engine.get(policy, "")
        if not why_not and needed > here.memory_bytes:
            why_not = f"needs {needed >> 20:,} MiB of memory, {here.memory_bytes >> 20:,} MiB are free"
        found.append(Offer(role=f"policy:{policy}", pressure=pressure, why_not=why_not))
    waiting = sum(depth for name, depth in view.queues.items() if name.startswith("task."))
    nothing = len(here.lacks_env) == len(view.config.envs)
    found.append(
        Offer(
            role="rollout",
            pressure=_pressure(waiting, _slots(view, "rollout", ROLLOUT_SLOTS)),
            why_not="; ".join(f"{env}: {reason}" for env, reason in here.lacks_env.items()) if nothing else "",
        )
    )
    return sorted(found, key=lambda offer: -offer.pressure)


def choose(found: list[Offer], *, cores: int) -> list[str]:
    """`--role` values: one process per core, at most one per role; always one if any fits."""
    fitting = [offer.role for offer in found if not offer.why_not]
    return fitting[: max(1, cores)]


def _slots(view: RunView, role: str, gauge: str, policy: str = "") -> float:
    return sum(member.gauges.get(gauge, 0.0) for member in view.ready(role, policy))


def _pressure(waiting: int, slots: float) -> float:
    return waiting / slots if slots else math.inf


def _lacks_engine(kind: str) -> str:
    if kind == "cpu" and importlib.util.find_spec("torch") is None:
        return "torch isn't installed here; install astraflow[train]"
    return ""


def lacks_env(section: EnvSection) -> str:
    """Why an environment can't run here; "" = nothing speaks against it. Nothing of it is imported."""
    if missing := missing_packages(section):
        return f"{', '.join(missing)} can't be imported here"
    return ""


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that can be used without swapping."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kib) << 10
