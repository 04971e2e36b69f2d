"""What every engine over a model's files has in common: its state, what it says of itself, which requests it refuses.

It computes nothing and owns no task. An engine adds where tokens come from (`generate_together`, `_drop`), how it
starts and stops, and how weights are exchanged.
Invariant: only a serving engine takes requests; one that failed stays failed, with its first reason.

States: new → starting → serving → stopped, or failed from any of them.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from astraflow.config import EngineSection
from astraflow.engines.base import EngineRequest, TokenStream
from astraflow.engines.requests import check_request
from astraflow.engines.streams import EngineReply
from astraflow.errors import AstraflowError, EngineError
from astraflow.models.facts import read_facts
from astraflow.weights.codec.changes import Change

Prepared = TypeVar("Prepared")


class EngineState(StrEnum):
    """See the module's docstring."""

    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    STOPPED = "stopped"
    FAILED = "failed"


class EngineShell(ABC):
    """Base of engines. Raises ConfigError if config.json is missing or unusable."""

    def __init__(self, files: Mapping[str, bytes], section: EngineSection, version: int) -> None:
        self._facts = read_facts(files)
        self._section = section
        self._version = version
        longest = self._facts.context_length
        self._context_length = min(section.context_length or longest, longest)
        self._state = EngineState.NEW
        self._error = ""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._facts.eos_token_ids

    @property
    def context_length(self) -> int:
        """After `start` also bounded by what the memory for keys and values holds for one request."""
        return self._context_length

    def generate(self, request: EngineRequest) -> TokenStream:
        return self.generate_together([request])[0]

    @abstractmethod
    def generate_together(self, requests: Sequence[EngineRequest]) -> Sequence[TokenStream]:
        """See `PolicyEngine`."""

    async def cancel(self, request_id: str) -> None:
        self._drop(request_id)

    @abstractmethod
    def _drop(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""

    @abstractmethod
    def _lacks(self) -> frozenset[str]:
        """Settings of `Sampling` that this engine can't serve."""

    def _begin(self) -> None:
        assert self._state is EngineState.NEW, f"engine is {self._state}, an engine starts once"
        self._state = EngineState.STARTING

    def _end(self) -> None:
        """It was asked to stop."""
        if self._state is not EngineState.FAILED:
            self._state = EngineState.STOPPED

    def _fail(self, exc: Exception) -> AstraflowError:
        """It has failed; the first reason counts. Returns: what `start` raises for it."""
        if self._state is not EngineState.FAILED:
            self._state = EngineState.FAILED
            self._error = str(exc) if isinstance(exc, AstraflowError) else f"engine failed: {exc!r}"
        return exc if isinstance(exc, AstraflowError) else EngineError(self._error)

    def _check_serving(self) -> None:
        if self._state is not EngineState.SERVING:
            raise EngineError(self._error or f"the engine is {self._state}, it takes requests only while serving")

    def _replies(self, requests: Sequence[EngineRequest], running: Collection[str]) -> list[EngineReply]:
        """One for each request. Raises EngineError, for all of them, if one is refused. `running`: ids in work."""
        self._check_serving()
        ids = set(running)
        for request in requests:
            if request.id in ids:
                raise EngineError(f"request {request.id!r} is already running")
            ids.add(request.id)
            check_request(
                request,
                vocab_size=self._facts.vocab_size,
                context_length=self._context_length,
                lacks=self._lacks(),
                kind=self._section.kind,
            )
        return [EngineReply(request.id, request.position) for request in requests]

    def _unchanged(self) -> EngineError:
        """For who waits for a swap that will not happen."""
        return EngineError(self._error or "the engine was stopped before its weights changed")


async def prepared_beside(
    prepare: Callable[[Mapping[str, Change]], Prepared], changes: Mapping[str, Change]
) -> Prepared:
    """The result of `prepare`, from a thread; a caller that is cancelled waits for its end, as it reads `changes`."""
    preparing = asyncio.get_running_loop().run_in_executor(None, prepare, changes)
    try:
        return await asyncio.shield(preparing)
    except asyncio.CancelledError:
        await asyncio.wait([preparing])
        raise
