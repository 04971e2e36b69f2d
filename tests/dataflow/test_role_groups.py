"""Each role of a policy is compared with itself."""

import numpy as np
import pytest

from astraflow.config import TrainerSection
from astraflow.dataflow.advantages import AdvantageFunction, by_role, dr_grpo, grpo
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.messages import SampleBatch, Trajectory
from astraflow.messages.ids import GroupKey
from tests.dataflow.dataflow_world import World, config_of, turn


def strongest(scores: list[dict[str, float]], advantages: AdvantageFunction) -> list[float]:
    members = tuple(range(len(scores)))
    rewards = tuple(sum(each.values()) for each in scores)
    roles = () if all(list(each) == [""] for each in scores) else tuple(scores)
    group = BufferedGroup("i/s/0/0", GroupKey("s", 0, 0), 0, members, members, rewards, (0,), roles)
    strongest_G: list[float] = group.with_advantages(advantages).strongest_G.tolist()
    return strongest_G


def test_two_sides_of_a_zero_sum_game_worked_by_hand() -> None:
    scores = [{"left": 1.0, "right": -1.0}, {"left": -1.0, "right": 1.0}]
    assert by_role(scores, dr_grpo) == [{"left": 1.0, "right": -1.0}, {"left": -1.0, "right": 1.0}]
    assert strongest(scores, dr_grpo) == [1.0, -1.0]


def test_a_role_that_not_every_member_has_is_compared_among_those_that_have_it() -> None:
    scores = [{"small": 1.0}, {"small": 0.0, "large": 1.0}, {"small": 0.5, "large": -1.0}]
    assert by_role(scores, dr_grpo) == [{"small": 0.5}, {"small": -0.5, "large": 1.0}, {"small": 0.0, "large": -1.0}]
    assert strongest(scores, dr_grpo) == [0.5, 1.0, -1.0]


def test_one_role_is_what_the_function_gives() -> None:
    rewards = np.array([0.0, 0.3, 1.0])
    assert strongest([{"": reward} for reward in rewards.tolist()], grpo) == grpo(rewards).tolist()


@pytest.mark.parametrize("roles", [("left", "right"), ("", "")], ids=["roles", "none"])
def test_samples_of_a_policy_in_two_roles(roles: tuple[str, str]) -> None:
    """With roles, each side learns from its own result; without, their mean is 0 and the group teaches nothing."""
    world = World(config_of(trainers={"solver": TrainerSection(steps=1, batch_groups=1)}))
    world.plan()
    tasks = sorted(world.queue, key=lambda task: (task.group_id, task.member))[:2]
    for task, won in zip(tasks, (1.0, -1.0), strict=True):
        world.queue.remove(task)
        sides = [
            Trajectory(policy="solver", turns=(turn(0),), reward=reward, role=role)
            for role, reward in zip(roles, (won, -won), strict=True)
        ]
        world.answer(task, {"solver": won}, trajectories=tuple(sides))
    while world.read < len(world.episodes):
        world.read_one()
    batch = world.emit("solver")
    if not roles[0]:
        assert batch is None
        return
    assert isinstance(batch, SampleBatch)
    signs = [np.sign(sample.advantage) for sample in batch.samples]
    assert signs == [1.0, -1.0, -1.0, 1.0]
