"""The state machine by hand: credit, groups, batches, the end of sources, what is counted and said."""

import msgspec
import pytest

from astraflow.config import DataflowSection, EnvSection, SourceSection, TrainerSection
from astraflow.dataflow.core import REPORT_S, DataflowCore
from astraflow.dataflow.groups import Arrival
from astraflow.errors import ConfigError
from astraflow.messages import DecisionKind, Reason
from tests.dataflow.dataflow_world import World, answer_group, config_of, episode_of, read_all, world_of

GOOD, BAD = {"solver": 1.0}, {"solver": 0.0}


def test_credit_worked_by_hand() -> None:
    world = world_of(max_staleness=1, prefetch=1)
    assert world.plan() == 4, "(max_staleness 1 + consumed 0 + 1) · 2 groups"
    assert world.plan() == 0
    answer_group(world, 0, 1.0, 0.0)
    assert world.plan() == 0, "accepted instead of in flight: the same sum"
    answer_group(world, 1, 1.0, 1.0)
    # yield 15/16: 4 − (1 accepted + 2 in flight · 15/16) = 1.125 → 2 more: 4 − (1 + 3 · 15/16) > 0
    assert world.plan() == 2
    assert world.core.ledger("solver")["zero-advantage"] == 2
    answer_group(world, 2, 1.0, 0.0)
    batch = world.emit("solver")
    assert batch is not None
    assert batch.group_ids == ("inc/train/0/0", "inc/train/0/2")
    world.train("solver")
    # bound (1 + 1 + 1) · 2 = 6, accepted 2, in flight 3 · yield (15/16 · 15/16 + 1/16): 1.18 → 2 more
    assert world.plan() == 2


def test_nothing_is_issued_beyond_the_last_step() -> None:
    world = world_of(steps=1, max_staleness=4, prefetch=4)
    assert world.plan() == 2


def test_batches_are_bound_late() -> None:
    world = world_of(max_staleness=2, prefetch=1, filters=())
    world.plan()
    for index in range(6):
        answer_group(world, index, 1.0, 0.0)
    first, second = world.emit("solver"), world.emit("solver")
    assert first is not None
    assert second is not None
    assert (first.number, first.train_step, second.number, second.train_step) == (1, 0, 2, 1)
    assert world.emit("solver") is None, "batch 3 isn't within 1 of what the trainer needs"
    assert world.core.waits_for() == "trainer solver: has its 2 batches, consumed 0"
    world.train("solver")
    third = world.emit("solver")
    assert third is not None
    assert (third.number, third.train_step, third.max_staleness, third.oldest_version) == (3, 2, 2, 0)
    assert third.mean_staleness == 2.0


def test_stale_groups_are_dropped_counted_and_replaced() -> None:
    world = world_of(max_staleness=1, prefetch=0, filters=())
    world.plan()
    straggler = [task for task in world.queue if task.group_id == "inc/train/0/3"]
    answer_group(world, 0, 1.0, 0.0)
    answer_group(world, 1, 1.0, 0.0)
    world.emit("solver")
    world.train("solver")
    world.plan()
    answer_group(world, 2, 1.0, 0.0)
    answer_group(world, 4, 1.0, 0.0)
    world.emit("solver")
    world.train("solver")
    world.plan()
    assert world.plan() == 0
    for task in straggler:  # sampled by version 0, to be trained at step 2
        world.episodes.append(episode_of(task, {"solver": float(task.member)}, versions={"solver": 0}))
    read_all(world)
    assert world.core.ledger("solver")["buffered"] == 2
    assert world.emit("solver") is None
    ledger = world.core.ledger("solver")
    assert (ledger["buffered"], ledger["stale"]) == (0, 2)
    assert world.plan() == 1, "its credit is back at once"
    assert world.core.notes()[-1].startswith("solver: group train/0/3 isn't trained: stale (oldest version 0")


