"""Deterministic admission: the requests of a cohort start together, sorted by id, and nothing else runs meanwhile.

Used only in deterministic mode (DESIGN §8). It knows nothing of the bus. Invariant: an engine sees either one whole
cohort or none, and weights change only between cohorts.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from astraflow.engines.base import EngineRequest, PolicyEngine, TokenChunk
from astraflow.messages import GenRequest


@dataclass
class _Cohort:
    """Requests that wait for each other."""

    calls: dict[str, EngineRequest] = field(default_factory=dict)
    streams: dict[str, AsyncIterator[TokenChunk]] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    unfinished: int = 0


class Cohorts:
    """Gathers cohorts and lets one at a time into the engine."""

    def __init__(self) -> None:
        self._cohorts: dict[str, _Cohort] = {}
        self._turn = asyncio.Lock()  # held by the cohort that runs, or by a swap

    @asynccontextmanager
    async def between(self) -> AsyncIterator[None]:
        """Inside, no cohort runs."""
        async with self._turn:
            yield

    async def generate(
        self, engine: PolicyEngine, request: GenRequest, call: EngineRequest
    ) -> AsyncIterator[TokenChunk]:
        """Like the engine's own `generate`, once every member of the request's cohort is here."""
        cohort = self._cohorts.setdefault(request.cohort_id, _Cohort())
        cohort.calls[call.id] = call
        if len(cohort.calls) == request.cohort_size:
            await self._turn.acquire()
            del self._cohorts[request.cohort_id]
            calls = [cohort.calls[key] for key in sorted(cohort.calls)]
            cohort.streams = dict(zip(sorted(cohort.calls), engine.generate_together(calls), strict=True))
            cohort.unfinished = len(calls)
            cohort.complete.set()
        await cohort.complete.wait()
        try:
            async for chunk in cohort.streams[call.id]:
                yield chunk
        finally:
            cohort.unfinished -= 1
            if cohort.unfinished == 0:
                self._turn.release()
