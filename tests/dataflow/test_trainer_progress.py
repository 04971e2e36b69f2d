"""What is known of a trainer."""

from astraflow.dataflow.trainer_progress import TrainerView
from tests.dataflow.dataflow_world import Trainer


def test_a_batch_is_wanted_when_it_is_near_and_has_a_step_left() -> None:
    view, trainer = TrainerView(steps=3), Trainer("solver", steps=3)
    assert [view.wants(number, prefetch=1) for number in (1, 2, 3)] == [True, True, False]
    trainer.consumed, trainer.step = 3, 2  # one batch was skipped
    view.learn(trainer.progress())
    assert view.train_step(4) == 2
    assert [view.wants(number, prefetch=2) for number in (4, 5, 6)] == [True, False, False]
    assert view.remaining_steps == 1


def test_a_newer_epoch_may_go_back_and_an_older_one_is_ignored() -> None:
    view, trainer = TrainerView(steps=9), Trainer("solver", steps=9)
    trainer.consumed = trainer.step = 4
    view.learn(trainer.progress())
    old = trainer.progress()
    trainer.consumed, trainer.step, trainer.epoch = 2, 2, 2
    view.learn(trainer.progress())
    assert (view.consumed, view.step) == (2, 2)
    view.learn(old)
    assert (view.consumed, view.step) == (2, 2)


def test_what_a_snapshot_says_is_not_current() -> None:
    view = TrainerView(steps=9)
    assert view.current
    restored = TrainerView(steps=9, state=view.state())
    assert not restored.current
    restored.learn(Trainer("solver", steps=9).progress())
    assert restored.current
