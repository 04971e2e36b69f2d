"""The state of one call in flight: what has come, from whom, and why an attempt broke.

It sends nothing and waits for nothing; the client (generation.py) does. Invariant: tokens are contiguous, and those of
an attempt come from the one replica that it belongs to.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from astraflow import clock
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.stop_strings import StopStrings
from astraflow.errors import EngineError, MessageError
from astraflow.messages import ChunkKind, GenChunk, RequestFault, VersionSpan

SILENCE = "silence"
_MAX_SILENT = 5  # replicas in a row that a request may silence

T = TypeVar("T", bound=np.generic)


@dataclass
class CallStream:
    """One call in flight, through all its attempts."""

    call: Call
    attempt: int = 0
    queued: int = 0  # this attempt's place in the queue; 0 = it isn't stored there
    replica: str = ""  # "" until a replica's chunk has claimed the attempt for it
    tokens: list[NDArray[np.int32]] = field(default_factory=list)  # per chunk
    logprobs: list[NDArray[np.float32]] = field(default_factory=list)
    count: int = 0  # tokens so far
    versions: list[VersionSpan] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""
    fault: RequestFault = RequestFault.NONE  # of what was refused
    broken: str = ""  # why this attempt must be continued elsewhere
    last_heard: float = 0.0
    known: int = 0  # tokens when the attempt before broke
    silent: int = 0  # attempts in a row whose replica went silent without a token
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        call = self.call
        self._stops: StopStrings | None = None
        if call.sampling.stop and call.decode is not None:
            self._stops = StopStrings(call.sampling.stop, call.decode, least=call.sampling.min_tokens)

    def take(self, chunk: GenChunk) -> None:
        """Apply a chunk of the current attempt. The first claims it for its replica: `accepted` may be lost."""
        if self.stopped:
            return  # what a replica says before it hears of the end
        claims, self.replica = not self.replica, chunk.replica
        self.last_heard = clock.monotonic()
        if chunk.kind is ChunkKind.GOODBYE:
            self.broken = "goodbye"
        elif chunk.kind is ChunkKind.REFUSED:
            self.error, self.fault = chunk.error or "without a reason", chunk.fault
        elif chunk.kind is ChunkKind.TOKENS and chunk.tokens is not None and chunk.logprobs is not None:
            if chunk.position < self.count and chunk.position + chunk.tokens.shape[0] <= self.count:
                return  # it came twice; an end without tokens did not
            if chunk.position != self.count:
                self.broken = f"gap: token {chunk.position} after {self.count}"
            else:
                self._append(chunk.tokens.numpy(), chunk.logprobs.numpy(), chunk.versions)
                self.finish_reason = "stop" if self.stopped else chunk.finish_reason
        if self.settled or claims:
            self.changed.set()

    def _append(
        self, tokens: NDArray[np.int32], logprobs: NDArray[np.float32], versions: tuple[VersionSpan, ...]
    ) -> None:
        """What a chunk brings, up to a stop string."""
        end = self._stops.end_in(tokens.tolist()) if self._stops is not None else None
        self.tokens.append(tokens[:end])
        self.logprobs.append(logprobs[:end])
        self.count += self.tokens[-1].size
        ends = [msgspec.structs.replace(span, end=min(span.end, self.count)) for span in versions]
        self.versions.extend(span for span in ends if span.start < span.end)

    @property
    def stopped(self) -> bool:
        """A stop string has ended it, whatever its replica still samples."""
        return self._stops is not None and self._stops.letters > 0

    def fail(self, why: str) -> None:
        """Give this attempt up."""
        self.broken = why
        self.changed.set()

    @property
    def direct(self) -> bool:
        """This attempt is for the replica that holds the prefix."""
        return bool(self.call.prefers) and self.attempt == 0 and not self.call.cohort_id

    @property
    def settled(self) -> bool:
        return bool(self.finish_reason or self.error or self.broken)

    def restart(self) -> None:
        """Begin the next attempt with what is there."""
        self.attempt += 1
        self.queued, self.replica, self.broken = 0, "", ""
        self.changed.clear()

    def give_up_if_hopeless(self) -> None:
        """Raises EngineError if one replica after the other went silent at it: it may be what kills them."""
        progress, self.known = self.count > self.known, self.count
        self.silent = self.silent + 1 if self.broken == SILENCE and not progress else 0
        if self.silent >= _MAX_SILENT:
            raise EngineError(
                f"{self.silent} replicas of {self.call.policy} in a row went silent at {self.call.id} without a "
                "token; see their logs"
            )

    def completion(self) -> Completion:
        """All that came, once it has finished."""
        return Completion(
            tokens=_joined(self.tokens, np.int32),
            logprobs=_joined(self.logprobs, np.float32),
            versions=merge_spans(self.versions),
            finish_reason=self.finish_reason,
            attempts=self.attempt + 1,
            replica=self.replica,
            stop_letters=self._stops.letters if self._stops is not None else 0,
        )


def _joined(pieces: list[NDArray[T]], dtype: type[T]) -> NDArray[T]:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)


def well_formed(chunk: GenChunk) -> bool:
    """Whether a chunk's arrays and version spans fit together: C token ids, C finite logprobs, spans over all C."""
    if chunk.kind is not ChunkKind.TOKENS:
        return True
    if chunk.tokens is None or chunk.logprobs is None:
        return False
    try:
        tokens, logprobs = chunk.tokens.numpy(), chunk.logprobs.numpy()
    except MessageError:
        return False
    if (chunk.tokens.dtype, chunk.logprobs.dtype) != ("i4", "f4") or tokens.ndim != 1 or tokens.shape != logprobs.shape:
        return False
    reached = chunk.position
    for span in chunk.versions:
        if span.start != reached or span.end < span.start or span.version < 0:
            return False
        reached = span.end
    return reached == chunk.position + tokens.size and bool(np.isfinite(logprobs).all()) and bool((tokens >= 0).all())


def merge_spans(spans: list[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Join neighbouring spans of the same version."""
    merged: list[VersionSpan] = []
    for span in spans:
        if merged and merged[-1].version == span.version and merged[-1].end == span.start:
            merged[-1] = VersionSpan(version=span.version, start=merged[-1].start, end=span.end)
        else:
            merged.append(span)
    return tuple(merged)
