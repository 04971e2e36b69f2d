"""A disk without room: one error with the path, whatever library met it, and the pause before the next try."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from astraflow.errors import DiskFullError

ROOM_EVERY_S = 1.0  # what could not be written is tried again after this
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_WORDS = ("no space left", "disk quota exceeded", "file too large")


@contextlib.contextmanager
def naming_full(path: Path) -> Iterator[None]:
    """Turns "no room" into DiskFullError with the path: the operating system's error, or one that quotes it."""
    try:
        yield
    except DiskFullError:
        raise
    except Exception as exc:
        why = exc.strerror if isinstance(exc, OSError) and exc.errno in _FULL else _quoted(str(exc))
        if not why:
            raise
        raise DiskFullError(
            f"no room for {path}: {why}; free some space there: the run goes on, and if it has ended, "
            "`astraflow up` continues it"
        ) from exc


def _quoted(text: str) -> str:
    """What a library that is not Python says of a full disk; "" if it says something else."""
    return next((words for words in _WORDS if words in text.lower()), "")
