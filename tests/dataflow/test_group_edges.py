"""Groups as no one wants them: every one trains by the rule, or says why not, and is counted."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow.config import DataflowSection, SourceSection, TrainerSection
from astraflow.dataflow.advantages import grpo
from astraflow.dataflow.groups import Arrival
from astraflow.dataflow.samples import NO_PENALTY, Overlong, judge_episode
from astraflow.messages import Episode, Reason, Task, Trajectory, array_of
from tests.dataflow.dataflow_world import World, config_of, episode_of, imbalance, turn

GROUP = 8


def world_of(*, min_group_size: int = 1, max_attempts: int = 1, **trainer: Any) -> World:
    section = TrainerSection(**{"steps": 4, "batch_groups": 3, "filters": (), "max_staleness": 3} | trainer)
    world = World(
        config_of(
            trainers={"solver": section},
            sources={"train": SourceSection(env="math", group_size=GROUP)},
            dataflow=DataflowSection(min_group_size=min_group_size, max_attempts=max_attempts),
        )
    )
    world.plan()
    return world


def tasks_of(world: World, index: int) -> list[Task]:
    found = [task for task in world.queue if task.group_id == f"inc/train/0/{index}"]
    return sorted(found, key=lambda task: task.member)


def tell(world: World, episode: Episode) -> Arrival:
    world.episodes.append(episode)
    world.read += 1
    return world.core.on_episode(episode, world.read).arrival


def close(world: World, index: int, rewards: Sequence[Any], *, failed: Reason = Reason.ENV, **changes: Any) -> None:
    """Answer a group; members beyond `rewards` fail."""
    for task in tasks_of(world, index):
        if task.member < len(rewards):
            answered = episode_of(task, {"solver": 0.0})
            rewarded = (msgspec.structs.replace(answered.trajectories[0], reward=rewards[task.member]),)
            tell(world, msgspec.structs.replace(answered, trajectories=rewarded, **changes))
        else:
            tell(world, episode_of(task, {}, reason=failed))


def balanced(world: World) -> dict[str, int]:
    ledger = world.core.ledger("solver")
    assert imbalance(ledger) == 0
    return ledger


def test_groups_of_8_5_and_1_train_in_one_batch_each_by_its_own_statistics() -> None:
    world = world_of()
    rewards = [[1.0, 0, 0, 1, 1, 0, 0, 0], [1.0, 0, 0, 1, 0.5], [1.0]]
    for index, each in enumerate(rewards):
        close(world, index, each)
    batch = world.emit("solver")
    assert batch is not None
    assert [sum(s.group_id.endswith(f"/{i}") for s in batch.samples) for i in range(3)] == [8, 5, 1]
    expected = np.concatenate([grpo(np.array(each)) for each in rewards])
    assert [sample.advantage for sample in batch.samples] == expected.tolist()
    assert batch.samples[-1].advantage == 0.0, "nothing to compare it with"
    assert balanced(world)["env"] == 3 + 7


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_equal_rewards_are_filtered_counted_and_explained(reward: float) -> None:
    world = world_of(filters=("zero-advantage",))
    close(world, 0, [reward] * GROUP)
    assert balanced(world)["zero-advantage"] == GROUP
    assert world.core.notes("solver") == [
        f"solver: group train/0/0 isn't trained: zero-advantage (8 of 8 members valid, rewards "
        f"{', '.join([f'{reward:g}'] * 8)})"
    ]
    assert world.core.notes("other") == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, "1", [1.0]], ids=["nan", "inf", "none", "text", "list"])
def test_a_reward_that_is_no_number_costs_its_member_and_nobody_else(bad: Any) -> None:
    world = world_of()
    close(world, 0, [bad, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, bad])
    ledger = balanced(world)
    assert (ledger["grader"], ledger["buffered"]) == (2, 6)
    close(world, 1, [bad] * GROUP)
    assert balanced(world)["grader"] == 2 + GROUP
    assert world.core.notes()[-1].endswith("small-group (0 of 8 members valid (8 grader), rewards none)")


def test_a_group_that_is_all_truncated_goes_by_its_filter() -> None:
    world = world_of(filters=("truncated",))
    close(world, 0, [1.0, 0, 0, 0, 0, 0, 0, 1], reason=Reason.TRUNCATED)
    assert balanced(world)["truncated"] == GROUP
    assert "isn't trained: truncated (8 of 8 members valid" in world.core.notes()[-1]
    unfiltered = world_of()
    close(unfiltered, 0, [1.0, 0, 0, 0, 0, 0, 0, 1], reason=Reason.TRUNCATED)
    assert balanced(unfiltered)["buffered"] == GROUP


def test_episodes_without_tokens_or_logprobs_are_no_samples() -> None:
    world = world_of()
    bare = msgspec.structs.replace(turn(0), logprobs=array_of([], "f4"))
    kinds = {0: (turn(0, sampled=0),), 1: (), 2: (bare,), 3: (turn(0), turn(0, sampled=0))}
    for task in tasks_of(world, 0):
        turns = kinds.get(task.member, (turn(0),))
        answered = episode_of(task, {})
        trajectory = Trajectory(policy="solver", turns=turns, reward=float(task.member % 2))
        tell(world, msgspec.structs.replace(answered, trajectories=(trajectory,)))
    for index in (1, 2):
        close(world, index, [1.0] + [0.0] * 7)
    ledger = balanced(world)
    assert (ledger["no-tokens"], ledger["no-logprobs"]) == (2, 1)
    batch = world.emit("solver")
    assert batch is not None
    assert min(int(sample.loss_mask.numpy().sum()) for sample in batch.samples) > 0
    assert len(batch.samples) == 5 + 8 + 8


def test_members_of_several_versions_are_one_group_as_old_as_its_oldest() -> None:
    world = world_of(batch_groups=1)
    for _ in range(3):
        index = int(min(world.queue, key=lambda task: int(task.group_id.rsplit("/", 1)[1])).group_id.rsplit("/", 1)[1])
        close(world, index, [1.0] + [0.0] * 7)
        world.queue = [task for task in world.queue if not task.group_id.endswith(f"/{index}")]
        assert world.emit("solver") is not None
        world.train("solver")
        world.plan()
    task = min(world.queue, key=lambda each: each.group_id)
    for each in [t for t in world.queue if t.group_id == task.group_id]:
        tell(world, episode_of(each, {"solver": float(each.member % 2)}, versions={"solver": each.member % 4}))
    batch = world.emit("solver")
    assert batch is not None
    assert (batch.train_step, batch.oldest_version, batch.max_staleness) == (3, 0, 3)
    assert batch.mean_staleness == pytest.approx((3 + 2 + 1 + 0) / 4)
    balanced(world)


def test_a_record_that_comes_twice_counts_once() -> None:
    world = world_of()
    first, *others = tasks_of(world, 0)
    assert tell(world, episode_of(first, {"solver": 1.0})) is Arrival.TERMINAL
    assert tell(world, episode_of(first, {"solver": 0.0})) is Arrival.LATE
    for task in others:
        tell(world, episode_of(task, {"solver": 0.0}))
    assert tell(world, episode_of(first, {"solver": 0.0})) is Arrival.LATE, "also after the group closed"
    for index in (1, 2):
        close(world, index, [1.0] + [0.0] * 7)
    batch = world.emit("solver")
    assert batch is not None
    assert len({sample.id for sample in batch.samples}) == len(batch.samples) == 3 * GROUP
    assert batch.samples[0].reward == 1.0
    assert balanced(world)["late"] == 2


def test_infra_is_regenerated_and_bounded_and_the_policys_own_fault_is_trained() -> None:
    world = world_of(max_attempts=3)
    first, second, *others = tasks_of(world, 0)
    tell(world, episode_of(second, {"solver": 0.0}, reason=Reason.POLICY))
    for task in others:
        tell(world, episode_of(task, {"solver": 1.0}))
    verdicts = []
    for attempt in range(3):
        verdicts.append(tell(world, episode_of(first, {}, reason=Reason.INFRA)))
        world.queue.clear()
        world.plan()
        again = [task for task in world.queue if task.id == first.id]
        assert len(again) == (attempt < 2), "the same task, until its attempts are used up"
        if again:
            assert (again[0].attempt, again[0].seed) == (attempt + 1, first.seed)
            first = again[0]
    assert verdicts == [Arrival.RETRY, Arrival.RETRY, Arrival.TERMINAL]
    ledger = balanced(world)
    assert (ledger["retried"], ledger["infra"], ledger["buffered"]) == (2, 1, 7)
    assert "policy" not in ledger, "a fault of the policy's own is a sample"


def test_overlong_penalty_by_hand() -> None:
    # Free up to 80 of 100 tokens, then even.
    soft = Overlong(weight=1.0, limit=100, window=20)
    assert [soft.penalty(n) for n in (0, 80, 85, 90, 100, 120)] == [0, 0, 0.25, 0.5, 1.0, 1.0]
    assert NO_PENALTY.penalty(10**6) == 0.0


def test_overlong_replies_are_judged_lower_but_reported_as_they_were() -> None:
    world = world_of(overlong_penalty=0.5, overlong_window=0.5, advantage="dr-grpo", batch_groups=1)  # of 256 tokens
    lengths = [256, 192, 128, 10, 10, 10, 10, 10]  # penalties 0.5, 0.25, 0 …
    for task in tasks_of(world, 0):
        trajectory = Trajectory(policy="solver", turns=(turn(0, sampled=lengths[task.member]),), reward=1.0)
        tell(world, msgspec.structs.replace(episode_of(task, {}), trajectories=(trajectory,)))
    batch = world.emit("solver")
    assert batch is not None
    mean = 1 - 0.75 / 8
    assert [s.advantage for s in batch.samples[:3]] == pytest.approx([0.5 - mean, 0.75 - mean, 1 - mean])
    assert {sample.reward for sample in batch.samples} == {1.0}
    assert world.core.batch_metrics("solver")["dataflow.reward_all"] == 1.0
    several = Trajectory(policy="solver", turns=(turn(0, sampled=10), turn(0, sampled=256)), reward=1.0)
    episode = msgspec.structs.replace(episode_of(tasks_of(world, 1)[0], {}), trajectories=(several,))
    judged = judge_episode(episode, "solver", Overlong(0.5, 256, 128))
    assert judged.penalty == 0.5, "the longest reply counts"
