"""Logs in memory. The contract is `interface.Logs`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Literal

from astraflow import clock
from astraflow.bus.admit import admit
from astraflow.bus.claims import first_sequence
from astraflow.bus.entries import Cursor, LogEntry, LogState
from astraflow.bus.log import check_cursor
from astraflow.bus.memory.deadletters import MemoryDeadLetters
from astraflow.bus.memory.parts import MemoryParts
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.memory.stream import MemoryReader
from astraflow.bus.publish import Stored
from astraflow.bus.subjects import matches
from astraflow.bus.topology import Topology
from astraflow.errors import MessageError

_AT_ONCE = 64  # entries of a backlog before others get a turn


class MemoryLogs:
    """`Logs` in memory."""

    def __init__(
        self, server: MemoryServer, topology: Topology, parts: MemoryParts, dead_letters: MemoryDeadLetters
    ) -> None:
        self._server = server
        self._topology = topology
        self._parts = parts
        self._dead_letters = dead_letters

    async def read(
        self,
        stream: str,
        *,
        subject: str | None = None,
        cursor: Cursor | None = None,
        start: int | Literal["first", "new"] = "first",
        follow: bool = True,
    ) -> AsyncGenerator[LogEntry, None]:
        await asyncio.sleep(0)
        messages = self._server.there(stream)
        state, began_at = messages.state(), clock.monotonic()
        first = 1 if start == "first" else state.last_sequence + 1 if start == "new" else start
        if cursor is not None:
            check_cursor(stream, cursor, state, messages.get(cursor.sequence))
            first = cursor.sequence + 1
        patterns = (subject,) if subject is not None else self._topology.row_of_stream[stream].subjects
        with closing(MemoryReader(messages, patterns, start=first)) as reader:
            count = 0
            while True:
                stored = reader.pop()
                if stored is None or (not follow and stored.sequence > state.last_sequence):
                    if not follow:
                        return
                    await reader.news()
                    continue
                count += 1
                if count % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                try:
                    yield self._decoded(stream, stored, began_at)
                except MessageError as exc:
                    self._dead_letters.add(stream=stream, stored=stored, reason=str(exc))

    async def entry(self, stream: str, sequence: int) -> LogEntry | None:
        await asyncio.sleep(0)
        return self._entry(stream, self._server.there(stream).get(sequence))

    async def next(self, stream: str, subject: str, *, start: int) -> LogEntry | None:
        await asyncio.sleep(0)
        messages = self._server.there(stream)
        found = messages.matching([subject], start=start)
        return self._entry(stream, messages.get(found[0]) if found else None)

    async def last(self, stream: str, subject: str) -> LogEntry | None:
        await asyncio.sleep(0)
        return self._entry(stream, self._server.there(stream).last(subject))

    async def last_sequence(self, stream: str, subject: str) -> int:
        await asyncio.sleep(0)
        stored = self._server.there(stream).last(subject)
        return 0 if stored is None else stored.sequence

    async def reached(self, stream: str, sequence: int) -> None:
        """At once: nothing is a mirror here."""

    async def state(self, stream: str) -> LogState:
        await asyncio.sleep(0)
        return self._server.there(stream).state()

    async def purge(self, stream: str, *, below_sequence: int, subject: str | None = None) -> int:
        await asyncio.sleep(0)
        messages, floor = self._server.there(stream), below_sequence
        stored = messages.get(below_sequence)
        if stored is not None and self._topology.row_of_stream[stream].atomic:
            floor = first_sequence(stored)
        state = messages.state()
        going = [
            sequence
            for sequence in range(state.first_sequence, min(floor, state.last_sequence + 1))
            if (old := messages.get(sequence)) is not None and (subject is None or matches(subject, old.subject))
        ]
        for sequence in going:
            messages.remove(sequence)
        return len(going)

    def _entry(self, stream: str, stored: Stored | None) -> LogEntry | None:
        return None if stored is None else self._decoded(stream, stored, clock.monotonic())

    def _decoded(self, stream: str, stored: Stored, now: float) -> LogEntry:
        """Raises MessageError."""
        row = self._topology.row_of_stream[stream]
        envelope, message = admit(self._parts.joined(stored), row=row, run=self._topology.run)
        cursor = Cursor(self._server.there(stream).incarnation, stored.sequence, stored.message_id)
        age_s = max(0.0, now - stored.stored_at)
        return LogEntry(message, envelope, stored.subject, stored.sequence, cursor, age_s)
