"""The policy actor: one replica that serves one policy.

It pulls generation requests while it has free slots and its weights are new enough, streams tokens back, and follows
its policy's head (served.py), swapping weights between decode steps. It never chooses versions and never talks to a
trainer.
Shutdown order: stop pulling → goodbye to every requester → stop the engine.
"""

import asyncio
import contextlib
import logging
from functools import partial

import msgspec
import numpy as np

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.handover import start_work
from astraflow.actors.base.screening import MAX_DELIVERIES, verdict_on_request
from astraflow.actors.policy.cohorts import Cohorts
from astraflow.actors.policy.load import load
from astraflow.actors.policy.reply_stream import ReplyStream
from astraflow.actors.policy.served import ServedVersion
from astraflow.actors.policy.updates import Updates
from astraflow.bus import Delivery
from astraflow.bus.counters import bus_gauges
from astraflow.concurrency import until_stopped
from astraflow.engines.base import EngineRequest, PolicyEngine, TokenChunk, TokenStream
from astraflow.errors import EngineError, RequestError
from astraflow.messages import Decoded, GenCancel, GenRequest, Head, MemberState, RequestFault
from astraflow.messages.metric_names import (
    POLICY_LAG_S,
    POLICY_LAG_VERSIONS,
    POLICY_RUNNING,
    POLICY_SLOTS,
    POLICY_TOKENS_PER_S,
    POLICY_VERSION,
    POLICY_WAITING,
)
from astraflow.verdict import Verdict
from astraflow.weights.transfer.follower import WeightFollower

REPORT_EVERY_S = 1.0
AGAIN_S = 1.0  # a second delivery of a request that isn't accepted yet comes back after this

VERSION_WITHIN_S = 30.0  # a request for a newer version holds its slot for this long
_EMPTY_END = TokenChunk(
    tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), versions=(), finish_reason="length"
)

_log = logging.getLogger(__name__)


