import shutil
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.trainer.checkpoints import (
    LINEAGE_FILE,
    STATE_FILE,
    Checkpoints,
    CheckpointState,
    Lineage,
    surviving,
)
from astraflow.actors.trainer.checkpoints import (
    CheckpointPlace as At,
)
from astraflow.bus import Cursor
from astraflow.config import TrainerSection
from astraflow.errors import DamagedCheckpointError, FencedError
from astraflow.learners.toy import ToyLearner
from astraflow.models.resolve import resolve_model


def state(batch: int) -> CheckpointState:
    cursor = Cursor(incarnation="i", sequence=batch, message_id=f"batch-{batch}")
    return CheckpointState(policy="p", batch=batch, step=batch, version=batch, cursor=cursor)


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir() if item.is_dir())


def learner() -> ToyLearner:
    return ToyLearner(resolve_model("toy"), TrainerSection(steps=1, learner="toy"))


def test_the_newest_checkpoint_wins_and_old_ones_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2, epoch=1)
    assert checkpoints.newest() is None
    checkpoints.claim(None)
    for number in (1, 2, 10):
        checkpoints.save(learner(), state(number))

    found = checkpoints.newest()

    assert found is not None
    assert found[1] == state(10)
    assert names(tmp_path / "checkpoints") == ["000001-00000002", "000001-00000010"]


def test_a_half_written_checkpoint_does_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, epoch=1)
    checkpoints.claim(None)
    checkpoints.save(learner(), state(1))
    half = tmp_path / ".tmp-000001-00000002"
    half.mkdir()
    (half / STATE_FILE).write_bytes(b"{")

    found = checkpoints.newest()

    assert found is not None
    assert found[1].batch == 1


def test_an_unreadable_state_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, epoch=1)
    checkpoints.claim(None)
    folder = checkpoints.save(learner(), state(1))
    (folder / STATE_FILE).write_bytes(b"{")
    with pytest.raises(DamagedCheckpointError, match="000001-00000001") as damage:
        checkpoints.newest()
    assert damage.value.checkpoint == folder


def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, epoch=1)
    checkpoints.claim(None)
    checkpoints.save(learner(), state(1))
    newest = checkpoints.save(learner(), state(2))
    (newest / STATE_FILE).write_bytes(b"{")

    kept = checkpoints.set_aside(newest)

    found = checkpoints.newest()
    assert found is not None
    assert found[1].batch == 1
    assert (kept / STATE_FILE).read_bytes() == b"{"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"epoch": "x"}'])
def test_without_a_readable_lineage_names_tell_the_order(tmp_path: Path, damage: bytes) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, epoch=1)
    checkpoints.claim(None)
    checkpoints.save(learner(), state(3))
    (tmp_path / LINEAGE_FILE).write_bytes(damage)
    later = Checkpoints(tmp_path, keep=2, epoch=2)
    found = later.newest()
    assert found is not None
    assert found[1].batch == 3
    later.claim(found[0])
    assert later.newest() == found


def test_an_old_checkpoint_that_cant_be_removed_is_told_of_and_the_new_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, epoch=1)
    checkpoints.claim(None)
    old = checkpoints.save(learner(), state(1))
    remove = shutil.rmtree

    def refuse(path: Path, **options: bool) -> None:
        if path == old:
            raise PermissionError(1, "Operation not permitted")
        remove(path, **options)

    monkeypatch.setattr("shutil.rmtree", refuse)
    checkpoints.save(learner(), state(2))
    assert checkpoints.unremovable == {old: "Operation not permitted"}
    found = checkpoints.newest()
    assert found is not None
    assert found[1].batch == 2


def trainer(folder: Path, epoch: int, *, keep: int = 2) -> Checkpoints:
    """A trainer's checkpoints after its start: it goes on from the newest one that counts."""
    checkpoints = Checkpoints(folder, keep=keep, epoch=epoch)
    found = checkpoints.newest()
    checkpoints.claim(found[0] if found else None)
    return checkpoints


