"""Messages of any size: what is too big for one message becomes parts and a claim, and whole again for the reader.

It doesn't interpret the message. Invariants: a claim is never stored before its parts; in a log they are stored in one
atomic batch, so that nothing stands between them and a purge below any other message never separates them; the parts of
a task or request are in BLOBS under a name derived from its id, and go when it is acked.
"""

import asyncio
import hashlib
import logging
import math
import secrets

import msgspec

from astraflow.bus.admit import admit
from astraflow.bus.entries import PublishAck
from astraflow.bus.link import Link
from astraflow.bus.names import PART
from astraflow.bus.parts import NatsParts, cut, part_size
from astraflow.bus.publish import (
    DUPLICATE_IN_BATCH,
    EXPECTED,
    MSG_ID,
    TTL,
    Publisher,
    Stored,
    read_stored,
)
from astraflow.bus.retry import until_answered
from astraflow.bus.session import Session
from astraflow.bus.topology import Topology
from astraflow.bus.wiring import DAY_S, Row
from astraflow.errors import BusError, ConfigError, ConflictError, MessageError, WeightsError
from astraflow.messages import PartRef

log = logging.getLogger(__name__)

CLAIM = "Af-Claim"  # header that marks a claim
_BATCH_ID, _BATCH_SEQUENCE, _BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
_MAX_PARTS = 999  # the server takes 1,000 messages in an atomic batch
TASK_BLOB_TTL_S = 30 * DAY_S  # only for blobs that were orphaned by a crash
TTL_MARGIN_S = 60.0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Stands for a split message; its parts are found by digest."""

    size_bytes: int
    part_bytes: int  # of every part but the last
    digests: tuple[bytes, ...]  # sha256, in order


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Claim)


def whole_seconds(ttl_s: float) -> int:
    """A message's time to live, rounded up: the server takes no fractions."""
    return max(1, math.ceil(ttl_s))


def ttl_header(ttl_s: float) -> dict[str, str]:
    """A message's time to live."""
    return {TTL: f"{whole_seconds(ttl_s)}s"}


def encode_claim(claim: Claim) -> bytes:
    """What `_read_claim` reads."""
    return _encoder.encode(claim)


def first_sequence(stored: Stored) -> int:
    """Where a message of a log begins: at its first part, if it is split. Raises MessageError for a bad claim."""
    if CLAIM not in stored.headers:
        return stored.sequence
    return stored.sequence - len(_read_claim(stored.data).digests)


def check_size(size_bytes: int, part_bytes: int, *, row: Row, msg_id: str, subject: str) -> None:
    """Raises MessageError for a message that is too big even for parts of that size."""
    most = min(row.max_whole_bytes, _MAX_PARTS * part_bytes)
    if size_bytes > most:
        raise MessageError(f"{msg_id} for {subject} has {size_bytes} bytes, at most {most} fit")


def parts_of(data: bytes, row: Row) -> list[PartRef]:
    """The parts that a claim in `row`'s stream stands for, in order. Raises MessageError for a bad claim."""
    claim = _read_claim(data)
    if claim.size_bytes > row.max_whole_bytes:
        raise MessageError(f"claim of {claim.size_bytes} bytes in {row.stream}, at most {row.max_whole_bytes}")
    sizes = [claim.part_bytes] * (len(claim.digests) - 1)
    sizes.append(claim.size_bytes - sum(sizes))
    return [PartRef(digest=digest.hex(), size_bytes=size) for digest, size in zip(claim.digests, sizes, strict=True)]


def row_of(subject: str, topology: Topology) -> Row:
    """Raises MessageError for a subject that no stream has: a reader may get any."""
    try:
        return topology.row_of(subject)
    except ConfigError as exc:
        raise MessageError(str(exc)) from exc


def blob_owner(msg_id: str) -> str:
    """Whose the parts of a split task or request are, in BLOBS."""
    return hashlib.sha256(msg_id.encode()).hexdigest()[:32]