class Replica:
    """One engine and the requests in flight."""

    def __init__(self, ctx: ActorContext, engine: PolicyEngine, weights: WeightFollower, head: Head) -> None:
        self._ctx = ctx
        self._engine = engine
        self._cohorts = self._make_cohorts() if ctx.config.run.deterministic else None
        self.served = ServedVersion(ctx, Updates(ctx, engine, weights, self._between_cohorts), head, self._say)
        self._streams: dict[str, ReplyStream] = {}  # by engine request id
        self._held = 0  # deliveries taken and not finished
        self._room = asyncio.Event()

    def _make_cohorts(self) -> Cohorts:
        async def tell(text: str) -> None:
            await self._ctx.bus.event("warning", "not-repeatable", text)

        return Cohorts(patience_s=2 * self._ctx.config.bus.ack_wait_s, tell=tell)

    def _between_cohorts(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._cohorts.between() if self._cohorts is not None else contextlib.nullcontext()

    async def pull(self, group: asyncio.TaskGroup) -> None:
        """Take requests for ever: never more than there are free slots, and none while the weights are too old."""
        topology = self._ctx.bus.topology
        async with self._ctx.bus.queues.open(topology.gen_requests, topology.gen_consumer(self._ctx.policy)) as queue:
            while True:
                await self._until_room()
                await self._until_current()
                deliveries = await queue.fetch(max(1, self._engine.load().slots - self._held))
                self._hold(len(deliveries))
                await start_work(group, deliveries, self._handle)

    async def _until_room(self) -> None:
        while self._held >= self._engine.load().slots:
            self._room.clear()
            await self._room.wait()

    async def _until_current(self) -> None:
        self._say()
        await self.served.until(lambda: self.served.current)
        if self._ctx.state is MemberState.CATCHING_UP:
            self._ctx.set_state(MemberState.READY)
        self._say()

    def _say(self) -> None:
        idle = "generation requests: none is queued"
        if not self.served.current:
            idle = f"newer weights than version {self.served.version}"
        self._ctx.waits_for("" if self._held else idle)

    def _hold(self, change: int) -> None:
        self._held += change
        self._room.set()
        self._say()

    async def _handle(self, delivery: Delivery) -> None:
        request = delivery.message
        assert isinstance(request, GenRequest), request  # the queue holds no other type
        engine_id = f"{request.id}@{request.attempt}"
        try:
            if not (verdict := self._verdict_on(request)).ok:
                await delivery.reject(verdict.text)
            elif (stream := self._streams.get(engine_id)) is not None:  # its ack was lost: it is in work
                await (delivery.ack() if stream.is_accepted else delivery.nak(AGAIN_S))
            elif not self.served.current:  # a version came out while it waited: somebody else may be newer
                await delivery.nak()
            else:
                stream = self._streams[engine_id] = ReplyStream(self._ctx.bus, request, self._ctx.incarnation)
                try:
                    await self._work(delivery, request, stream, engine_id)
                finally:
                    del self._streams[engine_id]
        finally:
            self._hold(-1)

    async def asked(self, group: asyncio.TaskGroup) -> None:
        """Take requests that go on where an earlier one ended here, as long as there is room; others go elsewhere."""
        topology = self._ctx.bus.topology
        subject = topology.gen_replica(self._ctx.policy, self._ctx.incarnation)
        async with self._ctx.bus.core.subscribe(subject) as messages:
            async for decoded in messages:
                request = decoded.message
                if not isinstance(request, GenRequest) or not self._verdict_on(request).ok:
                    self._ctx.bus.counters["generation.malformed"] += 1
                elif (engine_id := f"{request.id}@{request.attempt}") not in self._streams:
                    stream = self._streams[engine_id] = ReplyStream(self._ctx.bus, request, self._ctx.incarnation)
                    room = (
                        self._held < self._engine.load().slots
                        and self.served.current
                        and self.served.version >= request.min_version
                    )
                    self._hold(1)
                    group.create_task(self._answer(request, stream, engine_id, room=room))

    async def _answer(self, request: GenRequest, stream: ReplyStream, engine_id: str, *, room: bool) -> None:
        try:
            if room:
                await stream.accepted()
                await self._serve(request, stream, engine_id)
            else:
                await stream.goodbye()
        finally:
            del self._streams[engine_id]
            self._hold(-1)

    def _verdict_on(self, request: GenRequest) -> Verdict:
        return verdict_on_request(request, policy=self._ctx.policy, replies=self._ctx.bus.topology.replies)

    async def _work(self, delivery: Delivery, request: GenRequest, stream: ReplyStream, engine_id: str) -> None:
        try:
            async with delivery.keep_alive():
                if not await self._serves(request, stream):
                    await self._postpone(delivery, request)
                    return
                if not stream.cancelled:
                    await stream.accepted()
        except asyncio.CancelledError:
            await delivery.nak()
            raise
        await delivery.ack()
        if not stream.cancelled:
            await self._serve(request, stream, engine_id)

    async def _serves(self, request: GenRequest, stream: ReplyStream) -> bool:
        """Wait for the version that a request wants; False if it doesn't come soon. A cohort waits for all it takes."""
        version = request.min_version
        if self.served.version < version:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if request.cohort_id else VERSION_WITHIN_S):
                    await self.served.until(lambda: self.served.version >= version or stream.cancelled)
        return self.served.version >= version or stream.cancelled

    async def _postpone(self, delivery: Delivery, request: GenRequest) -> None:
        """Free the slot; a request for a version that never comes ends as a dead letter."""
        if delivery.attempts > MAX_DELIVERIES:
            await delivery.reject(f"request {request.id[:80]!r} wants version {request.min_version}, which never came")
        else:
            await delivery.nak(AGAIN_S)

    async def _serve(self, request: GenRequest, stream: ReplyStream, engine_id: str) -> None:
        """Stream a completion to its requester; on cancellation (drain) hand it over.

        It gets no more tokens than the context has left: a completion that fills it ends with `length`.
        """
        prompt, sampling = request.prompt_tokens.numpy(), request.sampling
        room = max(1, self._engine.context_length - prompt.size)  # without any, the engine refuses it
        call = EngineRequest(
            id=engine_id,
            prompt_tokens=prompt,
            sampling=msgspec.structs.replace(sampling, max_new_tokens=min(room, sampling.max_new_tokens)),
            seed=request.seed,
            position=request.position,
        )
        try:
            async for chunk in await self._admitted(request, call):
                await stream.add(chunk)
        except RequestError as exc:
            if exc.fills_context and request.position:  # the end was lost of what had filled it
                await stream.add(_EMPTY_END)
            else:
                await stream.refused(str(exc), RequestFault.CONTEXT if exc.fills_context else RequestFault.REQUEST)
        except EngineError as exc:
            if self._engine.load().error:  # not this request's fault: it goes on elsewhere, this process ends
                await stream.goodbye()
                raise
            await stream.refused(str(exc), RequestFault.NONE)
        except asyncio.CancelledError:
            await stream.goodbye()
            raise
        finally:
            if self._cohorts is not None:
                self._cohorts.ended(engine_id)

    async def _admitted(self, request: GenRequest, call: EngineRequest) -> TokenStream:
        if self._cohorts is None or not request.cohort_id:
            return self._engine.generate(call)
        return await self._cohorts.generate(self._engine, request, call)

    async def cancels(self) -> None:
        """End requests whose requesters no longer want them."""
        subject = self._ctx.bus.topology.gen_cancel(self._ctx.policy)
        async with self._ctx.bus.core.subscribe(subject) as messages:
            async for decoded in messages:
                await self._cancel(decoded)

    async def _cancel(self, decoded: Decoded) -> None:
        cancel = decoded.message
        if not isinstance(cancel, GenCancel) or cancel.replica not in ("", self._ctx.incarnation):
            return
        for engine_id, stream in list(self._streams.items()):
            request_id, _, attempt = engine_id.rpartition("@")
            if request_id == cancel.request_id and cancel.attempt in (-1, int(attempt)):
                stream.cancelled = True  # it may not have reached the engine yet
                await self._engine.cancel(engine_id)
                if self._cohorts is not None:
                    self._cohorts.cancel(engine_id)
                await self.served.look()

    async def report(self) -> None:
        """Keep gauges current and idle requesters reassured."""
        idle_s = self._ctx.config.bus.silence_s / 3
        while not await self._ctx.stopped_within(min(REPORT_EVERY_S, idle_s / 2)):
            load = self._engine.load()
            if load.error:  # nobody's request need show it
                raise EngineError(load.error)
            self._ctx.about = load.about
            self._ctx.gauges.update(load.extra)
            self._room.set()  # an engine may take more requests than a moment ago
            for name, value in (
                (POLICY_TOKENS_PER_S, load.tokens_per_s),
                (POLICY_RUNNING, load.running),
                (POLICY_WAITING, load.queued),
                (POLICY_SLOTS, load.slots),
                (POLICY_VERSION, self.served.version),
                (POLICY_LAG_VERSIONS, self.served.lag_versions),
                (POLICY_LAG_S, self.served.lag_s),
            ):
                self._ctx.gauge(name, value)
            self._ctx.gauges.update(bus_gauges(self._ctx.bus.counters))
            now = clock.monotonic()
            for stream in [it for it in self._streams.values() if it.is_accepted and now - it.last_sent > idle_s]:
                await stream.heartbeat()


async def run(ctx: ActorContext) -> None:
    """Load, serve until told to stop, hand over."""
    weights = WeightFollower(ctx.bus, ctx.policy)
    loaded = await ctx.unless_stopped(load(ctx, weights))
    if loaded is None:
        return
    engine, head = loaded
    replica = Replica(ctx, engine, weights, head)
    try:
        async with until_stopped(ctx.stopping, partial(ctx.set_state, MemberState.DRAINING)) as group:
            group.create_task(replica.served.follow())
            group.create_task(replica.cancels())
            group.create_task(replica.report())
            group.create_task(replica.pull(group))
            group.create_task(replica.asked(group))
        _log.info("policy replica drained", extra={"actor": ctx.name})
    finally:
        await engine.stop()
