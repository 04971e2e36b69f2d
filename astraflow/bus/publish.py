"""Publish to a stream: once in the log, however often it takes on the wire.

It encodes nothing and splits nothing (`claims.py`). Invariant: a retry carries the same id; success means that the
server has stored the message; a full stream makes the caller wait; what can't succeed fails at once.
"""

import asyncio
import base64
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec

from astraflow import clock
from astraflow.bus.entries import PublishAck
from astraflow.bus.incoming import headers_of
from astraflow.bus.link import Link
from astraflow.bus.session import Session
from astraflow.bus.waits import Waits
from astraflow.bus.window import Window
from astraflow.errors import ApiError, BusError, ConflictError, FencedError, FullError, LinkLostError, NoAnswerError

log = logging.getLogger(__name__)

MSG_ID = "Nats-Msg-Id"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
TTL = "Nats-TTL"
_NO_MESSAGE = 10037
_STORE_FAILED = 10077  # a bound is reached, or the disk is full
NO_STORAGE = frozenset({10023, 10047})  # the server's own limit is reached
_WRONG_SEQUENCE = frozenset({10071, 10164})
DUPLICATE_IN_BATCH = 10201
_BATCH_RETRY = frozenset({10176, 10210})  # incomplete (timed out), too many under way
_IN_PROCESS = 10158  # an earlier try of the same message, which the servers of a cluster haven't agreed on yet
RETRY_FIRST_S, RETRY_MOST_S = 0.02, 0.5
_MISSING_AFTER_S = 1.0  # a server that has just started answers before
_WARN_FIRST_S = 10.0  # a publish that waits this long says so, then after twice as long
NO_ANSWER_YET = "no answer yet"
_WINDOW_BYTES = 8 << 20  # publishes under way


class _Error(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


Attempt = Callable[[Session], Awaitable[PublishAck]]

_answers = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True)
class Stored:
    """A message as the stream has it."""

    subject: str
    sequence: int
    headers: dict[str, str]
    data: bytes
    stored_at: float = 0.0  # unix seconds, by the server's clock; 0: not told

    @property
    def message_id(self) -> str:
        return self.headers.get(MSG_ID, "")


async def read_stored(session: Session, stream: str, **where: int | str) -> Stored | None:
    """One message by `seq`, `last_by_subj`, or `next_by_subj` with `seq`, from the stream's leader; None: none."""
    if where.get("seq") == 0:  # the server calls that a bad request
        return None
    try:
        found = (await session.api(f"STREAM.MSG.GET.{stream}", where))["message"]
    except ApiError as exc:
        if exc.err_code == _NO_MESSAGE:
            return None
        raise
    headers = headers_of(base64.b64decode(found.get("hdrs", "")))
    data, at = base64.b64decode(found.get("data", "")), datetime.fromisoformat(found["time"]).timestamp()
    return Stored(found["subject"], found["seq"], headers, data, at)


def fenced(subject: str, tail: Stored | None, msg_id: str, expected: int | None) -> FencedError:
    """What a writer gets that found `tail` where its own message should go."""
    found = "no message" if tail is None else f"{tail.message_id or 'a message without id'} at {tail.sequence}"
    return FencedError(
        f"{subject} has {found} at its tail, {msg_id} expected sequence {expected}: another writer took over; "
        f"this one must exit"
    )


