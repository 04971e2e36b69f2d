"""A TCP proxy that stands for a long, thin line: it delays, throttles and counts what passes, and can be cut."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

CHUNK_BYTES = 16 << 10


@dataclass(eq=False)
class ThinLink:
    """`async with thin_link(...) as link`; connect to `link.port` instead of the target's.

    Attributes:
        delay_s: one way.
        bytes_per_s: in each direction; 0 = unlimited.
        down, up: bytes that passed from the target to who connected, and the other way.
    """

    target_port: int
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    port: int = 0
    down: int = 0
    up: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _passes: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self, *, reset: bool = False) -> None:
        """Nothing passes from now on, as if a cable was pulled; `reset` also ends the connections, which is noticed."""
        self._passes.clear()
        if reset:
            self._end_all()

    def restore(self) -> None:
        """New connections pass. Old ones end: what a cable swallowed for minutes doesn't come out in the end."""
        self._end_all()
        self._passes.set()

    def _end_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if not self._passes.is_set():
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        with contextlib.suppress(OSError, ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, far_writer, up=True))
                group.create_task(self._pass(far_reader, writer, up=False))
        self._open -= {writer, far_writer}
        for each in (writer, far_writer):
            each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        """One direction. What is on the line is bounded, so that the sender feels it."""
        line: deque[tuple[float, bytes]] = deque()
        more, room = asyncio.Event(), asyncio.Event()
        room.set()

        async def deliver() -> None:
            while True:
                while not line:
                    more.clear()
                    await more.wait()
                due, data = line.popleft()
                room.set()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self._passes.wait()
                writer.write(data)
                await writer.drain()

        loop = asyncio.get_running_loop()
        free_at = loop.time()
        async with asyncio.TaskGroup() as group:
            delivering = group.create_task(deliver())
            try:
                while data := await reader.read(CHUNK_BYTES):
                    if up:
                        self.up += len(data)
                    else:
                        self.down += len(data)
                    if self.bytes_per_s:
                        free_at = max(free_at, loop.time()) + len(data) / self.bytes_per_s
                        await asyncio.sleep(max(0.0, free_at - loop.time() - 0.01))
                    line.append((loop.time() + self.delay_s, data))
                    more.set()
                    if len(line) >= 64:
                        room.clear()
                        await room.wait()
            finally:
                delivering.cancel()
        raise ConnectionResetError


@contextlib.asynccontextmanager
async def thin_link(target_port: int, *, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> AsyncIterator[ThinLink]:
    """A line to a port of this machine, which passes until it is cut."""
    link = ThinLink(target_port, delay_s, bytes_per_s)
    link.restore()
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        link.cut(reset=True)
        server.close()
