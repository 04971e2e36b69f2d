"""Which tasks were trained, in the surviving lineage: one JSON line per batch, cut back to the checkpoint on resume.

It does not decide what is trained. Invariants: after opening, the file holds exactly the batches behind the checkpoint;
it is a new file under the old name, so a trainer that was replaced and wakes up writes to one that nobody sees.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

from astraflow.errors import TrainingError
from astraflow.messages import SampleBatch


class TrainedLog:
    """Append-only file of trained batches."""

    def __init__(self, path: Path, *, size_bytes: int, epoch: int) -> None:
        """Begin anew with what the checkpoint knows. Raises TrainingError if the old file is shorter than that.

        Args:
            size_bytes: of the old file, behind the checkpoint's last batch.
            epoch: the trainer's lease epoch.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        known = _head(path, size_bytes)
        if len(known) < size_bytes:
            raise TrainingError(
                f"{path} has {len(known)} bytes, the checkpoint expects {size_bytes}; restore the file that "
                "belongs to the checkpoint, or start afresh with `astraflow up --fresh`"
            )
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
            "task_ids": [sample.task_id for sample in batch.samples],
        }
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def sync(self) -> int:
        """Make it durable; returns the size in bytes that a checkpoint must remember."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()

    def totals(self) -> tuple[int, str]:
        """Number of trained samples' tasks, and sha256 hex over their sorted ids, one a line."""
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
            if not line.endswith(b"\n") or json.loads(line)["batch"] > batch:
                break
            size += len(line)
    return size


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
