"""Which process of which machine somebody is, and whether that process has surely ended.

It never guesses: a process that another machine or container runs, or that can't be looked at, counts as alive.
Invariant: a pid that is used again is not taken for the process that had it before (start times differ).
"""

import asyncio
import os
import select
import socket
from contextlib import suppress
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_START_TIME = 19  # field of /proc/<pid>/stat behind the command's name


def own_process() -> str:
    """This process's identity."""
    return process_of(os.getpid())


def process_of(pid: int) -> str:
    """`<host>/<boot>/<pid namespace>/<pid>/<start time>` of a process of this machine; "" if unknown (not Linux)."""
    started = _start_time(pid)
    place = _place()
    return f"{place}/{pid}/{started}" if place and started else ""


def has_ended(process: str) -> bool:
    """Whether a process that `process_of` named has surely ended; a zombie has, a stopped process has not."""
    descriptor = _open(process)
    if isinstance(descriptor, bool):
        return descriptor
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(0))
    finally:
        os.close(descriptor)


async def until_ended(process: str) -> None:
    """Return when the process has surely ended; for one that can't be watched that is never."""
    descriptor = _open(process)
    if descriptor is True:
        return
    ended = asyncio.Event()
    if descriptor is False:
        await ended.wait()
        return
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _open(process: str) -> int | bool:
    """A pidfd, which becomes readable when the process ends; True = it has ended; False = it can't be watched."""
    place, _, rest = process.rpartition("/")
    place, _, pid = place.rpartition("/")
    if not place or place != _place() or not pid.isdecimal():
        return False
    try:
        descriptor = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return True
    except OSError:  # not permitted, no descriptors left, a kernel without it
        return False
    started = _start_time(int(pid))
    if started and started != rest:
        os.close(descriptor)
        return True
    return descriptor


def _place() -> str:
    """The machine since its boot, and the pid namespace: where a pid means something. "" where that is unknown."""
    with suppress(OSError):
        boot = _BOOT_ID.read_text().strip()
        return f"{socket.gethostname()}/{boot}/{_PID_NAMESPACE.stat().st_ino}"
    return ""


def _start_time(pid: int) -> str:
    """Clock ticks from boot to the start of a process; "" if it can't be read."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START_TIME]
    return ""
