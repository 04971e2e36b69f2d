"""Logs: read by cursor, appended in order, purged from below.

The contract is `interface.Logs`. Invariant: a cursor that the log doesn't bear out raises CursorError, never a skip.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

from astraflow.bus.admit import admit
from astraflow.bus.claims import Claims, first_sequence
from astraflow.bus.deadletters import NatsDeadLetters
from astraflow.bus.entries import Cursor, LogEntry, LogState
from astraflow.bus.link import Link
from astraflow.bus.publish import Stored, read_stored
from astraflow.bus.reader import Raw, read_raw, stream_info, stream_state
from astraflow.bus.retry import until_answered
from astraflow.bus.topology import Topology
from astraflow.errors import CursorError, MessageError


class NatsLogs:
    """`Logs` on JetStream streams: reads and purges those of a run."""

    def __init__(self, link: Link, topology: Topology, claims: Claims, dead_letters: NatsDeadLetters) -> None:
        self._link = link
        self._topology = topology
        self._claims = claims
        self._dead_letters = dead_letters

    async def state(self, stream: str) -> LogState:
        return await until_answered(self._link, partial(stream_state, stream=stream))

    async def read(
        self,
        stream: str,
        *,
        subject: str | None = None,
        cursor: Cursor | None = None,
        start: int | Literal["first", "new"] = "first",
        follow: bool = True,
    ) -> AsyncGenerator[LogEntry, None]:
        state = await self.state(stream)
        first = 1 if start == "first" else state.last_sequence + 1 if start == "new" else start
        if cursor is not None:
            await self._verify(stream, cursor, state)
            first = cursor.sequence + 1
        row = self._topology.row_of_stream[stream]
        if subject is None:
            (subject,) = row.subjects
        news = self._topology.news(row.kind, subject)
        last = state.last_sequence
        if not follow and first > last:
            return
        async with aclosing(
            read_raw(self._link, stream, subject, news=news, start=first, incarnation=state.incarnation)
        ) as messages:
            async for raw in messages:
                if not follow and (raw is None or raw.stored.sequence > last):
                    return
                if raw is not None and (entry := await self._entry(stream, raw, state.incarnation)) is not None:
                    yield entry
                if not follow and _is_last(raw, last):
                    return

    async def entry(self, stream: str, sequence: int) -> LogEntry | None:
        return await self._get(stream, seq=sequence)

    async def next(self, stream: str, subject: str, *, start: int) -> LogEntry | None:
        return await self._get(stream, seq=max(1, start), next_by_subj=subject)

    async def last(self, stream: str, subject: str) -> LogEntry | None:
        return await self._get(stream, last_by_subj=subject)

    async def last_sequence(self, stream: str, subject: str) -> int:
        stored = await until_answered(self._link, partial(read_stored, stream=stream, last_by_subj=subject))
        return 0 if stored is None else stored.sequence

    async def reached(self, stream: str, sequence: int) -> None:
        if self._topology.at_home or (await self.state(stream)).last_sequence >= sequence:
            return
        async with aclosing(self.read(stream, start=sequence)) as entries:
            await anext(entries)

    async def purge(self, stream: str, *, below_sequence: int, subject: str | None = None) -> int:
        if below_sequence <= 1:  # the server would take 0 for "everything"
            return 0
        stored = await until_answered(self._link, partial(read_stored, stream=stream, seq=below_sequence))
        floor = below_sequence
        if stored is not None and self._topology.row_of_stream[stream].atomic:
            floor = first_sequence(stored)
        body: dict[str, Any] = {"seq": floor}
        if subject is not None:
            body["filter"] = subject
        answer = await until_answered(self._link, lambda session: session.api(f"STREAM.PURGE.{stream}", body))
        return int(answer["purged"])

    async def _get(self, stream: str, **where: int | str) -> LogEntry | None:
        stored = await until_answered(self._link, lambda session: read_stored(session, stream, **where))
        if stored is None:
            return None
        state, now = await until_answered(self._link, partial(stream_info, stream=stream))
        return await self._decoded(stream, stored, state.incarnation, max(0.0, now - stored.stored_at))

    async def _entry(self, stream: str, raw: Raw, incarnation: str) -> LogEntry | None:
        """None for a message that can't be decoded; it becomes a dead letter."""
        stored = raw.stored
        try:
            return await self._decoded(stream, stored, incarnation, raw.age_s)
        except MessageError as exc:
            await self._dead_letters.add(
                stream=stream, subject=stored.subject, sequence=stored.sequence, data=stored.data, reason=str(exc)
            )
            return None

    async def _decoded(self, stream: str, stored: Stored, incarnation: str, age_s: float) -> LogEntry:
        data = await self._claims.join(stored.subject, stored.headers, stored.data, sequence=stored.sequence)
        row = self._topology.row_of_stream[stream]
        envelope, message = admit(data, row=row, run=self._topology.run)
        cursor = Cursor(incarnation, stored.sequence, stored.message_id)  # "" if its sender gave none
        age_s = 0.0 if row.mirror is not None else age_s  # a mirror's times are another server's
        return LogEntry(message, envelope, stored.subject, stored.sequence, cursor, age_s)

    async def _verify(self, stream: str, cursor: Cursor, state: LogState) -> None:
        """Raises CursorError if the log doesn't bear the cursor out."""
        stored = await until_answered(self._link, partial(read_stored, stream=stream, seq=cursor.sequence))
        check_cursor(stream, cursor, state, stored)


def check_cursor(stream: str, cursor: Cursor, state: LogState, stored: Stored | None) -> None:
    """`stored`: what is at the cursor's sequence. Raises CursorError if the log doesn't bear the cursor out."""
    where = f"cursor {cursor.sequence} ({cursor.message_id or 'start'}) in {stream}"
    restore = "restore the server's store folder of that time, or start the run afresh (`up --fresh`)"
    if cursor.incarnation != state.incarnation:
        raise CursorError(
            f"{where} is of incarnation {cursor.incarnation}, the stream is {state.incarnation}: it was made anew; "
            f"{restore}"
        )
    span = f"the log has {state.first_sequence} to {state.last_sequence}"
    if cursor.sequence > state.last_sequence:
        raise CursorError(f"{where} is beyond the log, {span}: the log lost messages; {restore}")
    if cursor.sequence == 0 and state.first_sequence <= 1:
        return
    if stored is None and cursor.sequence >= state.first_sequence > 0:
        raise CursorError(f"{where} was removed from the log, {span}: somebody deleted messages there; {restore}")
    if stored is None:
        raise CursorError(
            f"{where} is below the log, {span}: it was purged past the reader; resume from a newer snapshot or "
            f"checkpoint, or {restore}"
        )
    if stored.message_id != cursor.message_id:
        raise CursorError(
            f"{where} disagrees with the log, which has {stored.message_id!r} there: another run's store, or a "
            f"restored one; {restore}"
        )


def _is_last(raw: Raw | None, last: int) -> bool:
    return raw is None or raw.pending == 0 or raw.stored.sequence >= last
