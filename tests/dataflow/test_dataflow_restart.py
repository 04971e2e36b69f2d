"""The dataflow core through restarts: snapshots, replayed logs, trainers that fall back."""

import msgspec
import pytest

from astraflow.config import DataflowSection, EvalSection, RunConfig, SourceSection, TrainerSection
from astraflow.dataflow.core import REPORT_S, DataflowCore
from astraflow.dataflow.snapshot import SNAPSHOT_SCHEMA
from astraflow.errors import ConfigError, CursorError, MessageError
from astraflow.messages import DecisionKind, Reason
from tests.dataflow.dataflow_world import INCARNATION, World, answer_group, config_of, read_all, world_of

GOOD, BAD = {"solver": 1.0}, {"solver": 0.0}


def test_a_trainer_that_falls_back_is_believed_only_with_a_newer_epoch() -> None:
    world = world_of(filters=(), max_staleness=3, prefetch=0)
    world.plan()
    for index in range(4):
        answer_group(world, index, 1.0, 0.0)
    old = world.trainers["solver"].progress()
    world.emit("solver")
    world.train("solver")
    world.core.on_progress(old)
    assert world.emit("solver") is not None, "old news of the same epoch"
    world.core.on_progress(msgspec.structs.replace(old, epoch=2))
    for index in range(4, 6):
        answer_group(world, index, 1.0, 0.0)
    assert world.emit("solver") is None, "it reads batches 1 and 2 again first"


def test_decisions_and_batches_are_applied_once() -> None:
    world = world_of(filters=())
    world.plan()
    for index in range(4):
        answer_group(world, index, 1.0, 0.0)
    batch = world.emit("solver")
    assert batch is not None
    before = world.core.snapshot()
    for decision in world.decisions:
        world.core.apply_decision(decision)
    world.core.apply_batch(batch)
    assert world.core.snapshot() == before


def test_a_snapshot_restores_to_itself() -> None:
    world = world_of()
    world.plan()
    answer_group(world, 0, 1.0, 0.0)
    answer_group(world, 1, 1.0, 1.0)
    world.answer(world.queue.pop(0), GOOD)
    read_all(world)
    data = world.core.snapshot()
    restored = DataflowCore.restore(world.config, data, sizes={"math": None})
    assert restored.references() == [1, 2, 5]
    restored.resolve({sequence: world.episodes[sequence - 1] for sequence in restored.references()})
    assert restored.snapshot() == data
    open_tasks = [task for d in restored.unfinished() for task in restored.tasks_of(d, lambda env, index: {})]
    assert [task.id for task in open_tasks] == ["inc/train/0/2/1", "inc/train/0/3/0", "inc/train/0/3/1"]


def test_an_episode_that_was_purged_stops_the_restore() -> None:
    world = world_of()
    world.plan()
    answer_group(world, 0, 1.0, 0.0)
    restored = DataflowCore.restore(world.config, world.core.snapshot(), sizes={"math": None})
    with pytest.raises(CursorError, match="EPISODES has no message 2"):
        restored.resolve({1: world.episodes[0]})


def test_snapshots_that_are_damaged_or_too_new_are_refused() -> None:
    config = config_of()
    with pytest.raises(MessageError, match="can't be decoded"):
        DataflowCore.restore(config, b"\x93", sizes={})
    newer = msgspec.msgpack.encode({"schema": SNAPSHOT_SCHEMA + 1})
    with pytest.raises(MessageError, match="upgrade astraflow"):
        DataflowCore.restore(config, newer, sizes={})


def test_a_log_that_does_not_fit_the_sources_is_a_config_error() -> None:
    world = world_of()
    world.plan()
    moved = config_of(sources={"train": SourceSection(env="math", group_size=2, first=7)})
    core = DataflowCore(moved, incarnation=INCARNATION, sizes={"math": None})
    with pytest.raises(ConfigError, match="start afresh"):
        core.apply_decision(world.decisions[0])


