"""A nats-server of ours whose parent is gone: it holds the folder's lock, and nobody will end it.

It looks at processes of this machine, of Linux's /proc alone. Invariant: only a process that runs with this very
configuration, and whose parent as we noted it has ended, is ever killed.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

_PARENT = "ASTRAFLOW_SERVER_PARENT"  # in the server's environment: <pid>:<when it started>
_PROC = Path("/proc")


def marked(environment: dict[str, str]) -> dict[str, str]:
    """`environment` for a server that belongs to this process."""
    return {**environment, _PARENT: f"{os.getpid()}:{_started(os.getpid())}"}


def server_of(config: Path) -> int:
    """The process that runs with a configuration; 0 = none, or none that we may see."""
    wanted = str(config).encode()
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "cmdline").read_bytes().split(b"\0")[1:]:
                return int(entry.name)
    return 0


def is_orphan(pid: int) -> bool:
    """Whether the process that started a server has ended."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    for line in environment:
        name, _, value = line.decode("utf-8", "replace").partition("=")
        parent, _, started = value.partition(":")
        if name == _PARENT and parent.isdigit():
            return _started(int(parent)) != started
    return False


def end(pid: int) -> None:
    """At once: it had its SIGTERM when its parent ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _started(pid: int) -> str:
    """When a process started, in ticks since the machine did; "" if there is none, or only its remains."""
    try:
        state, *fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else fields[18]
