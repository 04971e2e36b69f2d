"""Waiting for a program until it ends or reaches a bound, and what its processes hold. It starts and kills nothing."""

import os
import select
from pathlib import Path

from astraflow import clock
from astraflow.envs.sandbox.job import Limits, Status

_LOOK_S = 0.05  # between two looks at its memory: time for two cores to fill some 100 MB
_PAGE = os.sysconf("SC_PAGE_SIZE")


def wait(pid: int, limits: Limits, *, beside: int = 0) -> Status:
    """OK once the process has ended; else the bound that it, or the one beside it, has reached, and it still runs."""
    handle = os.pidfd_open(pid)
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        until = clock.monotonic() + limits.wall_s
        while (left := until - clock.monotonic()) > 0:
            if ended.poll(min(left, _LOOK_S) * 1000):
                return Status.OK
            if max(memory_of(each) for each in (pid, beside) if each) > limits.memory_mb << 20:
                return Status.MEMORY
        return Status.TIMEOUT
    finally:
        os.close(handle)


def memory_of(pid: int) -> int:
    """Bytes that a process and all below it hold in memory; 0 for what has just ended."""
    folder = Path("/proc") / str(pid)
    try:
        held = int((folder / "statm").read_text().split()[1]) * _PAGE
        children = [
            each for thread in (folder / "task").iterdir() for each in (thread / "children").read_text().split()
        ]
    except (OSError, IndexError, ValueError):
        return 0
    return held + sum(memory_of(int(child)) for child in children)
