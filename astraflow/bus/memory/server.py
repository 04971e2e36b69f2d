"""What the in-memory buses of one process share: streams, consumers, and who listens to what isn't stored.

It stands for a nats-server: it knows names and bytes, no messages. All buses of a server live on one event loop.
"""

import asyncio
import itertools
from typing import Any

from astraflow.bus.ensure import check_same, stream_config
from astraflow.bus.memory.consumer import MemoryConsumer
from astraflow.bus.memory.stream import MemoryStream
from astraflow.bus.subjects import SubjectTree
from astraflow.bus.topology import Topology
from astraflow.errors import BusError


class CoreListener:
    """Who gets what isn't stored."""

    def hear(self, data: bytes) -> None:
        raise NotImplementedError


class MemoryServer:
    """Shared by any number of `MemoryBus`; forgotten with the last of them.

    Attributes:
        streams: by name.
        consumers: by stream and name.
        core: listeners by subject.
    """

    def __init__(self) -> None:
        self.streams: dict[str, MemoryStream] = {}
        self.consumers: dict[tuple[str, str], MemoryConsumer] = {}
        self.core: SubjectTree[CoreListener] = SubjectTree()
        self._settings: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)
        self._waiting: list[asyncio.Future[None]] = []

    def ensure(self, topology: Topology) -> None:
        """Make the streams and consumers that aren't there. Raises BusError for a stream with other settings."""
        if not topology.at_home:
            raise BusError(f"region {topology.region} isn't the run's home: a bus in memory has no mirrors")
        for row in topology.rows:
            settings = stream_config(row)
            if row.stream not in self.streams:
                self._settings[row.stream] = settings
                self.streams[row.stream] = MemoryStream(row, incarnation=f"memory-{next(self._numbers)}")
            check_same(row.stream, settings, self._settings[row.stream])
            for consumer in row.consumers:
                if (row.stream, consumer.name) not in self.consumers:
                    self.consumers[row.stream, consumer.name] = MemoryConsumer(
                        self.streams[row.stream], consumer.subject, ack_wait_s=topology.limits.ack_wait_s
                    )
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def stream(self, name: str) -> MemoryStream:
        """The stream, as soon as somebody has made it."""
        await asyncio.sleep(0)  # as every round trip, a turn for others
        while name not in self.streams:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        return self.streams[name]

    def there(self, name: str) -> MemoryStream:
        """The stream. Raises BusError if nobody has made it."""
        if name not in self.streams:
            raise BusError(f"stream {name}: stream not found; has the run been set up on this server?")
        return self.streams[name]
