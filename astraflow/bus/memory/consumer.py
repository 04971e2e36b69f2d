"""A work queue's shared consumer in memory: which messages are free, and who must have finished which by when.

It decodes nothing. Invariants: a message is held by at most one fetch at a time, until it is acked, handed back, or its
ack wait is over; what was handed back comes before what is new; while messages are ready and somebody waits, one who
waits is awake; nothing is polled: one timer stands for the next ack wait that ends.
"""

import asyncio
import heapq
from collections import Counter, OrderedDict, deque

from astraflow import clock
from astraflow.bus.memory.stream import MemoryStream
from astraflow.bus.publish import Stored


class MemoryConsumer:
    """The messages of one subject."""

    def __init__(self, stream: MemoryStream, subject: str, *, ack_wait_s: float) -> None:
        self._kept: Counter[int] = Counter()  # sequences under `keep_alive`, by how many
        self._stream = stream
        self._ack_wait_s = ack_wait_s
        self._new = OrderedDict.fromkeys(stream.matching([subject], start=1))
        self._again: OrderedDict[int, None] = OrderedDict()
        self._held: dict[int, float] = {}  # until when
        self._attempts: dict[int, int] = {}
        self._ends: list[tuple[float, int]] = []  # a heap of what was in `_held`
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        stream.listeners.add(subject, self)

    @property
    def undelivered(self) -> int:
        """Messages that nobody has taken yet."""
        return len(self._new)

    @property
    def depth(self) -> int:
        """Messages that aren't acked."""
        return len(self._new) + len(self._again) + len(self._held)

    @property
    def someone_waits(self) -> bool:
        return any(not future.done() for future in self._waiting)

    def offer(self, stored: Stored) -> None:
        self._new[stored.sequence] = None
        self._wake()

    def forget(self, stored: Stored) -> None:
        for place in (self._new, self._again, self._held, self._attempts):
            place.pop(stored.sequence, None)

    def take(self, limit: int) -> list[tuple[Stored, int]]:
        """Up to `limit` messages, each with how often it was delivered; they are held from now on."""
        taken: list[tuple[Stored, int]] = []
        while len(taken) < limit and (self._again or self._new):
            sequence, _ = (self._again or self._new).popitem(last=False)
            stored = self._stream.get(sequence)
            assert stored is not None, "what goes is forgotten"
            self._attempts[sequence] = self._attempts.get(sequence, 0) + 1
            self._hold(sequence, self._ack_wait_s)
            taken.append((stored, self._attempts[sequence]))
        self._wake()
        return taken

    async def ready(self) -> None:
        """Returns when there is something to take."""
        while not (self._again or self._new):
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                if future.cancelled():
                    self._waiting.remove(future)
                else:
                    self._wake()  # who was woken and is cancelled leaves it to the next

    def hand_back(self, sequence: int, delay_s: float) -> None:
        """Nothing happens if it isn't held."""
        if sequence in self._held:
            if delay_s > 0:
                self._hold(sequence, delay_s)
            else:
                self._release(sequence)

    def in_progress(self, sequence: int) -> None:
        if sequence in self._held:
            self._hold(sequence, self._ack_wait_s)

    def keep(self, sequence: int, change: int) -> None:
        """One more (+1) or one less (-1) keeps it alive; the ack wait starts anew."""
        self._kept[sequence] += change
        if not self._kept[sequence]:
            del self._kept[sequence]
        self.in_progress(sequence)

    def _hold(self, sequence: int, seconds: float) -> None:
        self._held[sequence] = clock.monotonic() + seconds
        heapq.heappush(self._ends, (self._held[sequence], sequence))
        self._set_timer()

    def _release(self, sequence: int) -> None:
        del self._held[sequence]
        self._again[sequence] = None
        self._wake()

    def _wake(self) -> None:
        if self._again or self._new:
            while self._waiting:
                future = self._waiting.popleft()
                if not future.done():
                    future.set_result(None)
                    return

    def _set_timer(self) -> None:
        while self._ends and self._held.get(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)  # it is finished, or held until later
        if not self._ends or (self._timer is not None and self._timer_at <= self._ends[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._ends[0][0]
        self._timer = asyncio.get_running_loop().call_later(self._timer_at - clock.monotonic(), self._end_some)

    def _end_some(self) -> None:
        """Take back what was held too long; what is kept alive is held anew."""
        self._timer = None
        now = clock.monotonic()
        while self._ends and self._ends[0][0] <= now:
            until, sequence = heapq.heappop(self._ends)
            if self._held.get(sequence) != until:
                continue
            if self._kept[sequence]:
                self._hold(sequence, self._ack_wait_s)
            else:
                self._release(sequence)
        self._set_timer()
