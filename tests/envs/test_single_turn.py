"""SingleTurnEnv: which outcome follows from which reply, and that failures are never rewards."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from astraflow.config import EnvSection
from astraflow.envs import ChatMessage, Grade, PolicyHandle, Reply, SingleTurnEnv, agent, build_env
from astraflow.envs.agents import AgentEnv
from astraflow.errors import ConfigError, EngineError, EnvError
from astraflow.messages import Reason
from tests.envs.scripted import ScriptedPolicy, task


class EchoEnv(SingleTurnEnv):
    """Right if the reply is the payload's word; grades "raise" by raising and "nan" by nan."""

    def task(self, index: int) -> dict[str, Any]:
        return {"word": f"w{index}"}

    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        return [ChatMessage("system", "Echo."), ChatMessage("user", payload["word"])]

    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        if reply.text == "raise":
            raise ZeroDivisionError("broken grader")
        if reply.text == "nan":
            return Grade(reward=math.nan)
        if reply.text == "two":
            return Grade(reward=1.0, correct=2.0)
        right = float(reply.text == payload["word"])
        return Grade(reward=right, correct=right, reason=Reason.OK if reply.text else Reason.POLICY)

    def expected(self, payload: Mapping[str, Any]) -> str:
        return str(payload["word"])


async def outcome_of(text: str, finish_reason: str = "stop"):
    return await EchoEnv().run(task({"word": "w1"}), {"solver": ScriptedPolicy(text, finish_reason)})


async def test_a_right_reply_is_rewarded_and_readable():
    outcome = await outcome_of("w1")
    assert (outcome.rewards, outcome.correct, outcome.reason) == ({"solver": 1.0}, 1.0, Reason.OK)
    assert (outcome.prompt, outcome.answer) == ("Echo.\n\nw1", "w1")


@pytest.mark.parametrize(
    ("text", "finish_reason", "reason"),
    [
        ("no", "stop", Reason.OK),
        ("", "stop", Reason.POLICY),
        ("no", "length", Reason.TRUNCATED),
        ("", "length", Reason.TRUNCATED),
        ("w1", "length", Reason.OK),  # right before the budget ran out: a success
    ],
)
async def test_reason_of_a_reply(text, finish_reason, reason):
    assert (await outcome_of(text, finish_reason)).reason is reason


@pytest.mark.parametrize("text", ["raise", "nan", "two"])
async def test_a_failing_grader_gives_a_reason_and_no_reward(text):
    outcome = await outcome_of(text)
    assert outcome.reason is Reason.GRADER
    assert outcome.rewards == {}
    assert outcome.error


async def test_an_aborted_reply_is_cancelled_not_graded():
    outcome = await outcome_of("raise", "abort")
    assert (outcome.reason, outcome.rewards) == (Reason.CANCELLED, {})


async def test_a_failing_prompt_is_an_env_error():
    with pytest.raises(EnvError, match="KeyError"):
        await EchoEnv().run(task({}), {"solver": ScriptedPolicy("w1")})


async def test_the_policy_is_chosen_by_name_or_is_the_only_one():
    solver, judge = ScriptedPolicy("w1"), ScriptedPolicy("w1")
    outcome = await EchoEnv(policy="judge").run(task({"word": "w1"}), {"solver": solver, "judge": judge})
    assert outcome.rewards == {"judge": 1.0}
    assert not solver.asked
    with pytest.raises(EnvError, match=r"policy = ''.*\['judge', 'solver'\]"):
        await EchoEnv().run(task({"word": "w1"}), {"solver": solver, "judge": judge})


class Parts(EchoEnv):
    """Two named parts, with weights of the class."""

    part_weights: Mapping[str, float] = {"format": 0.25}

    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        return Grade(reward=99.0, correct=1.0, parts={"answer": 1.0, "format": 0.5, "extra": 2.0})


@pytest.mark.parametrize(
    ("weights", "reward"),
    [({}, 99.0), ({"format": 0.25}, 1.0 + 0.125 + 2.0), ({"answer": 0.0, "format": -1.0, "extra": 0.5}, 0.5)],
)
async def test_weights_make_the_reward_of_the_parts(weights: dict[str, float], reward: float) -> None:
    env = Parts()
    env.part_weights = weights
    outcome = await env.run(task({"word": "w1"}), {"solver": ScriptedPolicy("x")})
    assert outcome.rewards == {"solver": reward}
    assert outcome.parts == {"answer": 1.0, "format": 0.5, "extra": 2.0}


