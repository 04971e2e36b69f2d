"""A copy of dataflow's newest snapshot in the run folder, for when the bus has lost its own.

It doesn't know what is in the snapshot, and isn't the truth: a copy that is older than the logs is refused by whoever
verifies its cursors. Invariant: what `read` returns was written whole by this run, or there is nothing.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from astraflow.learners.durable import sync, write_durably


class _Copy(msgspec.Struct, frozen=True, kw_only=True):
    incarnation: str
    epoch: int
    digest: str  # sha256 hex of `data`
    data: bytes


class CopiedSnapshot(NamedTuple):
    """What was stored under which lease epoch."""

    data: bytes
    epoch: int


class SnapshotCopy:
    """The one copy that a run folder has."""

    def __init__(self, run_folder: Path, *, incarnation: str) -> None:
        self.path = run_folder / "dataflow" / "newest.msgpack"
        self._incarnation = incarnation

    def write(self, data: bytes, *, epoch: int) -> None:
        """Replace it. Blocking. Raises OSError when the disk is full."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(data).hexdigest()
        copy = _Copy(incarnation=self._incarnation, epoch=epoch, digest=digest, data=data)
        temporary = self.path.with_name(f".tmp-{epoch}-{self.path.name}")
        write_durably(temporary, msgspec.msgpack.encode(copy))
        os.replace(temporary, self.path)
        for left in self.path.parent.glob(f".tmp-*-{self.path.name}"):  # of a dataflow that was killed while it wrote
            if int(left.name.split("-")[1]) < epoch:
                left.unlink(missing_ok=True)
        sync(self.path.parent)

    def read(self) -> CopiedSnapshot | None:
        """None if there is none of this run, or it is damaged. Blocking."""
        try:
            copy = msgspec.msgpack.decode(self.path.read_bytes(), type=_Copy)
        except (OSError, msgspec.MsgspecError):
            return None
        whole = hashlib.sha256(copy.data).hexdigest() == copy.digest
        return CopiedSnapshot(copy.data, copy.epoch) if whole and copy.incarnation == self._incarnation else None
