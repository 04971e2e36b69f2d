"""A run that can't get anywhere says so: how many, why, and what to do."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from astraflow.actors.dataflow.standstill import FailureStreak, ToldProblems
from astraflow.config import (
    DataflowSection,
    EnvSection,
    ReplaySection,
    RunConfig,
    SelectSection,
    SourceSection,
    TrainerSection,
)
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.problems import EPISODES_LOOKED_AT, GROUPS_IN_A_ROW, UNTAKEN_S, Problem
from astraflow.dataflow.sources import LEAST_SKIPPED
from astraflow.errors import ConfigError, TrainingError
from astraflow.messages import Reason, Task
from astraflow.runfile import load
from tests.dataflow.dataflow_world import World, config_of

OWN = """\
class DropsAll:
    def drops(self, group):
        return True


class AsyncDrops:
    async def drops(self, group):
        return False


class Never:
    def take(self, prompt):
        return False

    def observe(self, result):
        pass


class AsyncTake:
    async def take(self, prompt):
        return False

    def observe(self, result):
        pass


class Exits:
    def drops(self, group):
        raise SystemExit(3)


class Mixed:
    count = 0

    def key(self, group, versions):
        self.count += 1
        return "text" if self.count % 2 else 1


class NoNumber:
    def rank(self, group, *, age_steps, draw):
        return None


class TakesAll:
    def take(self, prompt):
        return True

    def observe(self, result):
        pass


class Unstorable(TakesAll):
    def state(self):
        return {"lock": object()}


class OddMetrics(TakesAll):
    def metrics(self):
        return 7


class OddLevel(TakesAll):
    def level(self, draw):
        return "high"


class Returns:
    def drops(self, group):
        return self.later()

    async def later(self):
        return True