def test_the_run_files_weights_go_before_the_classes() -> None:
    kind = f"{__name__}:Parts"
    env = build_env(EnvSection(kind=kind, part_weights={"answer": 2.0}, grade_deadline_s=7.0))
    assert isinstance(env, Parts)
    assert (env.part_weights, env.grade_deadline_s) == ({"format": 0.25, "answer": 2.0}, 7.0)
    assert Parts.part_weights == {"format": 0.25}
    assert build_env(EnvSection(kind=kind)).grade_deadline_s == 120.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("changes", [{"part_weights": {"a": 1.0}}, {"grade_deadline_s": 1.0}])
def test_an_environment_without_a_grade_takes_neither_weights_nor_its_deadline(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"has no grade\(\)"):
        build_env(EnvSection(kind="toy", **changes))


def test_a_weight_must_be_a_finite_number() -> None:
    with pytest.raises(ConfigError, match=r"part_weights\.answer is nan"):
        build_env(EnvSection(kind=f"{__name__}:Parts", part_weights={"answer": math.nan}))


@pytest.mark.parametrize(
    ("grade", "words"),
    [
        (Grade(reward=1.0, parts={"formt": 1.0}), "there is a weight for 'format', but the grade has no such part"),
        (Grade(reward=1.0, parts={"format": math.inf}), "part format is inf"),
        (Grade(reward=1.0, parts={"format": "good"}), "part format is 'good'"),
        (Grade(reward=1.0, parts={f"p{i}": 1.0 for i in range(33)}), "expected at most 32 numbers"),
        (Grade(reward=1.0, parts=[1.0]), "parts are [1.0]"),
        (Grade(reward=1.0, parts={"format": 1.0}, correct="yes"), "correct is 'yes'"),
        (Grade(reward=1.0, parts={"format": 1.0}, reason="fine"), "reason is 'fine'"),
        (None, "grade() returned None"),
        (0.5, "grade() returned 0.5"),
    ],
)
async def test_a_grade_that_makes_no_sense_is_the_graders_fault_with_the_line_of_it(grade: Any, words: str) -> None:
    class Odd(Parts):
        def grade(self, payload: Any, reply: Any) -> Any:
            return grade

    outcome = await Odd().run(task({"word": "w1"}), {"solver": ScriptedPolicy("x")})
    assert outcome.reason is Reason.GRADER
    assert words in outcome.error
    assert f"(test_single_turn.py line {Odd.grade.__code__.co_firstlineno})" in outcome.error


def test_a_grade_of_parts_is_their_weighted_sum() -> None:
    grade = Grade.of({"answer": 1.0, "format": 0.5}, weights={"format": 0.2}, correct=1.0)
    assert (grade.reward, grade.correct, grade.parts) == (1.1, 1.0, {"answer": 1.0, "format": 0.5})
    with pytest.raises(EnvError, match="weight for 'fmt'"):
        Grade.of({"format": 1.0}, weights={"fmt": 1.0})


class Judged(EchoEnv):
    """A grade that asks another policy."""

    async def grade(self, payload: Mapping[str, Any], reply: Reply, policies: Mapping[str, PolicyHandle]) -> Grade:  # type: ignore[override]
        verdict = await policies["judge"].chat([ChatMessage("user", reply.text)])
        return Grade(reward=float(verdict.says("yes")))


async def test_a_grade_may_be_async_and_ask_a_policy() -> None:
    for said, reward in (("Yes.", 1.0), ("No.", 0.0)):
        policies = {"solver": ScriptedPolicy("w1"), "judge": ScriptedPolicy(said)}
        outcome = await Judged(policy="solver").run(task({"word": "w1"}), policies)
        assert outcome.rewards == {"solver": reward}
        assert policies["judge"].asked == [[ChatMessage("user", "w1")]]


async def test_a_judge_that_cannot_be_asked_is_no_fault_of_the_grader() -> None:
    class Down(ScriptedPolicy):
        async def chat(self, messages: Any, **_: Any) -> Reply:
            raise EngineError("no replica")

    with pytest.raises(EngineError, match="no replica"):
        await Judged(policy="solver").run(task({"word": "w1"}), {"solver": ScriptedPolicy("w1"), "judge": Down("")})


async def test_an_agents_task_lets_its_environment_ask_a_policy() -> None:
    async def solve(task: Any, policies: Any) -> Any:
        return {"solver": await task.grade("w1")}

    env = AgentEnv(Judged(policy="solver"), agent(env="env")(solve))
    outcome = await env.run(task({"word": "w1"}), {"judge": ScriptedPolicy("yes")})
    assert outcome.rewards == {"solver": 1.0}
