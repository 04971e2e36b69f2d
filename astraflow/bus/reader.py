"""Raw messages of streams in order, each exactly once, across reconnects.

It asks for batches ("direct get"), and is told by the stream's news when there may be more. It makes no consumer: those
who may make one can have the server send what is stored to any subject, as if its owner had. It decodes nothing.
Invariants: memory is bounded by one batch; a lost, doubled or late message of a batch is noticed by the sequence that
each names as the one before it, and asked for again; a stream that was made anew under a reader raises CursorError,
because positions mean nothing there.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from astraflow.bus.entries import LogState
from astraflow.bus.feed import FAR_SILENT_S, SILENT_S, Feed
from astraflow.bus.link import Link
from astraflow.bus.publish import Stored
from astraflow.bus.session import SEQUENCE, SUBJECT, Session
from astraflow.errors import ApiError, BusError, CursorError, LinkLostError, NoAnswerError

if TYPE_CHECKING:
    from nats.aio.msg import Msg

BATCH = 512
MAX_BYTES = 4 << 20
LOOK_EVERY_S = 1.0  # without news: what says that there is more may be lost
_LOOK_SELDOM_S = 8.0  # after a long silence: news is only ever lost with the connection, or by a server that lags
_BEHIND_S = 0.02  # a server of a cluster may have less than the one whose news it was
RETRY_S = 0.1
_PENDING, LAST, _TIME = "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-Time-Stamp"


async def stream_state(session: Session, stream: str) -> LogState:
    """Raises BusError if there is no such stream, or what `Session.request` raises."""
    return (await stream_info(session, stream))[0]


async def stream_info(session: Session, stream: str) -> tuple[LogState, float]:
    """Its state, and the server's time: unix seconds, only to be compared with others of that server's.

    Raises: see `stream_state`.
    """
    try:
        info = await session.api(f"STREAM.INFO.{stream}")
    except ApiError as exc:
        raise BusError(f"stream {stream}: {exc.description}; has the run been set up on this server?") from exc
    state = info["state"]
    first = state["first_seq"] if state["messages"] else state["last_seq"] + 1
    found = LogState(
        incarnation=info["created"],
        first_sequence=first,
        last_sequence=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
    )
    return found, _server_seconds(info["ts"])


async def stream_identity(session: Session, stream: str) -> tuple[str, float]:
    """Which stream of that name it is, and the server's time. Raises ApiError if there is none (yet)."""
    info = await session.api(f"STREAM.INFO.{stream}")
    return info["created"], _server_seconds(info["ts"])


def _server_seconds(moment: str) -> float:
    """Unix seconds of a time as the server writes it."""
    return datetime.fromisoformat(moment).timestamp()


@dataclass(frozen=True, slots=True)
class Raw:
    """A message, how many of the reader's messages the stream holds behind it, and its age when reading began."""

    stored: Stored
    pending: int
    age_s: float


async def read_raw(
    link: Link, stream: str, subject: str, *, news: str, start: int, incarnation: str
) -> AsyncGenerator[Raw | None, None]:
    """Messages on `subject` (wildcards allowed) with a sequence >= `start`, for ever; None when there was nothing to
    read at first or after a reconnect. `news` is the subject of the stream's news of them.

    Raises CursorError when the stream isn't `incarnation` any more.
    """
    while True:
        session = await link.session()
        try:
            state, began_at = await stream_info(session, stream)
            if incarnation and state.incarnation != incarnation:
                raise CursorError(
                    f"stream {stream} was made anew: it is {state.incarnation}, the reader is in {incarnation}; "
                    f"restore the server's store folder, or start the run afresh (`up --fresh`)"
                )
            reader = Reader(session, stream, subject, start=start, began_at=began_at)
            async with aclosing(reading(session, [reader], news=news)) as messages:
                async for raw in messages:
                    if raw is not None:
                        start = raw.stored.sequence + 1
                    yield raw
        except LinkLostError:
            continue
        except (NoAnswerError, ApiError):
            await asyncio.sleep(RETRY_S)


