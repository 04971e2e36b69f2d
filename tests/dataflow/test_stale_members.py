"""A member that is too old to be trained costs itself only: its reward stays in the baseline, the others train."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.config import DataflowSection, ReplaySection, SourceSection, TrainerSection
from astraflow.dataflow.advantages import dr_grpo
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.core import DataflowCore
from astraflow.dataflow.staleness import VersionMap
from astraflow.messages import SampleBatch
from astraflow.messages.ids import GroupKey
from tests.dataflow.dataflow_world import World, config_of, episode_of

AT_STEP = {version: version for version in range(4)}


def world_of(*, group_size: int, batch_groups: int = 1, steps: int = 40, at_step: int = 3, **trainer: object) -> World:
    """A world whose trainer has done `at_step` steps; version v is from step v."""
    section = TrainerSection(
        steps=steps, batch_groups=batch_groups, max_staleness=1, prefetch=0, advantage="dr-grpo", filters=(), **trainer
    )
    world = World(
        config_of(
            trainers={"solver": section},
            sources={"train": SourceSection(env="math", group_size=group_size)},
            dataflow=DataflowSection(task_deadline_s=100.0),
        )
    )
    learner = world.trainers["solver"]
    learner.versions, learner.version, learner.step = dict(AT_STEP), at_step, at_step
    world.core.on_progress(learner.progress())
    world.plan()
    return world


def answer_group(world: World, index: int, members: Sequence[tuple[float, int]]) -> None:
    """Answer a group with (reward, version) of each member."""
    tasks = sorted((t for t in world.queue if t.group_id == f"inc/train/0/{index}"), key=lambda task: task.member)
    for task, (reward, version) in zip(tasks, members, strict=True):
        world.queue.remove(task)
        world.episodes.append(episode_of(task, {"solver": reward}, versions={"solver": version}))
    while world.read < len(world.episodes):
        world.read_one()


def trained(batch: SampleBatch | None) -> Mapping[str, float]:
    assert batch is not None
    return {sample.task_id.removeprefix("inc/train/0/"): sample.advantage for sample in batch.samples}


def test_the_stale_member_is_withheld_and_counts_in_the_baseline_worked_by_hand() -> None:
    world = world_of(group_size=4)
    answer_group(world, 0, [(1.0, 3), (0.0, 0), (0.5, 2), (0.5, 3)])  # version 0 would be 3 steps old
    batch = world.emit("solver")
    assert trained(batch) == {"0/0": 0.5, "0/2": 0.0, "0/3": 0.0}, "less the mean of all four, 0.5"
    assert batch is not None
    assert (batch.max_staleness, batch.oldest_version) == (1, 2)
    ledger = world.core.ledger("solver")
    assert (ledger["emitted"], ledger["stale"], ledger["buffered"]) == (3, 1, 0)
    world.check()
    assert world.core.references() == [], "nothing of it is held any more"


def test_one_long_member_in_18_of_20_groups_costs_18_members_and_not_144() -> None:
    world = world_of(group_size=8)
    samples = 0
    for index in range(20):
        members = [(float(member % 2), 3) for member in range(8)]
        if index < 18:
            members[7] = (1.0, 1)  # sampled two steps ago
        world.plan()
        answer_group(world, index, members)
        batch = world.emit("solver")
        samples += len(trained(batch))
        consumed = world.trainers["solver"]
        consumed.consumed += 1  # skipped: the step, and with it every age, stays
        world.core.on_progress(consumed.progress())
    ledger = world.core.ledger("solver")
    assert (samples, ledger["emitted"], ledger["stale"]) == (20 * 8 - 18, 20 * 8 - 18, 18)


def test_a_group_that_is_stale_as_a_whole_is_dropped() -> None:
    world = world_of(group_size=2)
    answer_group(world, 0, [(1.0, 1), (0.0, 0)])
    assert world.emit("solver") is None
    assert world.core.ledger("solver")["stale"] == 2
    assert "isn't trained: stale" in world.core.notes()[-1]
    assert world.core.references() == []


def test_a_member_in_two_versions_is_as_old_as_the_older_one() -> None:
    group = BufferedGroup(
        "i/s/0/0", GroupKey("s", 0, 0), 0, (0, 1), (1, 2), (0.0, 1.0), (0, 2, 3), sampled_by=((0, 3), (2,))
    )
    versions = VersionMap(AT_STEP.items())
    assert group.ages(versions, 3) == {0: 3, 1: 1}
    fresh = group.fresh(versions, 3, max_staleness=1)
    assert fresh is not None
    assert (fresh.withheld, fresh.trained_members, fresh.versions) == ((0,), (1,), (2,))


def test_a_group_of_an_old_snapshot_is_stale_as_one() -> None:
    group = BufferedGroup("i/s/0/0", GroupKey("s", 0, 0), 0, (0, 1), (1, 2), (0.0, 1.0), (0, 3))
    assert group.fresh(VersionMap(AT_STEP.items()), 3, max_staleness=1) is None


def test_what_is_trained_first_goes_by_what_can_still_be_trained() -> None:
    """A group that has lost its oldest member is no more urgent than its others are."""
    world = world_of(group_size=2)
    answer_group(world, 0, [(1.0, 0), (0.0, 3)])  # of two fresh groups, one member of this one is gone already
    answer_group(world, 1, [(1.0, 2), (0.0, 3)])
    assert set(trained(world.emit("solver"))) == {"1/0", "1/1"}


@pytest.mark.parametrize("snapshot_first", [True, False], ids=["log behind the snapshot", "group in the snapshot"])
def test_a_restart_counts_and_remembers_the_same(snapshot_first: bool) -> None:
    world = world_of(group_size=3, steps=9, replay=ReplaySection(kind="latest", share=0.9, max_uses=4))
    if snapshot_first:
        world.save()
    answer_group(world, 0, [(1.0, 3), (0.0, 0), (0.5, 3)])
    if not snapshot_first:
        world.save()
    world.emit("solver")
    before = (world.core.ledger("solver"), _remembered(world.core))
    assert [worth for *_, worth in before[1]] == [0.25], "mean size of 0.5 and 0: -0.5 was withheld"
    for _ in range(2):
        world.crash()
        while world.read < len(world.episodes):
            world.read_one()
        assert (world.core.ledger("solver"), _remembered(world.core)) == before
        world.save()


def _remembered(core: DataflowCore) -> list[tuple[str, tuple[int, ...], tuple[dict[str, float], ...], float]]:
    replay = core._state.flows["solver"].closed_groups.replay
    return [(each.group.id, each.group.withheld, each.group.advantages, each.worth) for each in replay.groups()]


def test_what_is_trained_again_leaves_out_what_was_withheld_and_what_has_aged_since() -> None:
    section = ReplaySection(kind="latest", share=0.5, max_uses=9, max_staleness=2)
    world = world_of(group_size=3, batch_groups=2, steps=9, replay=section)
    answer_group(world, 0, [(1.0, 3), (0.0, 0), (0.5, 2)])
    answer_group(world, 1, [(1.0, 3), (0.0, 3), (0.5, 3)])
    assert set(trained(world.emit("solver"))) == {"0/0", "0/2", "1/0", "1/1", "1/2"}
    world.train("solver")  # step 4
    world.train("solver")
    world.plan()
    answer_group(world, 2, [(1.0, 4), (0.0, 4), (0.5, 4)])
    again = trained(world.emit("solver"))
    assert set(again) == {"2/0", "2/1", "2/2", "1/0", "1/1", "1/2"}
    world.train("solver")  # step 5
    world.plan()
    answer_group(world, 3, [(1.0, 5), (0.0, 5), (0.5, 5)])
    world.emit("solver")
    world.check()


@given(
    rewards=st.lists(st.integers(-4, 4).map(float), min_size=2, max_size=9),
    versions=st.lists(st.integers(0, 3), min_size=9, max_size=9),
)
def test_whoever_is_withheld_advantages_are_those_of_the_whole_group(rewards: list[float], versions: list[int]) -> None:
    members = tuple(range(len(rewards)))
    sampled_by = tuple((version,) for version in versions[: len(rewards)])
    group = BufferedGroup(
        "i/s/0/0",
        GroupKey("s", 0, 0),
        0,
        members,
        members,
        tuple(rewards),
        tuple(sorted({version for (version,) in sampled_by})),
        sampled_by=sampled_by,
    ).with_advantages(dr_grpo)
    fresh = group.fresh(VersionMap(AT_STEP.items()), 3, max_staleness=1)
    young = {member for member, (version,) in zip(members, sampled_by, strict=True) if version >= 2}
    assert (fresh is None) == (not young)
    if fresh is not None:
        assert set(fresh.trained_members) == young
        assert fresh.advantages == group.advantages
        assert fresh.stored().with_advantages(dr_grpo) == fresh, "a restart makes them of all members again"
