"""Evaluation rounds."""

from collections.abc import Mapping

import msgspec
import pytest

from astraflow.config import EnvSection, EvalSection, PolicySection, SamplingSection, SourceSection, TrainerSection
from astraflow.messages import Reason
from astraflow.messages.sampling import sampling_for
from tests.dataflow.dataflow_world import Trainer, World, config_of, episode_of


def world_of(*, steps: int = 6, every: int = 2, size: int = 3, repeats: int = 1, temperature: float = 1.0) -> World:
    section = EvalSection(env="math", size=size, every_steps=every, repeats=repeats, temperature=temperature)
    trainer = TrainerSection(steps=steps, batch_groups=2, filters=(), max_staleness=1, prefetch=1)
    return World(config_of(trainers={"solver": trainer}, evals={"held": section}))


def rounds(world: World) -> list[tuple[int, int]]:
    """(round, step) of every score of the solver, in order."""
    return [(int(each["labels"]["round"]), each["step"]) for each in world.scores if each["policy"] == "solver"]


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [
        (6, 2, [(0, 0), (1, 2), (2, 4), (3, 6)]),
        (5, 2, [(0, 0), (1, 2), (2, 4), (3, 5)]),  # the final step isn't a multiple
        (3, 0, [(0, 0), (1, 3)]),  # only before and after
        (1, 1, [(0, 0), (1, 1)]),
    ],
)
def test_rounds_before_during_and_after(steps: int, every: int, expected: list[tuple[int, int]]) -> None:
    world = world_of(steps=steps, every=every)
    world.run()
    assert rounds(world) == expected
    assert all(each["values"]["eval.size"] == 3 for each in world.scores)
    assert world.core.ledger("solver")["issued"] == steps * 2 * 2, "evaluations aren't issued training tasks"


def test_a_round_that_is_missed_is_skipped_for_the_newest() -> None:
    world = world_of(steps=9)
    kept = []
    for _ in range(7):  # evaluation tasks wait in their queue while training goes on
        world.act()
        for task in world.queue:
            if not task.eval_set:
                world.answer(task)
        kept += [task for task in world.queue if task.eval_set]
        world.queue.clear()
        while world.read < len(world.episodes):
            world.read_one()
        world.train("solver")
    assert {task.eval_round for task in kept} == {0}
    assert world.trainers["solver"].step == 6
    assert "evaluation held round 0: 0 of 3 tasks" in world.core.waits_for()
    world.queue += kept
    world.run()
    assert rounds(world) == [(0, 0), (3, 7), (4, 8), (5, 9)]


def test_a_round_asks_for_the_version_that_it_judges_and_for_the_same_seeds() -> None:
    world = world_of(steps=2, every=1, repeats=2, temperature=0.0)
    seen: dict[int, list[tuple[int, int]]] = {}
    for _ in range(10):
        world.act()
        for task in world.queue:
            world.answer(task)
            if task.eval_set:
                seen.setdefault(task.eval_round, []).append((task.payload["index"], task.seed))
                assert task.min_versions == {"solver": task.eval_round}
                assert task.sampling is None  # each policy's own, with what the set changes in it
                assert task.feeds == ()
                assert task.id == f"inc/eval-held/{task.eval_round}/{task.payload['index']}/{task.member}"
        world.queue.clear()
        while world.read < len(world.episodes):
            world.read_one()
        world.train("solver")
    assert sorted(seen) == [0, 1, 2]
    assert [index for index, _ in seen[0]] == [1_000_000, 1_000_000, 1_000_001, 1_000_001, 1_000_002, 1_000_002]
    assert seen[0] == seen[1] == seen[2]


def test_an_evaluation_changes_the_sampling_of_each_policy_by_itself() -> None:
    config = config_of(
        evals={
            "held": EvalSection(env="math", temperature=0.0),
            "wide": EvalSection(env="math", top_p=0.5, max_new_tokens=7),
        }
    )
    long = PolicySection(model="toy", sampling=SamplingSection(max_new_tokens=9, top_k=3, top_p=0.9))
    short = PolicySection(model="toy", sampling=SamplingSection(max_new_tokens=1, temperature=0.5))
    config = msgspec.structs.replace(config, policies={"long": long, "short": short})
    assert sampling_for(config, "long") == sampling_for(config, "long", "gone") == long.sampling
    assert sampling_for(config, "long", "held") == msgspec.structs.replace(long.sampling, temperature=0.0)
    assert sampling_for(config, "short", "held") == SamplingSection(max_new_tokens=1, temperature=0.0)
    assert sampling_for(config, "short", "wide") == SamplingSection(max_new_tokens=7, temperature=1.0, top_p=0.5)


