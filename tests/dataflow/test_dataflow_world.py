"""Dataflow in a hostile, seeded world: whatever the order of arrivals, faults and crashes, its promises hold."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.config import DataflowSection, EnvSection, EvalSection, RunConfig, SourceSection, TrainerSection
from astraflow.dataflow.ledger import ISSUED, RECORD_COUNTS, Fate
from astraflow.messages import Reason
from tests.dataflow.dataflow_world import World, config_of

FAULTS = [Reason.INFRA, Reason.TIMEOUT, Reason.ENV, Reason.GRADER, Reason.CANCELLED]


def chaos(world: World, steps: int) -> None:
    """`steps` random things happen, faults and crashes among them."""
    rng = world.rng
    for _ in range(steps):
        policy = rng.choice(sorted(world.trainers))
        match rng.randrange(14):
            case 0 | 1:
                world.plan()
            case 2:
                world.emit(policy)
            case 3 | 4 | 5:
                for _ in range(rng.randrange(12)):
                    if task := world.pull():
                        world.answer(task)
            case 6 if task := world.pull():  # a fault
                world.answer(task, {}, reason=rng.choice(FAULTS), trajectories=())
            case 7 if world.episodes:  # a record is published twice
                world.episodes.append(rng.choice(world.episodes))
            case 8 | 9:
                for _ in range(rng.randrange(24)):
                    world.read_one()
            case 10:
                world.scores += world.core.eval_results()
                world.train(policy, tell=rng.random() < 0.7)
                if rng.random() < 0.1 and not world.trainers[policy].finished:
                    world.trainers[policy].fall_back(rng.randrange(3))
            case 11:
                world.save()
            case 12 if rng.random() < 0.4:
                if rng.random() < 0.5:  # between the log and the state
                    world.plan(apply=False)
                    world.emit(policy, apply=False)
                world.crash()
            case 13:
                world.now += rng.choice([1.0, 10.0, 101.0])
                world.pull()  # lost, or a rollout that never returns
        world.check()


def settle(world: World) -> None:
    """No more faults: what was lost is reissued at its deadline, and the run comes to its end."""
    for _ in range(400):
        world.act()
        world.check()
        if world.core.finished:
            return
        while (task := world.pull()) is not None:
            world.answer(task)
        while world.read < len(world.episodes):
            world.read_one()
        for policy in world.trainers:
            world.train(policy)
        world.now += 60.0
    raise AssertionError(f"no progress: {world.core.waits_for()}")


def two_policies(**changes: object) -> RunConfig:
    return config_of(
        trainers={
            "solver": TrainerSection(steps=6, batch_groups=2, max_staleness=1, prefetch=1),
            "verifier": TrainerSection(steps=3, batch_groups=3, max_staleness=2, prefetch=2, filters=()),
        },
        envs={"math": EnvSection(kind="toy"), "solo": EnvSection(kind="toy", args={"policy": "solver"})},
        sources={
            "train": SourceSection(env="math", group_size=3),
            "extra": SourceSection(env="solo", group_size=2, weight=0.5, size=5, shuffle=True),
        },
        evals={"held": EvalSection(env="math", size=2, every_steps=2)},
        dataflow=DataflowSection(task_deadline_s=100.0, max_attempts=2, **changes),
    )


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), order=st.sampled_from(["edf", "fifo"]), steps=st.integers(0, 250))
def test_promises_hold_through_faults_and_crashes(seed: int, order: str, steps: int) -> None:
    world = World(two_policies(order=order), seed=seed)
    chaos(world, steps)
    world.crash()
    settle(world)
    for policy in world.trainers:
        ledger = world.core.ledger(policy)
        ended = {reason: count for reason, count in ledger.items() if reason not in RECORD_COUNTS}
        assert ended[Fate.OPEN] == ended[Fate.BUFFERED] == 0, ledger
        assert ended.pop(ISSUED) == sum(ended.values())
        assert world.trainers[policy].step == world.trainers[policy].steps


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_accept_all_emits_every_id_of_a_finite_list_once_whatever_crashes(seed: int) -> None:
    config = config_of(
        trainers={"solver": TrainerSection(steps=1000, batch_groups=3, filters=(), max_staleness=1000)},
        sources={"train": SourceSection(env="math", group_size=2, size=10, epochs=2, shuffle=True)},
        dataflow=DataflowSection(task_deadline_s=1e9),
    )
    world = World(config, seed=seed)
    rng = random.Random(seed)
    for _ in range(rng.randrange(120)):
        match rng.randrange(6):
            case 0:
                world.plan()
            case 1 if task := world.pull():
                world.answer(task)
            case 2:
                world.read_one()
            case 3:
                world.emit("solver", apply=rng.random() < 0.8)
                if len(world.samples["solver"]) > 0:
                    world.crash()
            case 4:
                world.train("solver")
            case 5:
                world.save()
    world.crash()
    settle(world)
    expected = sorted(f"inc/train/{epoch}/{index}/{m}" for epoch in (0, 1) for index in range(10) for m in (0, 1))
    assert world.emitted_tasks("solver") == expected


def test_a_dead_trainer_does_not_stop_the_other() -> None:
    config = config_of(
        trainers={
            "alive": TrainerSection(steps=30, batch_groups=2, filters=()),
            "dead": TrainerSection(steps=30, batch_groups=2, filters=()),
        }
    )
    world = World(config)
    for _ in range(200):
        world.act()
        world.check()
        while (task := world.pull()) is not None:
            world.answer(task)
        while world.read < len(world.episodes):
            world.read_one()
        world.train("alive")
    assert world.trainers["alive"].step == 30
    dead = world.core.ledger("dead")
    assert len(world.samples["dead"]) == 2, "prefetch = 1: the batch that is needed now and one more"
    assert dead["surplus"] > 0
    assert dead["emitted"] + dead["buffered"] == 2 * 2 * 2, "(max_staleness + consumed + 1) · batch groups of 2"


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_a_faultless_world_wastes_nothing(max_staleness: int) -> None:
    trainer = TrainerSection(steps=8, batch_groups=3, filters=(), max_staleness=max_staleness, prefetch=max_staleness)
    world = World(config_of(trainers={"solver": trainer}))
    world.run()
    ledger = world.core.ledger("solver")
    assert ledger["emitted"] == 8 * 3 * 2
    assert ledger[ISSUED] == ledger["emitted"]