def test_a_replaced_trainer_saves_nothing_more(tmp_path: Path) -> None:
    old = trainer(tmp_path, 1)
    old.save(learner(), state(3))
    new = trainer(tmp_path, 2)

    with pytest.raises(FencedError, match="lease epoch 2, this process has 1"):
        old.save(learner(), state(6))
    with pytest.raises(FencedError):
        old.claim(None)

    new.save(learner(), state(4))
    assert names(tmp_path) == ["000001-00000003", "000002-00000004"]


def test_a_trainer_that_was_frozen_while_it_saved_leaves_nothing_that_counts(tmp_path: Path) -> None:
    old = trainer(tmp_path, 1)
    old.save(learner(), state(3))

    class Frozen(ToyLearner):
        """Writes its files while another trainer takes over and saves the same batch."""

        def save(self, folder: Path) -> None:
            super().save(folder)
            trainer(tmp_path, 2).save(learner(), state(6))

    with pytest.raises(FencedError):
        old.save(Frozen(resolve_model("toy"), TrainerSection(steps=1, learner="toy")), state(6))

    assert names(tmp_path) == ["000001-00000003", "000002-00000006"]
    found = Checkpoints(tmp_path, keep=2, epoch=3).newest()
    assert found is not None
    assert found[0].name == "000002-00000006"


def test_what_counts_is_the_newest_trainers_own_its_base_and_what_led_to_it() -> None:
    places = [
        At(1, 3),
        At(1, 6),
        At(1, 9),
        At(2, 8),
        At(3, 7),
    ]
    assert surviving(places, None) == sorted(places)
    assert surviving(places, Lineage(epoch=1, base=None)) == [
        At(1, 3),
        At(1, 6),
        At(1, 9),
    ]
    # epoch 2 went on from 1-6; 1-9 was finished later by the trainer that it had replaced
    assert surviving(places[:4], Lineage(epoch=2, base=At(1, 6))) == [
        At(1, 3),
        At(1, 6),
        At(2, 8),
    ]
    # epoch 3 found no checkpoint on its disk that it could use
    assert surviving(places, Lineage(epoch=3, base=None)) == [At(3, 7)]


def test_a_late_checkpoint_of_a_replaced_trainer_is_not_resumed_and_goes(tmp_path: Path) -> None:
    trainer(tmp_path, 1).save(learner(), state(3))
    new = trainer(tmp_path, 2)
    late = tmp_path / "000001-00000009"  # renamed between the replaced trainer's last look and its end
    late.mkdir()

    found = Checkpoints(tmp_path, keep=2, epoch=3).newest()
    assert found is not None
    assert found[0].name == "000001-00000003"

    new.save(learner(), state(4))
    assert not late.exists()


def test_an_older_checkpoint_is_used_when_the_newest_is_deleted(tmp_path: Path) -> None:
    checkpoints = trainer(tmp_path, 1)
    for number in (3, 6):
        newest = checkpoints.save(learner(), state(number))
    trainer(tmp_path, 2)
    shutil.rmtree(newest)
    found = Checkpoints(tmp_path, keep=2, epoch=3).newest()
    assert found is not None
    assert found[1] == state(3)


class Overtaken(ToyLearner):
    """While it is being saved, another trainer takes the folder."""

    def save(self, folder: Path) -> None:
        super().save(folder)
        (folder.parent / LINEAGE_FILE).write_bytes(msgspec.json.encode(Lineage(epoch=2, base=None)))


def test_who_is_fenced_while_it_writes_leaves_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, epoch=1)
    checkpoints.claim(None)
    with pytest.raises(FencedError):
        checkpoints.save(Overtaken(resolve_model("toy"), TrainerSection(steps=1, learner="toy")), state(1))
    assert not (tmp_path / "000001-00000001").exists()
