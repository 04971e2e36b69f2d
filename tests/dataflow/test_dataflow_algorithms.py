"""Data algorithms inside the whole of dataflow: selectors, replay, redundant members, knobs; faults and restores."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.config import EnvSection, ReplaySection, RunConfig, SelectSection, SourceSection, TrainerSection
from astraflow.dataflow.core import DataflowCore
from astraflow.dataflow.filters import ClosedGroup
from astraflow.errors import ConfigError
from astraflow.messages import DecisionKind
from astraflow.messages.ids import LEVEL_STRIDE
from tests.dataflow.dataflow_world import World, config_of
from tests.dataflow.test_dataflow_world import chaos, settle


def source(kind: str = "accept-all", *, size: int = 10, env: str = "math", **fields: Any) -> SourceSection:
    args = fields.pop("args", {})
    select = SelectSection(kind=kind, args=args)
    return SourceSection(env=env, group_size=2, size=size, shuffle=size > 0, select=select, **fields)


def everything() -> RunConfig:
    return config_of(
        trainers={
            "solver": TrainerSection(
                steps=8,
                batch_groups=4,
                max_staleness=2,
                prefetch=1,
                replay=ReplaySection(kind="prioritized", share=0.5, max_uses=3, capacity=6, max_staleness=4),
            ),
            "verifier": TrainerSection(steps=4, batch_groups=2, max_staleness=1, filters=()),
        },
        envs={"math": EnvSection(kind="toy"), "solo": EnvSection(kind="toy", args={"policy": "solver"})},
        sources={
            "train": source("greso", args={"window": 4, "step": 0.1}, extra=1),
            "solved": source("filter-solved", env="solo", epochs=3),
            "climb": source("levels", args={"levels": 3, "window": 2}, extra=2),
            "pools": source("pools", env="solo", weight=0.5),
        },
    )


def test_metrics_tell_what_was_skipped_replayed_and_how_likely_the_selector_skips() -> None:
    replay = ReplaySection(kind="latest", share=0.5, max_uses=2, max_staleness=4)
    world = World(
        config_of(
            trainers={"solver": TrainerSection(steps=20, batch_groups=2, max_staleness=1, filters=(), replay=replay)},
            sources={"train": source("greso", size=6, args={"start": 0.0})},
        ),
        sizes={"math": None},
    )
    told: list[dict[str, float]] = []
    while len(told) < 8:
        world.plan()
        while (task := world.pull()) is not None:
            world.answer(task, {"solver": float(task.member * (task.payload["index"] % 2))})  # even ones fail
        while world.read < len(world.episodes):
            world.read_one()
        if world.emit("solver"):
            told.append(world.core.batch_metrics("solver"))
            world.train("solver")
    assert told[0]["dataflow.skipped_tasks"] == told[0]["dataflow.replayed_groups"] == 0
    assert any(each["dataflow.skipped_tasks"] > 0 for each in told), "half of the tasks fail always"
    assert {each["dataflow.replayed_groups"] for each in told} == {0, 1}
    assert told[0]["dataflow.select.train.p_hard"] == 0.0
    assert told[-1]["dataflow.select.train.p_hard"] >= 0.05


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_all_algorithms_together_keep_every_promise_whatever_happens(seed: int) -> None:
    world = World(everything(), sizes={"math": None, "solo": 40}, seed=seed)
    chaos(world, 150)
    settle(world)
    ledger = world.core.ledger("solver")
    assert ledger["open"] == ledger["buffered"] == 0


def test_what_is_restored_decides_as_what_was_saved() -> None:
    world = World(everything(), sizes={"math": None, "solo": 40}, seed=3)
    for _ in range(12):
        world.act()
        for _ in range(6):
            if (task := world.pull()) is not None:
                world.answer(task)
        while world.read < len(world.episodes):
            world.read_one()
        for policy in world.trainers:
            world.train(policy)
        twin = DataflowCore.restore(world.config, world.core.snapshot(), sizes=world.sizes)
        twin.resolve({sequence: world.episodes[sequence - 1] for sequence in twin.references()})
        world.tell_all()
        for trainer in world.trainers.values():
            twin.on_progress(trainer.progress())
        assert twin.plan(world.now) == world.core.plan(world.now)
        assert [twin.next_batch(p) for p in world.trainers] == [world.core.next_batch(p) for p in world.trainers]
    assert world.core.ledger("solver")["replayed"] > 0


def solver_world(section: SourceSection, seed: int = 0, **trainer: Any) -> World:
    given = {"steps": 12, "batch_groups": 2, "max_staleness": 1} | trainer
    return World(config_of(trainers={"solver": TrainerSection(**given)}, sources={"train": section}), seed=seed)


def play(world: World, reward: Any, *, rounds: int = 400) -> Counter[int]:
    """Until the end; how often each task was issued."""
    for _ in range(rounds):
        world.act()
        world.check()
        if world.core.finished:
            break
        while world.queue:
            task = world.queue.pop(0)
            world.answer(task, {"solver": reward(task)}, correct=reward(task))
        while world.read < len(world.episodes):
            world.read_one()
        world.train("solver")
    else:
        raise AssertionError(world.core.waits_for())
    return Counter(d.index for d in world.decisions if d.kind is DecisionKind.ISSUE)


def test_greso_spends_rollouts_where_there_is_something_to_learn() -> None:
    """Tasks 0..5 never differ, 6..9 always do."""
    reward = lambda task: float(task.member == 0) if task.payload["index"] >= 6 else 0.0  # noqa: E731
    plain = play(solver_world(source(), steps=60), reward)
    greso = play(solver_world(source("greso"), steps=60), reward)
    assert sum(greso.values()) < 0.6 * sum(plain.values())
    assert all(greso[index] >= 1 for index in range(10))


def test_a_source_whose_tasks_are_all_solved_goes_on_all_the_same_unless_its_epochs_are_over() -> None:
    solved = solver_world(source("filter-solved", args={"solved": 0.5}), filters=(), steps=20)
    assert sum(play(solved, lambda task: 1.0).values()) >= 40, "nothing is left, but there are steps to do"
    limited = solver_world(source("filter-solved", args={"solved": 0.5}, epochs=3), filters=(), steps=20)
    issued = play(limited, lambda task: 1.0)
    assert set(issued.values()) <= {1, 2}, "what was in flight when it was solved may come twice"
    assert limited.samples["solver"][-1].last


def test_levels_are_climbed_and_their_tasks_carry_the_level() -> None:
    world = solver_world(source("levels", size=0, args={"levels": 3, "window": 4}), filters=(), steps=30)
    issued = play(world, lambda task: 1.0)
    assert {index // LEVEL_STRIDE for index in issued} == {0, 1, 2}


def test_shares_can_follow_the_sizes() -> None:
    sections = {"big": source(size=30), "small": source(size=10, weight=2.0)}
    config = config_of(sources=sections, trainers={"solver": TrainerSection(steps=50, batch_groups=2)})
    config = msgspec.structs.replace(config, dataflow=msgspec.structs.replace(config.dataflow, shares="size"))
    world = World(config)
    world.run()
    issued = Counter(d.source for d in world.decisions if d.kind is DecisionKind.ISSUE)
    assert issued["big"] / issued["small"] == pytest.approx(30 / 20, rel=0.1), "the small one is up-sampled twice"


def test_a_group_is_closed_when_it_has_enough_members_and_the_rest_count_redundant() -> None:
    world = solver_world(source(extra=2))
    world.plan()
    group = world.queue[0].group_id
    tasks = [task for task in world.queue if task.group_id == group]
    assert len(tasks) == 4
    for task in tasks[1:3]:
        world.answer(task, {"solver": float(task.member == 1)})
    while world.read < len(world.episodes):
        world.read_one()
    assert world.core.ledger("solver")["buffered"] == 0
    world.plan()
    close = next(d for d in world.decisions if d.kind is DecisionKind.CLOSE)
    assert (close.group_id, close.member, close.reason) == (group, -1, "redundant")
    ledger = world.core.ledger("solver")
    assert (ledger["redundant"], ledger["buffered"]) == (2, 2)
    world.answer(tasks[0], {"solver": 1.0})
    world.read_one()
    assert world.core.ledger("solver")["late"] == 1


def test_a_filtered_group_is_replaced_at_once_not_when_a_batch_is_short() -> None:
    """Continuous refill: credit is back the moment that the filter has spoken."""
    world = solver_world(source(), batch_groups=4)
    issued = world.plan()
    group = world.queue[0].group_id
    for task in [task for task in world.queue if task.group_id == group]:
        world.answer(task, {"solver": 0.0})
    world.read_one()
    assert world.plan() == 0
    world.read_one()
    assert world.core.ledger("solver")["zero-advantage"] == 2
    assert (issued, world.plan()) == (8, 2), "one for the dropped group, one for the yield of 15/16"


def test_replay_fills_a_part_of_every_batch_and_fewer_tasks_are_issued() -> None:
    reward = lambda task: float(task.member == 0)  # noqa: E731
    section = {"steps": 30, "batch_groups": 4, "max_staleness": 1, "prefetch": 1}
    plain = solver_world(source(), **section)
    replay = ReplaySection(kind="uniform", share=0.5, max_uses=3, max_staleness=4)
    replaying = solver_world(source(), **section, replay=replay)
    without, some = sum(play(plain, reward).values()), sum(play(replaying, reward).values())
    assert without == 120
    assert some <= 75, "about two new groups per batch, the first ones and the last apart"
    assert replaying.core.ledger("solver")["replayed"] == 2 * (120 - replaying.core.ledger("solver")["emitted"] // 2)


@pytest.mark.parametrize("kind", ["greso", "pools", "curriculum"])
def test_in_deterministic_mode_selectors_do_not_see_the_order_of_arrivals(kind: str) -> None:
    def decided(seed: int) -> list[int]:
        trainers = {"solver": TrainerSection(steps=6, batch_groups=3, max_staleness=0, prefetch=0)}
        args = {"window": 3, "step": 0.2} if kind == "greso" else {}
        config = config_of(trainers=trainers, sources={"train": source(kind, args=args)}, deterministic=True)
        world = World(config, seed=seed)
        for _ in range(400):
            world.act()
            if world.core.finished:
                break
            world.rng.shuffle(world.queue)
            while world.queue:
                task = world.queue.pop()
                world.answer(task, {"solver": float((task.payload["index"] * 7 + task.seed) % 3 == 0)})
            while world.read < len(world.episodes):
                world.read_one()
            if world.rng.random() < 0.3:
                world.crash()
                while world.read < len(world.episodes):
                    world.read_one()
                world.tell_all()
            world.train("solver")
            if world.rng.random() < 0.3:
                world.save()
        return [d.index for d in world.decisions if d.kind is DecisionKind.ISSUE]

    first = decided(0)
    assert len(first) > 18
    assert decided(1) == decided(2) == first


def test_a_knob_is_turned_by_its_key_and_stays_turned_after_a_restart() -> None:
    world = solver_world(source("greso"), filters=("truncated",), replay=ReplaySection(kind="prioritized"))
    world.core.users.set_knob("sources.train.select.args.target", 0.1)
    world.core.users.set_knob("policies.solver.trainer.filter_args.truncated.most", 0.2)
    world.core.users.set_knob("policies.solver.trainer.replay.args.alpha", 1)
    with pytest.raises(ConfigError, match=r"did you mean 'sources.train.select.args.target'"):
        world.core.users.set_knob("sources.train.select.args.tragt", 0.1)
    with pytest.raises(ConfigError, match="target is 3"):
        world.core.users.set_knob("sources.train.select.args.target", 3)
    world.save()
    world.crash()
    knobs = world.core.users.knobs()
    assert knobs["sources.train.select.args.target"] == 0.1
    assert knobs["policies.solver.trainer.filter_args.truncated.most"] == 0.2
    assert knobs["policies.solver.trainer.replay.args.alpha"] == 1


class NoSecondMember:
    """A user's filter."""

    def drops(self, group: ClosedGroup) -> bool:
        return len(group.rewards_G) > 1 and group.rewards_G[1] > 0


def test_a_filter_of_ones_own_is_counted_by_its_name() -> None:
    name = "tests.dataflow.test_dataflow_algorithms:NoSecondMember"
    world = solver_world(source(), filters=(name, "zero-advantage"))
    play(world, lambda task: float(task.payload["index"] % 2 == task.member))
    assert world.core.ledger("solver")[name] > 0
    assert all(int(sample.group_id.rsplit("/", 1)[1]) % 2 == 0 for b in world.samples["solver"] for sample in b.samples)
