"""SingleTurnEnv: which outcome follows from which reply, and that failures are never rewards."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from astraflow.envs import ChatMessage, Grade, Reply, SingleTurnEnv
from astraflow.errors import EnvError
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