def test_a_task_asks_for_a_version_that_will_not_be_stale() -> None:
    world = world_of(max_staleness=1, prefetch=1, filters=())
    world.plan()
    for index in range(4):
        answer_group(world, index, 1.0, 0.0)
    world.emit("solver")
    world.emit("solver")
    world.train("solver")
    world.plan()  # for batch 3, which trains at step 2
    assert {task.min_versions["solver"] for task in world.queue} == {1}


def test_edf_trains_first_what_goes_stale_first() -> None:
    for order, expected in [("edf", [1, 0]), ("fifo", [0, 1])]:
        world = world_of(max_staleness=3, prefetch=1, filters=(), dataflow=DataflowSection(order=order))
        world.trainers["solver"].versions |= {1: 1, 2: 2}
        world.trainers["solver"].version = 2
        world.core.on_progress(world.trainers["solver"].progress())
        world.plan()
        for index, version in [(0, 2), (1, 1)]:
            for task in [t for t in world.queue if t.group_id == f"inc/train/0/{index}"]:
                world.episodes.append(episode_of(task, {"solver": float(task.member)}, versions={"solver": version}))
        read_all(world)
        batch = world.emit("solver")
        assert batch is not None
        assert [int(group.rsplit("/", 1)[1]) for group in batch.group_ids] == expected, order


def test_samples_carry_advantages_of_their_own_group() -> None:
    world = world_of(advantage="dr-grpo", group_size=3)
    world.plan()
    answer_group(world, 0, 1.0, 0.0, 0.5)
    answer_group(world, 1, 0.0, 0.0, 3.0)
    batch = world.emit("solver")
    assert batch is not None
    assert [sample.advantage for sample in batch.samples] == [0.5, -0.5, 0.0, -1.0, -1.0, 2.0]
    assert [sample.task_id[-1] for sample in batch.samples] == ["0", "1", "2"] * 2


def test_failed_members_are_counted_and_not_padded() -> None:
    world = world_of(group_size=4)
    world.plan()
    tasks = [task for task in world.queue if task.group_id == "inc/train/0/0"]
    world.answer(tasks[0], {}, reason=Reason.ENV)
    world.answer(tasks[1], {"solver": float("nan")})
    world.answer(tasks[2], GOOD)
    world.answer(tasks[3], BAD)
    read_all(world)
    answer_group(world, 1, 1.0, 0.0, 1.0, 0.0)
    batch = world.emit("solver")
    assert batch is not None
    assert len(batch.samples) == 2 + 4
    ledger = world.core.ledger("solver")
    assert (ledger["env"], ledger["grader"], ledger["emitted"]) == (1, 1, 6)


def test_a_group_with_too_few_valid_members_says_so() -> None:
    world = world_of(group_size=3)
    world.plan()
    tasks = [task for task in world.queue if task.group_id == "inc/train/0/0"]
    for task, reason in zip(tasks, [Reason.ENV, Reason.ENV, Reason.OK], strict=True):
        world.answer(task, GOOD, reason=reason)
        world.read_one()
    assert world.core.ledger("solver")["small-group"] == 1
    assert world.core.notes() == [
        "solver: group train/0/0 isn't trained: small-group (1 of 3 members valid (2 env), rewards 1)"
    ]
    assert world.core.floor() == 3, "nothing is kept of it"


def test_only_the_last_ten_notes_are_kept() -> None:
    world = world_of(steps=50)
    for index in range(12):
        world.plan()
        answer_group(world, index, 1.0, 1.0)
    assert len(world.core.notes()) == 10
    assert "train/0/11" in world.core.notes()[-1]


def test_an_infrastructure_failure_is_issued_again_with_the_same_seed() -> None:
    world = world_of()
    world.plan()
    task = world.queue.pop(0)
    world.answer(task, {}, reason=Reason.INFRA)
    world.read_one()
    assert world.plan() == 1
    again = world.queue[-1]
    assert (again.id, again.seed, again.attempt) == (task.id, task.seed, 1)
    assert world.core.ledger("solver")["retried"] == 1


