"""Play one task: run its environment against the policies and turn whatever happens into one Episode.

A failure is data: it becomes a reason code here, at the rollout boundary, and nowhere else. It publishes no episodes
and pulls no tasks. Invariant: whatever an environment returns, the record can be encoded (its size apart): numbers are
plain floats, text is UTF-8.
"""

import logging
import math
import traceback
from collections.abc import Mapping
from dataclasses import replace

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.screening import verdict_on_task
from astraflow.actors.rollout.budget import Budget
from astraflow.actors.rollout.call import Generates
from astraflow.actors.rollout.cohort_gate import CohortGate
from astraflow.actors.rollout.handle import Play, RecordedPolicy
from astraflow.actors.rollout.recording import Recording
from astraflow.config import SamplingSection
from astraflow.envs.base import Environment, Outcome
from astraflow.envs.usercode import on_loop
from astraflow.errors import BudgetError, BusError, EngineError, EnvError, GraderError, HungError, RaisedError
from astraflow.messages import TRAINABLE_REASONS, Episode, Reason, Sampling, Task, Trajectory
from astraflow.messages.sampling import sampling_for
from astraflow.models.tokenizer import ChatTokenizer, utf8
from astraflow.named import nearest
from astraflow.raised import describe, leaves
from astraflow.verdict import Verdict

_MAX_ERROR_CHARS = 4000

_log = logging.getLogger(__name__)


def _sampling_of(section: SamplingSection) -> Sampling:
    """The run file's sampling section as it travels."""
    return Sampling(
        max_new_tokens=section.max_new_tokens,
        temperature=section.temperature,
        top_k=section.top_k,
        top_p=section.top_p,
    )


def failed_episode(
    task: Task,
    reason: Reason,
    error: str,
    *,
    started_at: float,
    trajectories: tuple[Trajectory, ...] = (),
) -> Episode:
    """The terminal record of an attempt that has no outcome."""
    return _record(task, reason=reason, error=error, started_at=started_at, trajectories=trajectories)


def _record(
    task: Task,
    *,
    reason: Reason,
    started_at: float,
    error: str = "",
    trajectories: tuple[Trajectory, ...] = (),
    outcome: Outcome | None = None,
) -> Episode:
    correct = outcome.correct if outcome else None
    return Episode(
        **task.ref(),
        task_id=task.id,
        reason=reason,
        error=utf8(str(error))[:_MAX_ERROR_CHARS],
        trajectories=trajectories,
        correct=None if correct is None else float(correct),
        prompt=utf8(str(outcome.prompt)) if outcome else "",
        answer=utf8(str(outcome.answer)) if outcome else "",
        metrics=_plain(outcome.metrics) if outcome else {},
        started_at=started_at,
        ended_at=clock.wall(),
    )


def _plain(numbers: Mapping[str, float]) -> dict[str, float]:
    """Environments count in numpy's numbers and in booleans too. Raises ValueError or TypeError for what is none."""
    return {utf8(str(name)): float(value) for name, value in numbers.items()}


def reason_of(error: BaseException) -> tuple[Reason, str]:
    """What became of an episode whose environment or agent raised this; of a group, what its worst part says."""
    found = list(leaves(error))
    for kind, reason in (
        ((EngineError, BusError), Reason.INFRA),
        ((BudgetError,), Reason.TRUNCATED),
        ((GraderError,), Reason.GRADER),
    ):
        of_kind = [each for each in found if isinstance(each, kind)]
        if of_kind and (reason is Reason.INFRA or len(of_kind) == len(found)):
            return reason, str(of_kind[0])
    first = next((each for each in found if not isinstance(each, BudgetError | GraderError)), found[0])
    return Reason.ENV, str(first) if isinstance(first, EnvError) else describe(error, first)


class Handles(dict[str, RecordedPolicy]):
    """The policies and roles of an episode; asking for another one is the author's mistake."""

    def __missing__(self, name: str) -> RecordedPolicy:
        raise EnvError(f"there is no policy or role {name!r} here{nearest(name, self)}")


