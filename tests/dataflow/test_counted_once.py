"""What is read, published or applied again, and what is partly so, worked by hand: each counts once and as it is."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.config import EvalSection, ReplaySection, SourceSection, TrainerSection
from astraflow.dataflow import admission
from astraflow.dataflow.core import DataflowCore
from astraflow.dataflow.groups import Arrival
from astraflow.messages import Reason
from tests.dataflow.dataflow_world import INCARNATION, World, config_of, episode_of
from tests.dataflow.test_dataflow_world import chaos, two_policies


def world_of(*, group_size: int = 2, min_group_size: int = 0, **trainer: object) -> World:
    section = TrainerSection(**{"steps": 9, "batch_groups": 1, "filters": (), "max_staleness": 3} | trainer)
    config = config_of(
        trainers={"solver": section}, sources={"train": SourceSection(env="math", group_size=group_size)}
    )
    dataflow = msgspec.structs.replace(config.dataflow, min_group_size=min_group_size)
    return World(msgspec.structs.replace(config, dataflow=dataflow))


def answer(world: World, index: int, rewards: Sequence[float | None]) -> None:
    """Answer a group's members in order; None = its environment fails."""
    tasks = sorted((t for t in world.queue if t.group_id == f"inc/train/0/{index}"), key=lambda task: task.member)
    for task, reward in zip(tasks, rewards, strict=True):
        world.queue.remove(task)
        if reward is None:
            world.answer(task, {}, reason=Reason.ENV)
        else:
            world.answer(task, {"solver": reward})
    while world.read < len(world.episodes):
        world.read_one()


def test_a_task_whose_member_has_ended_is_not_published_again() -> None:
    world = world_of()
    world.plan()
    issue = world.decisions[0]
    world.answer(world.queue[0], {"solver": 1.0})
    world.read_one()
    again = world.core.tasks_of(issue, lambda env, index: {})
    assert [task.member for task in again] == [1]
    assert [task.member for d in world.core.unfinished()[:1] for task in world.core.tasks_of(d, lambda e, i: {})] == [1]


def test_an_attempt_that_was_replaced_is_not_published_again() -> None:
    world = world_of()
    world.plan()
    issue = world.decisions[0]
    world.answer(world.queue[0], {}, reason=Reason.INFRA)
    world.read_one()
    world.plan()
    assert [task.member for task in world.core.tasks_of(issue, lambda env, index: {})] == [1]


def test_a_record_of_another_run_is_unknown_also_where_the_group_of_this_run_has_closed() -> None:
    world = world_of()
    world.plan()
    foreign = msgspec.structs.replace(
        episode_of(world.queue[0], {"solver": 1.0}), task_id="other/train/0/0/0", group_id="other/train/0/0"
    )
    answer(world, 0, [1.0, 0.0])
    assert world.core.on_episode(foreign, 3).arrival is Arrival.UNKNOWN
    ledger = world.core.ledger("solver")
    assert (ledger["unknown"], ledger.get("late", 0)) == (1, 0)
    ours = msgspec.structs.replace(foreign, task_id=f"{INCARNATION}/train/0/0/0", group_id=f"{INCARNATION}/train/0/0")
    assert world.core.on_episode(ours, 4).arrival is Arrival.LATE


@pytest.mark.parametrize("replay", ["none", "latest"])
def test_a_batch_that_is_read_again_changes_neither_counts_nor_numbers_nor_metrics(replay: str) -> None:
    share = 0.9 if replay != "none" else 0.25
    world = world_of(batch_groups=2, replay=ReplaySection(kind=replay, share=share, max_uses=9))
    world.plan()
    for index in range(4):
        answer(world, index, [1.0, 0.0])
    first, second = world.emit("solver"), world.emit("solver")
    assert first is not None
    assert second is not None
    before = (world.core.snapshot(), world.core.ledger("solver"), world.core.batch_metrics("solver"))
    for batch in (first, second, first):
        world.core.apply_batch(batch)
        assert (world.core.snapshot(), world.core.ledger("solver"), world.core.batch_metrics("solver")) == before
    assert before[2]["dataflow.reward_effective"] == 0.5


