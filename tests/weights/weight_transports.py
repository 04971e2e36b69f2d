"""A trainer's publisher with a store for fulls, and a proxy that cuts connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from astraflow.actors.base.context import ActorContext
from astraflow.bus import EmbeddedServer
from astraflow.config import RunConfig, WeightsSection
from astraflow.messages import Event, Manifest
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.full_store import full_store
from astraflow.weights.transfer.publisher import WeightPublisher
from tests.actors.contexts import CONFIG, context

FILES = {"config.json": b"{}"}
ELEMENTS = 2 << 20  # 4 MiB: some parts, and some spans where a test makes them small


def with_weights(**fields: Any) -> RunConfig:
    """CONFIG with a [policies.solver.weights] table."""
    solver = msgspec.structs.replace(CONFIG.policies["solver"], weights=WeightsSection(**fields))
    return msgspec.structs.replace(CONFIG, policies={"solver": solver})


@asynccontextmanager
async def trainer(
    server: EmbeddedServer, run_folder: Path, *, full_every: int = 3, epoch: int = 0, **fields: Any
) -> AsyncIterator[tuple[ActorContext, WeightPublisher]]:
    """A trainer's context, and its publisher."""
    async with (
        context(server, run_folder, role="trainer", config=with_weights(**fields)) as ctx,
        full_store(ctx) as fulls,
    ):
        publisher = WeightPublisher(ctx, epoch=epoch, full_every=full_every, fulls=fulls)
        await publisher.open()
        yield ctx, publisher


def version(number: int) -> dict[str, HostTensor]:
    """Version `number`: each one changes some elements."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, ELEMENTS, dtype=np.uint16)
    for step in range(1, number + 1):
        bits[step :: ELEMENTS // 1000] += 1
    return {"w": HostTensor("BF16", (ELEMENTS,), memoryview(bits.tobytes()))}


async def publish(publisher: WeightPublisher, *numbers: int) -> None:
    for number in numbers:
        await publisher.publish(version(number), FILES, version=number, step=number, batch=number)


async def manifest_of(ctx: ActorContext, number: int) -> Manifest:
    """The manifest of a version that the log holds: of its full, if it has delta and full."""
    stream, subject = ctx.bus.topology.weights("solver"), ctx.bus.topology.manifest("solver")
    entries = [entry.message async for entry in ctx.bus.logs.read(stream, subject=subject, follow=False)]
    return next(m for m in reversed(entries) if isinstance(m, Manifest) and m.version == number)


async def events(ctx: ActorContext, name: str) -> list[str]:
    entries = [entry.message async for entry in ctx.bus.logs.read(ctx.bus.topology.events, follow=False)]
    return [event.text for event in entries if isinstance(event, Event) and event.name == name]


class Proxy:
    """Passes connections on, and counts what it sent back; `limit(n)` = bytes that the n-th connection gets."""

    def __init__(self, target: int, limit: Callable[[int], int]) -> None:
        self._target = target
        self._limit = limit
        self.connections = 0
        self.sent = 0
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Proxy"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._limit(self.connections)
        self.connections += 1
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            far_writer.write(await reader.readuntil(b"\r\n\r\n"))
            while left > 0 and (data := await far_reader.read(min(left, 1 << 16))):
                writer.write(data)
                await writer.drain()
                left -= len(data)
                self.sent += len(data)
            far_writer.transport.abort()
        writer.close()
