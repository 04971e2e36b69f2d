"""Messages that aren't stored, in memory. The contract is `interface.Core`."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from astraflow.bus.memory.server import CoreListener, MemoryServer
from astraflow.errors import MessageError
from astraflow.messages import Decoded, Message, decode, encode


class _MemoryCoreFeed(CoreListener):
    """`CoreFeed` of one subject. Made by `MemoryCore.subscribe`."""

    def __init__(self, *, max_pending: int, counters: Counter[str]) -> None:
        self._max_pending = max_pending
        self._counters = counters
        self._unread: deque[bytes] = deque()
        self._news: asyncio.Future[None] | None = None

    def hear(self, data: bytes) -> None:
        if len(self._unread) >= self._max_pending:
            self._counters["core.dropped"] += 1
            return
        self._unread.append(data)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Decoded:
        while True:
            while not self._unread:
                self._news = asyncio.get_running_loop().create_future()
                await self._news
            try:
                return decode(self._unread.popleft())
            except MessageError:
                self._counters["core.malformed"] += 1


class MemoryCore:
    """`Core` in memory."""

    def __init__(self, server: MemoryServer, counters: Counter[str], *, run: str, producer: str) -> None:
        self._server = server
        self._counters = counters
        self._run = run
        self._producer = producer
        self._ids = itertools.count()

    async def publish(self, subject: str, message: Message) -> None:
        data = encode(message, id=f"{self._producer}/{next(self._ids)}", run=self._run, producer=self._producer)
        for listener in self._server.core.matching(subject):
            listener.hear(data)

    @asynccontextmanager
    async def subscribe(self, subject: str, *, max_pending: int = 65536) -> AsyncIterator[_MemoryCoreFeed]:
        feed = _MemoryCoreFeed(max_pending=max_pending, counters=self._counters)
        self._server.core.add(subject, feed)
        try:
            yield feed
        finally:
            self._server.core.discard(subject, feed)
