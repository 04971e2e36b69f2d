"""Storing in memory, once however often it is asked for, and waiting for room.

It splits nothing (`parts.py`). Invariant: what is several messages (a split one with its parts) is stored in one step.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

from astraflow.bus.entries import PublishAck
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.memory.stream import MemoryStream, NewMessage
from astraflow.bus.publish import fenced
from astraflow.bus.topology import Topology
from astraflow.bus.waits import Waits
from astraflow.errors import BusError, ConflictError, FullError


class MemoryPublisher:
    """Publishes for one bus."""

    def __init__(self, server: MemoryServer, topology: Topology, counters: Counter[str]) -> None:
        self._server = server
        self._topology = topology
        self._counters = counters
        self._numbers = itertools.count()
        self.waits = Waits()

    async def store(
        self,
        stream: str,
        batch: Sequence[NewMessage],
        *,
        msg_id: str = "",
        expected: int | None = None,
        deadline_s: float | None = None,
    ) -> PublishAck:
        """Store messages as one. `expected`: sequence of the last one's subject, 0 = none.

        Raises: FencedError if somebody else's message is there; BusError if they can't be stored in time.
        """
        await asyncio.sleep(0)  # as every round trip, a turn for others
        try:  # most go in at once: no deadline is needed
            if stream in self._server.streams:
                return self._stored(self._server.streams[stream], batch, msg_id, expected)
        except FullError:
            pass
        return await self._store_late(stream, batch, msg_id, expected, deadline_s)

    async def _store_late(
        self, stream: str, batch: Sequence[NewMessage], msg_id: str, expected: int | None, deadline_s: float | None
    ) -> PublishAck:
        """Wait for the stream, and for room in it."""
        number, reason = next(self._numbers), f"nobody answers {batch[-1].subject}: no such stream"
        what = f"{msg_id or 'message'} for {batch[-1].subject}"
        try:
            async with asyncio.timeout(deadline_s):
                found = await self._server.stream(stream)
                while True:
                    try:
                        return self._stored(found, batch, msg_id, expected)
                    except FullError as exc:
                        relief = self._topology.row_of_stream[stream].relief
                        reason = f"stream {stream} is full: {exc}{relief and f'; {relief}'}"
                    self.waits.note(number, what, reason)
                    self._counters[f"publish.waits.{reason.partition(':')[0]}"] += 1
                    await found.room()
        except TimeoutError as exc:
            raise BusError(f"{what} isn't stored after {deadline_s:g} s: {reason}") from exc
        finally:
            self.waits.end(number)

    def _stored(
        self, stream: MemoryStream, batch: Sequence[NewMessage], msg_id: str, expected: int | None
    ) -> PublishAck:
        subject = batch[-1].subject
        try:
            sequence, duplicate = stream.append(batch, expected=expected)
        except ConflictError as exc:
            tail = stream.last(subject)
            if tail is None or not msg_id or tail.message_id != msg_id:
                raise fenced(subject, tail, msg_id, expected) from exc
            sequence, duplicate = tail.sequence, True
        self._counters["publish.duplicates"] += duplicate
        return PublishAck(sequence, duplicate)