"""
Answer = Callable[[Task], Mapping[str, float]]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_stages.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def world_of(*policies: str, select: str = "accept-all", **trainer: Any) -> World:
    section = TrainerSection(**{"steps": 100, "batch_groups": 2} | trainer)
    return World(
        config_of(
            trainers=dict.fromkeys(policies or ("solver",), section),
            sources={"train": SourceSection(env="math", group_size=4, select=SelectSection(kind=select))},
            dataflow=DataflowSection(task_deadline_s=100.0),
        )
    )


def play(world: World, groups: int, answer: Answer, **changes: Any) -> None:
    """Close at least so many groups; nobody trains."""
    for _ in range(groups):
        world.act()
        closed = sorted(world.queue, key=lambda task: (task.group_id, task.member))[:4]
        for task in closed:
            world.queue.remove(task)
            world.answer(task, answer(task), **changes)
        while world.read < len(world.episodes):
            world.read_one()


def texts(world: World) -> list[str]:
    return [problem.text for problem in world.core.problems(world.now)]


def test_equal_rewards_are_told_with_number_reason_and_next_step() -> None:
    world = world_of()
    play(world, GROUPS_IN_A_ROW - 1, lambda task: {"solver": 0.0})
    assert texts(world) == [], "it may be chance"
    play(world, 1, lambda task: {"solver": 0.0})
    assert texts(world) == [
        "solver learns nothing: its last 32 groups (128 episodes) were not trained (zero-advantage 32); every reward "
        "was 0: read its replies in episodes.jsonl, then make the tasks easier or harder, grade parts of an answer, or "
        "begin with another model"
    ]
    play(world, 1, lambda task: {"solver": float(task.member)})
    assert texts(world) == [], "one group that teaches something, and it is over"


def test_rewards_that_are_equal_within_their_groups_only_ask_for_larger_groups() -> None:
    world = world_of()
    play(world, GROUPS_IN_A_ROW, lambda task: {"solver": float(int(task.group_id.rsplit("/", 1)[1]) % 2)})
    assert "rewards were equal within each group: sample more answers per task" in texts(world)[0]


@pytest.mark.parametrize(
    ("filters", "changes", "told"),
    [
        (
            ("own_stages:DropsAll",),
            {},
            "(own_stages:DropsAll 32); filter own_stages:DropsAll dropped them: look",
        ),
        (("truncated",), {"reason": Reason.TRUNCATED}, "(truncated 32); most replies were cut off: raise sampling."),
    ],
    ids=["own", "truncated"],
)
def test_a_filter_that_drops_all_is_named(filters: tuple[str, ...], changes: Mapping[str, Any], told: str) -> None:
    world = world_of(filters=filters)
    play(world, GROUPS_IN_A_ROW, lambda task: {"solver": float(task.member)}, **changes)
    assert told in texts(world)[0]


def test_a_policy_that_no_agent_asks_or_rewards_is_told_while_the_others_train() -> None:
    world = world_of("solver", "verifier")
    play(world, GROUPS_IN_A_ROW, lambda task: {"solver": float(task.member)})
    (problem,) = world.core.problems(world.now)
    assert (problem.kind, problem.subject, problem.times) == ("no-learning-signal", "verifier", 32)
    assert (
        "in 128 episodes nothing that it sampled was rewarded: no agent asks verifier, or none rewards" in problem.text
    )


def test_what_waits_is_told_of_the_policies_that_are_not_finished() -> None:
    world = world_of("solver", "verifier", steps=1)
    play(world, 3, lambda task: {"solver": float(task.member)})
    world.act()
    world.train("solver")
    assert world.core.waits_for() == "episodes: 0 of 2 groups for batch 1 of verifier, 3 in flight"


def test_episodes_that_fail_are_told_with_their_reasons() -> None:
    world = world_of()
    play(world, GROUPS_IN_A_ROW, lambda task: {}, reason=Reason.GRADER)
    assert "(small-group 32); their episodes failed (grader 128): see `astraflow status`" in texts(world)[0]


def test_a_selector_that_refuses_all_is_counted_and_told() -> None:
    world = world_of(select="own_stages:Never", filters=())
    play(world, 2, lambda task: {"solver": 1.0})
    assert [decision.refused for decision in world.decisions[:2]] == [LEAST_SKIPPED] * 2
    assert texts(world) == [
        "the selector own_stages:Never of source train refused 1,000 tasks one after the other, so the next is played "
        "all the same; look at its take(), or at its knobs under sources.train.select.args"
    ]
    world.act()
    assert world.core.batch_metrics("solver")["dataflow.skipped_tasks"] >= 2 * LEAST_SKIPPED


@pytest.mark.parametrize(
    ("metrics", "reasons"),
    [
        ({"forks": 7.0, "forks/reply": 5.0, "forks/agent": 2.0}, "(agent 256, reply 640)"),
        ({"forks": 7.0}, "(unknown 896)"),
    ],
    ids=["reasons", "number"],
)
def test_histories_that_are_rewritten_as_a_rule_are_told_with_reasons(metrics: dict[str, float], reasons: str) -> None:
    world = world_of(filters=(), max_staleness=40)
    play(world, EPISODES_LOOKED_AT // 8, lambda task: {"solver": float(task.member)}, metrics=metrics)
    assert texts(world) == [], "in half of them, perhaps"
    play(world, EPISODES_LOOKED_AT // 8, lambda task: {"solver": float(task.member)}, metrics=metrics)
    assert reasons in texts(world)[0]
    assert texts(world)[0].startswith("in 128 of the last 128 episodes a history was rewritten")
    play(world, EPISODES_LOOKED_AT // 8, lambda task: {"solver": float(task.member)})
    assert texts(world) == []


def test_a_selector_that_takes_some_is_no_problem() -> None:
    world = world_of(select="greso", filters=())
    play(world, 8, lambda task: {"solver": 1.0})
    assert {decision.refused for decision in world.decisions} == {0}
    assert texts(world) == []


@pytest.mark.parametrize("filters", ["own_stages:AsyncDrops", "own_stages:Returns"])
def test_a_filter_that_is_a_coroutine_is_refused_and_not_taken_for_yes(filters: str) -> None:
    world = world_of(filters=(filters,))
    with pytest.raises(ConfigError, match=r"drops\(\) of own_stages:\w+ is async, and nobody awaits it"):
        play(world, 1, lambda task: {"solver": float(task.member)})


def play_a_batch(config: RunConfig) -> None:
    world = World(config)
    play(world, 2, lambda task: {"solver": float(task.member)})
    world.act()
    world.core.batch_metrics("solver")
    play(world, 6, lambda task: {"solver": float(task.member)})


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (
            {"filters": ("own_stages:Exits",)},
            r"failed in drops\(\): SystemExit: 3 \(own_stages.py line \d+\); mend it",
        ),
        ({"order": "own_stages:Mixed"}, "dataflow.order: keys of own_stages:Mixed can't be compared: '<' not supp"),
        ({"replay": "own_stages:NoNumber"}, r"replay: rank\(\) of own_stages:NoNumber gave None, expected a number"),
        ({"select": "own_stages:Unstorable"}, r"state\(\) of own_stages:Unstorable gave what can't be stored"),
        ({"select": "own_stages:OddMetrics"}, r"metrics\(\) of own_stages:OddMetrics gave 7, expected numbers by name"),
        ({"select": "own_stages:OddLevel"}, r"level\(\) of own_stages:OddLevel gave high, expected a number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_stages_of_ones_own_that_misbehave_are_named_with_what_is_wrong(stage: dict[str, Any], told: str) -> None:
    filters = stage.get("filters", ())
    replay = ReplaySection(kind=stage.get("replay", "none"), share=0.5)
    section = TrainerSection(steps=9, batch_groups=2, filters=filters, replay=replay, max_staleness=4)
    select = SelectSection(kind=stage.get("select", "accept-all"))
    config = config_of(
        trainers={"solver": section},
        sources={"train": SourceSection(env="math", group_size=4, select=select)},
        dataflow=DataflowSection(task_deadline_s=100.0, order=stage.get("order", "edf")),
    )
    with pytest.raises(ConfigError, match=told):
        play_a_batch(config)


RUN = """\
[run]
name = "demo"

