"""Messages of one subscription as they come in. It lives no longer than its session."""

import asyncio
import itertools
import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from astraflow.errors import BusError

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription


HEARTBEAT = "100"
SILENT_S = 2.5  # without a message, answer or heartbeat for this long a request is taken for lost
FAR_SILENT_S = 30.0  # the same behind a thin link, where weights may be ahead of it
_OPEN_PULLS = 4  # the server fills pulls in order: an older one has ended, or never came


@dataclass(frozen=True, slots=True)
class AckTokens:
    """What JetStream writes into the reply subject of a delivery."""

    delivered: int
    stream_sequence: int
    consumer_sequence: int
    stored_at: float  # unix seconds, by the clock of the server that stored the message
    pending: int

    @classmethod
    def of(cls, reply: str) -> "AckTokens":
        """$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<time>.<pending>[.<random>]"""
        tokens = reply.split(".")
        at = 4 if len(tokens) == 9 else 6
        numbers = [int(token) for token in tokens[at : at + 5]]
        return cls(numbers[0], numbers[1], numbers[2], numbers[3] / 1e9, numbers[4])


class FeedSession(Protocol):
    """What a feed needs of the session that it belongs to."""

    @property
    def lost(self) -> asyncio.Event: ...

    async def send(self, subject: str, data: bytes = b"", *, reply: str = "") -> None: ...

    async def end_feed(self, feed: "Feed", *, at_once: bool) -> None:
        """Forget it and unsubscribe; without `at_once`, only after everything that the server had sent has arrived."""


class Feed:
    """Messages of one subscription, in order. Bounded by what was asked for (pulls) or by `bound` (core)."""

    def __init__(self, session: FeedSession, subject: str, bound: int) -> None:
        self.subject = subject
        self.dropped = 0  # messages over the bound
        self.pulls_by = ""  # subject of the pull requests that it is the answer to; "" for core subscriptions
        self._pull_numbers = itertools.count()
        self._open_pulls: deque[str] = deque(maxlen=_OPEN_PULLS)  # their reply subjects
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

    @property
    def failure(self) -> BusError | None:
        """Why nothing more will come."""
        return self._error

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

    async def pull(self, request: dict[str, Any], *, alone: bool = False) -> None:
        """Ask for messages; `alone` = what the pulls before it are answered no longer matters.

        Each pull has a reply subject of its own, because one that reaches the server twice is answered twice.
        """
        if alone:
            self._open_pulls.clear()
        reply = f"{self.subject.removesuffix('.*')}.{next(self._pull_numbers)}"
        self._open_pulls.append(reply)
        await self._session.send(self.pulls_by, json.dumps(request).encode(), reply=reply)

    def status_of(self, msg: "Msg") -> str | None:
        """The status that `msg` is for an open pull, which ends it unless it is a heartbeat; None for a message, ""
        for what is of no open pull."""
        status = msg.headers.get("Status") if msg.headers and not msg.data and not msg.reply else None
        if status is None:  # who stores a message may give it any header; only a delivery has a subject for its ack
            return None
        if msg.subject not in self._open_pulls:
            return ""
        if status != HEARTBEAT:
            self._open_pulls.remove(msg.subject)
        return str(status)

    def is_open(self, msg: "Msg") -> bool:
        """Whether `msg` is of a pull that hasn't ended."""
        return msg.subject in self._open_pulls

    async def discard(self) -> None:
        """Stop at once. What is under way is dropped."""
        await self._session.end_feed(self, at_once=True)

    async def finish(self) -> None:
        """Stop, after everything that the server had sent has arrived in the feed."""
        await self._session.end_feed(self, at_once=False)