def test_scores_count_failures_apart() -> None:
    world = world_of(size=4)
    world.plan()
    tasks = [task for task in world.queue if task.eval_set]
    for task, (reward, correct) in zip(tasks, [(1.0, 1.0), (0.5, 0.0), (float("nan"), 1.0)], strict=False):
        world.answer(task, {"solver": reward}, correct=correct, ended_at=task.payload["index"] - 1_000_000.0 + 1)
    world.answer(tasks[3], {}, reason=Reason.ENV)
    while world.read < len(world.episodes):
        world.read_one()
    [score] = world.core.eval_results()
    assert score["labels"] == {"set": "held", "round": "0"}
    assert (score["policy"], score["step"], score["version"]) == ("solver", 0, 0)
    assert score["values"] == {
        "eval.size": 2.0,
        "eval.failed": 2.0,
        "eval.reward": 0.75,
        "eval.correct": 0.5,
        "eval.seconds": 3.0,
        "eval.version_newest": 0.0,
        "eval.correct_se": 0.5,
        "eval.reward_se": 0.25,
    }
    assert world.core.eval_results() == []
    assert world.core.references() == []


def test_repeats_give_pass_at_k_over_the_tasks_that_have_enough_answers() -> None:
    world = world_of(size=3, repeats=4)
    world.plan()
    right = {0: [1, 0, 0, 0], 1: [1, 1, 0, 0], 2: [0, 0, 0]}  # the last one's fourth answer fails
    for task in (task for task in world.queue if task.eval_set):
        answers = right[task.payload["index"] - 1_000_000]
        if task.member < len(answers):
            world.answer(task, {"solver": 1.0}, correct=float(answers[task.member]))
        else:
            world.answer(task, {}, reason=Reason.ENV)
    while world.read < len(world.episodes):
        world.read_one()
    [score] = world.core.eval_results()
    values = score["values"]
    assert (values["eval.size"], values["eval.failed"]) == (11, 1)
    assert values["eval.correct"] == pytest.approx(3 / 11)
    assert values["eval.pass_at_2"] == pytest.approx((1 / 2 + 5 / 6 + 0) / 3)  # 1 − C(3,2)/C(4,2), 1 − C(2,2)/C(4,2)
    assert values["eval.pass_at_4"] == 1.0  # of the two tasks that have four answers
    assert values["eval.correct_se"] == pytest.approx(0.25 / 3**0.5)  # means 1/4, 1/2, 0


def test_scores_have_the_names_of_the_table() -> None:
    from astraflow.messages.metric_names import LABEL_ROUND, LABEL_SET, known

    world = world_of()
    world.run()
    assert all(known(name) for each in world.scores for name in each["values"])
    assert all(set(each["labels"]) == {LABEL_SET, LABEL_ROUND} for each in world.scores)


def test_a_run_without_trainers_is_one_evaluation() -> None:
    config = config_of(evals={"held": EvalSection(env="math", size=2)})
    frozen = {name: PolicySection(model="toy", sampling=SamplingSection()) for name in ("a", "b")}
    world = World(type(config)(run=config.run, policies=frozen, envs=config.envs, sources={}, eval=config.eval))
    world.run()
    assert [(each["policy"], each["step"]) for each in world.scores] == [("a", 0), ("b", 0)]


def test_each_crossing_by_any_policy_makes_a_round_due() -> None:
    trainers = {
        "fast": TrainerSection(steps=8, batch_groups=1, filters=()),
        "slow": TrainerSection(steps=4, batch_groups=1, filters=()),
    }
    world = World(config_of(trainers=trainers, evals={"held": EvalSection(env="math", size=1, every_steps=4)}))
    held = world.core._state.evals["held"]  # the rule alone: no run needed

    def due(fast: int, slow: int) -> int | None:
        views: Mapping[str, Trainer] = {"fast": Trainer("fast", 8, step=fast), "slow": Trainer("slow", 4, step=slow)}
        for name, trainer in views.items():
            trainer.consumed = trainer.step
            world.core._state.trainers[name].learn(trainer.progress())
        return held.due(world.core._state.trainers)

    assert [due(0, 0), due(3, 3), due(4, 3), due(4, 4)] == [0, 0, 1, 2]


def test_an_evaluation_of_one_policy_does_not_wait_for_another() -> None:
    trainers = {name: TrainerSection(steps=2, batch_groups=1, filters=()) for name in ("dead", "solver")}
    world = World(
        config_of(
            trainers=trainers,
            envs={name: EnvSection(kind="toy", args={"policy": name}) for name in ("dead", "solver")},
            sources={name: SourceSection(env=name, group_size=2) for name in ("dead", "solver")},
            evals={"held": EvalSection(env="solver", size=1, every_steps=0)},
        )
    )
    for _ in range(12):
        world.act()
        while (task := world.pull()) is not None:
            world.episodes.append(episode_of(task, {policy: float(task.member) for policy in trainers}))
        while world.read < len(world.episodes):
            world.read_one()
        world.train("solver")
    assert rounds(world) == [(0, 0), (1, 2)]
