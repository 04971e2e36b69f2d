"""The requester's side of a generation: a supervised stream that survives its replica (DESIGN §5).

    queued ──first chunk──▶ streaming ──finish──▶ done
      ▲  └─TTL passed, queue lost,─┐   │
      │    gone without a word     │   │
      └────────────────────────────┴───┴ silence, goodbye, gap: attempt + 1 with the tokens so far

A call that goes on where another ended asks that one's replica first, which holds its prefix; a replica that is full,
gone or too old costs one short wait, then the request is queued. It knows tokens only, no text and no episodes.
Invariant: tokens handed out are contiguous and each comes from the one replica that this attempt belongs to; whatever
another one sends is dropped and cancelled.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from astraflow.actors.base.context import ActorContext
from astraflow.errors import BusError, EngineError, MessageError
from astraflow.messages import ChunkKind, GenCancel, GenChunk, GenRequest, Sampling, VersionSpan, array_of

SILENCE = "silence"
MAX_SILENT = 5  # replicas in a row that a request may silence
LATE_S = 0.5  # a deadline that is noticed so late says that our own loop was blocked
CANCELS_REMEMBERED = 1024
DIRECT_S = 1.0  # the replica that is asked first answers within this, or isn't waited for
DIRECT_TOKENS = 32_768  # 128 KiB; a longer prompt travels in parts, through the queue only

T = TypeVar("T", bound=np.generic)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A finished generation. C = its tokens."""

    tokens: NDArray[np.int32]  # [C]
    logprobs: NDArray[np.float32]  # [C]
    versions: tuple[VersionSpan, ...]
    finish_reason: str
    attempts: int
    replica: str = ""  # incarnation of the one that finished it


@dataclass(frozen=True, kw_only=True)
class Call:
    """What to generate. `id` orders the requests of a cohort; two calls at the same time may have the same one.

    `prefers`: incarnation of the replica that holds the prompt's prefix; "" = none does.
    """

    id: str
    policy: str
    prompt_tokens: NDArray[np.int32]
    sampling: Sampling
    seed: int
    min_version: int = 0
    cohort_id: str = ""
    cohort_size: int = 0
    prefers: str = ""


class Generates(Protocol):
    """Anything that completes a call, in service the GenerationClient."""

    async def generate(self, call: Call) -> Completion: ...


@dataclass
class _Stream:
    """One call in flight."""

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
    broken: str = ""  # why this attempt must be continued elsewhere
    last_heard: float = 0.0
    late: bool = False  # the silence may be our own loop's
    known: int = 0  # tokens when the attempt before broke
    silent: int = 0  # attempts in a row whose replica went silent without a token
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, chunk: GenChunk) -> None:
        """Apply a chunk of the current attempt. The first claims it for its replica: `accepted` may be lost."""
        claims, self.replica = not self.replica, chunk.replica
        self.last_heard = time.monotonic()
        if chunk.kind is ChunkKind.GOODBYE:
            self.broken = "goodbye"
        elif chunk.kind is ChunkKind.REFUSED:
            self.error = chunk.error
        elif chunk.kind is ChunkKind.TOKENS and chunk.tokens is not None and chunk.logprobs is not None:
            if chunk.position + chunk.tokens.shape[0] <= self.count:
                return  # it came twice
            if chunk.position != self.count:
                self.broken = f"gap: token {chunk.position} after {self.count}"
            else:
                self.tokens.append(chunk.tokens.numpy())
                self.logprobs.append(chunk.logprobs.numpy())
                self.count += self.tokens[-1].size
                self.versions.extend(chunk.versions)
                self.finish_reason = chunk.finish_reason
        if self.settled or claims:
            self.changed.set()

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


async def _until_set(event: asyncio.Event, within_s: float) -> None:
    event.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()


