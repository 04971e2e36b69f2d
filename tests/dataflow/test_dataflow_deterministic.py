"""Deterministic mode: whatever the order in which episodes come, the same decisions and the same batches."""

from collections import defaultdict
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.config import EvalSection, RunConfig, SourceSection, TrainerSection
from astraflow.messages import Decision, SampleBatch, Task
from tests.dataflow.dataflow_world import World, config_of, episode_of


def config(**trainer: object) -> RunConfig:
    return config_of(
        trainers={"solver": TrainerSection(steps=4, batch_groups=3, max_staleness=2, prefetch=1, **trainer)},
        sources={
            "a": SourceSection(env="math", group_size=2, size=7, shuffle=True),
            "b": SourceSection(env="math", group_size=3),
        },
        evals={"held": EvalSection(env="math", size=2, every_steps=2), "other": EvalSection(env="math", size=1)},
        deterministic=True,
        seed=3,
    )


def reward_of(task: Task) -> float:
    """Fixed by the task, equal within about a third of the groups."""
    return float(task.seed % 3 > 0)


def play(order_seed: int, *, crash_every: int = 0) -> World:
    """A whole run. Records come in a random order, batches and news at random moments, perhaps with crashes between."""
    world = World(config(), seed=order_seed)
    answered: set[str] = set()
    for step in range(1, 1000):
        world.act()
        if world.core.finished:
            return world
        for _ in range(world.rng.randrange(8)):
            task = world.pull()
            if task is not None and task.id not in answered:  # after a crash, tasks may be in the queue twice
                answered.add(task.id)
                versions = {"solver": world.trainers["solver"].version}
                assert task.min_versions == versions, "exactly the version of the consumed batch"
                world.episodes.append(episode_of(task, {"solver": reward_of(task)}, versions=versions))
        for _ in range(world.rng.randrange(8)):
            world.read_one()
        if world.rng.random() < 0.3:
            world.train("solver")
        if crash_every and step % crash_every == 0:
            world.plan(apply=False)
            world.emit("solver", apply=False)
            world.crash()
            while world.read < len(world.episodes):  # dataflow is level with its logs before it decides again
                world.read_one()
            world.tell_all()
        if world.rng.random() < 0.2:
            world.save()
    raise AssertionError(world.core.waits_for())


def content(world: World) -> tuple[list[Decision], list[SampleBatch]]:
    return world.decisions, world.samples["solver"]


@cache
def expected() -> tuple[list[Decision], list[SampleBatch]]:
    return content(play(0))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_of_arrivals_changes_nothing(seed: int) -> None:
    assert content(play(seed)) == expected()


def test_batches_are_on_policy_and_sorted_by_id() -> None:
    world = play(1)
    assert len(world.samples["solver"]) == 4
    assert all(batch.max_staleness == 0 for batch in world.samples["solver"])
    assert all(batch.group_ids == tuple(sorted(batch.group_ids, key=_numeric)) for batch in world.samples["solver"])


def _numeric(group_id: str) -> tuple[str, int, int]:
    _, source, epoch, index = group_id.split("/")
    return source, int(epoch), int(index)


def test_a_cohort_is_issued_whole_and_alone() -> None:
    world = play(2)
    tasks: dict[str, int] = defaultdict(int)
    sizes = {}
    order = []
    for decision in world.decisions:
        tasks[decision.cohort_id] += decision.group_size
        sizes[decision.cohort_id] = decision.cohort_size
        if decision.cohort_id not in order:
            order.append(decision.cohort_id)
    assert tasks == sizes
    assert [each.split("/")[1] for each in order[:3]] == ["eval-held-0", "eval-other-0", "train-0"]
    evaluated = [each["step"] for each in world.scores if each["labels"]["set"] == "held"]
    assert evaluated == [0, 2, 4]


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), crash_every=st.integers(1, 20))
def test_a_crash_in_between_changes_nothing(seed: int, crash_every: int) -> None:
    assert content(play(seed, crash_every=crash_every)) == expected()


def test_the_rest_of_a_cohort_is_issued_after_a_crash_and_no_more() -> None:
    plain = TrainerSection(steps=4, batch_groups=3)
    world = World(config_of(trainers={"solver": plain}, deterministic=True))
    world.plan(apply=False)
    world.crash()
    while (task := world.pull()) is not None:
        world.answer(task, {"solver": 1.0})  # the first group has no signal
    world.read_one()
    world.read_one()
    world.plan()
    assert [(d.cohort_id, d.cohort_size, d.group_size) for d in world.decisions] == [("inc/train-0", 6, 2)] * 3
    for task in world.queue:
        world.answer(task, {"solver": float(task.member)})
    while world.read < len(world.episodes):
        world.read_one()
    world.plan()
    assert [(d.cohort_id, d.cohort_size) for d in world.decisions[3:]] == [("inc/train-3", 2)]


def test_an_evaluation_waits_until_every_trainer_is_idle() -> None:
    trainers = {name: TrainerSection(steps=4, batch_groups=1, filters=()) for name in ("a", "b")}
    held = EvalSection(env="math", size=1, every_steps=1)
    world = World(config_of(trainers=trainers, evals={"held": held}, deterministic=True))
    for _ in range(2):  # the round before, then the first batch
        world.act()
        for task in world.queue:
            world.answer(task)
        world.queue.clear()
        while world.read < len(world.episodes):
            world.read_one()
    world.act()
    world.train("a")
    assert world.plan() == 0, "b's weights are about to change"
    world.train("b")
    world.plan()
    assert world.decisions[-1].eval_round == 2
    assert world.decisions[-1].min_versions == {"a": 1, "b": 1}
