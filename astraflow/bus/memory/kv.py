"""The run's key-value bucket in memory. The contract is `interface.Kv`."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
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
    key_patterns,
)
from astraflow.bus.memory.deadletters import MemoryDeadLetters
from astraflow.bus.memory.publish import MemoryPublisher
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.memory.stream import NewMessage, Reader
from astraflow.bus.publish import MSG_ID, Stored
from astraflow.bus.topology import Topology
from astraflow.errors import FencedError, MessageError
from astraflow.messages import Message, encode


class MemoryKv:
    """`Kv` as a stream with one message per key."""

    def __init__(
        self, server: MemoryServer, topology: Topology, publisher: MemoryPublisher, dead_letters: MemoryDeadLetters,
        *, producer: str,
    ) -> None:  # fmt: skip
        self._server = server
        self._topology = topology
        self._publisher = publisher
        self._dead_letters = dead_letters
        self._producer = producer

    async def get(self, key: str) -> KvEntry | None:
        stored = (await self._server.stream(self._topology.kv)).last(self._topology.kv_subject(key))
        if stored is None or is_marker(stored):
            return None
        return KvEntry(key, admit_value(stored, self._topology).message, stored.sequence)

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
            subject=self._topology.kv_subject(key), data=data, headers={MSG_ID: msg_id},
            ttl_s=whole_seconds(ttl_s) if ttl_s else None,
        )  # fmt: skip
        return await self._store(value, msg_id, expected_revision, deadline_s)

    async def delete(self, key: str) -> None:
        marker = NewMessage(
            subject=self._topology.kv_subject(key), data=b"", headers={OPERATION: "DEL"}, ttl_s=DELETE_MARKER_TTL_S
        )
        await self._store(marker, "", None, DEADLINE_S)

    async def entries(self, prefix: str) -> dict[str, KvEntry]:
        found: dict[str, KvEntry] = {}
        async with aclosing(self.watch(prefix)) as updates:
            async for update in updates:
                if not update.key:
                    break
                found[update.key] = KvEntry(update.key, update.message, update.revision)
        return found

    async def watch(self, prefix: str) -> AsyncGenerator[KvUpdate, None]:
        stream = await self._server.stream(self._topology.kv)
        known: set[str] = set()
        began_at = clock.monotonic()
        with closing(Reader(stream, key_patterns(self._topology, prefix), start=1, newest_only=True)) as reader:
            told = False
            while True:
                stored = reader.pop()
                if stored is not None:
                    if (update := self._update(stored, known, began_at)) is not None:
                        yield update
                elif not told:
                    told = True
                    yield KvUpdate("", None, 0)
                else:
                    await reader.news()

    def _update(self, stored: Stored, known: set[str], began_at: float) -> KvUpdate | None:
        key = stored.subject.removeprefix(self._topology.kv_prefix)
        if is_marker(stored):
            if key not in known:
                return None
            known.discard(key)
            return KvUpdate(key, None, stored.sequence)
        try:
            message = admit_value(stored, self._topology).message
        except MessageError as exc:
            self._dead_letters.add(stream=self._topology.kv, stored=stored, reason=str(exc))
            return None
        known.add(key)
        return KvUpdate(key, message, stored.sequence, max(0.0, began_at - stored.stored_at))

    async def _store(self, value: NewMessage, msg_id: str, expected: int | None, deadline_s: float | None) -> int:
        kv = self._topology.kv
        try:
            ack = await self._publisher.store(kv, [value], msg_id=msg_id, expected=expected, deadline_s=deadline_s)
        except FencedError:
            tail = self._server.there(kv).last(value.subject) if expected == 0 else None
            if tail is None or not is_marker(tail):
                raise
            await asyncio.sleep(0)
            return await self._store(value, msg_id, tail.sequence, deadline_s)  # absent, though not for the stream
        return ack.sequence
