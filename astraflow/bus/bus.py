"""The bus as the rest of the code sees it: one supervised connection, typed messages, no nats objects.

Every operation waits out a lost connection. The work is done by the parts (`link`, `publish`, `claims`, `queue`, `log`,
`kv`, `parts`); this file only puts them together.
"""

import asyncio
import itertools
import logging
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Any, Literal

from astraflow import clock
from astraflow.bus.claims import Claims
from astraflow.bus.core import CoreFeed, open_core_feed
from astraflow.bus.deadletters import DeadLetter, DeadLetters
from astraflow.bus.ensure import ensure
from astraflow.bus.faults import DeniedError, LinkLostError
from astraflow.bus.kv import Kv, KvEntry, KvUpdate
from astraflow.bus.link import Link
from astraflow.bus.log import Cursor, LogEntry, Logs
from astraflow.bus.parts import Parts
from astraflow.bus.publish import NO_ANSWER_YET, PublishAck, Publisher, read_stored
from astraflow.bus.queue import WorkQueue, open_queue
from astraflow.bus.reader import LogState
from astraflow.bus.retry import until_answered
from astraflow.bus.runs import read_runs
from astraflow.bus.serverinfo import check_server
from astraflow.bus.session import Session
from astraflow.bus.topology import Topology, check_token
from astraflow.bus.trust import BusOptions
from astraflow.concurrency import Background
from astraflow.errors import BusError
from astraflow.messages import Envelope, Event, Message, Metrics, PartRef, RunRecord, encode, encode_envelope

log = logging.getLogger(__name__)