async def reading(
    session: Session, readers: "Sequence[Reader]", *, news: str, often: bool = False
) -> AsyncGenerator[Raw | None, None]:
    """What the readers find, for ever. None: all had nothing more, at first and then after each look.

    `often`: at least every LOOK_EVERY_S.

    Ends only by an exception: what `Session.request` raises.
    """
    bell = await session.subscribe(news, bound=1)  # one unread word is enough
    try:
        await session.flush(SILENT_S)  # nothing falls between the first look and the news
        rung, within_s = False, LOOK_EVERY_S
        while True:
            bell.pop()
            found = False
            for reader in readers:
                async with aclosing(reader.all()) as messages:
                    async for raw in messages:
                        found = True
                        yield raw
            if rung and not found:
                rung = False
                await asyncio.sleep(_BEHIND_S)
                continue
            yield None
            rung = await _rings(bell, within_s)
            within_s = LOOK_EVERY_S if rung or often else min(2 * within_s, _LOOK_SELDOM_S)
    finally:
        await bell.discard()
        for reader in readers:
            await reader.close()


async def _rings(bell: Feed, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await bell.get()
    except TimeoutError:
        return False
    return True


class Reader:
    """A position in one stream, for the life of a session."""

    def __init__(self, session: Session, stream: str, subject: str, *, start: int, began_at: float) -> None:
        """`began_at`: the server's time of now, from which on messages are new."""
        self._session = session
        self._began_at = began_at
        self._stream = stream
        self._subject = subject
        self._next = max(1, start)
        self._feed: Feed | None = None

    async def all(self) -> AsyncGenerator[Raw, None]:
        """Everything from the position on that is there now."""
        more = True
        while more:
            more = False
            async with aclosing(self._batch()) as messages:
                async for raw in messages:
                    more = raw is None or raw.pending > 0
                    if raw is not None:
                        yield raw

    async def close(self) -> None:
        if self._feed is not None:
            await self._feed.discard()

    async def _batch(self) -> AsyncGenerator[Raw | None, None]:
        """One request. None at its end: something of it is missing, ask again."""
        session = self._session
        if self._feed is None:
            self._feed = await session.inbox_feed(f"{session.api_prefix}.DIRECT.GET.{self._stream}")
        feed = self._feed
        asked = {
            "seq": self._next,
            "next_by_subj": self._subject,
            "batch": BATCH,
            "max_bytes": max(MAX_BYTES, 2 * session.max_payload_bytes),
        }
        await feed.pull(asked, alone=True)
        last = 0
        while True:
            msg = feed.pop() or await self._wait(feed)
            if msg is None:
                yield None
                return
            headers = msg.headers or {}
            if not feed.is_open(msg):  # of an earlier request
                continue
            if SEQUENCE not in headers:
                if (status := headers.get("Status")) not in ("204", "404"):
                    raise NoAnswerError(f"reader of {feed.pulls_by}: status {status} {headers.get('Description', '')}")
                if int(headers.get(LAST, last)) > last:  # and that one is missing
                    yield None
                return
            sequence = int(headers[SEQUENCE])
            if int(headers.get(LAST, 0)) != last or sequence < self._next:
                yield None
                return
            last, self._next = sequence, sequence + 1
            stored_at = _server_seconds(headers[_TIME]) if _TIME in headers else self._began_at
            stored = Stored(headers.get(SUBJECT, ""), sequence, headers, msg.data, stored_at)
            yield Raw(stored, int(headers.get(_PENDING, 0)), max(0.0, self._began_at - stored_at))

    async def _wait(self, feed: Feed) -> "Msg | None":
        try:
            async with asyncio.timeout(FAR_SILENT_S if self._session.far else SILENT_S):
                return await feed.get()
        except TimeoutError:
            await self._session.flush(SILENT_S)  # raises LinkLostError if the server is gone
            return None
