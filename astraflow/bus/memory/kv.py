"""The run's key-value bucket in memory. The contract is `interface.Kv`."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing

from astraflow import clock
from astraflow.bus.claims import whole_seconds
from astraflow.bus.entries import KvEntry, KvUpdate
from astraflow.bus.kv import (
    DEADLINE_S,
    DELETE_MARKER_TTL_S,
    OPERATION,
    admit_value,
    check_value_size,
    is_marker,
)
from astraflow.bus.memory.deadletters import MemoryDeadLetters
from astraflow.bus.memory.publish import MemoryPublisher
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.memory.stream import MemoryReader, MemoryStream, NewMessage
from astraflow.bus.publish import MSG_ID, Stored
from astraflow.bus.topology import Topology
from astraflow.errors import FencedError, MessageError, UnreadableValueError
from astraflow.messages import Message, encode


class MemoryKv:
    """`Kv` as a stream with one message per key."""

    def __init__(
        self,
        server: MemoryServer,
        topology: Topology,
        publisher: MemoryPublisher,
        dead_letters: MemoryDeadLetters,
        *,
        producer: str,
    ) -> None:
        self._server = server
        self._topology = topology
        self._publisher = publisher
        self._dead_letters = dead_letters
        self._producer = producer

    async def get(self, key: str) -> KvEntry | None:
        stored = (await self._server.stream(self._topology.kv_stream(key))).last(self._topology.kv_subject(key))
        if stored is None or is_marker(stored):
            return None
        try:
            return KvEntry(key, admit_value(stored, self._topology).message, stored.sequence)
        except MessageError as exc:
            raise UnreadableValueError(key, stored.sequence, str(exc)) from exc

    async def put(
        self,
        key: str,
        message: Message,
        *,
        expected_revision: int | None = None,
        ttl_s: int | None = None,
        deadline_s: float | None = DEADLINE_S,
    ) -> int:
        msg_id = f"kv/{uuid.uuid4()}"
        data = encode(message, id=msg_id, run=self._topology.run, producer=self._producer)
        check_value_size(key, len(data), self._topology.limits.max_message_bytes)
        value = NewMessage(
            subject=self._topology.kv_subject(key),
            data=data,
            headers={MSG_ID: msg_id},
            ttl_s=whole_seconds(ttl_s) if ttl_s else None,
        )
        return await self._store(key, value, msg_id, expected_revision, deadline_s)

    async def delete(self, key: str) -> None:
        marker = NewMessage(
            subject=self._topology.kv_subject(key), data=b"", headers={OPERATION: "DEL"}, ttl_s=DELETE_MARKER_TTL_S
        )
        await self._store(key, marker, "", None, DEADLINE_S)

    async def entries(self, prefix: str) -> dict[str, KvEntry]:
        found: dict[str, KvEntry] = {}
        async with aclosing(self.watch(prefix)) as updates:
            async for update in updates:
                if not update.key:
                    break
                if update.message is None:
                    found.pop(update.key, None)
                else:
                    found[update.key] = KvEntry(update.key, update.message, update.revision)
        return found

    async def watch(self, prefix: str) -> AsyncGenerator[KvUpdate, None]:
        names, known, began_at, told = self._topology, dict[str, int](), clock.monotonic(), False
        places = {names.kv_stream(prefix): names.kv_pattern(prefix)}
        if not prefix:
            places[names.members] = f"{names.root}.>"
        streams = {stream: await self._server.stream(stream) for stream in places}
        with closing(_Watched([(streams[stream], pattern) for stream, pattern in places.items()])) as watched:
            while True:
                for subject in watched.emptied():
                    if (revision := known.pop(key := names.kv_key(subject), None)) is not None:
                        yield KvUpdate(key, None, revision)
                if (stored := watched.pop()) is not None:
                    if (update := self._update(stored, known, began_at)) is not None:
                        yield update
                elif not told:
                    told = True
                    yield KvUpdate("", None, 0)
                else:
                    await watched.news()

    def _update(self, stored: Stored, known: dict[str, int], began_at: float) -> KvUpdate | None:
        key = self._topology.kv_key(stored.subject)
        if is_marker(stored):
            return KvUpdate(key, None, stored.sequence) if known.pop(key, None) is not None else None
        try:
            message = admit_value(stored, self._topology).message
        except MessageError as exc:
            self._dead_letters.add(stream=self._topology.kv_stream(key), stored=stored, reason=str(exc))
            known.pop(key, None)
            return KvUpdate(key, None, stored.sequence, unreadable=True)
        known[key] = stored.sequence
        return KvUpdate(key, message, stored.sequence, max(0.0, began_at - stored.stored_at))

    async def _store(
        self, key: str, value: NewMessage, msg_id: str, expected: int | None, deadline_s: float | None
    ) -> int:
        stream = self._topology.kv_stream(key)
        try:
            ack = await self._publisher.store(stream, [value], msg_id=msg_id, expected=expected, deadline_s=deadline_s)
        except FencedError:
            tail = self._server.there(stream).last(value.subject) if expected == 0 else None
            if tail is None or not is_marker(tail):
                raise
            await asyncio.sleep(0)
            return await self._store(key, value, msg_id, tail.sequence, deadline_s)  # absent, though not for the stream
        return ack.sequence


class _Watched:
    """What a watch has yet to tell, of one stream or two."""

    def __init__(self, places: Sequence[tuple[MemoryStream, str]]) -> None:
        self._news = asyncio.Event()
        self._readers = [_KeyReader(stream, pattern, self._news) for stream, pattern in places]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def emptied(self) -> list[str]:
        """Subjects whose last message went without another in its place, since the last call."""
        return [subject for reader in self._readers for subject in reader.emptied()]

    def pop(self) -> Stored | None:
        """The next message; None if there is none now."""
        return next((stored for reader in self._readers if (stored := reader.pop()) is not None), None)

    async def news(self) -> None:
        """Returns when something has come or gone since the last call."""
        await self._news.wait()
        self._news.clear()


class _KeyReader(MemoryReader):
    """Notes what has gone too: a stream without markers leaves nothing that says so."""

    def __init__(self, stream: MemoryStream, pattern: str, news: asyncio.Event) -> None:
        super().__init__(stream, [pattern], start=1, newest_only=True)
        self._changed = news
        self._gone: dict[str, None] = {}

    def offer(self, stored: Stored) -> None:
        super().offer(stored)
        self._changed.set()

    def forget(self, stored: Stored) -> None:
        super().forget(stored)
        self._gone[stored.subject] = None
        self._changed.set()

    def emptied(self) -> list[str]:
        gone, self._gone = self._gone, {}
        return [subject for subject in gone if self._stream.last(subject) is None]
