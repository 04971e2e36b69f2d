"""One stream in memory: messages in order, ids that it remembers, bounds, times to live, and who listens.

It decodes nothing and waits for nothing: every call is done when it returns, except `room`. Invariants: sequences only
grow; a listener is offered every sequence of its patterns once, in order, and finds the message or that it has gone;
nothing is polled: one timer stands for the next message whose time is up.
"""

import asyncio
import heapq
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from astraflow import clock
from astraflow.bus.entries import LogState
from astraflow.bus.kv import MARKER, OPERATION
from astraflow.bus.publish import MSG_ID, Stored
from astraflow.bus.subjects import SubjectTree
from astraflow.bus.wiring import Row
from astraflow.errors import BusError, ConflictError, FullError

_OVERHEAD_BYTES = 32  # of a stored message, besides its subject and body
_MAX_MESSAGES, MAX_BYTES = "maximum messages per subject exceeded", "maximum bytes exceeded"


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """What is to be stored. `ttl_s` None = until it is removed."""

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    ttl_s: float | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.subject) + len(self.data) + _OVERHEAD_BYTES


class _Listener(Protocol):
    """Who is told of new messages, and of those that have gone."""

    def offer(self, stored: Stored) -> None: ...

    def forget(self, stored: Stored) -> None: ...


