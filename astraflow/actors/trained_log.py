"""Which tasks were trained, in the surviving lineage: one JSON line per batch, cut back to the checkpoint on resume.

It does not decide what is trained. Invariant: after `open`, the file holds exactly the batches behind the checkpoint.
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

    def __init__(self, path: Path, *, size_bytes: int) -> None:
        """Open, and cut off what came after the checkpoint. Raises TrainingError if the file is shorter than that."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = open(path, "ab")  # noqa: SIM115 - lives as long as the trainer
        if self._file.tell() < size_bytes:
            raise TrainingError(
                f"{path} has {self._file.tell()} bytes, the checkpoint expects {size_bytes}; restore the file that "
                "belongs to the checkpoint, or start afresh with `astraflow up --fresh`"
            )
        self._file.truncate(size_bytes)

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


def read_trained_ids(path: Path) -> list[str]:
    """Every trained task id, in the order of training; an id that occurs twice was trained twice."""
    with open(path, "rb") as file:
        return [item for line in file for item in json.loads(line)["task_ids"]]
