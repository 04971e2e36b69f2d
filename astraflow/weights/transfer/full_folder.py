"""Full versions as files of one folder, which may be shared between machines. Blocking; no network, no manifest.

    <epoch>-<version>-<digest of the tensors' digests>.full

Invariant: a file under its final name is whole and on the disk; a trainer never removes what a later one wrote.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path

from astraflow.learners.durable import sync, write_durably

_NAME = re.compile(r"(\d{6,})-\d{8,}-[0-9a-f]{64}\.full")
_LEFTOVER = re.compile(r"\.tmp-(\d{6,})-.*")


def file_name(*, epoch: int, version: int, digests: Iterable[str]) -> str:
    """The name of a full with these tensor digests."""
    content = hashlib.sha256("".join(digests).encode()).hexdigest()
    return f"{epoch:06d}-{version:08d}-{content}.full"


def is_file_name(name: str) -> bool:
    """Whether `file_name` can have made it."""
    return _NAME.fullmatch(name) is not None


class FullFolder:
    """The files of one policy."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, data: memoryview) -> Path:
        """Durably, then under its name. Raises OSError if it can't be written; nothing is left behind then."""
        self.path.mkdir(parents=True, exist_ok=True)
        final = self.path / name
        temporary = self.path / f".tmp-{name}-{secrets.token_hex(4)}"
        try:
            write_durably(temporary, data)
            os.replace(temporary, final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(self.path)
        return final

    def purge(self, keep: Collection[str], *, epoch: int) -> None:
        """Remove the files, and leftovers, of this and older epochs, except `keep`."""
        for path in list(self.path.iterdir()) if self.path.is_dir() else []:
            match = _NAME.fullmatch(path.name) or _LEFTOVER.fullmatch(path.name)
            if match and int(match[1]) <= epoch and path.name not in keep:
                path.unlink(missing_ok=True)