def test_members_that_were_not_in_the_batch_of_a_spent_group_keep_their_own_fate() -> None:
    world = world_of(group_size=3, min_group_size=2)
    world.plan()
    snapshot = world.core.snapshot()
    answer(world, 0, [1.0, None, 0.0])
    batch = world.emit("solver")
    assert batch is not None
    restored = DataflowCore.restore(world.config, snapshot, sizes={"math": None})
    restored.apply_batch(batch)
    for sequence, episode in enumerate(world.episodes, start=1):
        restored.on_episode(episode, sequence)
    for core in (world.core, restored):
        ledger = core.ledger("solver")
        assert (ledger["emitted"], ledger["env"], ledger.get("stale", 0)) == (2, 1, 0)


def test_a_cohort_leaves_out_what_is_in_flight() -> None:
    plain = TrainerSection(steps=4, batch_groups=3, filters=())
    world = World(config_of(trainers={"solver": plain}, deterministic=True))
    state = world.core._state
    assert len(admission.cohort(state.mixer, state.flows, state.trained_by)) == 3
    world.plan(apply=False)
    world.core.apply_decision(world.decisions[0])
    proposals = admission.cohort(state.mixer, state.flows, state.trained_by)
    assert [proposal.choice.key.index for proposal in proposals] == [1, 2], "one of three is in flight"


def test_a_task_asks_for_the_version_of_the_batch_behind_all_that_is_in_flight() -> None:
    world = world_of(max_staleness=1, prefetch=1, batch_groups=2)
    world.plan()  # four groups, for steps 0 and 1
    assert {decision.min_versions.get("solver", 0) for decision in world.decisions} == {0}
    answer(world, 0, [1.0, 0.0])
    answer(world, 1, [1.0, 0.0])
    world.emit("solver")
    world.train("solver")
    world.plan()
    (issued,) = {decision.min_versions.get("solver", 0) for decision in world.decisions[4:]}
    assert issued == 1, "two are in flight for step 1, so these are trained at step 2 and may be one step old"


def test_partly_correct_is_not_correct() -> None:
    section = EvalSection(env="math", size=1, repeats=4)
    trainer = TrainerSection(steps=4, batch_groups=1)
    world = World(config_of(trainers={"solver": trainer}, evals={"held": section}))
    world.plan()
    tasks = sorted((task for task in world.queue if task.eval_set), key=lambda task: task.member)
    for task, correct in zip(tasks, [1.0, 0.99, 0.0, 0.5], strict=True):
        world.answer(task, {"solver": correct}, correct=correct)
    while world.read < len(world.episodes):
        world.read_one()
    (score,) = world.core.eval_results()
    assert score["values"]["eval.correct"] == pytest.approx((1 + 0.99 + 0.5) / 4)
    assert score["values"]["eval.pass_at_2"] == pytest.approx(0.5), "one of four answers: C(3, 2) of C(4, 2) miss it"
    assert score["values"]["eval.pass_at_4"] == 1.0


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 250))
def test_batches_and_decisions_behind_a_snapshot_may_be_read_in_either_order(seed: int, steps: int) -> None:
    """A group closes only when its episodes are read, which comes after both."""
    world = World(two_policies(), seed=seed)
    chaos(world, steps)
    data, _, decided, emitted = world.saved
    restored = []
    for batches_first in (True, False):
        core = DataflowCore.restore(world.config, data, sizes=world.sizes)
        for batches in (batches_first, not batches_first):
            if batches:
                for policy, log in world.samples.items():
                    for batch in log[emitted[policy] :]:
                        core.apply_batch(batch)
            else:
                for decision in world.decisions[decided:]:
                    core.apply_decision(decision)
        core.resolve({sequence: world.episodes[sequence - 1] for sequence in core.references()})
        restored.append((core.snapshot(), core.ledger("solver"), core.ledger("verifier"), core.notes()))
    assert restored[0] == restored[1]
