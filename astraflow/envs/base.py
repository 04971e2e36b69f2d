"""The environment protocol: what a rollout runs for each task.

An environment knows nothing of the bus: it gets a task and policies to call, and returns an outcome.
Most environments are single-turn: subclass `SingleTurnEnv` and write `task`, `prompt` and `grade`.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from astraflow.errors import EnvError
from astraflow.messages import Reason, Sampling, Task, VersionSpan

T = TypeVar("T")


@dataclass(frozen=True)
class ChatMessage:
    """One message of a conversation, as chat templates want it."""

    role: str  # system | user | assistant | tool
    content: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a policy answered. Tokens are the record, `text` is a view."""

    text: str  # decoded without special tokens
    tokens: NDArray[np.int32]  # [C]
    logprobs: NDArray[np.float32]  # [C]
    versions: tuple[VersionSpan, ...]
    finish_reason: str  # stop | length | abort

    @property
    def ended(self) -> bool:
        """The policy stopped by itself."""
        return self.finish_reason == "stop"


class PolicyHandle(Protocol):
    """One policy, as an environment sees it. Every call is recorded as a turn of the episode."""

    async def chat(self, messages: Sequence[ChatMessage], *, sampling: Sampling | None = None) -> Reply:
        """Render the messages with the policy's chat template (where it has one), generate, decode."""
        ...

    async def generate(self, tokens: NDArray[np.int32], *, sampling: Sampling | None = None) -> Reply:
        """Token in, token out."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an episode went."""

    rewards: Mapping[str, float]  # per policy
    correct: float | None = None  # 0..1; None: no such notion here
    parts: Mapping[str, float] = field(default_factory=dict)  # of the reward, for people
    reason: Reason = Reason.OK
    error: str = ""
    prompt: str = ""  # readable
    answer: str = ""  # readable, the expected one
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """Anything that turns a task into an outcome. One instance serves many concurrent episodes."""

    @property
    def size(self) -> int | None:
        """Number of different tasks; None = unlimited."""
        ...

    def task(self, index: int) -> dict[str, Any]:
        """The payload of task `index`: small, JSON-like, equal for equal indices. Called in dataflow.

        Raises EnvError if the index is beyond `size`.
        """
        ...

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """Play one episode. Raises EnvError when the environment, not the policy, failed."""
        ...

    async def close(self) -> None:
        """Free processes and files. Idempotent."""
        ...


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A judged answer. `reward` must be finite."""

    reward: float
    correct: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: Reason = Reason.OK


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
        try:
            messages, expected = await _in_thread(lambda: (self.prompt(task.payload), self.expected(task.payload)))
        except Exception as exc:
            raise EnvError(f"{type(self).__name__} has no prompt for task {task.id}: {describe(exc)}") from exc
        prompt = "\n\n".join(message.content for message in messages)
        reply = await policies[name].chat(messages, sampling=task.sampling)
        if reply.finish_reason == "abort":
            return Outcome(rewards={}, reason=Reason.CANCELLED, error="generation was aborted", prompt=prompt)
        try:
            grade = _checked(await _in_thread(lambda: self.grade(task.payload, reply)))
        except Exception as exc:  # noqa: BLE001 - the rollout boundary: graders are users' code, reason `grader`
            return Outcome(rewards={}, reason=Reason.GRADER, error=describe(exc), prompt=prompt, answer=expected)
        return Outcome(
            rewards={name: grade.reward},
            correct=grade.correct,
            parts=grade.parts,
            reason=_reason(grade, reply),
            prompt=prompt,
            answer=expected,
        )

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


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads of their own: slow graders must not take those that the bus hashes and compresses in."""
    return ThreadPoolExecutor(max_workers=16, thread_name_prefix="env")


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads(), work)


def describe(exc: BaseException) -> str:
    """An exception in one line of at most 500 characters."""
    return f"{type(exc).__name__}: {exc}".replace("\n", " ")[:500]


def _checked(grade: Grade) -> Grade:
    for name, value in {"reward": grade.reward, "correct": grade.correct or 0.0, **grade.parts}.items():
        if not math.isfinite(value):
            raise EnvError(f"{name} is {value}, expected a finite number")
    if grade.correct is not None and not 0 <= grade.correct <= 1:
        raise EnvError(f"correct is {grade.correct}, expected 0..1")
    return grade


def _reason(grade: Grade, reply: Reply) -> Reason:
    cut_off = reply.finish_reason == "length" and (grade.correct is None or grade.correct < 1)
    return Reason.TRUNCATED if cut_off and grade.reason in (Reason.OK, Reason.POLICY) else grade.reason
