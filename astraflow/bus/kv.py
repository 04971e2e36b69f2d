"""The run's key-value bucket: compare-and-set, time to live, watch.

The contract is `interface.Kv`. Invariants: a write with an expected revision happens at most once and never over
somebody else's; a key that expired or was deleted counts as absent, also for a lease that is taken over its marker; a
watcher misses no change, whatever happens to the connection.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from astraflow import clock
from astraflow.bus.admit import admit
from astraflow.bus.claims import ttl_header
from astraflow.bus.deadletters import NatsDeadLetters
from astraflow.bus.entries import KvEntry, KvUpdate
from astraflow.bus.link import Link
from astraflow.bus.names import Kind
from astraflow.bus.parts import part_size
from astraflow.bus.publish import Publisher, Stored, read_stored
from astraflow.bus.reader import LOOK_EVERY_S, Raw, Reader, reading, stream_identity
from astraflow.bus.retry import RETRY_S, until_answered
from astraflow.bus.session import Session
from astraflow.bus.topology import Topology
from astraflow.bus.wiring import MEMBER, PROBE, family_of
from astraflow.errors import (
    ApiError,
    BusError,
    FencedError,
    LinkLostError,
    MessageError,
    NoAnswerError,
    UnreadableValueError,
)
from astraflow.messages import Decoded, Message, encode

log = logging.getLogger(__name__)

OPERATION, MARKER = "KV-Operation", "Nats-Marker-Reason"
DELETE_MARKER_TTL_S = 60.0
DEADLINE_S = 60.0


def is_marker(stored: Stored) -> bool:
    """Whether it stands for a value that was deleted or has expired."""
    return MARKER in stored.headers or stored.headers.get(OPERATION) in ("DEL", "PURGE")


def admit_value(stored: Stored, topology: Topology) -> Decoded:
    """A key's value. Raises MessageError for what isn't one."""
    key = topology.kv_key(stored.subject)
    decoded = admit(stored.data, row=topology.row_of_stream[topology.kv_stream(key)], run=topology.run)
    family = family_of(key)
    if family is not None and type(decoded.message) is not family.message:
        raise MessageError(f"KV key {key} holds a {type(decoded.message).__name__}")
    if family is not None and family.tokens == ("policy",):
        (policy,) = family.tokens_of(key)
        if getattr(decoded.message, "policy", policy) != policy:
            raise MessageError(f"KV key {key} holds what is of another policy")
    return decoded


def check_value_size(key: str, size_bytes: int, most_bytes: int) -> None:
    """Raises MessageError: values aren't split, each is one message that replaces the one before."""
    if size_bytes > most_bytes:
        raise MessageError(
            f"value of {size_bytes} bytes for KV key {key} is over max_message_bytes or the server's max_payload: "
            f"{most_bytes} bytes fit"
        )


