"""Agents by themselves: what they see, what their return values mean, and what goes wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import astraflow as af
from astraflow.envs.agents import AgentEnv
from astraflow.envs.tiny_env import TinyEnv
from astraflow.envs.toy_env import ToyEnv
from astraflow.errors import EnvError
from astraflow.messages import Reason
from tests.envs.scripted import ScriptedPolicy, task

SUM = {"index": 0, "question": "7+5=", "answer": "12"}


async def outcome_of(function: Any, *, says: str = "12", ends: str = "stop", names: tuple[str, ...] = ("solver",)):
    env = AgentEnv(TinyEnv(task="add"), af.agent(env="sums")(function))
    return await env.run(task(SUM), {name: ScriptedPolicy(says, ends) for name in names})


async def test_an_agent_asks_what_the_environment_asks_and_its_grade_is_a_number_and_a_truth() -> None:
    async def solve(task: af.AgentTask, policies: Mapping[str, af.PolicyHandle]) -> float:
        reply = await policies["solver"].chat(task.messages)
        assert task.prompt == "7+5="
        grade = await task.grade(reply)
        assert bool(grade)
        assert not await task.grade("13")
        return float(grade)

    outcome = await outcome_of(solve)
    assert (outcome.rewards, outcome.reason, outcome.answer) == ({"solver": 1.0}, Reason.OK, "12")
    assert outcome.correct == 0.0  # of the newest grade


@pytest.mark.parametrize(
    ("returned", "names", "rewards"),
    [
        (1, ("solver",), {"solver": 1.0}),
        (True, ("solver",), {"solver": 1.0}),
        ({"solver": 0.5, "planner": -1}, ("solver",), {"solver": 0.5, "planner": -1.0}),
        (af.Grade(reward=0.25), ("solver",), {"solver": 0.25}),
        ({}, ("a", "b"), {}),
    ],
    ids=["int", "bool", "roles", "grade", "nobody"],
)
async def test_what_an_agent_returns_becomes_rewards(returned: Any, names: Any, rewards: Any) -> None:
    async def solve(task: Any, policies: Any) -> Any:
        return returned

    assert (await outcome_of(solve, names=names)).rewards == rewards


@pytest.mark.parametrize(
    ("returned", "names", "message"),
    [
        (None, ("solver",), "agent solve returned the reward None, expected a number"),
        ("yes", ("solver",), "agent solve returned the reward 'yes'"),
        (1.0, ("a", "b"), "expected {policy or role: reward}: the run has the policies ['a', 'b']"),
        ({"a": "no"}, ("a", "b"), "agent solve returned the reward 'no'"),
    ],
    ids=["none", "text", "whose", "in-dict"],
)
async def test_what_is_no_reward_is_the_agents_error(returned: Any, names: Any, message: str) -> None:
    async def solve(task: Any, policies: Any) -> Any:
        return returned

    with pytest.raises(EnvError) as caught:
        await outcome_of(solve, names=names)
    assert message in str(caught.value)


async def test_a_grader_that_fails_is_no_reward() -> None:
    class Broken(TinyEnv):
        def grade(self, payload: Any, reply: Any) -> af.Grade:
            return af.Grade(reward=float("nan"))

    async def solve(task: Any, policies: Any) -> Any:
        return {"solver": await task.grade("x")}

    outcome = await AgentEnv(Broken(task="add"), af.agent(env="sums")(solve)).run(task(SUM), {})
    assert (outcome.rewards, outcome.reason) == ({}, Reason.GRADER)
    assert "reward is nan" in outcome.error


async def test_an_environment_without_prompts_says_so() -> None:
    async def solve(task: Any, policies: Any) -> Any:
        return len(task.prompt)

    with pytest.raises(EnvError, match="has no prompt; make one"):
        await AgentEnv(ToyEnv(), af.agent(env="env")(solve)).run(task({"index": 0}), {"solver": ScriptedPolicy("x")})


def test_says_finds_words_not_letters() -> None:
    from tests.envs.scripted import reply

    assert reply("Yes, it is.").says("yes")
    assert not reply("Yesterday").says("yes")
    assert reply("it's right!").says("right")


async def test_a_grade_that_is_no_grade_is_said_with_its_line() -> None:
    class Careless(TinyEnv):
        def grade(self, payload: Any, reply: Any) -> Any:
            return 1.0

    async def solve(task: Any, policies: Any) -> Any:
        return {"solver": await task.grade("x")}

    outcome = await AgentEnv(Careless(task="add"), af.agent(env="sums")(solve)).run(task(SUM), {})
    assert outcome.reason is Reason.GRADER
    assert "grade() returned 1.0, expected astraflow.Grade(reward=" in outcome.error
    assert f"({Path(__file__).name} line {Careless.grade.__code__.co_firstlineno})" in outcome.error


async def test_an_agent_that_is_not_async_is_said_with_its_line() -> None:
    def solve(task: Any, policies: Any) -> Any:
        return 1.0

    where = rf"agent solve \({Path(__file__).name} line {solve.__code__.co_firstlineno}\) isn't async; write async def"
    with pytest.raises(EnvError, match=where):
        await AgentEnv(TinyEnv(task="add"), af.agent(env="sums")(solve)).run(task(SUM), {})
