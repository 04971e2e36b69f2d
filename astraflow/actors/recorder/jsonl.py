"""A JSON-lines file that agrees with the log it is written from, whenever the process dies.

It knows no bus: a line comes with the cursor of the log entry that it stands for. Invariant: the position file names
a cursor and the number of bytes that hold all lines up to it; what lies behind those bytes was never promised and is
cut off at the next start. So a restart neither repeats nor skips a line.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from astraflow import clock
from astraflow.actors.base.diskfull import naming_full
from astraflow.bus import Cursor


class _Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file stands: its first `size_bytes` bytes hold every line up to `cursor`."""

    cursor: Cursor | None = None  # None: nothing read yet
    size_bytes: int = 0
    lines: int = 0
    up_s: float = 0.0  # seconds that writers of this file were up, over all restarts


@dataclass
class JsonLines:
    """An append-only file with its position next to it, in `<folder>/.positions/`.

    Blocking: call `open`, `commit` and `close` from a thread, one at a time.
    """

    path: Path
    position: _Position = field(default_factory=_Position)
    _descriptor: int = -1
    _torn: bool = False  # there may be bytes behind the position
    _opened_at: float = 0.0  # monotonic
    _up_before_s: float = 0.0

    @property
    def _position_path(self) -> Path:
        return self.path.parent / ".positions" / f"{self.path.name}.json"

    def open(self) -> bool:
        """Open at the stored position. Returns False if that is damaged, or the file shorter: then it begins anew."""
        with naming_full(self.path):
            self._position_path.parent.mkdir(parents=True, exist_ok=True)
            position, readable = _read_position(self._position_path)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            whole = readable and os.fstat(self._descriptor).st_size >= position.size_bytes
            self.position = position if whole else _Position(up_s=position.up_s)
            os.ftruncate(self._descriptor, self.position.size_bytes)
        self._opened_at, self._up_before_s = clock.monotonic(), position.up_s
        return whole

    def commit(self, lines: list[bytes], cursor: Cursor | None) -> None:
        """Append whole lines (with their newline) and make them and the cursor durable.

        Raises: DiskFullError if there is no room; then the same may be tried again, and nothing is written twice.
        """
        before = self.position
        data = b"".join(lines)
        with naming_full(self.path):
            if self._torn:  # by a try before this one
                os.ftruncate(self._descriptor, before.size_bytes)
            self._torn = True
            _write_all(self._descriptor, data)
            os.fsync(self._descriptor)
            position = _Position(
                cursor=cursor if cursor is not None else before.cursor,
                size_bytes=before.size_bytes + len(data),
                lines=before.lines + len(lines),
                up_s=self._up_before_s + clock.monotonic() - self._opened_at,
            )
            replace_durably(self._position_path, msgspec.json.encode(position))
            self._torn = False
        self.position = position

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def replace_durably(path: Path, data: bytes) -> None:
    """Write a small file so that a crash leaves either the old or the new content. Raises DiskFullError, OSError."""
    temporary = path.with_name(f"{path.name}.tmp")
    with naming_full(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_position(path: Path) -> tuple[_Position, bool]:
    """The stored position, or the beginning; and False if there is one that can't be read."""
    try:
        position = msgspec.json.decode(path.read_bytes(), type=_Position)
        return (position, True) if position.size_bytes >= 0 else (_Position(), False)
    except FileNotFoundError:
        return _Position(), True
    except msgspec.MsgspecError:
        return _Position(), False
