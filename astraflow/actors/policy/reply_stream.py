"""The replica's side of one generation: chunks to the requester, coalesced, with a heartbeat when idle.

It knows nothing of weights or queues. Everything it sends carries the attempt and this replica's incarnation.
"""

from collections.abc import Sequence

import numpy as np

from astraflow import clock
from astraflow.bus import Bus
from astraflow.engines.base import TokenChunk
from astraflow.messages import Array, ChunkKind, GenChunk, GenRequest, RequestFault, VersionSpan, array_of

FLUSH_TOKENS = 1024  # a bound on what a message holds; how often there is one is FLUSH_S's business
FLUSH_S = 0.25
_MESSAGE_TOKENS = 2048  # 16 KiB: unstored messages aren't split, and the smallest max_payload is 32 KiB


def _spans_within(spans: Sequence[VersionSpan], start: int, end: int) -> tuple[VersionSpan, ...]:
    """The parts of `spans` between two positions."""
    return tuple(
        VersionSpan(version=span.version, start=max(span.start, start), end=min(span.end, end))
        for span in spans
        if span.start < end and span.end > start
    )


class ReplyStream:
    """Collects an engine's chunks and publishes them before they are `FLUSH_S` old."""

    def __init__(self, bus: Bus, request: GenRequest, replica: str) -> None:
        self._bus = bus
        self._request = request
        self._replica = replica
        self._position = request.position
        self._chunks: list[TokenChunk] = []  # not sent yet
        self._waiting = 0  # tokens in them
        self._versions: list[VersionSpan] = []
        self.last_sent = clock.monotonic()
        self.is_accepted = False
        self.cancelled = False  # its requester doesn't want it any more

    async def accepted(self) -> None:
        await self._send(ChunkKind.ACCEPTED)
        self.is_accepted = True

    async def refused(self, error: str, fault: RequestFault) -> None:
        await self._send(ChunkKind.REFUSED, error=error, fault=fault)

    async def heartbeat(self) -> None:
        """Say "alive", or better, send what is waiting."""
        if self._waiting:
            await self._flush("")
        else:
            await self._send(ChunkKind.HEARTBEAT)

    async def goodbye(self) -> None:
        """Hand over: what was sampled so far, then the goodbye."""
        await self._flush("")
        await self._send(ChunkKind.GOODBYE)

    async def add(self, chunk: TokenChunk) -> None:
        """Take the engine's next chunk; publish if it ends the completion or enough has gathered."""
        self._chunks.append(chunk)
        self._waiting += chunk.tokens.size
        self._versions.extend(chunk.versions)
        late = clock.monotonic() - self.last_sent > FLUSH_S
        if chunk.finish_reason or late or self._waiting >= FLUSH_TOKENS:
            await self._flush(chunk.finish_reason)

    async def _flush(self, finish_reason: str) -> None:
        if not self._waiting and not finish_reason:
            return
        chunks, versions = self._chunks, self._versions
        first, self._position = self._position, self._position + self._waiting
        self._chunks, self._waiting, self._versions = [], 0, []
        tokens_T = np.concatenate([chunk.tokens for chunk in chunks])
        logprobs_T = np.concatenate([chunk.logprobs for chunk in chunks])
        for start in range(0, max(1, tokens_T.size), _MESSAGE_TOKENS):  # a late loop gets many tokens at once
            piece = slice(start, start + _MESSAGE_TOKENS)
            await self._send(
                ChunkKind.TOKENS,
                position=first + start,
                tokens=array_of(tokens_T[piece], "i4"),
                logprobs=array_of(logprobs_T[piece], "f4"),
                versions=_spans_within(versions, first + start, first + min(piece.stop, tokens_T.size)),
                finish_reason=finish_reason if piece.stop >= tokens_T.size else "",
            )

    async def _send(
        self,
        kind: ChunkKind,
        *,
        position: int = 0,
        tokens: Array | None = None,
        logprobs: Array | None = None,
        versions: tuple[VersionSpan, ...] = (),
        finish_reason: str = "",
        error: str = "",
        fault: RequestFault = RequestFault.NONE,
    ) -> None:
        self.last_sent = clock.monotonic()
        chunk = GenChunk(
            request_id=self._request.id,
            attempt=self._request.attempt,
            kind=kind,
            replica=self._replica,
            position=position,
            tokens=tokens,
            logprobs=logprobs,
            versions=versions,
            finish_reason=finish_reason,
            error=error,
            fault=fault,
        )
        await self._bus.core.publish(self._request.reply_subject, chunk)