class NatsKv:
    """`Kv` as a JetStream stream with one message per key."""

    def __init__(
        self,
        link: Link,
        topology: Topology,
        publisher: Publisher,
        dead_letters: NatsDeadLetters,
        *,
        producer: str,
    ) -> None:
        self._link = link
        self._topology = topology
        self._publisher = publisher
        self._dead_letters = dead_letters
        self._producer = producer

    async def get(self, key: str) -> KvEntry | None:
        stored = await self._tail(key)
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
        headers = ttl_header(ttl_s) if ttl_s else {}
        return await self._store(key, data, msg_id, expected_revision, headers, deadline_s)

    async def delete(self, key: str) -> None:
        headers = {OPERATION: "DEL", **ttl_header(DELETE_MARKER_TTL_S)}
        await self._store(key, b"", f"kv/{uuid.uuid4()}", None, headers, DEADLINE_S)

    async def probe(self, deadline_s: float) -> None:
        """Store a mark that nobody reads and that expires in a second. Raises BusError if the server doesn't store."""
        headers = {OPERATION: "DEL", **ttl_header(1.0)}
        await self._store(PROBE.key(), b"", f"kv/{uuid.uuid4()}", None, headers, deadline_s)

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
        known: dict[str, int] = {}
        told = False
        while True:
            try:
                async with aclosing(self._watch_once(prefix, known)) as updates:
                    async for update in updates:
                        if update.key:
                            yield update
                        elif not told:
                            told = True
                            yield update
            except LinkLostError:
                continue
            except (NoAnswerError, ApiError) as exc:
                log.debug("bus.watch_restarts", extra={"prefix": prefix, "why": str(exc)})
                await asyncio.sleep(RETRY_S)

    async def _watch_once(self, prefix: str, known: dict[str, int]) -> AsyncGenerator[KvUpdate, None]:
        """One session's life; `known` holds the revision of every key that was told and is there."""
        names, session = self._topology, await self._link.session()
        unseen, caught_up = set(known), False
        pattern = names.kv_pattern(prefix)
        streams = [names.kv_stream(prefix)] if prefix else [names.kv_stream(prefix), names.members]
        identities = [await stream_identity(session, stream) for stream in streams]
        began_at = identities[0][1]
        readers = [Reader(session, streams[0], pattern, start=1, began_at=began_at)]
        if not prefix:
            pattern = f"{names.root}.>"
            readers.append(Reader(session, names.members, pattern, start=1, began_at=began_at))
        news = names.news(Kind.KV, pattern if prefix else ">")
        looked_at = clock.monotonic()
        loose = (
            not prefix or self._topology.kv_stream(prefix) == names.members
        )  # of which nobody says that they have expired
        async with aclosing(reading(session, readers, news=news, often=loose)) as messages:
            async for raw in messages:
                if raw is not None:
                    key = names.kv_key(raw.stored.subject)
                    unseen.discard(key)
                    if (update := await self._update(key, raw, known)) is not None:
                        yield update
                    continue
                gone = list(unseen)
                if caught_up and (now := clock.monotonic()) - looked_at >= LOOK_EVERY_S:
                    for stream, (incarnation, _) in zip(streams, identities, strict=True):
                        if (await stream_identity(session, stream))[0] != incarnation:
                            return  # made anew: what is written there is numbered from 1, below what was read
                    looked_at, gone = now, await self._expired(session, pattern, known)
                unseen.clear()
                for key in gone:
                    yield KvUpdate(key, None, known.pop(key))
                if not caught_up:
                    caught_up = True
                    yield KvUpdate("", None, 0)

    async def _expired(self, session: Session, pattern: str, known: dict[str, int]) -> list[str]:
        """Loose keys that are there no more: their stream has no markers that would say so."""
        loose = [key for key in known if self._topology.kv_stream(key) == self._topology.members]
        if not loose:
            return []
        request = f"STREAM.INFO.{self._topology.members}"
        if (await session.api(request))["state"]["messages"] == len(loose):  # as most of the time
            return []
        there = (await session.api(request, {"subjects_filter": pattern}))["state"].get("subjects") or {}
        return [key for key in loose if self._topology.kv_subject(key) not in there]

    async def _update(self, key: str, raw: Raw, known: dict[str, int]) -> KvUpdate | None:
        stored = raw.stored
        if is_marker(stored):
            return KvUpdate(key, None, stored.sequence) if known.pop(key, None) is not None else None
        try:
            message = admit_value(stored, self._topology).message
        except MessageError as exc:
            await self._dead_letters.add(
                stream=self._topology.kv_stream(key),
                subject=stored.subject,
                sequence=stored.sequence,
                data=stored.data,
                reason=str(exc),
            )
            known.pop(key, None)
            return KvUpdate(key, None, stored.sequence, unreadable=True)
        known[key] = stored.sequence
        row = self._topology.row_of_stream[self._topology.kv_stream(key)]
        age_s = 0.0 if row.mirror is not None else raw.age_s  # a mirror's times are another server's
        return KvUpdate(key, message, stored.sequence, age_s)

    async def _store(
        self,
        key: str,
        data: bytes,
        msg_id: str,
        expected: int | None,
        headers: dict[str, str],
        deadline_s: float | None,
    ) -> int:
        subject = self._topology.kv_subject(key)
        if not self._topology.at_home and not MEMBER.has(key):
            raise BusError(
                f"KV key {key} can't be written in region {self._topology.region}, only at the run's hub "
                f"(region {self._topology.home})"
            )
        most = part_size(self._link, self._topology.limits.max_message_bytes)
        check_value_size(key, len(data), most)
        try:
            ack = await self._publisher.store(
                subject,
                data,
                stream=self._topology.kv_stream(key),
                msg_id=msg_id,
                headers=headers,
                expected=expected,
                deadline_s=deadline_s,
            )
        except FencedError:
            tail = await self._tail(key) if expected == 0 else None
            if tail is None or not is_marker(tail):
                raise
            return await self._store(
                key, data, msg_id, tail.sequence, headers, deadline_s
            )  # absent, though not for the server
        return ack.sequence

    async def _tail(self, key: str) -> Stored | None:
        subject, stream = self._topology.kv_subject(key), self._topology.kv_stream(key)
        return await until_answered(self._link, lambda session: read_stored(session, stream, last_by_subj=subject))
