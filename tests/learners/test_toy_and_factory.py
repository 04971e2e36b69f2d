"""The toy learner counts what it is given; the factory stays light until it builds."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from astraflow.config import CriticSection, TrainerSection
from astraflow.errors import ConfigError, WeightsError
from astraflow.learners.factory import build_learner
from astraflow.learners.torch_learner import TorchLearner
from astraflow.learners.toy import ToyLearner
from astraflow.messages.metric_names import known
from tests.learners.learner_cases import model_folder, sample, section


def weights(one: ToyLearner) -> np.ndarray:
    return np.frombuffer(one.export()["toy.weight"].data, "<f4")


def toy(folder: Path) -> ToyLearner:
    return ToyLearner(folder, TrainerSection(steps=1, learner="toy"))


def test_weights_count_trained_samples_whatever_the_order(tmp_path: Path) -> None:
    samples = [sample([1], [2], member=m) for m in range(200)]
    one, other = toy(tmp_path), toy(tmp_path)
    one.step(samples)
    other.step(samples[120:])
    other.step(samples[:120][::-1])
    assert weights(one).sum() == 200
    assert (weights(one) == weights(other)).all()
    other.step(samples[:1])
    assert weights(other).sum() == 201


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "no_tokens"),
        ([sample([1], [])], "no_tokens"),
        ([sample([1], [2]), sample([1], [2], advantage=math.nan)], "nan_loss"),
        ([sample([1], [2], behaviour=[math.inf])], "nan_loss"),
    ],
)
def test_toy_skips_what_the_torch_learner_skips(tmp_path: Path, samples: list, reason: str) -> None:
    torch_learner = TorchLearner(model_folder(tmp_path), section(), seed=0, threads=1)
    one = toy(tmp_path / "toy")
    for learner in (one, torch_learner):
        report = learner.step(samples)
        assert (report.trained, report.skip_reason) == (False, reason)
    assert weights(one).sum() == 0


def test_every_number_that_a_step_reports_is_in_the_table(tmp_path: Path) -> None:
    torch_learner = TorchLearner(
        model_folder(tmp_path), section(critic=CriticSection(), advantage="gae"), seed=0, threads=1
    )
    for learner in (toy(tmp_path / "toy"), torch_learner):
        report = learner.step([sample([1], [2, 3]), sample([1], [4], member=1, advantage=-1.0)])
        assert report.metrics
        assert [name for name in report.metrics if not known(name)] == []


def test_toy_state_is_restored_exactly(tmp_path: Path) -> None:
    one, other = toy(tmp_path), toy(tmp_path)
    one.step([sample([1], [2], member=m) for m in range(9)])
    one.save(tmp_path)
    other.restore(tmp_path)
    assert (weights(one) == weights(other)).all()
    (tmp_path / "toy.json").write_bytes(b'{"steps":')
    with pytest.raises(WeightsError):
        other.restore(tmp_path)
    with pytest.raises(WeightsError):
        other.restore(tmp_path / "missing")


def test_toy_goes_on_from_the_weights_of_its_folder(tmp_path: Path) -> None:
    one = toy(tmp_path)
    one.step([sample([1], [2])])
    one.export_model(tmp_path)
    again = toy(tmp_path)
    assert (weights(again) == weights(one)).all()
    assert again.model_files() == one.model_files()
    with pytest.raises(ConfigError, match=r"toy\.weight"):
        toy(model_folder(tmp_path / "llama"))


def test_exported_toy_bytes_stay(tmp_path: Path) -> None:
    one = toy(tmp_path)
    before = weights(one)
    one.step([sample([1], [2])])
    assert before.sum() == 0
    assert weights(one).sum() == 1


def test_factory_builds_what_the_run_file_names(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    assert isinstance(build_learner(section(), folder, seed=0, threads=1), TorchLearner)
    assert isinstance(build_learner(section(learner="toy"), tmp_path / "toy", seed=0, threads=1), ToyLearner)


def test_toy_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from astraflow.config import CriticSection, TrainerSection;"
        "from astraflow.learners.factory import build_learner;"
        f"build_learner(TrainerSection(steps=1, learner='toy'), Path({str(tmp_path)!r}), seed=0, threads=1).step([]);"
        "assert not {'torch', 'transformers'} & sys.modules.keys(), 'heavy imports'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
