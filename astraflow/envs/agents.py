"""Agents: plain coroutines that play an environment's tasks against the policies.

    @af.agent(env="math")
    async def solve(task, policies):
        answer = await policies["solver"].chat(task.messages)
        return {"solver": await task.grade(answer)}

The environment still says what the tasks are and grades answers; the agent decides who is asked what. It starts nothing
and records nothing itself. Invariant: what an agent returns is a reward per policy or role, or an error that says why.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astraflow.envs.base import ChatMessage, Environment, Outcome, PolicyHandle, Reply
from astraflow.envs.single_turn import Grade, SingleTurnEnv, as_text
from astraflow.errors import ConfigError, EnvError, GraderError
from astraflow.messages import Reason, Task
from astraflow.named import nearest
from astraflow.raised import line_of

Reward = float | Grade | Mapping[str, float | Grade] | Outcome
_AgentFunction = Callable[["AgentTask", Mapping[str, PolicyHandle]], Awaitable[Reward]]


class AgentTask:
    """One task, as an agent sees it. Single-turn environments give it `messages`, `prompt` and `grade` too."""

    def __init__(
        self,
        task: Task,
        env: Environment,
        messages: Sequence[ChatMessage] | None = None,
        expected: str = "",
        policies: Mapping[str, PolicyHandle] | None = None,
    ) -> None:
        self.id = task.id
        self.env = task.env
        self.payload = task.payload
        self.seed = task.seed  # for the agent's own random choices
        self.expected = expected  # for people; an agent that shows it to a policy teaches nothing
        self.last_grade: Grade | None = None
        self._task = task
        self._env = env
        self._messages = messages
        self._policies = policies

    @property
    def messages(self) -> Sequence[ChatMessage]:
        """What the environment asks. Raises EnvError if it asks nothing by itself."""
        if self._messages is None:
            raise EnvError(f"environment {self.env} has no prompt; make one from task.payload")
        return self._messages

    @property
    def prompt(self) -> str:
        """`messages` as one text."""
        return as_text(self.messages)

    async def grade(self, answer: Reply | str) -> Grade:
        """What the environment thinks of an answer: a number (its reward) and a truth (is it right?) in one.

        Raises: GraderError when judging fails, which ends the episode with reason `grader` and no reward.
        """
        if not isinstance(self._env, SingleTurnEnv):
            raise EnvError(f"environment {self.env} grades no single answers; judge in the agent")
        reply = answer if isinstance(answer, Reply) else _as_reply(answer)
        self.last_grade = await self._env.judge(self._task, reply, self._policies)
        return self.last_grade


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A coroutine function and the environment whose tasks it plays. Calling it calls the function."""

    function: _AgentFunction
    env: str

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "agent")

    def __call__(self, task: AgentTask, policies: Mapping[str, PolicyHandle]) -> Awaitable[Reward]:
        return self.function(task, policies)


def agent(*, env: str) -> Callable[[_AgentFunction], Agent]:
    """Decorate `async def name(task, policies)` that returns a reward, {policy or role: reward}, or an `Outcome`.

    Args:
        env: a name in the run file's [envs].
    """

    def decorate(function: _AgentFunction) -> Agent:
        return Agent(function=function, env=env)

    return decorate


class AgentEnv:
    """An environment whose tasks an agent plays."""

    def __init__(self, env: Environment, agent: Agent) -> None:
        self._env = env
        self._agent = agent

    @property
    def size(self) -> int | None:
        return self._env.size

    def task(self, index: int) -> dict[str, Any]:
        return self._env.task(index)

    async def close(self) -> None:
        await self._env.close()

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """Let the agent play. Raises EnvError for an environment that fails or an agent that returns no reward."""
        messages, expected = await self._env.ask(task) if isinstance(self._env, SingleTurnEnv) else (None, "")
        seen = AgentTask(task, self._env, messages, expected, policies)
        try:
            playing: Any = self._agent(seen, policies)  # whatever a plain function returned
            if not inspect.isawaitable(playing):
                line = line_of(self._agent.function)
                raise EnvError(f"agent {self._agent.name}{f' ({line})' if line else ''} isn't async; write async def")
            reward = await playing
        except GraderError as exc:
            return Outcome(rewards={}, reason=Reason.GRADER, error=str(exc), prompt=as_text(messages or ()))
        if isinstance(reward, Outcome):
            return reward
        grade = seen.last_grade
        return Outcome(
            rewards=_rewards(reward, policies, self._agent),
            correct=grade.correct if grade is not None else None,
            parts=grade.parts if grade is not None else {},
            prompt=as_text(messages or ()),
            answer=expected,
        )


def _rewards(reward: object, policies: Mapping[str, PolicyHandle], agent: Agent) -> dict[str, float]:
    if isinstance(reward, Mapping):
        return {str(name): _number(value, agent) for name, value in reward.items()}
    if len(policies) != 1:
        raise EnvError(
            f"agent {agent.name} returned {reward!r}, expected {{policy or role: reward}}: the run has the policies "
            f"{sorted(policies)}"
        )
    return dict.fromkeys(policies, _number(reward, agent))


def _number(value: object, agent: Agent) -> float:
    if isinstance(value, bool | int | float | Grade | np.number):
        return float(value)
    raise EnvError(f"agent {agent.name} returned the reward {value!r}, expected a number, or a dict of numbers")


def _as_reply(text: str) -> Reply:
    nothing = np.empty(0, np.int32)
    return Reply(text=text, tokens=nothing, logprobs=nothing.astype(np.float32), versions=(), finish_reason="stop")


def check_agent(agent: Agent, envs: Mapping[str, object]) -> None:
    """Raises ConfigError if the run has no such environment."""
    if agent.env not in envs:
        raise ConfigError(
            f"the run has no environment {agent.env!r}, which agent {agent.name} plays{nearest(agent.env, envs)}"
        )
