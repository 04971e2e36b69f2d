"""A private folder that an engine shares with its server: in memory where the model fits, and never left behind.

Invariant: a folder whose engine was killed is removed by the next engine on this machine; whether its owner lives is
told by a lock that the system releases.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
PREFIX = "astraflow-sglang-"
_LOCK = "lock"


class Scratch:
    """Exists from now until `remove`. Args: size_bytes: what will be in it; places: where it may be, best first."""

    def __init__(self, size_bytes: int, places: tuple[Path, ...] = (MEMORY, Path(tempfile.gettempdir()))) -> None:
        for place in places:
            _sweep(place)
        roomy = [place for place in places if place.is_dir() and shutil.disk_usage(place).free > 2 * size_bytes]
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=(roomy or places[-1:])[0]))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Blocking."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep(place: Path) -> None:
    """Remove folders here whose owners are gone. Blocking; what can't be removed stays."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or being made or removed at this moment
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
