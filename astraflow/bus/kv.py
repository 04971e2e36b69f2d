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

from astraflow.bus.admit import admit
from astraflow.bus.claims import ttl_header
from astraflow.bus.deadletters import NatsDeadLetters
from astraflow.bus.entries import KvEntry, KvUpdate
from astraflow.bus.faults import ApiError, LinkLostError, NoAnswerError
from astraflow.bus.link import Link
from astraflow.bus.parts import part_size
from astraflow.bus.publish import Publisher, Stored, read_stored
from astraflow.bus.reader import ConsumerLostError, Raw, consume
from astraflow.bus.retry import RETRY_S, until_answered
from astraflow.bus.rows import PROBE_KEY
from astraflow.bus.topology import Topology
from astraflow.errors import BusError, FencedError, MessageError
from astraflow.messages import Decoded, Message, encode

log = logging.getLogger(__name__)

TYPE_OF_KEY = {  # by the first token of a key; others hold what they like
    "run": "RunRecord", "head": "Head", "member": "Member", "lease": "Lease", "ledger": "Ledger",
    "progress": "Progress", "snapshot": "SnapshotPointer", "drain": "Drain",
    "closed": "GroupClosed", "region": "Region",
}  # fmt: skip
OPERATION, MARKER = "KV-Operation", "Nats-Marker-Reason"
DELETE_MARKER_TTL_S = 60.0
DEADLINE_S = 60.0


def is_marker(stored: Stored) -> bool:
    """Whether it stands for a value that was deleted or has expired."""
    return MARKER in stored.headers or stored.headers.get(OPERATION) in ("DEL", "PURGE")


def admit_value(stored: Stored, topology: Topology) -> Decoded:
    """A key's value. Raises MessageError for what isn't one."""
    decoded = admit(stored.data, row=topology.row_of_stream[topology.kv], run=topology.run)
    key, name = stored.subject.removeprefix(topology.kv_prefix), type(decoded.message).__name__
    if name != TYPE_OF_KEY.get(key.partition(".")[0], name):
        raise MessageError(f"KV key {key} holds a {name}")
    return decoded


def check_value_size(key: str, size_bytes: int, most_bytes: int) -> None:
    """Raises MessageError: values aren't split, each is one message that replaces the one before."""
    if size_bytes > most_bytes:
        raise MessageError(
            f"value of {size_bytes} bytes for KV key {key} is over max_message_bytes or the server's max_payload: "
            f"{most_bytes} bytes fit"
        )


def key_patterns(topology: Topology, prefix: str) -> list[str]:
    """The subjects of the keys below `prefix`, see `Kv.watch`."""
    root = topology.kv_prefix
    if not prefix or prefix.endswith("."):
        return [f"{root}{prefix}>"]
    return [f"{root}{prefix}", f"{root}{prefix}.>"]


class NatsKv:
    """`Kv` as a JetStream stream with one message per key."""

    def __init__(
        self, link: Link, topology: Topology, publisher: Publisher, dead_letters: NatsDeadLetters,
        *, producer: str,
    ) -> None:  # fmt: skip
        self._link = link
        self._topology = topology
        self._publisher = publisher
        self._dead_letters = dead_letters
        self._producer = producer

    async def get(self, key: str) -> KvEntry | None:
        stored = await self._tail(key)
        if stored is None or is_marker(stored):
            return None
        return KvEntry(key, self._admit(stored).message, stored.sequence)

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
        await self._store(PROBE_KEY, b"", f"kv/{uuid.uuid4()}", None, headers, deadline_s)

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
            except (NoAnswerError, ApiError, ConsumerLostError) as exc:
                log.debug("bus.watch_restarts", extra={"prefix": prefix, "why": str(exc)})
                await asyncio.sleep(RETRY_S)

    async def _watch_once(self, prefix: str, known: dict[str, int]) -> AsyncGenerator[KvUpdate, None]:
        """One consumer's life; `known` holds the revision of every key that was told and is there."""
        session = await self._link.session()
        unseen, caught_up = set(known), False
        patterns, newest = key_patterns(self._topology, prefix), {"deliver_policy": "last_per_subject"}
        async with aclosing(consume(session, self._topology.kv, patterns, newest)) as messages:
            async for raw in messages:
                if raw is not None:
                    key = raw.stored.subject.removeprefix(self._topology.kv_prefix)
                    unseen.discard(key)
                    if (update := await self._update(key, raw, known)) is not None:
                        yield update
                if not caught_up and (raw is None or raw.pending == 0):
                    caught_up = True
                    for key in unseen:
                        yield KvUpdate(key, None, known.pop(key))
                    yield KvUpdate("", None, 0)

    async def _update(self, key: str, raw: Raw, known: dict[str, int]) -> KvUpdate | None:
        stored = raw.stored
        if is_marker(stored):
            return KvUpdate(key, None, stored.sequence) if known.pop(key, None) is not None else None
        try:
            message = self._admit(stored).message
        except MessageError as exc:
            await self._dead_letters.add(
                stream=self._topology.kv, subject=stored.subject, sequence=stored.sequence, data=stored.data,
                reason=str(exc),
            )  # fmt: skip
            return None
        known[key] = stored.sequence
        mirrored = self._topology.row_of_stream[self._topology.kv].mirror is not None  # times are another server's
        return KvUpdate(key, message, stored.sequence, 0.0 if mirrored else raw.age_s)

    def _admit(self, stored: Stored) -> Decoded:
        return admit_value(stored, self._topology)

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
        if not self._topology.at_home and not key.startswith("member."):
            raise BusError(
                f"KV key {key} can't be written in region {self._topology.region}, only at the run's hub "
                f"(region {self._topology.home})"
            )
        most = part_size(self._link, self._topology.limits.max_message_bytes)
        check_value_size(key, len(data), most)
        try:
            ack = await self._publisher.store(
                subject, data, stream=self._topology.kv, msg_id=msg_id, headers=headers, expected=expected,
                deadline_s=deadline_s,
            )  # fmt: skip
        except FencedError:
            tail = await self._tail(key) if expected == 0 else None
            if tail is None or not is_marker(tail):
                raise
            return await self._store(
                key, data, msg_id, tail.sequence, headers, deadline_s
            )  # absent, though not for the server
        return ack.sequence

    async def _tail(self, key: str) -> Stored | None:
        subject = self._topology.kv_subject(key)
        return await until_answered(
            self._link, lambda session: read_stored(session, self._topology.kv, last_by_subj=subject)
        )
