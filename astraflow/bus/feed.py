"""Messages of one subscription as they come in. It lives no longer than its session."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from astraflow.bus.faults import LinkLostError
from astraflow.errors import BusError

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from astraflow.bus.session import Session


class Feed:
    """Messages of one subscription, in order. Bounded by what was asked for (pulls) or by `bound` (core)."""

    def __init__(self, session: "Session", subject: str, bound: int) -> None:
        self.subject = subject
        self.dropped = 0  # messages over the bound
        self.pulls_by = ""  # subject of the pull requests that it is the answer to; "" for core subscriptions
        self._session = session
        self._bound = bound
        self._items: deque[Msg] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BusError | None = None
        self.subscription: Subscription | None = None

    async def on_message(self, msg: "Msg") -> None:
        if self._bound and len(self._items) >= self._bound:
            self.dropped += 1
            return
        self._items.append(msg)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: BusError) -> None:
        """What is buffered can still be read; then `get` raises `error`."""
        self._error = self._error or error
        self._wake()

    def pop(self) -> "Msg | None":
        """The next buffered message; None if there is none now."""
        return self._items.popleft() if self._items else None

    async def get(self) -> "Msg":
        """The next message. Raises LinkLostError or DeniedError; deadlines are the caller's."""
        while not self._items:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._items.popleft()

    async def discard(self) -> None:
        """Stop at once. What is under way is dropped."""
        self._session.feeds.discard(self)
        if self.subscription is not None and not self._session.lost.is_set():
            await self._session.quiet(self.subscription.unsubscribe())

    async def finish(self) -> None:
        """Stop, after everything that the server had sent has arrived in the feed."""
        self._session.feeds.discard(self)
        if self.subscription is not None and not self._session.lost.is_set():
            with suppress(LinkLostError):
                await self._session.withdraw(self.subscription)
