"""The run's own nats-server: started, started again on the same port when it dies or its disk was full, stopped last.

`astraflow.bus.EmbeddedServer` is one life of it; this is the supervision. A nats-server whose disk was full once stores
nothing more, and answers nothing, until it is started again: so it is, as soon as there is room.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from astraflow import clock
from astraflow.actors.base.exits import describe_exit
from astraflow.bus import EmbeddedServer
from astraflow.concurrency import first_of
from astraflow.errors import BusError
from astraflow.node.disk import Disk
from astraflow.node.supervisor import RESTART_WINDOW_S

_BACKOFF_S = 0.5


@asynccontextmanager
async def embedded_server(
    server: EmbeddedServer, *, max_restarts: int, report: Callable[[str], None]
) -> AsyncIterator[EmbeddedServer]:
    """A server that is there while inside.

    Args:
        max_restarts: in ten minutes, before the body is cancelled with BusError.
        report: called with a sentence when it is started again, and when its disk fills up.
    Raises: BusError: port taken, folder in use, disk full; inside an exception group if it happens later.
    """
    await server.start()
    keeper = _Keeper(server, max_restarts=max_restarts, report=report)
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(keeper.keep())
            try:
                yield server
            finally:
                task.cancel()
    finally:
        await server.stop()


class _Keeper:
    def __init__(self, server: EmbeddedServer, *, max_restarts: int, report: Callable[[str], None]) -> None:
        self._server = server
        self._disk = Disk(server.folder, log_file=server.log_file, report=report)
        self._max_restarts = max_restarts
        self._report = report
        self._restarts: deque[float] = deque()

    async def keep(self) -> None:
        """Start the server again whenever it ends or can't store. Raises BusError when it ends too often."""
        while True:
            code = await self._end()
            if code is None:
                await self._disk.until_room()
                await self._server.stop()
                self._report(f"there is room again: starting nats-server anew on port {self._server.port}")
            else:
                await self._after_a_crash(describe_exit(code))
                await self._disk.until_room()
            await self._server.start()
            self._disk.begin_anew()

    async def _end(self) -> int | None:
        """How the server ended; None when its disk is full, while it may still run."""
        return await first_of(self._server.wait(), self._disk.until_full())

    async def _after_a_crash(self, how: str) -> None:
        now = clock.monotonic()
        while self._restarts and self._restarts[0] < now - RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            raise BusError(f"nats-server {how} once too often; see {self._server.log_file}")
        self._restarts.append(now)
        self._report(f"nats-server {how}; starting it again on port {self._server.port}")
        await asyncio.sleep(_BACKOFF_S * len(self._restarts))
