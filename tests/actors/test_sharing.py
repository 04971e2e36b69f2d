"""Slots of a pool between training and evaluation."""

from astraflow.actors.rollout.sharing import Sharing


def test_evaluation_has_its_share_while_training_tasks_wait_and_all_when_none_does() -> None:
    sharing = Sharing(8, 0.25)
    sharing.add_training_queue()
    sharing.add_training_queue()
    assert sharing.room(evaluation=True) == 2
    assert sharing.room(evaluation=False) == 8
    sharing.take(2, evaluation=True)
    assert sharing.room(evaluation=True) == 0, "its share is used up"
    assert sharing.room(evaluation=False) == 6, "training isn't held to the rest"
    sharing.training_queue_is(empty=True)
    assert sharing.room(evaluation=True) == 0, "the other queue may have tasks"
    sharing.training_queue_is(empty=True)
    assert sharing.room(evaluation=True) == 6
    sharing.take(6, evaluation=True)
    sharing.training_queue_is(empty=False)
    sharing.take(-3, evaluation=True)
    assert (sharing.room(evaluation=True), sharing.room(evaluation=False)) == (0, 3), "slots go back to training"


def test_a_share_above_0_is_at_least_one_slot_and_0_is_none() -> None:
    for share, expected in ((0.01, 1), (0.0, 0)):
        sharing = Sharing(4, share)
        sharing.add_training_queue()
        assert sharing.room(evaluation=True) == expected


def test_a_pool_without_training_queues_evaluates_with_all_it_has() -> None:
    assert Sharing(4, 0.0).room(evaluation=True) == 4