EVENT_DEADLINE_S = 2.0
METRICS_DEADLINE_S = 60.0
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Bus:
    """Everything an actor needs of the bus. Made by `Bus.connect`."""

    def __init__(self, link: Link, topology: Topology, *, producer: str) -> None:
        self.topology = topology
        self.producer = producer
        self.counters: Counter[str] = Counter()  # what was skipped, dropped, retried or doubled, by reason
        self._link = link
        self._ensured = False
        self._ids = itertools.count()
        size = topology.limits.max_message_bytes
        relief = {row.stream: row.relief for row in topology.rows}
        self._publisher = Publisher(link, self.counters, relief=relief)
        self._parts = Parts(link, self._publisher, max_message_bytes=size)
        self._claims = Claims(link, topology, self._publisher, self._parts)
        self._dead_letters = DeadLetters(link, topology, self._publisher, self.counters)
        self._logs = Logs(link, topology, self._claims, self._dead_letters)
        self._kv = Kv(link, topology, self._publisher, self._dead_letters, producer=producer)

    @classmethod
    @asynccontextmanager
    async def connect(cls, options: BusOptions, topology: Topology, *, producer: str) -> "AsyncIterator[Bus]":
        """A connected bus. `producer` names this process: letters, digits, '-' and '_'.

        Raises BusError if the server can't be reached, refuses the credentials, is too old or has no JetStream.
        """
        check_token(producer, "producer")
        link = Link(options, name=producer, answer_s=topology.limits.answer_s)
        bus = cls(link, topology, producer=producer)
        link.on_connect = bus._on_connect
        await link.start()
        try:
            await check_server(link, topology)
            async with Background() as background:
                background.start(link.run())
                yield bus
        finally:
            await link.close()

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.topology.run

    @property
    def connected(self) -> asyncio.Event:
        """Set while there is a connection; to wait on, not to change."""
        return self._link.up

    @property
    def reconnects(self) -> int:
        """How often the connection was made anew."""
        return self._link.reconnects

    @property
    def domain(self) -> str:
        """JetStream's domain in the server; "" = it has none, or isn't connected. A region's leaf has its name."""
        return self._link.domain

    def waiting(self) -> tuple[str, float]:
        """What can't be stored and why, and for how many seconds; "" if nothing waits. From any thread."""
        return self._publisher.waits.sentence()

    async def reconnected(self, since: int) -> int:
        """Waits until `reconnects` is over `since`; returns it. Streams that live in memory may have been lost."""
        return await self._link.reconnected(since)

    async def ensure(self) -> None:
        """Create the run's streams and consumers; from now on also after every reconnect. Idempotent.

        Raises BusError for a stream that exists with other settings.
        """
        await until_answered(self._link, lambda session: ensure(session, self.topology))
        self._ensured = True

    async def publish(
        self,
        subject: str,
        message: Message,
        *,
        msg_id: str,
        ttl_s: float | None = None,
        expected_last_sequence: int | None = None,
        deadline_s: float | None = 60.0,
    ) -> PublishAck:
        """Store a message, of any size, in the stream that has `subject`.

        Args: `msg_id` must be deterministic; a second publish of it is a success (`duplicate`), for as long as the
        stream remembers ids (10 minutes). `ttl_s` is rounded up to whole seconds. `expected_last_sequence` is the
        sequence of the last message *on this subject* (0 = none). `deadline_s` None = try for ever.

        Raises: FencedError if another id is at the subject's tail instead; BusError if it isn't stored in time or
        can't be; MessageError if it is too big even for parts.
        """
        data = encode(message, id=msg_id, run=self.run, producer=self.producer)
        return await self._claims.store(
            subject, data, msg_id=msg_id, ttl_s=ttl_s, expected=expected_last_sequence, deadline_s=deadline_s
        )

    async def relay(self, subject: str, envelope: Envelope) -> PublishAck:
        """Store a message that was read elsewhere, as its producer made it; tries for ever. Raises BusError."""
        return await self._claims.store(
            subject, encode_envelope(envelope), msg_id=envelope.id, ttl_s=None, expected=None, deadline_s=None
        )

    async def publish_core(self, subject: str, message: Message) -> None:
        """Send without storing, at most once; dropped and counted when there is no connection."""
        data = encode(message, id=f"{self.producer}/{next(self._ids)}", run=self.run, producer=self.producer)
        try:
            if not self._link.up.is_set():
                raise LinkLostError("not connected")
            await (await self._link.session()).send(subject, data)
        except LinkLostError:
            self.counters["core.unsent"] += 1

    def subscribe_core(self, subject: str, *, max_pending: int = 65536) -> AbstractAsyncContextManager[CoreFeed]:
        """What `publish_core` sends to `subject` (wildcards allowed), as an async iterator.

        Over `max_pending` unread messages new ones are dropped and counted; so is what can't be decoded.
        """
        return open_core_feed(self._link, subject, max_pending=max_pending, counters=self.counters)

    def queue(self, stream: str, consumer: str) -> AbstractAsyncContextManager[WorkQueue]:
        """A work queue's shared consumer."""
        return open_queue(
            stream,
            consumer,
            link=self._link,
            topology=self.topology,
            claims=self._claims,
            dead_letters=self._dead_letters,
            counters=self.counters,
        )

    def read_log(
        self,
        stream: str,
        *,
        subject: str | None = None,
        cursor: Cursor | None = None,
        start: int | Literal["first", "new"] = "first",
        follow: bool = True,
    ) -> AsyncGenerator[LogEntry, None]:
        """A log's messages in order, each once, across reconnects.

        Args: `subject` narrows (wildcards allowed). With a `cursor` it continues behind it, verified: CursorError.
        `start` is a sequence, "first", or "new" (what is published after the first step of the iteration). `follow`
        False ends at the last message that the log had at that step. Malformed messages become dead letters.
        """
        return self._logs.read(stream, subject=subject, cursor=cursor, start=start, follow=follow)

    async def log_entry(self, stream: str, sequence: int) -> LogEntry | None:
        """The message at `sequence`, None if there is none. Raises MessageError if it is malformed."""
        return await self._logs.entry(stream, sequence)

    async def next_entry(self, stream: str, subject: str, *, start: int) -> LogEntry | None:
        """The first message on `subject` at or after sequence `start`, None if there is none. Needs no consumer.

        Raises MessageError if it is malformed.
        """
        return await self._logs.next(stream, subject, start=start)

    async def last_entry(self, stream: str, subject: str) -> LogEntry | None:
        """The newest message on `subject`, None if there is none. Raises MessageError if it is malformed."""
        return await self._logs.last(stream, subject)

    async def last_sequence(self, stream: str, subject: str) -> int:
        """Of the newest message on `subject`, readable or not; 0 if there is none."""
        return await self._logs.last_sequence(stream, subject)

    async def reached(self, stream: str, sequence: int) -> None:
        """Returns when a log has a message at or behind `sequence`; a mirror may be behind what is known of it."""
        if self.topology.at_home or (await self.log_state(stream)).last_sequence >= sequence:
            return
        async with aclosing(self._logs.read(stream, start=sequence)) as entries:
            await anext(entries)

    async def log_state(self, stream: str) -> LogState:
        """Bounds and incarnation of a stream. Raises BusError if there is none."""
        return await self._logs.state(stream)

    async def purge(self, stream: str, *, below_sequence: int, subject: str | None = None) -> int:
        """Delete below a sequence; returns how many messages went. The message at it stays, whole. Purge below a
        cursor's own sequence, not one more: its message is what the cursor is verified by."""
        return await self._logs.purge(stream, below_sequence=below_sequence, subject=subject)

    async def put_parts(
        self, stream: str, subject: str, data: memoryview | bytes, *, msg_prefix: str, deadline_s: float | None = None
    ) -> tuple[PartRef, ...]:
        """Store bytes as parts under `subject`.<digest>; returns when all are stored.

        Raises: BusError if one of them isn't stored within `deadline_s` of its turn (None = try for ever), or can't be.
        """
        return await self._parts.put(stream, subject, data, msg_prefix=msg_prefix, deadline_s=deadline_s)

    async def get_parts(self, stream: str, subject: str, parts: Sequence[PartRef]) -> bytearray:
        """The bytes of `parts`, concatenated and verified. Raises WeightsError naming a missing or damaged part."""
        return await self._parts.get(stream, subject, parts)

    async def kv_get(self, key: str) -> KvEntry | None:
        """None if the key is absent, deleted or expired."""
        return await self._kv.get(key)

    async def kv_put(
        self,
        key: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        ttl_s: int | None = None,
        deadline_s: float | None = 60.0,
    ) -> int:
        """The new revision. Expected 0 = must not exist. Deadline None = for ever.

        Raises: FencedError on a conflict; BusError if it isn't stored in time.
        """
        return await self._kv.put(key, message, expected_revision=expected_revision, ttl_s=ttl_s, deadline_s=deadline_s)

    async def kv_delete(self, key: str) -> None:
        """Nothing happens if the key is absent."""
        await self._kv.delete(key)

    async def why_not_stored(self, within_s: float) -> str:
        """Try whether the server stores anything; why it doesn't, or "". Leaves a mark that expires in a second."""
        try:
            await self._kv.probe(within_s)
        except DeniedError:
            return ""  # it isn't for us to try
        except BusError as exc:
            reason = str(exc).partition(" s: ")[2]
            return reason if reason and reason != NO_ANSWER_YET else "it does not answer; is its disk full? see its log"
        return ""

    async def kv_list(self, prefix: str) -> dict[str, KvEntry]:
        """Keys below `prefix`, as they are now: "member." is every key that starts so, "run" that one key."""
        return await self._kv.entries(prefix)

    def kv_watch(self, prefix: str) -> AsyncGenerator[KvUpdate, None]:
        """Values now, then an update with key "", then changes; after a reconnect values may repeat, none is missed."""
        return self._kv.watch(prefix)

    async def event(self, level: str, name: str, text: str, **fields: Any) -> None:
        """Log it and tell everybody. Never raises BusError; what can't be sent in time is counted."""
        log.log(_LEVELS.get(level, logging.INFO), name, extra={"text": text, "fields": fields})
        event = Event(level=level, name=name, text=text, actor=self.producer, at=clock.wall(), fields=fields)
        try:
            await self.publish(
                self.topology.event(level), event, msg_id=f"event/{uuid.uuid4()}", deadline_s=EVENT_DEADLINE_S
            )
        except BusError as exc:
            self.counters["events.dropped"] += 1
            log.warning("bus.event_dropped", extra={"event": name, "why": str(exc)})

    async def metrics(self, metrics: Metrics) -> None:
        """Append to the METRICS log. Never raises BusError; what can't be stored in time is counted."""
        try:
            await self.publish(
                self.topology.metric(metrics.kind),
                metrics,
                msg_id=f"metrics/{uuid.uuid4()}",
                deadline_s=METRICS_DEADLINE_S,
            )
        except BusError as exc:
            self.counters["metrics.dropped"] += 1
            log.warning("metrics are dropped", extra={"kind": metrics.kind, "error": str(exc)})

    async def stream_depths(self) -> dict[str, int]:
        """Messages that wait in each work queue, undelivered or unacked.

        Keys: `task.<env>`, `task.<env>.eval`, `gen.<policy>`.
        """
        return {key: info["num_pending"] + info["num_ack_pending"] async for key, info in self._consumers()}

    async def undelivered(self) -> dict[str, int]:
        """Like `stream_depths`, but only what nobody has taken yet."""
        return {key: info["num_pending"] async for key, info in self._consumers()}

    async def runs(self) -> dict[str, RunRecord]:
        """The runs on this server in this bus's region, by name. Raises BusError if the credentials don't allow it."""
        return await until_answered(self._link, partial(read_runs, region=self.topology.region))

    async def _consumers(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for row in self.topology.rows:
            for consumer in row.consumers:
                request = f"CONSUMER.INFO.{row.stream}.{consumer.name}"
                yield consumer.depth_key, await until_answered(self._link, partial(Session.api, request=request))

    async def dead_letters(self) -> list[DeadLetter]:
        """The messages that couldn't be read, oldest first."""
        stream = self.topology.dead_letters
        state = await self.log_state(stream)
        found = []
        for sequence in range(state.first_sequence, state.last_sequence + 1):
            stored = await until_answered(self._link, partial(read_stored, stream=stream, seq=sequence))
            if stored is not None:
                found.append(DeadLetter.of(stored))
        return found

    async def _on_connect(self, session: Session) -> None:
        """Memory streams are gone after a restart of the server; a wiped server has nothing."""
        if not self._ensured:
            return
        try:
            await ensure(session, self.topology)
        except (LinkLostError, BusError) as exc:
            if isinstance(exc, LinkLostError):
                raise
            log.error("bus.ensure_failed", extra={"why": str(exc)})
