"""A log that one actor alone writes: every append names the sequence it expects to follow.

It does not know what the messages mean. Invariant: `cursor` is behind the last entry that this process has applied,
whether it read that entry or wrote it; another writer's entry raises FencedError, so two writers never interleave.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing

from astraflow.bus import Bus, Cursor, LogEntry
from astraflow.errors import FencedError
from astraflow.messages import Decision, SampleBatch


class OwnedLog:
    """One stream and this writer's place in it."""

    def __init__(
        self, bus: Bus, *, stream: str, subject: str, cursor: Cursor | None, incarnation: str, last: int
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._subject = subject
        self._incarnation = incarnation
        self._last = last
        self.cursor = cursor

    @classmethod
    async def open(cls, bus: Bus, *, stream: str, subject: str, cursor: Cursor | None) -> "OwnedLog":
        """`cursor` is the place that a snapshot remembers; None = nothing applied yet."""
        incarnation = (await bus.logs.state(stream)).incarnation
        last = await bus.logs.last_sequence(stream, subject)
        return cls(bus, stream=stream, subject=subject, cursor=cursor, incarnation=incarnation, last=last)

    async def unapplied(self) -> AsyncIterator[LogEntry]:
        """What an earlier process wrote behind the cursor, to the end. Raises CursorError if the log does not fit."""
        async for entry in self._bus.logs.read(self._stream, cursor=self.cursor, follow=False):
            yield entry
            self.cursor = entry.cursor

    def has_unapplied(self) -> bool:
        """Whether there is anything behind the cursor, readable or not."""
        return self._last > (self.cursor.sequence if self.cursor is not None else 0)

    async def _only_junk_since(self) -> bool:
        """Whether what stands behind our last entry is unreadable, all of it; then the next append goes behind that.

        A writer is fenced by another writer, not by garbage, which reading makes into dead letters.
        """
        last = await self._bus.logs.last_sequence(self._stream, self._subject)
        entries = self._bus.logs.read(self._stream, start=self._last + 1, follow=False)
        async with aclosing(entries):
            async for entry in entries:
                if entry.sequence <= last:
                    return False
        moved, self._last = last > self._last, last
        return moved

    async def append(self, message: Decision | SampleBatch, *, msg_id: str) -> None:
        """Store durably. Raises FencedError if another process has written since."""
        while True:
            try:
                ack = await self._bus.publish(
                    self._subject, message, msg_id=msg_id, expected_last_sequence=self._last, deadline_s=None
                )
            except FencedError:
                if not await self._only_junk_since():
                    raise
            else:
                break
        self._last = ack.sequence
        self.cursor = Cursor(incarnation=self._incarnation, sequence=ack.sequence, message_id=msg_id)
