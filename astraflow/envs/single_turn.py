"""One prompt, one reply, one reward: what most environments are. Subclass it and write `task`, `prompt` and `grade`."""

import asyncio
import logging
import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from astraflow.envs.base import ChatMessage, Outcome, PolicyHandle, Reply
from astraflow.errors import EnvError, GraderError
from astraflow.messages import Reason, Task

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A judged answer. `reward` must be finite."""

    reward: float
    correct: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: Reason = Reason.OK

    def __float__(self) -> float:
        return self.reward

    def __bool__(self) -> bool:
        """Right: correct, or where there is no such notion, rewarded."""
        return self.reward > 0 if self.correct is None else self.correct >= 1


class SingleTurnEnv(ABC):
    """One prompt, one reply, one reward, for one policy.

    `prompt` and `grade` run in worker threads, several at a time. What they raise never becomes a reward: an exception
    in `prompt` is an EnvError, one in `grade` (or a reward that isn't finite) is an outcome with reason `grader`,
    without rewards. A reply that was cut off is `truncated` unless the grade says that it is fully correct: an answer
    given before the budget ran out is a valid success.

    Args:
        policy: the policy that answers; "" = the only one of the run.
    """

    size: int | None = None

    def __init__(self, *, policy: str = "") -> None:
        self.policy = policy

    @abstractmethod
    def task(self, index: int) -> dict[str, Any]:
        """The payload of task `index`."""

    @abstractmethod
    def prompt(self, payload: Mapping[str, Any]) -> Sequence[ChatMessage]:
        """What the policy is asked."""

    @abstractmethod
    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade:
        """Judge the reply. Runs in a worker thread; raise EnvError if judging itself fails."""

    def expected(self, payload: Mapping[str, Any]) -> str:
        """The expected answer for people to read; "" = there is none."""
        return ""

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """Ask once and grade. Raises EnvError if the prompt fails or the policy isn't there."""
        name = self._policy_name(policies)
        messages, expected = await self.ask(task)
        prompt = as_text(messages)
        reply = await policies[name].chat(messages, sampling=task.sampling)
        if reply.finish_reason == "abort":
            return Outcome(rewards={}, reason=Reason.CANCELLED, error="generation was aborted", prompt=prompt)
        try:
            grade = await self.judge(task, reply)
        except GraderError as exc:
            return Outcome(rewards={}, reason=Reason.GRADER, error=str(exc), prompt=prompt, answer=expected)
        return Outcome(
            rewards={name: grade.reward},
            correct=grade.correct,
            parts=grade.parts,
            reason=_reason(grade, reply),
            prompt=prompt,
            answer=expected,
        )

    async def ask(self, task: Task) -> tuple[Sequence[ChatMessage], str]:
        """The prompt of a task and the expected answer. Raises EnvError if there is none."""
        try:
            return await _in_thread(lambda: (self.prompt(task.payload), self.expected(task.payload)))
        except Exception as exc:
            raise EnvError(f"{type(self).__name__} has no prompt for task {task.id}: {describe(exc)}") from exc

    async def judge(self, task: Task, reply: Reply) -> Grade:
        """The grade of a reply. Raises GraderError whatever the grader raises, and for numbers that aren't finite."""
        try:
            return _checked(await _in_thread(lambda: self.grade(task.payload, reply)))
        except Exception as exc:
            _log.error("grade of task %s raised", task.id, exc_info=exc)
            raise GraderError(describe(exc)) from exc

    async def close(self) -> None:  # noqa: B027 - most have nothing to free
        """Free processes and files. Idempotent."""

    def _policy_name(self, policies: Mapping[str, PolicyHandle]) -> str:
        if self.policy in policies:
            return self.policy
        if not self.policy and len(policies) == 1:
            return next(iter(policies))
        raise EnvError(
            f"{type(self).__name__} has policy = {self.policy!r}, the run has {sorted(policies)}; "
            "set args.policy of the environment"
        )


def as_text(messages: Sequence[ChatMessage]) -> str:
    """A prompt for people to read."""
    return "\n\n".join(message.content for message in messages)


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads of their own: slow graders must not take those that the bus hashes and compresses in."""
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix="env")


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads(), work)


def describe(exc: BaseException) -> str:
    """An exception and where it was raised, in one line of at most 500 characters."""
    text = f"{type(exc).__name__}: {exc}".replace("\n", " ")[:400]
    where = traceback.extract_tb(exc.__traceback__)[-1:]
    return f"{text} ({Path(where[0].filename).name} line {where[0].lineno})" if where else text


def _checked(grade: Grade) -> Grade:
    if not isinstance(grade, Grade):  # users' code
        raise EnvError(f"grade() returned {grade!r}, expected astraflow.Grade(reward=…)")
    for name, value in {"reward": grade.reward, "correct": grade.correct or 0.0, **grade.parts}.items():
        if not math.isfinite(value):
            raise EnvError(f"{name} is {value}, expected a finite number")
    if grade.correct is not None and not 0 <= grade.correct <= 1:
        raise EnvError(f"correct is {grade.correct}, expected 0..1")
    return grade


def _reason(grade: Grade, reply: Reply) -> Reason:
    cut_off = reply.finish_reason == "length" and (grade.correct is None or grade.correct < 1)
    return Reason.TRUNCATED if cut_off and grade.reason in (Reason.OK, Reason.POLICY) else grade.reason
