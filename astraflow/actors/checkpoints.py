"""Trainer checkpoints: written to a temporary folder, fsynced, renamed; the newest whole one wins.

    <policy folder>/checkpoints/<batch number>/   learner files + trainer.json

The learner decides what it needs; this decides where and when it counts. Invariant: a folder under its final name is
complete, so a crash at any moment leaves the previous checkpoint usable.
"""

import os
import shutil
from pathlib import Path

import msgspec

from astraflow.bus import Cursor
from astraflow.errors import TrainingError
from astraflow.learners.base import Learner
from astraflow.messages import VersionStep

STATE_FILE = "trainer.json"


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trainer is; state and log position in one file, so that they can't disagree."""

    policy: str
    batch: int  # number of the last batch consumed
    step: int
    version: int
    cursor: Cursor | None  # behind that batch in the SAMPLES log; None = at its start
    trained_bytes: int = 0  # size of the trained log
    recent: tuple[VersionStep, ...] = ()
    exhausted: bool = False  # the last batch of a finite source was consumed


class Checkpoints:
    """The checkpoints of one policy on one disk."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def newest(self) -> tuple[Path, TrainerState] | None:
        """The newest whole checkpoint, or None. Raises TrainingError if its state can't be read."""
        folders = self._whole()
        return (folders[-1], _read_state(folders[-1])) if folders else None

    def oldest(self) -> TrainerState | None:
        """The state of the oldest checkpoint that is kept: batches behind it must stay in the log."""
        folders = self._whole()
        return _read_state(folders[0]) if folders else None

    def _whole(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        return sorted(item for item in self._folder.iterdir() if item.name.isdigit())

    def save(self, learner: Learner, state: TrainerState) -> Path:
        """Write a checkpoint durably. Blocking. Raises OSError when the disk is full; older ones stay."""
        self._folder.mkdir(parents=True, exist_ok=True)
        final = self._folder / f"{state.batch:08d}"
        temporary = self._folder / f".tmp-{state.batch:08d}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            learner.save(temporary)
            _write_durably(temporary / STATE_FILE, msgspec.json.encode(state))
            shutil.rmtree(final, ignore_errors=True)
            os.rename(temporary, final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        _sync_folder(self._folder)
        for old in self._whole()[: -self._keep]:
            shutil.rmtree(old)
        return final


def _read_state(folder: Path) -> TrainerState:
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=TrainerState)
    except (OSError, msgspec.MsgspecError) as exc:
        raise TrainingError(f"checkpoint {folder} can't be read: {exc}; delete it to use an older one") from exc


def _write_durably(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