class Player:
    """Plays tasks concurrently; holds what every episode of the process shares."""

    def __init__(
        self,
        ctx: ActorContext,
        envs: Mapping[str, Environment],
        gate: CohortGate,
        tokenizers: Mapping[str, ChatTokenizer],
    ) -> None:
        self._ctx = ctx
        self._envs = envs
        self._gate = gate
        self._tokenizers = tokenizers

    def verdict_on(self, task: Task) -> Verdict:
        """Whether a task can be played here, whatever comes of it."""
        return verdict_on_task(task, incarnation=self._ctx.record.incarnation, envs=self._envs)

    async def play(self, task: Task) -> Episode:
        """One attempt, from task to terminal record. Raises nothing but CancelledError."""
        async with self._gate.episode(task) as client:
            return await self._play(task, client)

    async def _play(self, task: Task, client: Generates) -> Episode:
        started_at = clock.wall()
        section = self._ctx.config.envs[task.env]
        budget = Budget(max_calls=section.max_calls, max_tokens=section.max_tokens)
        record = self._ctx.config.record
        recording = Recording(transcript_chars=record.transcript_chars if record.episode_text else 0)
        handles = self._handles(Play(task=task, client=client, recording=recording, budget=budget))
        env = self._envs[task.env]

        async def played() -> Episode:
            outcome = await env.run(task, handles)
            recording.close()
            return self._finish(task, recording, outcome, started_at)  # its numbers may be objects of the user's

        try:
            return await on_loop(played, within_s=task.deadline_s, label=task.id)
        except HungError as exc:
            reason, error = Reason.TIMEOUT, str(exc)
        except RaisedError as exc:
            reason, error = reason_of(exc.error)
            if reason is Reason.ENV:
                text = "".join(traceback.format_exception(exc.error))
                _log.error("environment raised:\n%s", utf8(text), extra={"task": task.id})
        finally:
            recording.close()
        return self._fail(task, recording, reason, error, started_at)

    def _handles(self, play: Play) -> dict[str, RecordedPolicy]:
        """Every policy by its name, and by the roles that the environment gives it."""
        task, policies = play.task, self._ctx.config.policies
        named = {name: name for name in policies} | self._ctx.config.envs[task.env].roles
        handles = {
            role: RecordedPolicy(
                play,
                policy=name,
                role=role,
                sampling=task.sampling or _sampling_of(sampling_for(self._ctx.config, name, task.eval_set)),
                tokenizer=self._tokenizers[name],
            )
            for role, name in named.items()
        }
        return Handles(handles)

    def _finish(self, task: Task, recording: Recording, outcome: Outcome, started_at: float) -> Episode:
        config = self._ctx.config
        known = set(config.policies) | set(config.envs[task.env].roles) | recording.roles
        if not isinstance(outcome, Outcome):
            raise EnvError(f"env {task.env}: run() returned {outcome!r:.80}, expected an Outcome")
        unknown = set(outcome.rewards) - known
        if unknown:
            raise EnvError(f"env {task.env} rewards {sorted(unknown)}; the policies and roles are {sorted(known)}")
        broken = {name: reward for name, reward in outcome.rewards.items() if not math.isfinite(reward)}
        if broken:
            return self._fail(task, recording, Reason.GRADER, f"reward is not finite: {broken}", started_at)
        reason, rewards = Reason(outcome.reason), dict(outcome.rewards)
        right = outcome.correct is not None and outcome.correct >= 1  # before the budget ran out: a success
        if reason in (Reason.OK, Reason.POLICY) and recording.cut_off(rewards) and not right:
            reason = Reason.TRUNCATED
        if reason not in TRAINABLE_REASONS:  # nobody trains on it, but people read it
            rewards = dict.fromkeys(recording.roles, 0.0) | rewards
        if recording.forks:
            reasons = {f"forks/{why}": count for why, count in recording.fork_reasons.items()}
            outcome = replace(outcome, metrics={**outcome.metrics, "forks": recording.forks, **reasons})
        return _record(
            task,
            reason=reason,
            error=outcome.error,
            started_at=started_at,
            trajectories=recording.trajectories(rewards, _plain(outcome.parts)),
            outcome=outcome,
        )

    def _fail(self, task: Task, recording: Recording, reason: Reason, error: str, started_at: float) -> Episode:
        """What was generated before it failed stays readable, with reward 0.

        Nobody trains on that, except where an episode overspent: `truncated` earns 0, as any run into a limit does.
        """
        _log.warning("episode failed", extra={"task": task.id, "reason": reason, "error": error})
        trajectories = recording.trajectories(dict.fromkeys(recording.roles, 0.0))
        return failed_episode(task, reason, error, started_at=started_at, trajectories=trajectories)
