"""What a process tells by its end: exit codes, and its log's last lines. 1 is a failure, 2 a wrong use of the CLI."""

import signal
from pathlib import Path

EXIT_USER = 3
EXIT_FENCED = 4
"""Another process took over; a restart waits until it is needed again, so it is no loop."""
EXIT_AT_START = 6
"""A crash before the actor could work; the last line of its log says why. If it happens alike again it always will."""
EXIT_ENDED_EARLY = 5
"""Of `up`: a person or a notice ended the run before its end; the same command goes on."""


def last_line(file: Path, *, tail_bytes: int = 8192) -> str:
    """The last line with text in a log file; "" if there is none."""
    return next(iter(last_lines(file, 1, tail_bytes=tail_bytes)), "")


def last_lines(file: Path, count: int, *, tail_bytes: int = 65536) -> list[str]:
    """The last lines with text in a log file."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - tail_bytes))
            lines = stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if line.strip()][-count:]


def describe_exit(code: int) -> str:
    """`ended with exit code 1` or `was killed by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