def test_what_is_known_of_the_trainer_after_a_restart_makes_no_surplus() -> None:
    world = world_of(filters=(), max_staleness=1, prefetch=1)
    for index in range(4):
        world.plan()
        answer_group(world, index, 1.0, 0.0)
    world.emit("solver")
    world.emit("solver")
    world.train("solver")
    world.train("solver")
    world.plan()
    answer_group(world, 4, 1.0, 0.0)
    world.core = DataflowCore.restore(world.config, world.saved[0], sizes={"math": None})  # before anything happened
    for batch in world.samples["solver"]:
        world.core.apply_batch(batch)
    for decision in world.decisions:
        world.core.apply_decision(decision)
    for sequence, episode in enumerate(world.episodes, start=1):
        world.core.on_episode(episode, sequence)
    ledger = world.core.ledger("solver")
    assert (ledger["emitted"], ledger["buffered"], ledger.get("surplus", 0)) == (8, 2, 0)


def test_a_group_that_a_decision_completes_waits_for_its_episodes_in_a_restore() -> None:
    world = world_of(dataflow=DataflowSection(task_deadline_s=10.0, max_attempts=1, min_group_size=1), filters=())
    world.plan()
    lost = world.queue.pop(1)
    answered = world.queue.pop(0)
    world.answer(answered, GOOD)
    read_all(world)
    world.save()
    world.now += 1
    world.plan()
    world.now += 11 + REPORT_S
    world.plan()
    assert any(d.kind is DecisionKind.CLOSE and d.group_id == lost.group_id for d in world.decisions)
    core = DataflowCore.restore(world.config, world.saved[0], sizes={"math": None})
    for decision in world.decisions:
        core.apply_decision(decision)
    core.resolve({1: world.episodes[0]})
    ledger = core.ledger("solver")
    assert (ledger["buffered"], ledger["expired"]) == (1, 7)


def test_a_finished_run_that_is_given_more_steps_goes_on() -> None:
    def config(steps: int) -> RunConfig:
        trainer = TrainerSection(steps=steps, batch_groups=1, filters=())
        return config_of(trainers={"solver": trainer}, evals={"held": EvalSection(env="math", size=1, every_steps=0)})

    world = World(config(2))
    world.run()
    told = world.trainers["solver"].progress()
    assert told.finished
    core = DataflowCore.restore(config(3), world.core.snapshot(), sizes={"math": None})
    core.on_progress(told)  # what the trainer said before it was given more
    assert not core.finished
    assert [decision.source for decision in core.plan(0.0)] == ["train"]


def test_an_evaluation_can_be_taken_out_of_a_run() -> None:
    trainer = TrainerSection(steps=2, batch_groups=1, filters=())
    world = World(config_of(trainers={"solver": trainer}, evals={"held": EvalSection(env="math", size=1)}))
    before = world.core.snapshot()
    world.plan()
    for data in (before, world.core.snapshot()):
        core = DataflowCore.restore(config_of(trainers={"solver": trainer}), data, sizes={"math": None})
        for decision in world.decisions:
            core.apply_decision(decision)
        assert {decision.eval_set for decision in core.unfinished()} == {""}


def test_a_failure_before_the_snapshot_is_issued_again_after_the_restore() -> None:
    world = world_of()
    world.plan()
    failed = world.queue.pop(0)
    world.answer(failed, {}, reason=Reason.INFRA)
    read_all(world)
    core = DataflowCore.restore(world.config, world.core.snapshot(), sizes={"math": None})
    assert [(d.group_id, d.member, d.attempt) for d in core.plan(0.0)] == [(failed.group_id, failed.member, 1)]
    assert len(core.unfinished()) == 7, "its next attempt isn't decided yet"


def test_a_trainer_that_falls_back_makes_no_surplus_of_what_was_issued_before() -> None:
    world = world_of(filters=(), max_staleness=1, prefetch=1)
    for index in range(4):
        world.plan()
        answer_group(world, index, 1.0, 0.0)
    for _ in range(2):
        world.emit("solver")
        world.train("solver")
    world.plan()
    world.trainers["solver"].fall_back(2)
    world.core.on_progress(world.trainers["solver"].progress())
    for index in range(4, 8):
        answer_group(world, index, 1.0, 0.0)
    read_all(world)
    ledger = world.core.ledger("solver")
    assert (ledger["emitted"], ledger["buffered"], ledger.get("surplus", 0)) == (8, 8, 0)
