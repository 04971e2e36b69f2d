"""Learning rates by hand, what all schedules have in common, and a resume in the middle of one."""

from pathlib import Path

import pytest

from astraflow.config import CriticSection, TrainerSection
from astraflow.learners.schedule import scheduled_rate
from tests.learners.learner_cases import batch, learner, model_folder, section

KINDS = ["constant", "linear", "cosine"]


def rates(settings: TrainerSection, count: int) -> list[float]:
    return [scheduled_rate(settings, done) for done in range(count)]


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("cosine", [1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_rates_by_hand(kind: str, after: list[float]) -> None:
    settings = section(steps=6, warmup_steps=2, learning_rate=2.0, schedule=kind)
    assert rates(settings, 6) == pytest.approx([1.0, 2.0, *(2.0 * share for share in after)], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warm_up", [0, 1, 3, 7])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("alone", [0, 2])
def test_rates_rise_then_fall_and_never_reach_zero(kind: str, warm_up: int, steps: int, alone: int) -> None:
    critic = CriticSection(warmup_steps=alone) if alone else None
    settings = section(steps=steps, warmup_steps=warm_up, learning_rate=0.3, schedule=kind, critic=critic)
    found = rates(settings, max(steps, alone + warm_up) + 5)
    assert found[:alone] == [0.0] * alone
    taught = found[alone:]
    assert all(0 < rate <= 0.3 for rate in taught)
    peak = max(warm_up - 1, 0)
    assert taught[: peak + 1] == sorted(taught[: peak + 1])
    assert taught[peak] == pytest.approx(0.3)
    assert taught[peak:] == sorted(taught[peak:], reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_schedule_goes_on_where_it_was(tmp_path: Path, kind: str) -> None:
    folder, settings = model_folder(tmp_path / "model"), section(steps=4, warmup_steps=1, schedule=kind)
    whole = learner(folder, settings)
    expected = [whole.step(batch(i)).metrics["train.lr"] for i in range(4)]
    assert expected == pytest.approx(rates(settings, 4))
    first, second = learner(folder, settings), learner(folder, settings)
    found = [first.step(batch(i)).metrics["train.lr"] for i in range(2)]
    (tmp_path / "state").mkdir()
    first.save(tmp_path / "state")
    second.restore(tmp_path / "state")
    assert found + [second.step(batch(i)).metrics["train.lr"] for i in (2, 3)] == expected
