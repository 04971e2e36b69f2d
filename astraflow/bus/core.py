"""Core messages: not stored, at most once, for token chunks and cancels.

The contract is `interface.Core`. Invariant: memory is bounded; what is dropped or can't be decoded is counted, never
raised.
"""

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from astraflow.bus.feed import Feed
from astraflow.bus.link import Link
from astraflow.errors import LinkLostError, MessageError
from astraflow.messages import Decoded, Message, decode, encode


class _NatsCoreFeed:
    """`CoreFeed` of one subject. Made by `NatsCore.subscribe`."""

    def __init__(self, link: Link, subject: str, *, max_pending: int, counters: Counter[str]) -> None:
        self._link = link
        self._subject = subject
        self._max_pending = max_pending
        self._counters = counters
        self._feed: Feed | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Decoded:
        while True:
            feed = self._feed or await self.open()
            try:
                msg = feed.pop() or await feed.get()
            except LinkLostError:
                self._feed = None
                continue
            if feed.dropped:
                self._counters["core.dropped"] += feed.dropped
                feed.dropped = 0
            try:
                return decode(msg.data)
            except MessageError:
                self._counters["core.malformed"] += 1

    async def open(self) -> Feed:
        """Subscribe; returns when the server knows of it."""
        while True:
            session = await self._link.session()
            try:
                feed = await session.subscribe(self._subject, bound=self._max_pending)
                await session.flush(5.0)
            except LinkLostError:
                continue
            self._feed = feed
            return feed

    async def close(self) -> None:
        """Unsubscribe."""
        if self._feed is not None:
            await self._feed.discard()


class NatsCore:
    """`Core`: NATS' own publish and subscribe."""

    def __init__(self, link: Link, counters: Counter[str], *, run: str, producer: str) -> None:
        self._link = link
        self._counters = counters
        self._run = run
        self._producer = producer
        self._ids = itertools.count()

    async def publish(self, subject: str, message: Message) -> None:
        data = encode(message, id=f"{self._producer}/{next(self._ids)}", run=self._run, producer=self._producer)
        try:
            if not self._link.up.is_set():
                raise LinkLostError("not connected")
            await (await self._link.session()).send(subject, data)
        except LinkLostError:
            self._counters["core.unsent"] += 1

    @asynccontextmanager
    async def subscribe(self, subject: str, *, max_pending: int = 65536) -> AsyncIterator[_NatsCoreFeed]:
        feed = _NatsCoreFeed(self._link, subject, max_pending=max_pending, counters=self._counters)
        await feed.open()  # the server knows of it when the block begins
        try:
            yield feed
        finally:
            await feed.close()
