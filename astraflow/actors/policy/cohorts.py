"""Deterministic admission: the requests of a cohort start together, sorted by id, and nothing else runs meanwhile.

    gathering ──all here, or the rest gave up or is not heard of──▶ complete ──its turn──▶ running ──all ended──▶ gone

Used only in deterministic mode; `cohort_gate` decides on the other side what a cohort is. It knows nothing
of the bus. Invariant: an engine sees either one whole cohort or none, and weights change only between cohorts. Nobody
waits for ever: who leaves isn't waited for, and a cohort that can't be completed runs as it is, which is told.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from astraflow import clock
from astraflow.concurrency import wait_at_most
from astraflow.engines.base import EngineRequest, PolicyEngine, TokenStream
from astraflow.errors import EngineError, RequestError
from astraflow.messages import GenRequest


@dataclass
class _EngineCohort:
    """Requests that wait for each other."""

    engine: PolicyEngine
    size: int  # requests that are still expected or here
    calls: dict[str, EngineRequest] = field(default_factory=dict)  # by engine id
    streams: dict[str, TokenStream] = field(default_factory=dict)
    refused: dict[str, EngineError] = field(default_factory=dict)  # by engine id; the others run
    error: str = ""  # why the engine refused it
    decided: asyncio.Event = field(default_factory=asyncio.Event)  # it runs or was refused
    last_arrival: float = field(default_factory=clock.monotonic)

    @property
    def complete(self) -> bool:
        return len(self.calls) >= self.size


class Cohorts:
    """Gathers cohorts and lets one at a time into the engine.

    Args:
        patience_s: how long a cohort waits for its next request; longer than a redelivery takes.
        tell: called with a sentence when a cohort runs without some of its requests.
    """

    def __init__(self, *, patience_s: float, tell: Callable[[str], Awaitable[None]]) -> None:
        self._patience_s = patience_s
        self._tell = tell
        self._gathering: dict[str, _EngineCohort] = {}
        self._complete: deque[_EngineCohort] = deque()
        self._running: _EngineCohort | None = None
        self._swaps = 0  # that wait or run: no cohort begins meanwhile
        self._idle = asyncio.Event()

    @asynccontextmanager
    async def between(self) -> AsyncIterator[None]:
        """Inside, no cohort runs. One at a time."""
        self._swaps += 1
        try:
            while self._running is not None:
                self._idle.clear()
                await self._idle.wait()
            yield
        finally:
            self._swaps -= 1
            self._start_next()

    async def generate(self, engine: PolicyEngine, request: GenRequest, call: EngineRequest) -> TokenStream:
        """Like the engine's own `generate`, once the request's cohort is admitted. Raises EngineError if it isn't."""
        cohort = self._gathering.get(request.cohort_id)
        if cohort is None:
            cohort = self._gathering[request.cohort_id] = _EngineCohort(engine, request.cohort_size)
        cohort.calls[call.id] = call
        cohort.last_arrival = clock.monotonic()
        self._complete_if_due(request.cohort_id)
        try:
            while not cohort.decided.is_set():
                await self._wait(request.cohort_id, cohort)
        except asyncio.CancelledError:
            self._leave(cohort, call.id)
            self._complete_if_due(request.cohort_id)
            raise
        if call.id in cohort.refused:
            raise cohort.refused[call.id]
        if call.id not in cohort.streams:
            raise EngineError(cohort.error or f"{call.id} was cancelled")
        return cohort.streams[call.id]

    def cancel(self, call_id: str) -> None:
        """A request that waits isn't wanted any more; the others don't wait for it."""
        for cohort_id, cohort in list(self._gathering.items()):
            self._leave(cohort, call_id)
            self._complete_if_due(cohort_id)

    def ended(self, call_id: str) -> None:
        """The completion is over, in whatever way; after the last one the next cohort may run."""
        if self._running is not None:
            self._leave(self._running, call_id)

    def _leave(self, cohort: _EngineCohort, call_id: str) -> None:
        if cohort.calls.pop(call_id, None) is not None:
            cohort.size -= 1
        if cohort is self._running and not cohort.calls:
            self._running = None
            self._idle.set()
            self._start_next()

    async def _wait(self, cohort_id: str, cohort: _EngineCohort) -> None:
        """Until it is decided, or nothing was heard of the missing requests for too long."""
        patience_s = cohort.last_arrival + self._patience_s - clock.monotonic()
        if cohort.complete:  # its turn comes when what runs has ended
            await cohort.decided.wait()
        elif patience_s > 0:
            await wait_at_most(cohort.decided, patience_s)
        else:
            missing, cohort.size = cohort.size - len(cohort.calls), len(cohort.calls)
            self._complete_if_due(cohort_id)
            await self._tell(f"cohort {cohort_id} runs without {missing} of its requests: the run is not repeatable")

    def _complete_if_due(self, cohort_id: str) -> None:
        cohort = self._gathering.get(cohort_id)
        if cohort is not None and cohort.complete:
            del self._gathering[cohort_id]
            self._complete.append(cohort)
            self._start_next()

    def _start_next(self) -> None:
        while self._complete and self._running is None and not self._swaps:
            cohort = self._complete.popleft()
            if cohort.calls:
                self._start(cohort)
                cohort.decided.set()

    def _start(self, cohort: _EngineCohort) -> None:
        """All of it at once, but for those that no engine would serve."""
        while ids := sorted(cohort.calls):
            try:
                streams = cohort.engine.generate_together([cohort.calls[each] for each in ids])
            except RequestError as exc:
                if exc.request_id not in cohort.calls:
                    raise
                del cohort.calls[exc.request_id]
                cohort.refused[exc.request_id] = exc
            except EngineError as exc:
                cohort.error = f"its cohort is refused: {exc}"
                return
            else:
                cohort.streams = dict(zip(ids, streams, strict=True))
                self._running = cohort
                return
