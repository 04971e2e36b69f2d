"""Which policies' credit a group needs."""

import pytest

from astraflow.config import DataflowSection, TrainerSection
from tests.dataflow.dataflow_world import World, config_of, episode_of


def issued_while_one_is_dead(meter: str, *, dead_steps: int, dead_trains: int) -> int:
    """Groups issued in eight rounds in which `fast` trains whatever it gets and `dead` only its first batches."""
    trainers = {
        name: TrainerSection(steps=steps, batch_groups=1, filters=(), max_staleness=0, prefetch=0)
        for name, steps in (("dead", dead_steps), ("fast", 5))
    }
    dataflow = DataflowSection(task_deadline_s=100.0, meter="tightest" if meter == "tightest" else "any")
    world = World(config_of(trainers=trainers, dataflow=dataflow))
    for turn in range(8):
        world.act()
        while (task := world.pull()) is not None:
            versions = {name: trainer.version for name, trainer in world.trainers.items()}
            rewards = {name: float(task.member) for name in trainers}
            world.episodes.append(episode_of(task, rewards, versions=versions))
        while world.read < len(world.episodes):
            world.read_one()
        world.act()
        world.train("fast")
        if turn < dead_trains:
            world.train("dead")
    assert bool(world.core.ledger("dead").get("surplus", 0)) is (meter == "any")
    return world.core.ledger("fast")["issued"] // 2


@pytest.mark.parametrize(("meter", "groups"), [("any", 5), ("tightest", 2)])
def test_a_dead_policy_holds_the_others_up_only_if_that_is_asked_for(meter: str, groups: int) -> None:
    assert issued_while_one_is_dead(meter, dead_steps=5, dead_trains=1) == groups


def test_a_policy_that_needs_nothing_more_holds_nobody_up() -> None:
    assert issued_while_one_is_dead("tightest", dead_steps=1, dead_trains=1) == 5
