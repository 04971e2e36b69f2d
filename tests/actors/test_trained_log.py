import hashlib
from pathlib import Path

import pytest

from astraflow.actors.trainer.trained_log import TrainedLog, bytes_up_to, read_trained_ids
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


def test_a_task_with_several_samples_is_one_task(tmp_path: Path) -> None:
    log = TrainedLog(tmp_path / "trained.jsonl", size_bytes=0, epoch=1)
    log.add(batch(1, "a", "b", "a"), step=1, epoch=1)
    log.add(batch(2, "a"), step=2, epoch=1)  # that is twice
    assert log.totals()[0] == 3
    assert read_trained_ids(tmp_path / "trained.jsonl") == ["a", "b", "a"]
    log.close()


def two_batches(path: Path) -> tuple[bytes, int]:
    """A log of batch 1 with task "a" and batch 2 with task "b": its bytes, and where the second begins."""
    log = TrainedLog(path, size_bytes=0, epoch=1)
    log.add(batch(1, "a"), step=1, epoch=1)
    first = log.sync()
    log.add(batch(2, "b"), step=2, epoch=1)
    log.sync()
    log.close()
    return path.read_bytes(), first


@pytest.mark.parametrize("cut", [0, 5, -1])
def test_a_file_shorter_than_the_checkpoint_says_is_kept_and_told_of(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "trained.jsonl"
    data, first = two_batches(path)
    path.write_bytes(data[: first + cut] if cut >= 0 else b"")

    log = TrainedLog(path, size_bytes=len(data), epoch=2)

    assert f"of the {len(data)} that the checkpoint expects" in log.damage
    assert read_trained_ids(path) == (["a"] if cut >= 0 else [])
    assert (tmp_path / "damaged-trained.jsonl-2").read_bytes() == (data[: first + cut] if cut >= 0 else b"")
    log.close()


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "trained.jsonl"
    data, first = two_batches(path)
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        log = TrainedLog(path, size_bytes=len(data), epoch=2)
        log.close()
        assert log.damage, place
        assert read_trained_ids(path) in (["a"], ["b"], []), place
        assert bytes_up_to(path, 1) <= first


def test_lines_of_before_there_were_digests_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "trained.jsonl"
    path.write_bytes(b'{"batch":1,"step":1,"epoch":1,"task_ids":["a"]}\n')
    log = TrainedLog(path, size_bytes=path.stat().st_size, epoch=2)
    log.close()
    assert (log.damage, read_trained_ids(path)) == ("", ["a"])


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
