import hashlib
from pathlib import Path

import pytest

from astraflow.actors.trainer.trained_log import TrainedLog, read_trained_ids
from astraflow.errors import TrainingError
from astraflow.messages import Sample, SampleBatch, array_of


def batch(number: int, *task_ids: str) -> SampleBatch:
    samples = tuple(
        Sample(
            id=f"{task_id}#0",
            task_id=task_id,
            group_id="g",
            tokens=array_of([1, 2], "i4"),
            loss_mask=array_of([0, 1], "u1"),
            logprobs=array_of([0.0, -1.0], "f4"),
            versions=(),
            advantage=1.0,
            reward=1.0,
        )
        for task_id in task_ids
    )
    return SampleBatch(policy="p", number=number, group_ids=("g",), samples=samples, train_step=number - 1)


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path: Path) -> None:
    log = TrainedLog(tmp_path / "trained.jsonl", size_bytes=0, epoch=1)
    log.add(batch(1, "a", "b"), step=1, epoch=1)
    size = log.sync()
    log.add(batch(2, "c"), step=2, epoch=1)
    log.close()

    resumed = TrainedLog(tmp_path / "trained.jsonl", size_bytes=size, epoch=2)
    resumed.add(batch(2, "d"), step=2, epoch=2)

    count, digest = resumed.totals()
    assert read_trained_ids(tmp_path / "trained.jsonl") == ["a", "b", "d"]
    assert (count, digest) == (3, hashlib.sha256(b"a\nb\nd\n").hexdigest())
    resumed.close()


def test_the_digest_does_not_depend_on_the_order_of_training(tmp_path: Path) -> None:
    digests = []
    for name, order in (("x", ("a", "b")), ("y", ("b", "a"))):
        log = TrainedLog(tmp_path / name, size_bytes=0, epoch=1)
        log.add(batch(1, *order), step=1, epoch=1)
        digests.append(log.totals())
        log.close()
    assert digests[0] == digests[1]


def test_a_file_shorter_than_the_checkpoint_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trained.jsonl").write_bytes(b"{}\n")
    with pytest.raises(TrainingError, match="has 3 bytes, the checkpoint expects 10"):
        TrainedLog(tmp_path / "trained.jsonl", size_bytes=10, epoch=2)


def test_a_replaced_trainer_that_wakes_up_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trained.jsonl"
    old = TrainedLog(path, size_bytes=0, epoch=1)
    old.add(batch(1, "a"), step=1, epoch=1)
    size = old.sync()
    old.add(batch(2, "b"), step=2, epoch=1)
    new = TrainedLog(path, size_bytes=size, epoch=2)
    new.add(batch(2, "b"), step=2, epoch=2)
    new.close()

    old.add(batch(3, "c"), step=3, epoch=1)
    old.close()

    assert read_trained_ids(path) == ["a", "b"]
    assert [item.name for item in tmp_path.iterdir()] == ["trained.jsonl"]
