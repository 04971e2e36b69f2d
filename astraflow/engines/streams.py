"""The event-loop side of a running request: what its consumer awaits, and how fast an engine is.

Knows nothing of models or threads. Invariant: a stream's chunks are contiguous, and the last one has a finish_reason
unless the engine failed, which the consumer sees as EngineError after the tokens that were sampled before.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from astraflow import clock
from astraflow.engines.base import TokenChunk
from astraflow.errors import EngineError
from astraflow.messages import VersionSpan


class EngineReply:
    """Tokens of one request that wait for their consumer. Bounded by the request's max_new_tokens."""

    def __init__(self, request_id: str, position: int) -> None:
        self.request_id = request_id
        self._position = position  # of the first pending token
        self._tokens = array("i")  # arrays, because numpy takes them without a look at each number
        self._logprobs = array("f")
        self._versions: list[tuple[int, int]] = []  # (version, number of pending tokens)
        self._finish_reason = ""
        self._error = ""
        self._changed = asyncio.Event()
        self.ended = False  # nothing more will be put

    def put(self, tokens: Sequence[int], logprobs: Sequence[float], version: int, finish_reason: str = "") -> None:
        """Append tokens, all sampled by `version`; a finish_reason ends the reply."""
        if self.ended:
            return
        if tokens:
            self._tokens.extend(tokens)
            self._logprobs.extend(logprobs)
            if self._versions and self._versions[-1][0] == version:
                self._versions[-1] = (version, self._versions[-1][1] + len(tokens))
            else:
                self._versions.append((version, len(tokens)))
        self._finish_reason = finish_reason
        self.ended = bool(finish_reason)
        self._changed.set()

    def fail(self, error: str) -> None:
        """End the reply with an EngineError, after the tokens that it holds."""
        if not self.ended:
            self._error, self.ended = error, True
            self._changed.set()

    async def take(self) -> TokenChunk | None:
        """All pending tokens as one chunk; None after the last chunk. Raises EngineError if the engine failed."""
        while not (self._tokens or self._finish_reason or self._error):
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        if self._error and not self._tokens:
            raise EngineError(f"request {self.request_id!r}: {self._error}")
        chunk = TokenChunk(
            tokens=np.array(self._tokens, dtype=np.int32),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            versions=self._spans(),
            finish_reason=self._finish_reason,
        )
        self._position += len(self._tokens)
        self._tokens, self._logprobs, self._versions, self._finish_reason = array("i"), array("f"), [], ""
        return chunk

    def _spans(self) -> tuple[VersionSpan, ...]:
        spans: list[VersionSpan] = []
        start = self._position
        for version, count in self._versions:
            spans.append(VersionSpan(version=version, start=start, end=start + count))
            start += count
        return tuple(spans)


class EngineStream:
    """The `TokenStream` that engines return. Closing or dropping it before its end calls `cancel(request id)`."""

    def __init__(self, reply: EngineReply, cancel: Callable[[str], None]) -> None:
        self._reply = reply
        self._cancel = cancel
        self._closed = False

    def __aiter__(self) -> "EngineStream":
        return self

    async def __anext__(self) -> TokenChunk:
        """The next chunk; at least one token, or the finish_reason."""
        chunk = None if self._closed else await self._reply.take()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Cancel the request unless it has ended. Idempotent."""
        self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._reply.ended:
                self._cancel(self._reply.request_id)

    def __del__(self) -> None:
        self._close()


class RateMeter:
    """Events per second over the last `window_s` seconds."""

    def __init__(self, window_s: float = 5.0, clock: Callable[[], float] = clock.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._started_s = clock()
        self._counts: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, count: int) -> None:
        now = self._clock()
        self._forget(now)
        if self._counts and now - self._counts[-1][0] < self._window_s / 100:
            at, previous = self._counts[-1]  # merged: the deque keeps about a hundred entries at any rate
            self._counts[-1] = (at, previous + count)
        else:
            self._counts.append((now, count))
        self._total += count

    def per_second(self) -> float:
        now = self._clock()
        self._forget(now)
        return self._total / max(min(self._window_s, now - self._started_s), 1e-3)

    def _forget(self, now: float) -> None:
        while self._counts and now - self._counts[0][0] > self._window_s:
            self._total -= self._counts.popleft()[1]
