"""What starts together in deterministic mode, decided where all of it is known: in the one rollout process.

The tasks of a cohort are played side by side. Whenever none of them can go on without a completion, what they wait for
becomes one round: its requests carry the round's id and, per policy, their number, so that a replica knows when it has
them all (`cohorts`). It sends nothing. Invariant: a round doesn't depend on the order in which things happened, because
it begins only when every episode has asked or has ended; an episode asks for one completion at a time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from astraflow import clock
from astraflow.actors.rollout.call import Call, Completion, Generates
from astraflow.messages import Task


@dataclass(eq=False)
class _Asking:
    """A call that waits for its round."""

    call: Call
    episode: int  # number among the cohort's, in order of arrival
    begins: "asyncio.Future[Call]"


@dataclass
class _CallCohort:
    """The episodes of one cohort."""

    size: int  # tasks that are expected
    arrived: int = 0
    ended: int = 0
    round: int = 0
    asking: list[_Asking] = field(default_factory=list)
    last_arrival: float = field(default_factory=clock.monotonic)

    @property
    def due(self) -> bool:
        """All tasks are here, and nobody can go on."""
        waiting = len({each.episode for each in self.asking})
        return waiting > 0 and self.arrived >= self.size and waiting == self.arrived - self.ended


class CohortGate:
    """Holds the calls of cohorts back until their round begins; other calls pass.

    Args:
        patience_s: how long a cohort waits for its next task; longer than a redelivery takes.
        tell: called with a sentence when a cohort goes on without some of its tasks.
        name: unique to this process, so that a successor's rounds are not mistaken for its own.
    """

    def __init__(
        self, client: Generates, *, name: str, patience_s: float, tell: Callable[[str], Awaitable[None]]
    ) -> None:
        self._client = client
        self._name = name
        self._patience_s = patience_s
        self._tell = tell
        self._cohorts: dict[str, _CallCohort] = {}

    @asynccontextmanager
    async def episode(self, task: Task) -> AsyncIterator[Generates]:
        """What the episode generates with, from its beginning to its end."""
        if not task.cohort_id:
            yield self._client
            return
        cohort = self._cohorts.setdefault(task.cohort_id, _CallCohort(task.cohort_size))
        cohort.arrived += 1
        cohort.last_arrival = clock.monotonic()
        try:
            yield _Gated(self, cohort, cohort.arrived, self._client)
        finally:
            cohort.ended += 1
            if cohort.ended >= max(cohort.size, cohort.arrived):
                self._cohorts.pop(task.cohort_id, None)
            self.begin_if_due(cohort)

    async def admitted(self, cohort: _CallCohort, episode: int, call: Call) -> Call:
        """The call with its round, when that begins."""
        asking = _Asking(call, episode, asyncio.get_running_loop().create_future())
        cohort.asking.append(asking)
        self.begin_if_due(cohort)
        try:
            while not asking.begins.done():
                await self._wait(cohort, asking)
        except asyncio.CancelledError:
            if asking in cohort.asking:
                cohort.asking.remove(asking)
            raise
        return asking.begins.result()

    async def _wait(self, cohort: _CallCohort, asking: _Asking) -> None:
        """Until the round begins, or nothing was heard of the missing tasks for too long."""
        patience_s = cohort.last_arrival + self._patience_s - clock.monotonic()
        if patience_s > 0 or cohort.arrived >= cohort.size:  # if all are here, their own deadlines end them
            await asyncio.wait((asking.begins,), timeout=patience_s if patience_s > 0 else None)
            return
        missing, cohort.size = cohort.size - cohort.arrived, cohort.arrived
        self.begin_if_due(cohort)
        await self._tell(f"cohort {asking.call.cohort_id} goes on without {missing} tasks: the run is not repeatable")

    def begin_if_due(self, cohort: _CallCohort) -> None:
        """Let all calls that wait go, as one round per policy."""
        if not cohort.due:
            return
        sizes = Counter(each.call.policy for each in cohort.asking)
        for each in cohort.asking:
            round_id = f"{each.call.cohort_id}#{cohort.round}@{self._name}"
            each.begins.set_result(replace(each.call, cohort_id=round_id, cohort_size=sizes[each.call.policy]))
        cohort.round += 1
        cohort.asking.clear()


class _Gated:
    """One episode's way to the policies."""

    def __init__(self, gate: CohortGate, cohort: _CallCohort, episode: int, client: Generates) -> None:
        self._gate = gate
        self._cohort = cohort
        self._episode = episode
        self._client = client

    async def generate(self, call: Call) -> Completion:
        return await self._client.generate(await self._gate.admitted(self._cohort, self._episode, call))