def test_a_task_without_a_record_is_reissued_at_its_deadline_and_given_up_after_the_last() -> None:
    section = DataflowSection(task_deadline_s=100.0, max_attempts=2)
    world = world_of(dataflow=section)
    world.plan()
    lost = world.queue.pop(0)
    for index in range(1, 4):
        answer_group(world, index, 1.0, 0.0)
    world.answer(world.queue.pop(0), GOOD)
    read_all(world)
    world.now += 1  # deadlines are looked at once a second
    world.plan()
    world.now += 101 + REPORT_S
    world.plan()
    assert [(d.kind, d.group_id, d.member, d.attempt) for d in world.decisions[4:]] == [
        (DecisionKind.REISSUE, lost.group_id, lost.member, 1)
    ]
    world.plan()
    world.now += 101 + REPORT_S
    world.plan()
    assert world.decisions[5].kind is DecisionKind.CLOSE
    ledger = world.core.ledger("solver")
    assert (ledger["expired"], ledger["small-group"]) == (1, 1)
    world.answer(lost, GOOD)
    read_all(world)
    assert world.core.ledger("solver")["late"] == 1


def test_a_queue_that_nobody_serves_costs_no_attempt() -> None:
    world = world_of()
    world.plan()
    for _ in range(20):
        world.now += 50
        world.core.on_queue("math", pending=len(world.queue), now=world.now)
        assert world.plan() == 0
    world.core.on_queue("math", pending=0, now=world.now)
    world.now += 101 + REPORT_S
    assert world.plan() == 8, "now they are in somebody's hands, and late"


def test_records_that_fit_no_task_are_unknown() -> None:
    world = world_of()
    world.plan()
    good = episode_of(world.queue[0], GOOD)
    for k, changes in enumerate(
        [
            {"task_id": "x"},
            {"task_id": "other/train/0/0/0", "group_id": "other/train/0/0"},
            {"task_id": "inc/train/0/99/0", "group_id": "inc/train/0/99"},
            {"task_id": "inc/train/0/0/7", "member": 7},
            {"member": 1},
            {"group_id": "inc/train/0/1"},
            {"task_id": "inc/nosuch/0/0/0", "group_id": "inc/nosuch/0/0"},
        ],
        start=1,
    ):
        assert world.core.on_episode(msgspec.structs.replace(good, **changes), k).arrival is Arrival.UNKNOWN, changes
    assert world.core.ledger("solver")["unknown"] == 7
    assert world.core.on_episode(good, 8).arrival is Arrival.TERMINAL
    assert world.core.on_episode(good, 8).arrival is Arrival.SEEN
    assert world.core.on_episode(good, 9).arrival is Arrival.LATE


def test_a_verdict_says_what_became_of_the_group() -> None:
    world = world_of()
    world.plan()
    first, second = (episode_of(task, {"solver": float(task.member)}) for task in world.queue[:2])
    assert world.core.on_episode(first, 1).fates == {}
    assert world.core.on_episode(second, 2).fates == {"solver": "buffered"}
    assert world.core.references() == [1, 2]
    assert world.core.floor() == 1


@pytest.mark.parametrize(("groups", "sizes"), [(5, [2, 2, 1]), (4, [2, 2]), (0, [0])])
def test_finite_sources_end_in_a_last_batch(groups: int, sizes: list[int]) -> None:
    source = SourceSection(env="math", group_size=2, size=max(1, groups), epochs=1)
    trainer = TrainerSection(steps=100, batch_groups=2, filters=())
    world = World(config_of(trainers={"solver": trainer}, sources={"train": source}))
    for _ in range(20):
        world.act()
        while (task := world.pull()) is not None:
            world.answer(
                task, {"solver": float(task.member)} if groups else {}, reason=Reason.OK if groups else Reason.ENV
            )
        read_all(world)
        world.train("solver")
    batches = world.samples["solver"]
    assert [len(batch.group_ids) for batch in batches] == sizes
    assert [batch.last for batch in batches] == [False] * (len(sizes) - 1) + [True]
    assert world.core.finished