[policies.solver]
model = "toy"
engine = { kind = "toy" }

[policies.solver.trainer]
steps = 4
learner = "toy"

[envs.game]
kind = "toy"

[sources.game]
env = "game"
size = 20
"""


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            'policies.solver.trainer.filters=["own_stages:AsyncDrops"]',
            "drops() of filter own_stages:AsyncDrops is",
        ),
        ('sources.game.select.kind="own_stages:AsyncTake"', "take() of selector own_stages:AsyncTake is async"),
    ],
    ids=["filter", "selector"],
)
def test_a_stage_that_is_async_is_found_before_the_run(tmp_path: Path, override: str, told: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    with pytest.raises(ConfigError) as refused:
        load(file, [override])
    assert told in str(refused.value)


@pytest.mark.parametrize(("agent", "start"), [("external", "astraflow agent my_agent.py"), ("sessions", "af.sessions")])
def test_an_environment_that_others_play_is_told_if_nobody_takes_its_tasks(agent: str, start: str) -> None:
    trainer = TrainerSection(steps=4, batch_groups=2)
    envs = {"math": EnvSection(kind="toy", agent=agent)}
    world = World(config_of(trainers={"solver": trainer}, envs=envs))
    world.plan()
    tasks = len(world.queue)
    world.core.on_queue("math", tasks, 0.0)
    world.core.on_queue("math", tasks, UNTAKEN_S)
    assert world.core.problems(UNTAKEN_S - 1) == []
    (problem,) = world.core.problems(UNTAKEN_S)
    assert (problem.kind, problem.subject) == ("no-agent-joined", "math")
    assert f"none has taken one of its {tasks:,} tasks for 30 s; start one: " in problem.text
    assert start in problem.text
    world.core.on_queue("math", tasks - 1, UNTAKEN_S + 1)
    assert world.core.problems(UNTAKEN_S + 1) == [], "somebody has taken one"


def test_tasks_that_rollouts_of_ones_own_have_not_taken_yet_are_no_problem() -> None:
    world = world_of()
    world.plan()
    for now in (0.0, 1000.0):
        world.core.on_queue("math", len(world.queue), now)
    assert world.core.problems(1000.0) == [], "whether there is a rollout is told from its member record"


def test_a_problem_is_told_when_it_shows_when_it_has_doubled_and_when_it_comes_back() -> None:
    told = ToldProblems()
    at = {times: Problem("no-learning-signal", "solver", times, str(times)) for times in (32, 33, 63, 64, 65)}
    assert [len(told.due([at[times]])) for times in (32, 33, 63, 64, 65)] == [1, 0, 0, 1, 0]
    assert told.due([]) == []
    assert told.due([at[32]]) == [at[32]]


def test_a_streak_of_failures_ends_the_run_and_says_what_the_last_group_met() -> None:
    streak = FailureStreak(2)
    streak.see_group({"solver": Fate.SMALL_GROUP}, "a")
    streak.see_group({"solver": Fate.SMALL_GROUP, "verifier": Fate.BUFFERED}, "b")
    streak.see_group({}, "c")
    streak.see_group({"solver": Fate.SMALL_GROUP}, "d")
    with pytest.raises(TrainingError, match=r"^2 groups in a row .* the last e\. Mend it"):
        streak.see_group({"solver": Fate.SMALL_GROUP}, "e")
