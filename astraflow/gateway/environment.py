"""An environment whose tasks are played by programs of other people's, over HTTP.

The environment says what the tasks are and grades answers; a session is an attempt at one, played by a client that
takes it, or by a command that is started for it. It serves no HTTP. Invariant: whatever the client does or doesn't,
the attempt ends in one outcome or one error.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from astraflow.concurrency import Background
from astraflow.envs.base import ChatMessage, Environment, Outcome, PolicyHandle, Reply
from astraflow.envs.single_turn import SingleTurnEnv, as_text
from astraflow.errors import EnvError, GraderError
from astraflow.gateway.launch import Command
from astraflow.gateway.session import Ending, Session
from astraflow.gateway.sessions import Sessions
from astraflow.messages import Reason, Task


class SessionEnv:
    """`env` played through sessions. `command` None: by clients that take them."""

    def __init__(self, env: Environment, sessions: Sessions, command: Command | None = None) -> None:
        self._env = env
        self._sessions = sessions
        self._command = command

    @property
    def size(self) -> int | None:
        return self._env.size

    def task(self, index: int) -> dict[str, Any]:
        return self._env.task(index)

    async def close(self) -> None:
        await self._env.close()

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        """One session, until it has ended. Raises EnvError: a command failed; EngineError: no policy answers."""
        messages, expected = await self._env.ask(task) if isinstance(self._env, SingleTurnEnv) else ((), "")
        async with Background() as background:
            session = Session(task, policies, messages, background)
            self._sessions.add(session)
            try:
                ending = await self._ending_of(session)
            finally:
                self._sessions.remove(session, "its time is up, or its rollout process ends")
        return await self._outcome(session, ending, messages, expected)

    async def _ending_of(self, session: Session) -> Ending:
        if self._command is not None:
            answer = await self._command.play(session)
            if session.broken is None and session.ending is None:
                session.end(Ending(answer=answer))
        else:
            self._sessions.offer(session)
            await session.over.wait()
        if session.broken is not None:
            raise session.broken
        assert session.ending is not None  # `over` is one or the other
        return session.ending

    async def _outcome(
        self, session: Session, ending: Ending, messages: Sequence[ChatMessage], expected: str
    ) -> Outcome:
        prompt, metrics = as_text(messages), {f"client/{name}": 1.0 for name in sorted(session.clients)}
        reason, rewards, parts, correct = ending.reason, ending.rewards, ending.parts, ending.correct
        if not rewards and reason is Reason.OK:
            try:
                name, reward, parts, correct, reason = await self._graded(session, ending)
            except GraderError as exc:
                return Outcome(
                    rewards={}, reason=Reason.GRADER, error=str(exc), prompt=prompt, answer=expected, metrics=metrics
                )
            rewards = {name: reward}
        if session.overspent and reason in (Reason.OK, Reason.POLICY) and not (correct is not None and correct >= 1):
            reason = Reason.TRUNCATED
        return Outcome(
            rewards=rewards,
            correct=correct,
            parts=parts,
            reason=reason,
            error=ending.error,
            prompt=prompt,
            answer=expected,
            metrics=metrics,
        )

    async def _graded(
        self, session: Session, ending: Ending
    ) -> tuple[str, float, Mapping[str, float], float | None, Reason]:
        """The environment's grade of the client's answer, for whom it asked."""
        if not isinstance(self._env, SingleTurnEnv):
            raise EnvError(
                f"environment {session.task.env} grades no answers, and the client ended its session without a reward; "
                "POST one to /reward"
            )
        if len(session.asked) != 1:
            asked = f"it asked {', '.join(sorted(session.asked))}" if session.asked else "it asked no policy"
            raise EnvError(f"the client ended its session without rewards, and {asked}; POST them to /reward")
        reply = session.newest
        assert reply is not None  # it asked
        if ending.answer is not None:
            reply = _as_reply(ending.answer)
        grade = await self._env.judge(session.task, reply, None)
        return next(iter(session.asked)), grade.reward, grade.parts, grade.correct, grade.reason


def _as_reply(text: str) -> Reply:
    nothing = np.empty(0, np.int32)
    return Reply(text=text, tokens=nothing, logprobs=nothing.astype(np.float32), versions=(), finish_reason="stop")
