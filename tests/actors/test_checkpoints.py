from pathlib import Path

import pytest

from astraflow.actors.checkpoints import STATE_FILE, Checkpoints, TrainerState
from astraflow.bus import Cursor
from astraflow.config import TrainerSection
from astraflow.errors import TrainingError
from astraflow.learners.toy import ToyLearner
from astraflow.models.resolve import resolve_model


def state(batch: int) -> TrainerState:
    cursor = Cursor(incarnation="i", sequence=batch, message_id=f"batch-{batch}")
    return TrainerState(policy="p", batch=batch, step=batch, version=batch, cursor=cursor)


def learner() -> ToyLearner:
    return ToyLearner(resolve_model("toy"), TrainerSection(steps=1, learner="toy"))


def test_the_newest_checkpoint_wins_and_old_ones_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.newest() is None
    for number in (1, 2, 10):
        checkpoints.save(learner(), state(number))

    found = checkpoints.newest()

    assert found is not None
    assert found[1] == state(10)
    assert sorted(item.name for item in (tmp_path / "checkpoints").iterdir()) == ["00000002", "00000010"]


def test_a_half_written_checkpoint_does_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(learner(), state(1))
    half = tmp_path / ".tmp-00000002"
    half.mkdir()
    (half / STATE_FILE).write_bytes(b"{")

    found = checkpoints.newest()

    assert found is not None
    assert found[1].batch == 1


def test_an_unreadable_state_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    folder = checkpoints.save(learner(), state(1))
    (folder / STATE_FILE).write_bytes(b"{")
    with pytest.raises(TrainingError, match="00000001"):
        checkpoints.newest()
