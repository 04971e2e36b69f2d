"""Where the contract's tests run: on a nats-server, or in memory on virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from astraflow.bus import Bus, EmbeddedServer, NatsBus, Topology
from astraflow.bus.memory import MemoryBus, MemoryServer
from astraflow.virtual_time import VirtualTimeLoop
from tests.bus import raw


class Place(Protocol):
    """A server, with doors that no actor has."""

    def connect(self, topology: Topology, *, producer: str) -> AbstractAsyncContextManager[Bus]: ...

    async def store_raw(self, bus: Bus, subject: str, data: bytes, *, msg_id: str = "") -> None:
        """Store bytes as they are."""

    async def send_raw(self, bus: Bus, subject: str, data: bytes) -> None:
        """Send bytes as they are, without storing them."""

    async def someone_waits(self, bus: Bus, stream: str, consumer: str) -> bool:
        """Whether a fetch is open, with nothing to give it."""

    async def settle(self, bus: Bus) -> None:
        """Returns when what was sent has arrived."""


class NatsPlace:
    """A real server."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    @asynccontextmanager
    async def connect(self, topology: Topology, *, producer: str) -> AsyncIterator[Bus]:
        async with NatsBus.connect(self._server.options, topology, producer=producer) as bus:
            yield bus

    async def store_raw(self, bus: Bus, subject: str, data: bytes, *, msg_id: str = "") -> None:
        await raw.store_raw(bus, subject, data, msg_id=msg_id)

    async def send_raw(self, bus: Bus, subject: str, data: bytes) -> None:
        assert isinstance(bus, NatsBus)
        await (await bus.link.session()).send(subject, data)

    async def someone_waits(self, bus: Bus, stream: str, consumer: str) -> bool:
        assert isinstance(bus, NatsBus)
        return await raw.someone_waits(bus, stream, consumer)

    async def settle(self, bus: Bus) -> None:
        assert isinstance(bus, NatsBus)
        await (await bus.link.session()).flush(5.0)


class MemoryPlace:
    """Memory."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    @asynccontextmanager
    async def connect(self, topology: Topology, *, producer: str) -> AsyncIterator[Bus]:
        async with MemoryBus.connect(self._server, topology, producer=producer) as bus:
            yield bus

    async def store_raw(self, bus: Bus, subject: str, data: bytes, *, msg_id: str = "") -> None:
        await raw.store_raw(bus, subject, data, msg_id=msg_id)

    async def send_raw(self, bus: Bus, subject: str, data: bytes) -> None:
        for listener in self._server.core.matching(subject):
            listener.hear(data)

    async def someone_waits(self, bus: Bus, stream: str, consumer: str) -> bool:
        return self._server.consumers[stream, consumer].someone_waits

    async def settle(self, bus: Bus) -> None:
        """It has."""


@asynccontextmanager
async def a_place(folder: Path) -> AsyncIterator[Place]:
    """In memory on virtual time, else a fresh server."""
    if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        yield MemoryPlace(MemoryServer())
        return
    server = EmbeddedServer(folder / "nats")
    await server.start()
    try:
        yield NatsPlace(server)
    finally:
        await server.stop()
