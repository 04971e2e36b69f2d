"""CPU seconds of the processes of a run, from /proc. Linux only."""

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Fields of /proc/<pid>/stat behind the name; field 0 is the state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def cpu_s(pid: int) -> float:
    """User and system seconds of all threads so far; 0 when the process is gone."""
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def children(parent: int) -> dict[str, int]:
    """Direct children by name: the value of `--name` or `--role`, else the program's."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if int(_stat(int(entry.name))[1]) != parent:
                continue
            arguments = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:  # it has ended meanwhile
            continue
        flag = next((flag for flag in ("--name", "--role") if flag in arguments), None)
        name = arguments[arguments.index(flag) + 1] if flag else Path(arguments[0]).name
        found[name] = int(entry.name)
    return found