def _give_up_if_hopeless(stream: _Stream) -> None:
    """Raises EngineError for a request at which one replica after the other goes silent: it may be what kills them."""
    progress, stream.known = stream.count > stream.known, stream.count
    stream.silent = stream.silent + 1 if stream.broken == SILENCE and not progress else 0
    if stream.silent >= MAX_SILENT:
        raise EngineError(
            f"{stream.silent} replicas of {stream.call.policy} in a row went silent at {stream.call.id} without a "
            "token; see their logs"
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


class GenerationClient:
    """All generations of one process, over one reply subscription."""

    def __init__(self, ctx: ActorContext) -> None:
        self._ctx = ctx
        self._bus = ctx.bus
        self._reply = f"{ctx.bus.topology.reply(ctx.node)}.{ctx.incarnation}"
        self._streams: dict[str, _Stream] = {}  # by request id, which no other client and no other call has
        self._numbers = itertools.count()
        self._cancelled: dict[tuple[str, int, str], float] = {}  # request, attempt, replica: when it was told
        self.continued = 0  # attempts that were continued elsewhere
        self.direct = 0  # requests that the replica with their prefix took
        self.direct_missed = 0  # requests that it did not take
        self.wasted_chunks = 0  # chunks of replicas that an attempt did not belong to, or of requests that have ended

    @classmethod
    @asynccontextmanager
    async def open(cls, ctx: ActorContext) -> AsyncIterator["GenerationClient"]:
        """A client that listens while the context is open."""
        client = cls(ctx)
        queue = await ctx.bus.log_state(ctx.bus.topology.gen_requests)
        async with ctx.bus.subscribe_core(client._reply) as chunks, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(client._dispatch(chunks)),
                group.create_task(client._notice_lost_queue(queue.incarnation, ctx.bus.reconnects)),
            ]
            try:
                yield client
            finally:
                for task in tasks:
                    task.cancel()

    async def _notice_lost_queue(self, incarnation: str, reconnects: int) -> None:
        """Requests wait in the server's memory: after its restart they are gone, and are sent again at once."""
        stream = self._bus.topology.gen_requests
        while True:
            reconnects = await self._bus.reconnected(reconnects)
            try:
                found = (await self._bus.log_state(stream)).incarnation
            except BusError as exc:  # not made anew yet; publishing waits for it
                _log.warning("generation queue gone", extra={"stream": stream, "why": str(exc)})
                found = ""
            if found != incarnation:
                incarnation = found
                for waiting in [item for item in self._streams.values() if item.queued and not item.replica]:
                    waiting.fail("its queue was lost")

    async def _dispatch(self, chunks: AsyncIterator[object]) -> None:
        async for decoded in chunks:
            chunk = getattr(decoded, "message", None)
            if isinstance(chunk, GenChunk):
                await self._route(chunk)

    async def _route(self, chunk: GenChunk) -> None:
        stream = self._streams.get(chunk.request_id)
        if stream is not None and not well_formed(chunk):
            self._bus.counters["generation.malformed"] += 1
            return
        if stream is not None and chunk.attempt == stream.attempt and stream.replica in ("", chunk.replica):
            stream.take(chunk)
            return
        self.wasted_chunks += 1
        if chunk.kind in (ChunkKind.ACCEPTED, ChunkKind.TOKENS, ChunkKind.HEARTBEAT) and not chunk.finish_reason:
            await self._cancel(chunk)

    async def _cancel(self, chunk: GenChunk) -> None:
        """Tell a replica that its work is not wanted; not at every chunk, but again if it seems not to have heard."""
        key, now = (chunk.request_id, chunk.attempt, chunk.replica), time.monotonic()
        if now - self._cancelled.get(key, -math.inf) < self._ctx.config.bus.silence_s:
            return
        self._cancelled.pop(key, None)  # to the end: the dict is in order of time
        self._cancelled[key] = now
        if len(self._cancelled) > CANCELS_REMEMBERED:
            del self._cancelled[next(iter(self._cancelled))]
        cancel = GenCancel(request_id=chunk.request_id, attempt=chunk.attempt, replica=chunk.replica)
        policy = chunk.request_id.rsplit("|", 1)[-1]
        await self._bus.publish_core(self._bus.topology.gen_cancel(policy), cancel)

    async def generate(self, call: Call) -> Completion:
        """Generate to the end, through as many attempts as it takes.

        Raises EngineError if a replica refuses the request. Cancelling the caller cancels the request at the engine.
        """
        stream = _Stream(call)
        request_id = f"{call.id}|{self._ctx.incarnation}-{next(self._numbers)}|{call.policy}"
        self._streams[request_id] = stream
        try:
            while not stream.finish_reason:
                await self._send(request_id, stream)
                await self._supervise(request_id, stream)
                if stream.error:
                    raise EngineError(f"policy {call.policy} refused {call.id}: {stream.error}")
                if stream.broken:
                    self._count_broken(stream)
                    _give_up_if_hopeless(stream)
                    stream.restart()
        except asyncio.CancelledError:
            message = GenCancel(request_id=request_id, attempt=stream.attempt)
            await self._bus.publish_core(self._bus.topology.gen_cancel(call.policy), message)
            raise
        finally:
            del self._streams[request_id]
        return Completion(
            tokens=_joined(stream.tokens, np.int32),
            logprobs=_joined(stream.logprobs, np.float32),
            versions=merge_spans(stream.versions),
            finish_reason=stream.finish_reason,
            attempts=stream.attempt + 1,
            replica=stream.replica,
        )

    def _count_broken(self, stream: _Stream) -> None:
        if stream.direct and not stream.count:
            self.direct_missed += 1
        else:
            self.continued += 1
            _log.info("generation continued", extra={"request": stream.call.id, "why": stream.broken})

    async def _send(self, request_id: str, stream: _Stream) -> None:
        """Send the current attempt: the prompt and the tokens so far, with what is left of the budget."""
        call, done = stream.call, stream.count
        left = call.sampling.max_new_tokens - done
        if left <= 0:
            stream.finish_reason = "length"
            return
        sampling = Sampling(
            max_new_tokens=left,
            temperature=call.sampling.temperature,
            top_k=call.sampling.top_k,
            top_p=call.sampling.top_p,
            stop_token_ids=call.sampling.stop_token_ids,
            ignore_eos=call.sampling.ignore_eos,
        )
        ttl_s, msg_id = self._ctx.config.bus.request_ttl_s, f"{request_id}@{stream.attempt}"
        request = GenRequest(
            id=request_id,
            attempt=stream.attempt,
            policy=call.policy,
            prompt_tokens=array_of(np.concatenate([call.prompt_tokens, *stream.tokens]), "i4"),
            sampling=sampling,
            seed=call.seed,
            reply_subject=self._reply,
            position=done,
            min_version=call.min_version,
            cohort_id=call.cohort_id if stream.attempt == 0 else "",  # nobody waits for those that come again
            cohort_size=call.cohort_size if stream.attempt == 0 else 0,
            expires_at=time.time() + ttl_s,
        )
        topology = self._bus.topology
        if stream.direct and request.prompt_tokens.shape[0] <= DIRECT_TOKENS:
            await self._bus.publish_core(topology.gen_replica(call.policy, call.prefers), request)
            if not stream.replica:
                await _until_set(stream.changed, DIRECT_S)
            if not stream.replica:
                stream.fail("its replica does not answer")
            self.direct += not stream.broken
            return
        ack = await self._bus.publish(topology.gen(call.policy), request, msg_id=msg_id, ttl_s=ttl_s, deadline_s=None)
        stream.queued = ack.sequence

    async def _supervise(self, request_id: str, stream: _Stream) -> None:
        """Return when the attempt has finished, failed, or must be continued elsewhere."""
        silence_s = self._ctx.config.bus.silence_s
        looked_at, gone = time.monotonic(), False  # at the queue: until accepted, waiting is queueing
        while not stream.settled:
            left_s = (stream.last_heard if stream.replica else looked_at) + silence_s - time.monotonic()
            if left_s > 0:
                stream.late = False
                await _until_set(stream.changed, left_s)  # tokens that came meanwhile have moved `last_heard`
            elif stream.replica and left_s < -LATE_S and not stream.late:
                stream.late = True  # our own loop was blocked: what was said meanwhile is not read yet
                await _until_set(stream.changed, LATE_S)
            elif stream.replica:
                stream.fail(SILENCE)
            elif gone:
                stream.fail("it left the queue, and nobody was heard")
            else:
                gone = not await self._is_queued(request_id, stream)
                looked_at = time.monotonic()

    async def _is_queued(self, request_id: str, stream: _Stream) -> bool:
        """Whether the queue still has the attempt; the server removes it when its TTL has passed.

        One that is gone was taken, and what the replica said may have been lost: chunks are sent once, into whatever
        connection there is.
        """
        try:
            entry = await self._bus.log_entry(self._bus.topology.gen_requests, stream.queued)
        except (BusError, MessageError):  # the queue was lost with the server's memory, or something else is there
            return False
        return entry is not None and entry.cursor.message_id == f"{request_id}@{stream.attempt}"
