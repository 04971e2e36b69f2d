"""How the cores of one machine are shared among the compute processes that a node starts.

Two processes that both take all cores run 20 times slower: OpenMP spins at barriers (facts: 28× measured). So every
process gets a share, and the shares add up to at most the cores, unless there are more processes than cores.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from astraflow.errors import ConfigError
from astraflow.messages.roles import Role
from astraflow.models.hub import offline


def share(
    cores: int, *, policies: int, trainers: int, policy_threads: int = 0, trainer_threads: int = 0
) -> dict[Role, int]:
    """Threads per process of each role that computes.

    Args:
        cores: what may be used, ≥ 1.
        policies, trainers: processes of that role on this machine.
        policy_threads, trainer_threads: a fixed number per process; 0 = an even share of what is left.
    Returns: {"policy": n, "trainer": m}, each ≥ 1; an odd core goes to the policies, which mostly hold trainers up.
    Raises: ConfigError if fixed numbers ask for more than there is.
    """
    asked = policies * (policy_threads or 1) + trainers * (trainer_threads or 1)
    if asked > max(cores, policies + trainers):
        raise ConfigError(
            f"node.policy_threads = {policy_threads} and node.trainer_threads = {trainer_threads} for {policies} policy"
            f" and {trainers} trainer processes need {asked} cores, but there are {cores}; lower them, or use 0 for an"
            " even share"
        )
    free = cores - policies * policy_threads - trainers * trainer_threads
    open_policies, open_trainers = (0 if policy_threads else policies), (0 if trainer_threads else trainers)
    each = max(1, free // max(1, open_policies + open_trainers))
    policy = policy_threads or each
    trainer = trainer_threads or each
    spare = cores - policies * policy - trainers * trainer
    if open_policies and spare >= policies:
        policy += spare // policies
    elif open_trainers and spare >= trainers:
        trainer += spare // trainers
    return {Role.POLICY: policy, Role.TRAINER: trainer}


def usable_cores(limit: int = 0) -> int:
    """Cores that this process may use, by affinity and cgroup quota, at most `limit` (0 = no limit); at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(allowed, quota_cores() or allowed)
    return max(1, min(cores, limit) if limit else cores)


def quota_cores(mount: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """The smallest CPU quota on this process's cgroup path, in whole cores rounded down, at least 1; 0 = no quota."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return 0
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # cgroup v2
            quotas += [q for folder in _upwards(mount, path) if (q := _quota_v2(folder / "cpu.max"))]
        elif "cpu" in controllers.split(","):
            quotas += [q for folder in _upwards(mount / "cpu", path) if (q := _quota_v1(folder))]
    return max(1, math.floor(min(quotas))) if quotas else 0


def process_environment(threads: int, *, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of an actor process; it must be set before numpy and torch load, so it can't be set later."""
    count = str(threads)
    return {
        **base,
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "passive",
        "PYTHONHASHSEED": "0",  # some environments order their tasks by hash
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **offline(base),
    }


def _upwards(mount: Path, path: str) -> list[Path]:
    folder = mount / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]


def _quota_v2(file: Path) -> float:
    try:
        quota, period = file.read_text().split()
    except (OSError, ValueError):
        return 0.0
    return 0.0 if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float:
    try:
        quota, period = (int((folder / name).read_text()) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    except (OSError, ValueError):
        return 0.0
    return quota / period if quota > 0 else 0.0
