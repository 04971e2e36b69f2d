"""The requester's side of a generation: a supervised stream that survives its replica.

    queued ──first chunk──▶ streaming ──finish──▶ done
      ▲  └─TTL passed, queue lost,─┐   │
      │    gone without a word     │   │
      └────────────────────────────┴───┴ silence, goodbye, gap: attempt + 1 with the tokens so far

A call that goes on where another ended asks that one's replica first, which holds its prefix; a replica that is full,
gone or too old costs one short wait, then the request is queued. A request that is queued is not sent again while it
waits, except after its TTL; but what a replica says is sent once and may be lost, so that after `bus.silence_s` without
a word the client looks whether the queue still has it. It knows tokens only, no text and no episodes.
Invariant: tokens handed out are contiguous and each comes from the one replica that this attempt belongs to; whatever
another one sends is dropped and cancelled.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import numpy as np

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.call_stream import SILENCE, CallStream, well_formed
from astraflow.concurrency import wait_at_most
from astraflow.errors import BusError, EngineError, MessageError, RequestError
from astraflow.messages import ChunkKind, GenCancel, GenChunk, GenRequest, RequestFault, array_of

_LATE_S = 0.5  # a deadline that is noticed so late says that our own loop was blocked
_CANCELS_REMEMBERED = 1024
_DIRECT_S = 1.0  # the replica that is asked first answers within this, or isn't waited for
_DIRECT_TOKENS = 32_768  # 128 KiB; a longer prompt travels in parts, through the queue only

_log = logging.getLogger(__name__)


class GenerationClient:
    """All generations of one process, over one reply subscription."""

    def __init__(self, ctx: ActorContext) -> None:
        self._ctx = ctx
        self._bus = ctx.bus
        self._reply = f"{ctx.bus.topology.reply(ctx.node)}.{ctx.incarnation}"
        self._streams: dict[str, CallStream] = {}  # by request id, which no other client and no other call has
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
        queue = await ctx.bus.logs.state(ctx.bus.topology.gen_requests)
        async with ctx.bus.core.subscribe(client._reply) as chunks, asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(client._dispatch(chunks)),
                group.create_task(client._notice_lost_queue(queue.incarnation, ctx.bus.link.reconnects)),
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
            reconnects = await self._bus.link.reconnected(reconnects)
            try:
                found = (await self._bus.logs.state(stream)).incarnation
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
        key, now = (chunk.request_id, chunk.attempt, chunk.replica), clock.monotonic()
        if now - self._cancelled.get(key, -math.inf) < self._ctx.config.bus.silence_s:
            return
        self._cancelled.pop(key, None)  # to the end: the dict is in order of time
        self._cancelled[key] = now
        if len(self._cancelled) > _CANCELS_REMEMBERED:
            del self._cancelled[next(iter(self._cancelled))]
        cancel = GenCancel(request_id=chunk.request_id, attempt=chunk.attempt, replica=chunk.replica)
        policy = chunk.request_id.rsplit("|", 1)[-1]
        if policy not in self._bus.topology.policies:  # no id of ours
            return
        await self._bus.core.publish(self._bus.topology.gen_cancel(policy), cancel)

    async def generate(self, call: Call) -> Completion:
        """Generate to the end, through as many attempts as it takes.

        Raises EngineError if a replica refuses the request, RequestError if all would. Cancelling the caller cancels
        the request at the engine.
        """
        stream = CallStream(call)
        request_id = f"{call.id}|{self._ctx.incarnation}-{next(self._numbers)}|{call.policy}"
        self._streams[request_id] = stream
        try:
            while not stream.finish_reason:
                await self._send(request_id, stream)
                await self._supervise(request_id, stream)
                if stream.stopped:
                    await self._tell_to_stop(request_id, stream)
                if stream.error:
                    text = f"policy {call.policy} refused {call.id}: {stream.error}"
                    if stream.fault is RequestFault.NONE:
                        raise EngineError(text)
                    raise RequestError(text, request_id=call.id, fills_context=stream.fault is RequestFault.CONTEXT)
                if stream.broken:
                    self._count_broken(stream)
                    stream.give_up_if_hopeless()
                    stream.restart()
        except asyncio.CancelledError:
            await self._tell_to_stop(request_id, stream)
            raise
        finally:
            del self._streams[request_id]
        return stream.completion()

    async def _tell_to_stop(self, request_id: str, stream: CallStream) -> None:
        """What the engine still samples is not wanted."""
        message = GenCancel(request_id=request_id, attempt=stream.attempt)
        await self._bus.core.publish(self._bus.topology.gen_cancel(stream.call.policy), message)

    def _count_broken(self, stream: CallStream) -> None:
        if stream.direct and not stream.count:
            self.direct_missed += 1
        else:
            self.continued += 1
            _log.info("generation continued", extra={"request": stream.call.id, "why": stream.broken})

    async def _send(self, request_id: str, stream: CallStream) -> None:
        """Send the current attempt: the prompt and the tokens so far, with what is left of the budget."""
        call, done = stream.call, stream.count
        left = call.sampling.max_new_tokens - done
        if left <= 0:
            stream.finish_reason = "length"
            return
        sampling = msgspec.structs.replace(call.sampling, max_new_tokens=left)
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
        )
        topology = self._bus.topology
        if stream.direct and request.prompt_tokens.shape[0] <= _DIRECT_TOKENS:
            await self._bus.core.publish(topology.gen_replica(call.policy, call.prefers), request)
            if not stream.replica:
                stream.changed.clear()
                await wait_at_most(stream.changed, _DIRECT_S)
            if not stream.replica:
                stream.fail("its replica does not answer")
            self.direct += not stream.broken
            return
        ack = await self._bus.publish(topology.gen(call.policy), request, msg_id=msg_id, ttl_s=ttl_s, deadline_s=None)
        stream.queued = ack.sequence

    async def _supervise(self, request_id: str, stream: CallStream) -> None:
        """Return when the attempt has finished, failed, or must be continued elsewhere."""
        silence_s = self._ctx.config.bus.silence_s
        looked_at, gone = clock.monotonic(), False  # at the queue: until accepted, waiting is queueing
        wakes_at = looked_at
        while not stream.settled:
            now = clock.monotonic()
            left_s = (stream.last_heard if stream.replica else looked_at) + silence_s - now
            if left_s > 0:
                wakes_at = now + left_s
                stream.changed.clear()
                await wait_at_most(stream.changed, left_s)  # tokens that came meanwhile have moved `last_heard`
            elif stream.replica and now - wakes_at > _LATE_S:
                wakes_at = now + _LATE_S  # our own loop was blocked: what was said meanwhile is not read yet
                stream.changed.clear()
                await wait_at_most(stream.changed, _LATE_S)
            elif stream.replica:
                stream.fail(SILENCE)
            elif gone:
                stream.fail("it left the queue, and nobody was heard")
            else:
                gone = not await self._is_queued(request_id, stream)
                looked_at = clock.monotonic()

    async def _is_queued(self, request_id: str, stream: CallStream) -> bool:
        """Whether the queue still has the attempt; the server removes it when its TTL has passed.

        One that is gone was taken, and what the replica said may have been lost: chunks are sent once, into whatever
        connection there is.
        """
        try:
            entry = await self._bus.logs.entry(self._bus.topology.gen_requests, stream.queued)
        except (BusError, MessageError):  # the queue was lost with the server's memory, or something else is there
            return False
        return entry is not None and entry.cursor.message_id == f"{request_id}@{stream.attempt}"
