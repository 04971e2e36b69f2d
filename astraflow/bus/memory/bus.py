"""One process's place on a bus in memory. The contract is `interface.Bus`; this file puts the parts together."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from astraflow.bus.entries import PublishAck
from astraflow.bus.memory.core import MemoryCore
from astraflow.bus.memory.deadletters import MemoryDeadLetters
from astraflow.bus.memory.kv import MemoryKv
from astraflow.bus.memory.log import MemoryLogs
from astraflow.bus.memory.parts import MemoryParts
from astraflow.bus.memory.publish import MemoryPublisher
from astraflow.bus.memory.queue import MemoryQueues
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.names import check_token
from astraflow.bus.telling import tell_event, tell_metrics
from astraflow.bus.topology import Topology
from astraflow.messages import Envelope, Message, Metrics, encode, encode_envelope


class _MemoryLink:
    """A connection that is always there."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.up.set()
        self.reconnects = 0
        self.domain = ""

    async def reconnected(self, since: int) -> int:
        """Never: nothing is lost."""
        while self.reconnects <= since:
            await asyncio.Event().wait()
        return self.reconnects


class MemoryBus:
    """`Bus` in memory. Made by `MemoryBus.connect`."""

    def __init__(self, server: MemoryServer, topology: Topology, *, producer: str) -> None:
        self.topology = topology
        self.run = topology.run
        self.producer = producer
        self.counters: Counter[str] = Counter()
        self.link = _MemoryLink()
        self.server = server
        publisher = MemoryPublisher(server, topology, self.counters)
        self.waits = publisher.waits
        self.parts = MemoryParts(server, topology, publisher)
        self.dead_letters = MemoryDeadLetters(server, topology, self.counters)
        self.logs = MemoryLogs(server, topology, self.parts, self.dead_letters)
        self.queues = MemoryQueues(server, topology, self.parts, self.dead_letters)
        self.kv = MemoryKv(server, topology, publisher, self.dead_letters, producer=producer)
        self.core = MemoryCore(server, self.counters, run=self.run, producer=producer)

    @classmethod
    @asynccontextmanager
    async def connect(cls, server: MemoryServer, topology: Topology, *, producer: str) -> "AsyncIterator[MemoryBus]":
        """A bus on `server`. `producer` names this process: letters, digits, '-' and '_'."""
        check_token(producer, "producer")
        yield cls(server, topology, producer=producer)

    async def ensure(self) -> None:
        self.server.ensure(self.topology)

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
        return await self.parts.store(
            subject, data, msg_id=msg_id, ttl_s=ttl_s, expected=expected_last_sequence, deadline_s=deadline_s
        )

    async def relay(self, subject: str, envelope: Envelope) -> PublishAck:
        return await self.parts.store(subject, encode_envelope(envelope), msg_id=envelope.id)

    async def event(self, level: str, name: str, text: str, **fields: Any) -> None:
        await tell_event(self, level, name, text, fields)

    async def metrics(self, metrics: Metrics) -> None:
        await tell_metrics(self, metrics)

    async def why_not_stored(self, within_s: float) -> str:
        """Nothing: memory stores."""
        return ""