def test_a_policy_without_a_source_gets_an_empty_last_batch() -> None:
    trainers = {name: TrainerSection(steps=2, batch_groups=1, filters=()) for name in ("fed", "unfed")}
    world = World(config_of(trainers=trainers, envs={"math": EnvSection(kind="toy", args={"policy": "fed"})}))
    world.run()
    assert [(len(batch.samples), batch.last) for batch in world.samples["unfed"]] == [(0, True)]
    assert world.trainers["fed"].step == 2


def test_what_nobody_needs_any_more_is_closed_at_the_end() -> None:
    world = world_of(steps=1, filters=())
    world.plan()
    answer_group(world, 0, 1.0, 0.0)
    world.core.on_progress(msgspec.structs.replace(world.trainers["solver"].progress(), step=1, finished=True))
    assert not world.core.finished
    assert world.plan() == 1
    assert world.decisions[-1].reason == "unused"
    assert world.core.finished
    ledger = world.core.ledger("solver")
    assert ledger["unused"] == ledger["issued"] == 4
    assert world.core.waits_for() == "nothing: trainer solver has finished"
    assert world.core.floor() == 2


def test_a_skipped_batch_moves_the_plan_but_not_the_step() -> None:
    world = world_of(filters=(), max_staleness=0)
    world.plan()
    answer_group(world, 0, 1.0, 0.0)
    answer_group(world, 1, 1.0, 0.0)
    batch = world.emit("solver")
    assert batch is not None
    world.trainers["solver"].train(batch, skip=True)
    world.core.on_progress(world.trainers["solver"].progress())
    assert world.plan() == 2
    answer_group(world, 2, 1.0, 0.0)
    answer_group(world, 3, 1.0, 0.0)
    again = world.emit("solver")
    assert again is not None
    assert (again.number, again.train_step) == (2, 0)


def test_tasks_are_the_same_in_every_process() -> None:
    worlds = [world_of(), world_of()]
    for world in worlds:
        world.plan()
    assert worlds[0].queue == worlds[1].queue
    assert len({task.seed for task in worlds[0].queue}) == len(worlds[0].queue)
    task = worlds[0].queue[3]
    assert (task.id, task.group_id, task.member, task.feeds) == ("inc/train/0/1/1", "inc/train/0/1", 1, ("solver",))
    assert task.payload == {"env": "math", "index": 1}


def test_a_source_may_not_look_like_an_evaluation() -> None:
    with pytest.raises(ConfigError, match="belong to evaluations"):
        DataflowCore(config_of(sources={"eval-x": SourceSection(env="math")}), incarnation="i", sizes={"math": None})


def test_batch_metrics_have_the_names_of_the_table() -> None:
    from astraflow.messages.metric_names import known

    world = world_of()
    world.plan()
    answer_group(world, 0, 1.0, 0.0)
    answer_group(world, 1, 1.0, 1.0)
    for task in world.queue[:2]:
        world.answer(task, {"solver": float(task.member)}, correct=float("nan"))
    read_all(world)
    world.emit("solver")
    values = world.core.batch_metrics("solver")
    assert all(map(known, values))
    assert values["dataflow.reward_all"] == pytest.approx(4 / 6)
    assert values["dataflow.reward_effective"] == 0.5
    assert values["dataflow.correct_all"] == 0.75
    assert values["dataflow.pass_fraction"] == pytest.approx(2 / 3)
    assert values["dataflow.open_groups"] == 1
    assert values["dataflow.failed_all"] == 0


def test_a_version_that_the_trainer_did_not_tell_of_waits_for_it() -> None:
    world = world_of(filters=(), max_staleness=1, prefetch=1)
    world.plan()
    for task in world.queue[:4]:
        world.episodes.append(episode_of(task, {"solver": float(task.member)}, versions={"solver": 5}))
    read_all(world)
    assert world.emit("solver") is None
    world.trainers["solver"].version = 5
    world.trainers["solver"].versions[5] = 0
    world.core.on_progress(world.trainers["solver"].progress())
    assert world.emit("solver") is not None
