"""Which tasks were trained, in the surviving lineage: one JSON line per batch, cut back to the checkpoint on resume.

It does not decide what is trained, and no decision reads it: it is evidence. Invariants: after opening, the file holds
exactly the batches behind the checkpoint whose lines are whole (each carries a digest of itself); it is a new file
under the old name, so a trainer that was replaced and wakes up writes to one that nobody sees.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from astraflow.messages import SampleBatch

_FIELDS = {"batch", "step", "epoch", "task_ids"}


class TrainedLog:
    """Append-only file of trained batches."""

    def __init__(self, path: Path, *, size_bytes: int, epoch: int) -> None:
        """Begin anew with what the checkpoint knows. Raises OSError.

        A file that lacks lines, or has damaged ones, is kept under another name, and `damage` says so.

        Args:
            size_bytes: of the old file, behind the checkpoint's last batch.
            epoch: the trainer's lease epoch.
        """
        self._path = path
        self.damage = ""  # a sentence, if the old file was not what the checkpoint knows
        path.parent.mkdir(parents=True, exist_ok=True)
        known = _head(path, size_bytes)
        whole = b"".join(line for line in known.splitlines(keepends=True) if _is_whole(line))
        if len(whole) < size_bytes:
            kept = path.with_name(f"damaged-{path.name}-{epoch}")
            if path.exists():
                shutil.copyfile(path, kept)
            self.damage = (
                f"{path} has {len(whole)} good bytes of the {size_bytes} that the checkpoint expects; training goes "
                f"on, but it no longer tells every task that was trained; the old file is kept as {kept}"
            )
        known = whole
        temporary = path.with_name(f".{path.name}-{epoch}")
        self._file: BinaryIO = open(temporary, "wb")  # noqa: SIM115 - lives as long as the trainer
        self._file.write(known)
        self.sync()
        os.replace(temporary, path)

    def add(self, batch: SampleBatch, *, step: int, epoch: int) -> None:
        """Note a trained batch."""
        line = {
            "batch": batch.number,
            "step": step,
            "epoch": epoch,
            "task_ids": list(dict.fromkeys(sample.task_id for sample in batch.samples)),  # one may have several samples
        }
        self._file.write(_encode(line | {"digest": _digest(line)}))

    def sync(self) -> int:
        """Make it durable; returns the size in bytes that a checkpoint must remember."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    def totals(self) -> tuple[int, str]:
        """Number of trained tasks, and sha256 hex over their sorted ids, one a line."""
        self._file.flush()
        ids = read_trained_ids(self._path)
        return len(ids), hashlib.sha256("".join(f"{item}\n" for item in sorted(ids)).encode()).hexdigest()


def bytes_up_to(path: Path, batch: int) -> int:
    """Size of the part of a trained log that holds batches up to `batch`; 0 if there is no file."""
    if not path.exists():
        return 0
    size = 0
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n") or (_is_whole(line) and json.loads(line)["batch"] > batch):
                break
            size += len(line)
    return size


def _encode(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _digest(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encode(line)).hexdigest()[:16]


def _is_whole(data: bytes) -> bool:
    """Whether a line says what it said when it was written. Lines of before there were digests need only be JSON."""
    try:
        line = json.loads(data)
        return data.endswith(b"\n") and line.pop("digest", None) in (None, _digest(line)) and set(line) == _FIELDS
    except (ValueError, AttributeError):
        return False


def _head(path: Path, size_bytes: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(size_bytes)
    except FileNotFoundError:
        return b""


def read_trained_ids(path: Path) -> list[str]:
    """Every trained task id, in the order of training; an id that occurs twice was trained twice."""
    with open(path, "rb") as file:
        return [item for line in file for item in json.loads(line)["task_ids"]]
