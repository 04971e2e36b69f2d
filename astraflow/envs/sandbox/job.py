"""What a sandbox is given and what it gives back. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from astraflow.errors import ConfigError


class Status(StrEnum):
    """How a program ended."""

    OK = "ok"  # by itself, whatever its exit code
    TIMEOUT = "timeout"  # past wall_s or cpu_s
    MEMORY = "memory"  # all its processes together held more than memory_mb
    OUTPUT = "output"  # it printed more than output_kb, of which the beginning is kept
    KILLED = "killed"  # by a signal of its own making, e.g. a segmentation fault


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of one program with all its processes.

    Attributes:
        wall_s: from its start to its end; waiting for a free slot doesn't count.
        cpu_s: of each of its processes; 0 = as wall_s.
        memory_mb: resident memory of all its processes together; one alone can't even reserve more than twice that.
        processes: processes and threads.
        output_kb: of its output, of its errors, and of each file that it writes.
        disk_mb: files in /tmp, which are in memory.
    """

    wall_s: float = 10.0
    cpu_s: float = 0.0
    memory_mb: int = 512
    processes: int = 24
    output_kb: int = 1024
    disk_mb: int = 32

    def __post_init__(self) -> None:
        for name in ("wall_s", "memory_mb", "processes", "output_kb", "disk_mb"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of a sandbox is {getattr(self, name)}, expected more than 0")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a program.

    Attributes:
        exit: its exit code; 128 + n if signal n ended it; -1 if it was stopped from outside.
        wall_s: that it took.
    """

    status: Status
    exit: int
    stdout: bytes = b""
    stderr: bytes = b""
    wall_s: float = 0.0

    @property
    def well(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.status is Status.OK and self.exit == 0

    @property
    def text(self) -> str:
        """What it printed; what isn't UTF-8 is replaced."""
        return self.stdout.decode(errors="replace")
