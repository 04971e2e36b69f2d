"""Trainer checkpoints: written to a temporary folder, fsynced, renamed; the newest whole one of the lineage wins.

    <policy folder>/checkpoints/<epoch>-<batch number>/   learner files + trainer.json
    <policy folder>/checkpoints/lineage.json              whose turn it is, and what it started from

The learner decides what it needs; this decides where and when it counts. Invariants: a folder under its final name is
complete, so a crash at any moment leaves the previous checkpoint usable; a trainer that was replaced while it was
writing (a frozen process, a shared folder) overwrites nothing and is not resumed from: names carry the lease epoch, and
only what `surviving` says counts. What a disk has damaged is set aside under another name, never removed.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from astraflow.actors.base.owned_key import check_epoch
from astraflow.bus import Cursor
from astraflow.errors import DamagedCheckpointError
from astraflow.learners.base import Learner
from astraflow.learners.durable import sync, write_durably
from astraflow.messages import VersionStep

STATE_FILE, LINEAGE_FILE = "trainer.json", "lineage.json"
_NAME = re.compile(r"(\d{6,})-(\d{8,})")


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trainer is; state and log position in one file, so that they can't disagree."""

    policy: str
    batch: int  # number of the last batch consumed
    step: int
    version: int
    cursor: Cursor | None  # behind that batch in the SAMPLES log; None = at its start
    trained_bytes: int = 0  # size of the trained log
    recent: tuple[VersionStep, ...] = ()
    exhausted: bool = False  # the last batch of a finite source was consumed


class CheckpointPlace(NamedTuple):
    """A checkpoint's name."""

    epoch: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.epoch:06d}-{self.batch:08d}"


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer that has the folder now. `base` None = it started from no checkpoint."""

    epoch: int
    base: CheckpointPlace | None


def surviving(places: Iterable[CheckpointPlace], lineage: Lineage | None) -> list[CheckpointPlace]:
    """The checkpoints that may be resumed from, oldest first: the newest trainer's own, its base, and what led to it.

    A checkpoint of an older epoch that is not behind the base was finished by a trainer that had been replaced. Without
    a lineage nobody has claimed the folder (somebody copied checkpoints there), and all of them count.
    """
    if lineage is None:
        return sorted(places)
    base = lineage.base
    return sorted(
        place
        for place in places
        if place.epoch == lineage.epoch or (base is not None and place <= base and place.batch <= base.batch)
    )


class Checkpoints:
    """The checkpoints of one policy on one disk, for the trainer that holds lease `epoch`."""

    def __init__(self, folder: Path, *, keep: int, epoch: int) -> None:
        self._folder = folder
        self._keep = keep
        self._epoch = epoch
        self.unremovable: dict[Path, str] = {}  # old checkpoints that are still there, and why

    def newest(self) -> tuple[Path, CheckpointState] | None:
        """The newest checkpoint that counts, or None. Raises DamagedCheckpointError if its state can't be read."""
        places = self._surviving()
        path = self._folder / places[-1].name if places else None
        return (path, _read_state(path)) if path is not None else None

    def set_aside(self, checkpoint: Path) -> Path:
        """Let a damaged checkpoint count no longer; where it is kept for whoever wants to look at it."""
        kept = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(kept, ignore_errors=True)
        os.rename(checkpoint, kept)
        sync(self._folder)
        return kept

    def oldest(self) -> CheckpointState | None:
        """The state of the oldest checkpoint that counts and can be read: batches behind it must stay in the log."""
        for place in self._surviving():
            with contextlib.suppress(DamagedCheckpointError):
                return _read_state(self._folder / place.name)
        return None

    def newest_epoch(self) -> int:
        """The highest epoch of a trainer that had the folder; 0 = none."""
        lineage = self._lineage()
        return max([lineage.epoch if lineage is not None else 0, *(place.epoch for place in self._whole())])

    def claim(self, base: Path | None) -> None:
        """Go on from `base` (None = from no checkpoint); from now on an older trainer's saves are refused.

        Raises: FencedError if a newer trainer has the folder.
        """
        self._check()
        self._folder.mkdir(parents=True, exist_ok=True)
        lineage = Lineage(epoch=self._epoch, base=_place(base.name) if base is not None else None)
        temporary = self._folder / f".tmp-{self._epoch:06d}-{LINEAGE_FILE}"
        write_durably(temporary, msgspec.json.encode(lineage))
        os.replace(temporary, self._folder / LINEAGE_FILE)
        sync(self._folder)
        for leftover in self._folder.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def save(self, learner: Learner, state: CheckpointState) -> Path:
        """Write a checkpoint durably. Blocking; `claim` comes first.

        Raises: FencedError if a newer trainer has the folder; OSError when the disk is full. Older ones stay.
        """
        self._check()
        name = CheckpointPlace(self._epoch, state.batch).name
        final, temporary = self._folder / name, self._folder / f".tmp-{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            learner.save(temporary)
            write_durably(temporary / STATE_FILE, msgspec.json.encode(state))
            self._check()
            shutil.rmtree(final, ignore_errors=True)
            os.rename(temporary, final)
        except OSError:
            self._check()  # a newer trainer has removed the temporary folder
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(self._folder)
        self._check()
        self._prune()
        return final

    def _prune(self) -> None:
        """Remove the old ones. One that can't be removed costs disk and nothing else: `unremovable` tells of it."""
        kept = self._surviving()[-self._keep :]
        for place in set(self._whole()) - set(kept):
            path = self._folder / place.name
            try:
                shutil.rmtree(path)
            except OSError as exc:
                self.unremovable[path] = exc.strerror or str(exc)
            else:
                self.unremovable.pop(path, None)

    def _check(self) -> None:
        lineage = self._lineage()
        if lineage is not None:
            check_epoch(str(self._folder), lineage.epoch, self._epoch)

    def _lineage(self) -> Lineage | None:
        """None if nobody has claimed the folder; also if the claim can't be read: names alone then tell the order."""
        path = self._folder / LINEAGE_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=Lineage)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def _surviving(self) -> list[CheckpointPlace]:
        return surviving(self._whole(), self._lineage())

    def _whole(self) -> list[CheckpointPlace]:
        if not self._folder.is_dir():
            return []
        return [place for item in self._folder.iterdir() if (place := _place(item.name))]


def _place(name: str) -> CheckpointPlace | None:
    match = _NAME.fullmatch(name)
    return CheckpointPlace(int(match[1]), int(match[2])) if match else None


def _read_state(folder: Path) -> CheckpointState:
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=CheckpointState)
    except (OSError, msgspec.MsgspecError) as exc:
        raise DamagedCheckpointError(f"checkpoint {folder} can't be read: {exc}", checkpoint=folder) from exc
