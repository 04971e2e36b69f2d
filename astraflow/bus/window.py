"""A bound on bytes under way, first come first served.

Invariant: `used` never exceeds the bound, except for one item that is larger than the whole window, alone.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Window:
    """`async with window.hold(size_bytes):` waits until the size fits."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold `size_bytes` of the window."""
        if self._queue or not self._fits(size_bytes):
            await self._wait(size_bytes)
        else:
            self._used += size_bytes
        try:
            yield
        finally:
            self._release(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return self._used == 0 or self._used + size_bytes <= self._max_bytes

    async def _wait(self, size_bytes: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, future)
        self._queue.append(entry)
        try:
            await future  # whoever grants it has added the size to `_used`
        except asyncio.CancelledError:
            if not future.cancelled():
                self._release(size_bytes)  # granted, but nobody is there to use it
            elif entry in self._queue:
                self._queue.remove(entry)
                self._grant()
            raise

    def _release(self, size_bytes: int) -> None:
        self._used -= size_bytes
        self._grant()

    def _grant(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            size_bytes, future = self._queue.popleft()
            if not future.cancelled():
                self._used += size_bytes
                future.set_result(None)