class Claims:
    """Stores and re-joins messages, whole or split."""

    def __init__(self, link: Link, topology: Topology, publisher: Publisher, parts: NatsParts) -> None:
        self._link = link
        self._topology = topology
        self._publisher = publisher
        self._parts = parts

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str,
        ttl_s: float | None,
        expected: int | None,
        deadline_s: float | None,
    ) -> PublishAck:
        """Store a message, split if it must be. Raises like `Publisher.store`, and MessageError if it is too big.

        What has its id and isn't a message of that id counts as a stranger's: it is stored beside that.
        """
        ack = await self._store(subject, data, msg_id, ttl_s, expected, deadline_s)
        if ack.duplicate and expected is None and not await self._is_message(subject, msg_id, ack.sequence):
            log.warning("bus.id_taken", extra={"subject": subject, "id": msg_id, "sequence": ack.sequence})
            ack = await self._store(subject, data, f"{msg_id}/{secrets.token_hex(8)}", ttl_s, expected, deadline_s)
        return ack

    async def _is_message(self, subject: str, msg_id: str, sequence: int) -> bool:
        """Whether what is stored there is the message with this id, or is gone as such a message goes."""
        row = self._topology.row_of(subject)
        stored = await until_answered(self._link, lambda session: read_stored(session, row.stream, seq=sequence))
        if stored is None or row.queue:  # of a queue it may be acked between the two looks; only its owner writes there
            return True
        try:
            data = await self.join(stored.subject, stored.headers, stored.data, sequence=sequence)
            return stored.subject == subject and admit(data, row=row, run=self._topology.run).envelope.id == msg_id
        except MessageError:
            return False

    async def _store(
        self,
        subject: str,
        data: bytes,
        msg_id: str,
        ttl_s: float | None,
        expected: int | None,
        deadline_s: float | None,
    ) -> PublishAck:
        row = self._topology.row_of(subject)
        size = part_size(self._link, self._topology.limits.max_message_bytes)
        headers = ttl_header(ttl_s) if ttl_s is not None else {}
        if len(data) <= size:
            return await self._publisher.store(
                subject,
                data,
                stream=row.stream,
                msg_id=msg_id,
                headers=headers,
                expected=expected,
                deadline_s=deadline_s,
            )
        check_size(len(data), size, row=row, msg_id=msg_id, subject=subject)
        if row.atomic:
            return await self._store_atomic(row, subject, data, size, msg_id, expected, deadline_s)
        return await self._store_with_blobs(row, subject, data, size, msg_id, headers, ttl_s, deadline_s)

    async def join(self, subject: str, headers: dict[str, str], data: bytes, *, sequence: int) -> bytes:
        """The whole message. `sequence`: the stream's own, of what may be a claim.

        Raises MessageError if it is a claim that is malformed or whose parts are gone.
        """
        if CLAIM not in headers:
            return data
        row = row_of(subject, self._topology)
        refs = parts_of(data, row)
        try:
            if row.atomic:  # by position: who names one stored part many times must have stored it as often
                first = sequence - len(refs)
                return await self._parts.get_run(row.stream, f"{subject}.{PART}", refs, first_sequence=first)
            return bytes(await self._parts.get(self._topology.blobs, self._blob_prefix(headers.get(MSG_ID, "")), refs))
        except WeightsError as exc:
            raise MessageError(f"a split message on {subject} can't be joined: {exc}") from exc

    async def forget(self, headers: dict[str, str]) -> None:
        """Delete the parts of an acked task or request. Does nothing for a whole message."""
        if CLAIM in headers:
            session = await self._link.session()
            prefix = self._blob_prefix(headers.get(MSG_ID, ""))
            await session.api(f"STREAM.PURGE.{self._topology.blobs}", {"filter": f"{prefix}.*"})

    def _blob_prefix(self, msg_id: str) -> str:
        return self._topology.blob(blob_owner(msg_id))

    async def _store_with_blobs(
        self,
        row: Row,
        subject: str,
        data: bytes,
        size: int,
        msg_id: str,
        headers: dict[str, str],
        ttl_s: float | None,
        deadline_s: float | None,
    ) -> PublishAck:
        blob_headers = ttl_header(TASK_BLOB_TTL_S if ttl_s is None else ttl_s + TTL_MARGIN_S)
        refs = await self._parts.put(
            self._topology.blobs,
            self._blob_prefix(msg_id),
            data,
            msg_prefix=f"blob/{msg_id}",
            headers=blob_headers,
            deadline_s=deadline_s,
        )
        claim = Claim(
            size_bytes=len(data), part_bytes=refs[0].size_bytes, digests=tuple(bytes.fromhex(r.digest) for r in refs)
        )
        return await self._publisher.store(
            subject,
            encode_claim(claim),
            stream=row.stream,
            msg_id=msg_id,
            headers={**headers, CLAIM: "1"},
            deadline_s=deadline_s,
        )

    async def _store_atomic(
        self,
        row: Row,
        subject: str,
        data: bytes,
        size: int,
        msg_id: str,
        expected: int | None,
        deadline_s: float | None,
    ) -> PublishAck:
        pieces = list(cut(data, size))
        digests = await asyncio.to_thread(lambda: [hashlib.sha256(piece).digest() for piece in pieces])
        claim = encode_claim(Claim(size_bytes=len(data), part_bytes=size, digests=tuple(digests)))
        headers = {CLAIM: "1", MSG_ID: msg_id}
        if expected is not None:
            headers[EXPECTED] = str(expected)

        async def attempt(session: Session) -> PublishAck:
            batch = secrets.token_hex(12)
            for number, (piece, digest) in enumerate(zip(pieces, digests, strict=True), start=1):
                await session.send(
                    f"{subject}.{PART}.{digest.hex()}",
                    piece,
                    headers={_BATCH_ID: batch, _BATCH_SEQUENCE: str(number)},
                )
            commit = {_BATCH_ID: batch, _BATCH_SEQUENCE: str(len(pieces) + 1), _BATCH_COMMIT: "1", **headers}
            msg = await session.request(subject, claim, headers=commit)
            try:
                return self._publisher.acked(msg.data, subject)
            except ConflictError as exc:
                if exc.err_code == DUPLICATE_IN_BATCH:
                    return await self._stored_before(session, row, subject, msg_id)
                return await self._publisher.own_tail(session, row.stream, subject, msg_id, expected)

        return await self._publisher.persist(len(data), attempt, what=f"{msg_id} for {subject}", deadline_s=deadline_s)

    async def _stored_before(self, session: Session, row: Row, subject: str, msg_id: str) -> PublishAck:
        """Where the message with this id is: the server refuses the id in a batch without saying where it has it."""
        msg = await session.request(subject, b"", headers={MSG_ID: msg_id, CLAIM: "1"})
        ack = self._publisher.acked(msg.data, subject)
        if not ack.duplicate:  # the duplicate window ended between the two requests
            await session.api(f"STREAM.MSG.DELETE.{row.stream}", {"seq": ack.sequence})
            raise BusError(f"{msg_id} for {subject} may have been stored long ago; it isn't stored again")
        return ack


def _read_claim(data: bytes) -> Claim:
    """Raises MessageError for one that is impossible."""
    try:
        claim = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise MessageError(f"claim of {len(data)} bytes can't be decoded: {exc}") from exc
    parts = len(claim.digests)
    fits = claim.part_bytes > 0 and (parts - 1) * claim.part_bytes < claim.size_bytes <= parts * claim.part_bytes
    if not (0 < parts <= _MAX_PARTS and claim.size_bytes <= _MAX_PARTS * claim.part_bytes and fits):
        raise MessageError(f"claim of {claim.size_bytes} bytes in {parts} parts of {claim.part_bytes} is impossible")
    if any(len(digest) != 32 for digest in claim.digests):
        raise MessageError("claim has a digest that isn't a sha256")
    return claim
