"""One prompt, one reply, one reward: what most environments are. Subclass it and write `task`, `prompt` and `grade`."""

import inspect
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from astraflow.envs.base import ChatMessage, Outcome, PolicyHandle, Reply
from astraflow.envs.usercode import call
from astraflow.errors import BusError, EngineError, EnvError, GraderError, HungError, RaisedError
from astraflow.messages import Reason, Task
from astraflow.named import nearest
from astraflow.raised import line_of

_MOST_PARTS = 32  # of a grade: each is a metric

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A judged answer. `reward` must be finite.

    Attributes:
        reward: what is trained; `Grade.of` adds it up from parts.
        correct: 0..1, and None where there is no such notion.
        parts: what the reward is made of, by name, unweighted; the mean of each is a metric.
        reason: `policy` for an answer that can't be judged because of how it is written; else leave it.
    """

    reward: float
    correct: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: Reason = Reason.OK

    @classmethod
    def of(
        cls, parts: Mapping[str, float], *, weights: Mapping[str, float] | None = None, correct: float | None = None
    ) -> "Grade":
        """The weighted sum of the parts, 1 where there is no weight. Raises EnvError for a weight of no part."""
        return cls(reward=_weighted(parts, weights or {}), correct=correct, parts=parts)

    def __float__(self) -> float:
        return self.reward

    def __bool__(self) -> bool:
        """Right: correct, or where there is no such notion, rewarded."""
        return self.reward > 0 if self.correct is None else self.correct >= 1


class SingleTurnEnv(ABC):
    """One prompt, one reply, one reward, for one policy.

    `prompt` and `grade` run in worker threads, several at a time, or on the event loop if they are `async`. A `grade`
    with a parameter `policies` can ask them, e.g. a frozen one that judges. What they raise, `exit()` included, never
    becomes a reward: from `prompt` it is an EnvError, from `grade` (or a reward that isn't finite) an outcome with
    reason `grader`, without rewards; so is what isn't done in time. A reply that was cut off is `truncated` unless the
    grade says that it is fully correct: an answer given before the budget ran out is a valid success.

    Attributes:
        grade_deadline_s: time for one `grade`, and for one `prompt`; `grade_deadline_s` in the run file goes before it.
        part_weights: if there are any, the reward is the sum of a grade's parts, each times its weight (1 where none
            is given), whatever `grade` says; `part_weights` in the run file go before these.

    Args:
        policy: the policy that answers; "" = the only one of the run.
    """

    grade_deadline_s: float = 120.0
    part_weights: Mapping[str, float] = MappingProxyType({})
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
    def grade(self, payload: Mapping[str, Any], reply: Reply) -> Grade | Awaitable[Grade]:
        """Judge the reply. Raise EnvError if judging itself fails."""

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
            grade = await self.judge(task, reply, policies)
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
            messages = _messages(await self._call(self.prompt, task), self.prompt)
            return messages, str(await self._call(self.expected, task))
        except (RaisedError, EnvError) as exc:
            raise EnvError(f"{type(self).__name__} has no prompt for task {task.id}: {exc}") from exc

    async def judge(self, task: Task, reply: Reply, policies: Mapping[str, PolicyHandle] | None = None) -> Grade:
        """The grade of a reply.

        Raises: GraderError whatever the grader raises, for numbers that aren't finite, and past the deadline;
            EngineError or BusError if a policy that it asks can't answer.
        """
        asks = "policies" in inspect.signature(self.grade).parameters
        try:
            grade = await self._call(self.grade, task, reply, *([policies or {}] if asks else []))
            return _checked(grade, self.grade, self.part_weights)
        except RaisedError as exc:
            if isinstance(exc.error, EngineError | BusError):
                raise exc.error from exc
            _log.error("grade of task %s raised", task.id, exc_info=exc.error)
            raise GraderError(str(exc)) from exc
        except HungError as exc:
            raise GraderError(f"grade() {exc}") from exc
        except EnvError as exc:
            raise GraderError(f"{exc} ({line_of(self.grade)})") from exc

    async def _call(self, function: Callable[..., Any], task: Task, *more: object) -> Any:
        return await call(function, task.payload, *more, within_s=self.grade_deadline_s, label=task.id)

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


def _messages(messages: object, prompt: Callable[..., Any]) -> Sequence[ChatMessage]:
    if isinstance(messages, Sequence) and all(isinstance(message, ChatMessage) for message in messages):
        return messages
    said = f"prompt() returned {_short(messages)}, expected a list of ChatMessage"
    raise EnvError(f"{said} ({line_of(prompt)})")


def _checked(grade: object, function: Callable[..., Any], weights: Mapping[str, float]) -> Grade:
    """The grade, with the reward that the weights give it. Raises EnvError for what is none."""
    if not isinstance(grade, Grade):  # users' code
        raise EnvError(f"grade() returned {_short(grade)}, expected astraflow.Grade(reward=…)")
    if not isinstance(grade.parts, Mapping) or len(grade.parts) > _MOST_PARTS:
        raise EnvError(f"parts are {_short(grade.parts)}, expected at most {_MOST_PARTS} numbers by name")
    if weights:
        grade = replace(grade, reward=_weighted(grade.parts, weights))
    correct = {} if grade.correct is None else {"correct": grade.correct}
    for name, value in {**{f"part {name}": value for name, value in grade.parts.items()}, **correct}.items():
        _check_number(name, value)
    _check_number("reward", grade.reward)
    if grade.correct is not None and not 0 <= grade.correct <= 1:
        raise EnvError(f"correct is {grade.correct}, expected 0..1")
    if not isinstance(grade.reason, Reason):
        raise EnvError(f"reason is {_short(grade.reason)}, expected an astraflow.Reason")
    return grade


def _check_number(name: str, value: object) -> None:
    try:
        finite = math.isfinite(value)  # type: ignore[arg-type]  # users' code
    except (TypeError, ValueError, OverflowError):
        finite = False
    if not finite:
        raise EnvError(f"{name} is {_short(value)}, expected a finite number")


def _weighted(parts: Mapping[str, float], weights: Mapping[str, float]) -> float:
    if missing := sorted(set(weights) - set(parts)):
        raise EnvError(
            f"there is a weight for {missing[0]!r}, but the grade has no such part{nearest(missing[0], parts)}"
        )
    for name, value in parts.items():
        _check_number(f"part {name}", value)
    return math.fsum(weights.get(name, 1.0) * value for name, value in parts.items())


def _short(value: object) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # noqa: BLE001 - the user's own __repr__
        return f"a {type(value).__name__}"


def _reason(grade: Grade, reply: Reply) -> Reason:
    cut_off = reply.finish_reason == "length" and (grade.correct is None or grade.correct < 1)
    return Reason.TRUNCATED if cut_off and grade.reason in (Reason.OK, Reason.POLICY) else grade.reason
