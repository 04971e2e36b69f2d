"""The bus on NATS: one supervised connection, typed messages, no nats objects.

The contract is `interface.Bus`. The work is done by the parts (`kv`, `log`, `queue`, `parts`, `core`, `claims`,
`publish`, `link`); this file puts them together.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from astraflow.bus.claims import Claims
from astraflow.bus.core import NatsCore
from astraflow.bus.deadletters import NatsDeadLetters
from astraflow.bus.ensure import ensure
from astraflow.bus.entries import PublishAck
from astraflow.bus.kv import NatsKv
from astraflow.bus.link import Link
from astraflow.bus.log import NatsLogs
from astraflow.bus.names import check_token
from astraflow.bus.parts import NatsParts
from astraflow.bus.publish import NO_ANSWER_YET, Publisher
from astraflow.bus.queue import NatsQueues
from astraflow.bus.retry import until_answered
from astraflow.bus.runs import read_runs
from astraflow.bus.serverinfo import check_server
from astraflow.bus.session import Session
from astraflow.bus.telling import tell_event, tell_metrics
from astraflow.bus.topology import Topology
from astraflow.bus.trust import BusOptions
from astraflow.concurrency import Background
from astraflow.errors import BusError, DeniedError, LinkLostError, NoAnswerError
from astraflow.messages import Envelope, Message, Metrics, RunRecord, encode, encode_envelope

log = logging.getLogger(__name__)


class NatsBus:
    """`Bus` on a nats-server. Made by `NatsBus.connect`."""

    def __init__(self, link: Link, topology: Topology, *, producer: str) -> None:
        self.topology = topology
        self.run = topology.run
        self.producer = producer
        self.counters: Counter[str] = Counter()
        self.link = link
        self._ensured = False
        size = topology.limits.max_message_bytes
        relief = {row.stream: row.relief for row in topology.rows}
        self._restoring = False
        publisher = Publisher(link, self.counters, relief=relief, unanswered=self._restore_streams)
        self.waits = publisher.waits
        self.parts = NatsParts(link, publisher, max_message_bytes=size)
        self._claims = Claims(link, topology, publisher, self.parts)
        self.dead_letters = NatsDeadLetters(link, topology, publisher, self.counters)
        self.logs = NatsLogs(link, topology, self._claims, self.dead_letters)
        self.queues = NatsQueues(link, topology, self._claims, self.dead_letters, self.counters)
        self.kv = NatsKv(link, topology, publisher, self.dead_letters, producer=producer)
        self.core = NatsCore(link, self.counters, run=self.run, producer=producer)

    @classmethod
    @asynccontextmanager
    async def connect(cls, options: BusOptions, topology: Topology, *, producer: str) -> "AsyncIterator[NatsBus]":
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

    async def ensure(self) -> None:
        await until_answered(self.link, lambda session: ensure(session, self.topology))
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
        data = encode(message, id=msg_id, run=self.run, producer=self.producer)
        return await self._claims.store(
            subject, data, msg_id=msg_id, ttl_s=ttl_s, expected=expected_last_sequence, deadline_s=deadline_s
        )

    async def relay(self, subject: str, envelope: Envelope) -> PublishAck:
        return await self._claims.store(
            subject, encode_envelope(envelope), msg_id=envelope.id, ttl_s=None, expected=None, deadline_s=None
        )

    async def why_not_stored(self, within_s: float) -> str:
        try:
            await self.kv.probe(within_s)
        except DeniedError:
            return ""  # it isn't for us to try
        except BusError as exc:
            reason = str(exc).partition(" s: ")[2]
            return reason if reason and reason != NO_ANSWER_YET else "it does not answer; is its disk full? see its log"
        return ""

    async def event(self, level: str, name: str, text: str, **fields: Any) -> None:
        await tell_event(self, level, name, text, fields)

    async def metrics(self, metrics: Metrics) -> None:
        await tell_metrics(self, metrics)

    async def runs(self) -> dict[str, RunRecord]:
        """The runs on this server in this bus's region, by name. Raises BusError if the credentials don't allow it."""
        return await until_answered(self.link, partial(read_runs, region=self.topology.region))

    async def _restore_streams(self) -> None:
        """Make streams anew that somebody deleted under us; those who may not wait until somebody who may has."""
        if not self._ensured or self._restoring:
            return
        self._restoring = True
        try:
            made = await ensure(await self.link.session(), self.topology)
        except BusError as exc:
            log.debug("bus.not_restored", extra={"why": str(exc)})
            return
        finally:
            self._restoring = False
        if made:
            text = f"somebody deleted {', '.join(made)}; made anew, and every process writes again what it knows"
            await self.event("error", "stream-rebuilt", text)

    async def _on_connect(self, session: Session) -> None:
        """Memory streams are gone after a restart of the server; a wiped server has nothing."""
        if not self._ensured:
            return
        try:
            await ensure(session, self.topology)
        except (LinkLostError, NoAnswerError):
            raise
        except BusError as exc:
            log.error("bus.ensure_failed", extra={"why": str(exc)})