class Publisher:
    """Publishes for everybody in this process, in one bounded window."""

    def __init__(
        self,
        link: Link,
        counters: Counter[str],
        *,
        relief: Mapping[str, str],
        unanswered: Callable[[], Awaitable[None]],
    ) -> None:
        """
        Args:
            relief: by stream, who makes room in it or how its bound is raised.
            unanswered: called while nobody takes what is published, as if its stream weren't there.
        """
        self._unanswered = unanswered
        self._link = link
        self._counters = counters
        self._relief = relief
        self._numbers = itertools.count()
        self.waits = Waits()
        self._window = Window(_WINDOW_BYTES)

    async def store(
        self,
        subject: str,
        data: bytes | memoryview,
        *,
        stream: str,
        msg_id: str = "",
        headers: dict[str, str] | None = None,
        expected: int | None = None,
        deadline_s: float | None = None,
    ) -> PublishAck:
        """Store one message. `expected`: sequence of the last message on the subject, 0 = none.

        Raises: FencedError if somebody else's message is there; BusError if it can't be stored by `deadline_s` seconds
        (None = no deadline) or at all.
        """
        all_headers = dict(headers or {})
        if msg_id:
            all_headers[MSG_ID] = msg_id
        if expected is not None:
            all_headers[EXPECTED] = str(expected)

        async def attempt(session: Session) -> PublishAck:
            try:
                msg = await session.request(session.reach(subject), data, headers=all_headers or None)
                return self.acked(msg.data, subject)
            except ConflictError:
                return await self.own_tail(session, stream, subject, msg_id, expected)

        what = f"{msg_id or 'message'} for {subject}"
        return await self.persist(len(data), attempt, what=what, deadline_s=deadline_s)

    async def persist(self, size_bytes: int, attempt: Attempt, *, what: str, deadline_s: float | None) -> PublishAck:
        """Run `attempt(session)` until it returns, fails for good, or the deadline passes."""
        wait_s, reason, number = RETRY_FIRST_S, NO_ANSWER_YET, next(self._numbers)
        start_s, warn_after_s = clock.monotonic(), _WARN_FIRST_S
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    try:
                        session = await self._link.session()
                        async with self._window.hold(size_bytes):  # not while waiting: a full stream blocks no other
                            return await attempt(session)
                    except LinkLostError as exc:
                        reason = str(exc)
                        continue  # session() waits for the next one
                    except NoAnswerError as exc:
                        reason = str(exc)
                        if clock.monotonic() - start_s > _MISSING_AFTER_S:
                            await self._unanswered()
                    except FullError as exc:
                        reason = str(exc)
                    self.waits.note(number, what, reason)
                    self._counters[f"publish.waits.{reason.partition(':')[0]}"] += 1
                    if clock.monotonic() - start_s > warn_after_s:
                        warn_after_s *= 2
                        log.warning("bus.publish_waits", extra={"what": what, "why": reason})
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                    wait_s = min(2 * wait_s, RETRY_MOST_S)
        except TimeoutError as exc:
            raise BusError(f"{what} isn't stored after {deadline_s:g} s: {reason}") from exc
        finally:
            self.waits.end(number)

    def acked(self, data: bytes, subject: str) -> PublishAck:
        """The server's answer to a publish as a result or an exception."""
        try:
            answer = _answers.decode(data)
        except msgspec.MsgspecError as exc:
            raise BusError(f"{subject} isn't stored: unreadable answer {data[:80]!r}") from exc
        error = answer.error
        if error is None:
            if answer.duplicate:
                self._counters["publish.duplicates"] += 1
            return PublishAck(answer.seq, answer.duplicate)
        if error.err_code in _WRONG_SEQUENCE or error.err_code == DUPLICATE_IN_BATCH:
            raise ConflictError(error.err_code, error.description)
        if error.err_code == _STORE_FAILED and "maximum" in error.description:
            relief = self._relief.get(answer.stream, "")
            raise FullError(f"stream {answer.stream} is full: {error.description}{relief and f'; {relief}'}")
        if error.err_code in NO_STORAGE:
            raise FullError(
                f"nats-server has no room left: {error.description}; free disk space or raise its max_file_store"
            )
        if error.err_code in _BATCH_RETRY or error.err_code == _IN_PROCESS or error.code == 429:
            raise NoAnswerError(f"{subject} isn't stored: {error.description}")
        if error.err_code == _STORE_FAILED or error.code < 500:
            raise BusError(
                f"stream {answer.stream} refused {subject}: {error.description} (err_code {error.err_code}); "
                f"see the server's log and its disk"
            )
        raise NoAnswerError(f"nats-server isn't ready: {error.description}")

    async def own_tail(
        self, session: Session, stream: str, subject: str, msg_id: str, expected: int | None
    ) -> PublishAck:
        """After a conflict: our own id at the tail means that an earlier try succeeded; a foreign one fences us off."""
        tail = await read_stored(session, stream, last_by_subj=subject)
        if tail is not None and msg_id and tail.message_id == msg_id:
            self._counters["publish.duplicates"] += 1
            return PublishAck(tail.sequence, True)
        raise fenced(subject, tail, msg_id, expected)
