"""Raw messages of a stream in order, each exactly once, across reconnects.

An ephemeral pull consumer that is made anew, behind the last message seen, whenever the connection, the consumer or a
message is lost. It decodes nothing. Invariants: memory is bounded by two pull requests; nothing is polled; a stream
that was made anew under a reader raises CursorError, because positions mean nothing there.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from astraflow.bus.ensure import SECOND_NS
from astraflow.bus.entries import LogState
from astraflow.bus.feed import HEARTBEAT, AckTokens, Feed
from astraflow.bus.link import Link
from astraflow.bus.publish import Stored
from astraflow.bus.session import Session
from astraflow.errors import ApiError, BusError, ConsumerLostError, CursorError, LinkLostError, NoAnswerError

if TYPE_CHECKING:
    from nats.aio.msg import Msg

BATCH = 512
MAX_BYTES = 4 << 20
EXPIRES_S = 30.0
HEARTBEAT_S = 1.0
SILENT_S = 2.5
FAR_SILENT_S = 30.0  # behind a thin link, where weights may be ahead of a heartbeat
INACTIVE_S = 10.0  # the server forgets an abandoned consumer after this
RETRY_S = 0.1


async def stream_state(session: Session, stream: str) -> LogState:
    """Raises as `stream_info`."""
    state, _ = await stream_info(session, stream)
    return state


async def stream_info(session: Session, stream: str) -> tuple[LogState, float]:
    """And the server's time. Raises BusError if there is no such stream, or what `Session.request` raises."""
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
    return found, server_seconds(info["ts"])


@dataclass(frozen=True, slots=True)
class Raw:
    """A message, how many of the reader's messages the stream holds behind it, and how long it had been there when the
    reader began: by the clock of the server, 0 for what came later."""

    stored: Stored
    pending: int
    age_s: float


async def read_raw(
    link: Link, stream: str, filters: Sequence[str], *, start: int, incarnation: str
) -> AsyncGenerator[Raw | None, None]:
    """Messages of `filters` with a sequence >= `start`, for ever; None when there was nothing to read at first or after
    a reconnect. Raises CursorError when the stream isn't `incarnation` any more.
    """
    while True:
        session = await link.session()
        try:
            state = await stream_state(session, stream)
            if incarnation and state.incarnation != incarnation:
                raise CursorError(
                    f"stream {stream} was made anew: it is {state.incarnation}, the reader is in {incarnation}; "
                    f"restore the server's store folder, or start the run afresh"
                )
            where = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, start)}
            async with aclosing(consume(session, stream, filters, where)) as messages:
                async for raw in messages:
                    if raw is not None:
                        start = raw.stored.sequence + 1
                    yield raw
        except LinkLostError:
            continue
        except (NoAnswerError, ApiError, ConsumerLostError):
            await asyncio.sleep(RETRY_S)


async def consume(
    session: Session, stream: str, filters: Sequence[str], where: dict[str, Any]
) -> AsyncGenerator[Raw | None, None]:
    """One consumer's life, from `where` (JetStream's deliver policy) on; None first if there is nothing to read yet.

    Ends only by an exception: ConsumerLostError, or what `Session.request` raises.
    """
    name = f"read_{secrets.token_hex(8)}"
    config = where | {
        "name": name,
        "filter_subjects": list(filters),
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(INACTIVE_S * SECOND_NS),
    }
    body = {"stream_name": stream, "action": "create", "config": config}
    created = await session.api(f"CONSUMER.CREATE.{stream}.{name}", body)
    feed = await session.inbox_feed(f"{session.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{name}")
    try:
        if created["num_pending"] == 0:
            yield None
        async for raw in _pulled(session, feed, began_at=server_seconds(created["ts"]), old=created["num_pending"]):
            yield raw
    finally:
        await feed.discard()
        if not session.lost.is_set():
            await session.quiet(session.send(f"{session.api_prefix}.CONSUMER.DELETE.{stream}.{name}"))


def server_seconds(moment: str) -> float:
    """Unix seconds of a time as the server writes it: only to be compared with others of that server's."""
    return datetime.fromisoformat(moment).timestamp()


async def _pulled(session: Session, feed: Feed, *, began_at: float, old: int) -> AsyncGenerator[Raw, None]:
    left, expected = 0, 1
    while True:
        if left <= BATCH // 2:
            request = {
                "batch": BATCH - left,
                "max_bytes": max(MAX_BYTES, 2 * session.max_payload_bytes),
                "expires": int(EXPIRES_S * SECOND_NS),
                "idle_heartbeat": int(HEARTBEAT_S * SECOND_NS),
            }
            await feed.pull(request)
            left = BATCH
        msg = feed.pop() or await _next(session, feed)
        status = feed.status_of(msg)
        if status is None:
            tokens = AckTokens.of(msg.reply)
            if tokens.consumer_sequence < expected:  # it came twice
                continue
            if tokens.consumer_sequence > expected:
                raise ConsumerLostError("a delivery is missing")
            expected, left = expected + 1, left - 1
            age_s = max(0.0, began_at - tokens.stored_at) if tokens.consumer_sequence <= old else 0.0
            yield Raw(Stored(msg.subject, tokens.stream_sequence, msg.headers or {}, msg.data), tokens.pending, age_s)
        elif status in ("404", "408", "409"):
            headers = msg.headers or {}
            if "Consumer" in headers.get("Description", "") or "Nats-Pending-Messages" not in headers:
                raise ConsumerLostError(f"{status} {headers}")  # deleted, or moved to another server
            left -= int(headers["Nats-Pending-Messages"])
        elif status not in (HEARTBEAT, ""):
            raise NoAnswerError(f"reader of {feed.pulls_by}: status {status}")
        elif (
            status and int((msg.headers or {}).get("Nats-Last-Consumer", 0)) >= expected
        ):  # lost, and none came behind it
            raise ConsumerLostError("the last delivery is missing")


async def _next(session: Session, feed: Feed) -> "Msg":
    try:
        async with asyncio.timeout(FAR_SILENT_S if session.far else SILENT_S):
            return await feed.get()
    except TimeoutError:
        await session.flush(SILENT_S)  # raises LinkLostError if the server is gone
        raise ConsumerLostError("no heartbeat") from None
