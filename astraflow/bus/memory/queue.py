"""Work queues in memory. The contract is `interface.Queues`; who holds what is the consumer's business."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from astraflow.bus.admit import admit
from astraflow.bus.interface import Delivery
from astraflow.bus.memory.consumer import MemoryConsumer
from astraflow.bus.memory.deadletters import MemoryDeadLetters
from astraflow.bus.memory.parts import MemoryParts
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.publish import Stored
from astraflow.bus.topology import Topology
from astraflow.errors import MessageError
from astraflow.messages import Envelope


class _MemoryDelivery:
    """`Delivery` of a queue in memory."""

    def __init__(
        self, queue: "_MemoryWorkQueue", stored: Stored, message: Any, envelope: Envelope, attempts: int
    ) -> None:
        self.message = message
        self.envelope = envelope
        self.attempts = attempts
        self._queue = queue
        self._stored = stored

    async def ack(self) -> None:
        self._queue.settle(self._stored)

    async def nak(self, delay_s: float = 0.0) -> None:
        self._queue.shared.hand_back(self._stored.sequence, delay_s)

    async def reject(self, reason: str) -> None:
        self._queue.bury(self._stored, reason)

    async def in_progress(self) -> None:
        self._queue.shared.in_progress(self._stored.sequence)

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        with self._queue.kept(self._stored.sequence):
            yield


class _MemoryWorkQueue:
    """`WorkQueue` in memory. Made by `MemoryQueues.open`."""

    def __init__(
        self,
        stream: str,
        consumer: str,
        shared: MemoryConsumer,
        *,
        server: MemoryServer,
        topology: Topology,
        parts: MemoryParts,
        dead_letters: MemoryDeadLetters,
    ) -> None:
        self.stream = stream
        self.consumer = consumer
        self.shared = shared
        self._server = server
        self._topology = topology
        self._parts = parts
        self._dead_letters = dead_letters
        self._turn = asyncio.Lock()
        self._kept: dict[int, None] = {}

    async def fetch(self, limit: int, *, wait: bool = True) -> list[Delivery]:
        assert limit > 0, "fetch wants at least one"
        async with self._turn:
            await asyncio.sleep(0)  # as every round trip, a turn for others
            while True:
                taken = self.shared.take(limit)  # from here to the return nothing waits: what is taken arrives
                deliveries = [delivery for held in taken if (delivery := self._decoded(*held)) is not None]
                if deliveries or not (wait or taken):
                    return deliveries
                if not taken:
                    await self.shared.ready()

    def _decoded(self, stored: Stored, attempts: int) -> Delivery | None:
        try:
            data = self._parts.joined(stored)
            row = self._topology.row_of_stream[self.stream]
            envelope, message = admit(data, row=row, run=self._topology.run)
        except MessageError as exc:
            self.bury(stored, str(exc))
            return None
        return _MemoryDelivery(self, stored, message, envelope, attempts)

    def settle(self, stored: Stored) -> None:
        """It is done with: it goes, and its parts too."""
        if (stream := self._server.streams.get(self.stream)) is not None and stream.get(stored.sequence) is stored:
            stream.remove(stored.sequence)
            self._parts.forget(stored)

    def bury(self, stored: Stored, reason: str) -> None:
        self._dead_letters.add(stream=self.stream, stored=stored, reason=reason)
        self.settle(stored)

    @contextmanager
    def kept(self, sequence: int) -> Iterator[None]:
        """Held for as long as the block and the queue last."""
        self._kept[sequence] = None
        self.shared.keep(sequence, 1)
        try:
            yield
        finally:
            self._unkeep(sequence)

    def close(self) -> None:
        for sequence in list(self._kept):
            self._unkeep(sequence)

    def _unkeep(self, sequence: int) -> None:
        if sequence in self._kept:
            del self._kept[sequence]
            self.shared.keep(sequence, -1)


class MemoryQueues:
    """`Queues` in memory."""

    def __init__(
        self, server: MemoryServer, topology: Topology, parts: MemoryParts, dead_letters: MemoryDeadLetters
    ) -> None:
        self._server = server
        self._topology = topology
        self._parts = parts
        self._dead_letters = dead_letters

    @asynccontextmanager
    async def open(self, stream: str, consumer: str) -> AsyncIterator[_MemoryWorkQueue]:
        await self._server.stream(stream)
        queue = _MemoryWorkQueue(
            stream,
            consumer,
            self._server.consumers[stream, consumer],
            server=self._server,
            topology=self._topology,
            parts=self._parts,
            dead_letters=self._dead_letters,
        )
        try:
            yield queue
        finally:
            queue.close()

    async def depths(self) -> dict[str, int]:
        return {key: consumer.depth for key, consumer in self._consumers()}

    async def undelivered(self) -> dict[str, int]:
        return {key: consumer.undelivered for key, consumer in self._consumers()}

    def _consumers(self) -> Iterator[tuple[str, MemoryConsumer]]:
        for row in self._topology.rows:
            for consumer in row.consumers:
                yield consumer.depth_key, self._server.consumers[row.stream, consumer.name]