class MemoryStream:
    """One row's messages."""

    def __init__(self, row: Row, *, incarnation: str) -> None:
        self.row = row
        self.incarnation = incarnation
        self.listeners: SubjectTree[_Listener] = SubjectTree()
        self.last_sequence = 0
        self._first = 1  # nothing is below
        self._bytes = 0
        self._messages: dict[int, Stored] = {}
        self._of_subject: dict[str, dict[int, None]] = {}  # sequences, in order
        self._ids: OrderedDict[str, tuple[int, float]] = OrderedDict()  # where and when; in order of time
        self._ends: list[tuple[float, int]] = []  # a heap: when a message's time is up
        self._timer: asyncio.TimerHandle | None = None  # for the first of them, or for one that has gone
        self._timer_at = 0.0
        self._waiting: list[asyncio.Future[None]] = []  # for room

    def state(self) -> LogState:
        self._drop_aged()
        first = self._lowest() if self._messages else self.last_sequence + 1
        return LogState(
            incarnation=self.incarnation,
            first_sequence=first,
            last_sequence=self.last_sequence,
            messages=len(self._messages),
            bytes=self._bytes,
        )

    def get(self, sequence: int) -> Stored | None:
        return self._messages.get(sequence)

    def last(self, subject: str) -> Stored | None:
        """The newest message on exactly this subject."""
        sequences = self._of_subject.get(subject)
        return self._messages[next(reversed(sequences))] if sequences else None

    def matching(self, patterns: Sequence[str], *, start: int, newest_only: bool = False) -> list[int]:
        """Sequences from `start` on, in order; `newest_only`: of each subject the last."""
        tree: SubjectTree[bool] = SubjectTree()
        for pattern in patterns:
            tree.add(pattern, True)
        wanted = [sequences for subject, sequences in self._of_subject.items() if tree.matching(subject)]
        if newest_only:
            return sorted(last for sequences in wanted if (last := next(reversed(sequences))) >= start)
        return sorted(sequence for sequences in wanted for sequence in sequences if sequence >= start)

    def append(self, batch: Sequence[NewMessage], *, expected: int | None = None) -> tuple[int, bool]:
        """Store a message, or several as one: the id and what is expected are the last one's. All or none.

        Returns: its sequence, and whether it had been there before.
        Raises: ConflictError if the last sequence on the subject isn't the expected one; FullError if a bound is
            reached that pushes back; BusError for a message that is bigger than the stream takes.
        """
        self._drop_aged()
        whole, now = batch[-1], clock.monotonic()
        msg_id = whole.headers.get(MSG_ID, "")
        self._forget_ids(now - self.row.duplicate_window_s)
        if msg_id in self._ids:
            return self._ids[msg_id][0], True
        if expected is not None:
            last = self.last(whole.subject)
            found = 0 if last is None else last.sequence
            if found != expected:
                raise ConflictError(0, f"wrong last sequence: {found}")
        biggest = max(len(message.data) for message in batch)
        if 0 < self.row.max_message_bytes < biggest:
            raise BusError(
                f"stream {self.row.stream} refused {whole.subject}: message of {biggest} bytes, at most "
                f"{self.row.max_message_bytes}"
            )
        self._make_room(batch)
        for message in batch:
            self._store(message, now)
        if msg_id:
            self._ids[msg_id] = (self.last_sequence, now)
        return self.last_sequence, False

    def remove(self, sequence: int) -> None:
        """Nothing happens if it has gone."""
        stored = self._messages.pop(sequence, None)
        if stored is None:
            return
        sequences = self._of_subject[stored.subject]
        del sequences[sequence]
        if not sequences:
            del self._of_subject[stored.subject]
        self._bytes -= len(stored.subject) + len(stored.data) + _OVERHEAD_BYTES
        for listener in self.listeners.matching(stored.subject):
            listener.forget(stored)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def remove_subject(self, subject: str) -> None:
        """Every message on exactly this subject."""
        for sequence in list(self._of_subject.get(subject, ())):
            self.remove(sequence)

    async def room(self) -> None:
        """Returns when something was removed."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _store(self, message: NewMessage, now: float) -> None:
        self.last_sequence += 1
        sequence, row = self.last_sequence, self.row
        stored = Stored(message.subject, sequence, dict(message.headers), message.data, now)
        self._messages[sequence] = stored
        sequences = self._of_subject.setdefault(message.subject, {})
        sequences[sequence] = None
        self._bytes += message.size_bytes
        if row.max_per_subject and not row.queue and len(sequences) > row.max_per_subject:
            self.remove(next(iter(sequences)))
        life_s = min(message.ttl_s or math.inf, (row.message_ttl and row.max_age_s) or math.inf)
        if life_s < math.inf:
            heapq.heappush(self._ends, (now + life_s, sequence))
            self._set_timer()
        for listener in self.listeners.matching(message.subject):
            listener.offer(stored)

    def _make_room(self, batch: Sequence[NewMessage]) -> None:
        row, size = self.row, sum(message.size_bytes for message in batch)
        if row.queue and row.max_per_subject:
            for subject in {message.subject for message in batch}:
                if len(self._of_subject.get(subject, ())) >= row.max_per_subject:
                    raise FullError(_MAX_MESSAGES)
        if not row.max_bytes:
            return
        if row.push_back and self._bytes + size > row.max_bytes:
            raise FullError(MAX_BYTES)
        while self._messages and self._bytes + size > row.max_bytes:
            self.remove(self._lowest())

    def _lowest(self) -> int:
        while self._first not in self._messages and self._first <= self.last_sequence:
            self._first += 1
        return self._first

    def _drop_aged(self) -> None:
        if not self.row.max_age_s:
            return
        oldest = clock.monotonic() - self.row.max_age_s
        while self._messages and self._messages[self._lowest()].stored_at < oldest:
            self.remove(self._lowest())

    def _forget_ids(self, before: float) -> None:
        while self._ids:
            msg_id, (_, at) = next(iter(self._ids.items()))
            if at >= before:
                return
            del self._ids[msg_id]

    def _set_timer(self) -> None:
        while self._ends and self._ends[0][1] not in self._messages:
            heapq.heappop(self._ends)
        if not self._ends or (self._timer is not None and self._timer_at <= self._ends[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._ends[0][0]
        self._timer = asyncio.get_running_loop().call_later(self._timer_at - clock.monotonic(), self._end_some)

    def _end_some(self) -> None:
        """Remove what has lived its time; where the stream says that a key has expired, a marker takes its place."""
        self._timer = None
        now = clock.monotonic()
        while self._ends and self._ends[0][0] <= now:
            stored = self._messages.get(heapq.heappop(self._ends)[1])
            if stored is None:
                continue
            self.remove(stored.sequence)
            if self.row.marker_ttl_s and MARKER not in stored.headers and not stored.headers.get(OPERATION):
                marker = NewMessage(
                    subject=stored.subject, data=b"", headers={MARKER: "MaxAge"}, ttl_s=self.row.marker_ttl_s
                )
                self._store(marker, now)
        self._set_timer()


class MemoryReader:
    """One reader's place in a stream: the sequences that it hasn't read yet.

    What has gone before it was read is passed over, as by a reader on a server.
    """

    def __init__(self, stream: MemoryStream, patterns: Sequence[str], *, start: int, newest_only: bool = False) -> None:
        self._stream = stream
        self._patterns = patterns
        self._unread = OrderedDict.fromkeys(stream.matching(patterns, start=start, newest_only=newest_only))
        self._news: asyncio.Future[None] | None = None
        for pattern in patterns:
            stream.listeners.add(pattern, self)

    def close(self) -> None:
        for pattern in self._patterns:
            self._stream.listeners.discard(pattern, self)

    def offer(self, stored: Stored) -> None:
        self._unread[stored.sequence] = None
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def forget(self, stored: Stored) -> None:
        self._unread.pop(stored.sequence, None)

    def pop(self) -> Stored | None:
        """The next message; None if there is none now."""
        if not self._unread:
            return None
        return self._stream.get(self._unread.popitem(last=False)[0])

    async def news(self) -> None:
        """Returns when there is something to read."""
        while not self._unread:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
