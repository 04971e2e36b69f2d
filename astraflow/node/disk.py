"""The disk under a nats-server: getting low, full, and with room again, as sentences and as moments to wait for.

It frees nothing and starts nothing. A disk can't be watched, only asked: it is asked every second, for microseconds.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

ASK_EVERY_S = 1.0
_ROOM_BYTES = 64 << 20  # so much must be free before the server is started (again)
_LOW_BYTES = 256 << 20  # below this it is said once
_FULL_BYTES = 1 << 20
REFUSED = b"no space left on device"


class Disk:
    """The disk of one server's folder."""

    def __init__(self, folder: Path, *, log_file: Path, report: Callable[[str], None]) -> None:
        self._folder = folder
        self._log_file = log_file
        self._log_seen = _size(log_file)
        self._report = report
        self._low = False

    def begin_anew(self) -> None:
        """What the log says up to now is of a server that has ended."""
        self._log_seen = _size(self._log_file)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free

    async def until_full(self) -> None:
        """Return when the server can't store any more, and say so."""
        while not await asyncio.to_thread(self._is_full):
            self._say_if_low()
            await asyncio.sleep(ASK_EVERY_S)
        self._report(
            f"the disk of {self._folder} is full: nats-server stores nothing and the run waits; "
            f"free at least {_ROOM_BYTES >> 20} MiB and it goes on by itself"
        )

    async def until_room(self) -> None:
        """Return when there is room enough to go on."""
        while self.free_bytes() < _ROOM_BYTES:  # noqa: ASYNC110 - nobody tells when there is
            await asyncio.sleep(ASK_EVERY_S)

    def _is_full(self) -> bool:
        """No room, or the server says that it met the end of it; its log may lie on the same disk."""
        return self._refused() or self.free_bytes() < _FULL_BYTES

    def _refused(self) -> bool:
        size = _size(self._log_file)
        start, self._log_seen = min(self._log_seen, size), size
        if size == start:
            return False
        with self._log_file.open("rb") as log:
            log.seek(start)
            return REFUSED in log.read(size - start)

    def _say_if_low(self) -> None:
        free = self.free_bytes()
        if free < _LOW_BYTES and not self._low:
            self._report(f"the disk of {self._folder} has {free >> 20} MiB left; free some space, or the run will wait")
        self._low = free < _LOW_BYTES


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
