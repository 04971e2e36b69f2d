"""What TensorBoard itself reads of a run: every point once, a curve per policy and lineage."""

import math
from pathlib import Path

import msgspec
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from astraflow.actors.recorder.tensorboard import TensorBoardFiles
from astraflow.messages import Metrics
from astraflow.messages.metric_names import TRAIN_LOSS, TRAIN_REWARD_MEAN
from astraflow.view.jsonl_lines import encode_line
from tests.actors.run_in_progress import CREATED_AT, evaluation, train


def points(folder: Path, line: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard" / line).glob("*tfevents*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                found.setdefault(value.tag, []).append((event.step, number))
    return found


def written(file: Path, *messages: Metrics, end: bytes = b"") -> None:
    with file.open("ab") as out:
        out.write(b"".join(map(encode_line, messages)) + end)


def test_tensorboard_reads_each_point_once_however_often_the_recorder_starts(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    written(file, train(1), train(2), evaluation(2, 0.5), end=b"\xff damaged\n")
    copy = TensorBoardFiles(file, created_at=CREATED_AT)
    copy.catch_up()
    written(file, train(3), end=b'{"half": ')
    copy.catch_up()
    copy.catch_up()
    again = TensorBoardFiles(file, created_at=CREATED_AT)
    again.catch_up()

    reward = "train/" + TRAIN_REWARD_MEAN.partition(".")[2]
    lineage = train(1).lineage
    trained = points(tmp_path, f"solver/lineage-{lineage}" if lineage else "solver")
    assert [step for step, _ in trained[reward]] == [1, 2, 3]
    assert points(tmp_path, "solver")["eval/held-out.correct"] == [(2, pytest.approx(0.5))]


def test_a_step_done_twice_is_a_line_of_its_own_and_nan_stays_nan(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    broken = msgspec.structs.replace(train(1, lineage=2), values={TRAIN_LOSS: math.nan})
    written(file, train(1, lineage=1), broken, Metrics(kind="rollout", at=CREATED_AT + 7, values={"rollout.busy": 3.0}))
    TensorBoardFiles(file, created_at=CREATED_AT).catch_up()
    (loss,) = points(tmp_path, "solver/lineage-2")["train/loss"]
    assert loss[0] == 1
    assert math.isnan(loss[1])
    assert points(tmp_path, "over-time/rollout")["rollout/busy"] == [(7, 3.0)]


def test_a_folder_that_cant_be_written_ends_the_copy_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    written(file, train(1))
    (tmp_path / "tensorboard").write_text("in the way")
    copy = TensorBoardFiles(file, created_at=CREATED_AT)
    copy.catch_up()
    copy.catch_up()
    assert (tmp_path / "tensorboard").read_text() == "in the way"
