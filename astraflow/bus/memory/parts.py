"""Byte strings as parts in memory, and messages that are too big for one.

The contract is `interface.Parts`. Invariant: the parts of a message of a log stand right before its claim; those of a
task or request are in BLOBS, and go when it is acked.
"""

import asyncio
import secrets
from collections.abc import Sequence

from astraflow.bus.admit import admit
from astraflow.bus.claims import (
    CLAIM,
    TASK_BLOB_TTL_S,
    TTL_MARGIN_S,
    Claim,
    blob_owner,
    check_size,
    encode_claim,
    parts_of,
    row_of,
    whole_seconds,
)
from astraflow.bus.entries import PublishAck
from astraflow.bus.memory.publish import MemoryPublisher
from astraflow.bus.memory.server import MemoryServer
from astraflow.bus.memory.stream import NewMessage
from astraflow.bus.names import PART
from astraflow.bus.parts import checked, cut, digest_of
from astraflow.bus.publish import MSG_ID, Stored
from astraflow.bus.topology import Topology
from astraflow.errors import MessageError, WeightsError
from astraflow.messages import PartRef


class MemoryParts:
    """`Parts` in memory; also stores and joins split messages."""

    def __init__(self, server: MemoryServer, topology: Topology, publisher: MemoryPublisher) -> None:
        self._server = server
        self._topology = topology
        self._publisher = publisher
        self._part_bytes = topology.limits.max_message_bytes

    async def put(
        self,
        stream: str,
        subject: str,
        data: bytes | memoryview,
        *,
        msg_prefix: str,
        ttl_s: float | None = None,
        deadline_s: float | None = None,
    ) -> tuple[PartRef, ...]:
        refs: dict[PartRef, bytes] = {}
        order = []
        for piece in cut(data, self._part_bytes):
            order.append(PartRef(digest=digest_of(piece), size_bytes=len(piece)))
            refs[order[-1]] = bytes(piece)
        call = f"{msg_prefix}/{secrets.token_hex(6)}"
        for ref, piece_of in refs.items():
            msg_id = f"{call}/{ref.digest}"
            part = NewMessage(subject=f"{subject}.{ref.digest}", data=piece_of, headers={MSG_ID: msg_id}, ttl_s=ttl_s)
            await self._publisher.store(stream, [part], msg_id=msg_id, deadline_s=deadline_s)
        return tuple(order)

    async def get(self, stream: str, subject: str, parts: Sequence[PartRef]) -> bytearray:
        await asyncio.sleep(0)  # as every round trip, a turn for others
        return self._whole(stream, subject, parts)

    def _whole(self, stream: str, subject: str, parts: Sequence[PartRef]) -> bytearray:
        data = bytearray()
        for part in parts:
            stored = self._server.there(stream).last(f"{subject}.{part.digest}")
            data += checked(part, None if stored is None else stored.data, stream, subject)
        return data

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str,
        ttl_s: float | None = None,
        expected: int | None = None,
        deadline_s: float | None = None,
    ) -> PublishAck:
        """Store a message, split if it must be. Raises as `Bus.publish`.

        What has its id and isn't a message of that id counts as a stranger's: it is stored beside that.
        """
        ack = await self._store(subject, data, msg_id, ttl_s, expected, deadline_s)
        if ack.duplicate and expected is None and not self._is_message(subject, msg_id, ack.sequence):
            ack = await self._store(subject, data, f"{msg_id}/{secrets.token_hex(8)}", ttl_s, expected, deadline_s)
        return ack

    def _is_message(self, subject: str, msg_id: str, sequence: int) -> bool:
        """Whether what is stored there is the message with this id, or is gone as such a message goes."""
        row = self._topology.row_of(subject)
        stored = self._server.there(row.stream).get(sequence)
        if stored is None or row.queue:
            return True
        try:
            message = admit(self.joined(stored), row=row, run=self._topology.run)
            return stored.subject == subject and message.envelope.id == msg_id
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
        headers: dict[str, str] = {MSG_ID: msg_id}
        pieces: list[NewMessage] = []
        if len(data) > self._part_bytes:
            check_size(len(data), self._part_bytes, row=row, msg_id=msg_id, subject=subject)
            headers[CLAIM] = "1"
            if row.atomic:
                data, pieces = self._split(subject, data)
            else:
                data = await self._put_blobs(data, msg_id, ttl_s, deadline_s)
        life_s = None if ttl_s is None else whole_seconds(ttl_s)
        whole = NewMessage(subject=subject, data=data, headers=headers, ttl_s=life_s)
        return await self._publisher.store(
            row.stream, [*pieces, whole], msg_id=msg_id, expected=expected, deadline_s=deadline_s
        )

    def _split(self, subject: str, data: bytes) -> tuple[bytes, list[NewMessage]]:
        """The claim and the parts of a message of a log."""
        pieces = [
            NewMessage(subject=f"{subject}.{PART}.{digest_of(piece)}", data=bytes(piece))
            for piece in cut(data, self._part_bytes)
        ]
        digests = tuple(bytes.fromhex(piece.subject.rpartition(".")[2]) for piece in pieces)
        return encode_claim(Claim(size_bytes=len(data), part_bytes=self._part_bytes, digests=digests)), pieces

    async def _put_blobs(self, data: bytes, msg_id: str, ttl_s: float | None, deadline_s: float | None) -> bytes:
        """The claim of a task or request whose parts are stored."""
        refs = await self.put(
            self._topology.blobs,
            self._topology.blob(blob_owner(msg_id)),
            data,
            msg_prefix=f"blob/{msg_id}",
            ttl_s=TASK_BLOB_TTL_S if ttl_s is None else ttl_s + TTL_MARGIN_S,
            deadline_s=deadline_s,
        )
        digests = tuple(bytes.fromhex(ref.digest) for ref in refs)
        return encode_claim(Claim(size_bytes=len(data), part_bytes=self._part_bytes, digests=digests))

    def joined(self, stored: Stored) -> bytes:
        """The whole message. Raises MessageError if it is a claim that is malformed or whose parts are gone."""
        if CLAIM not in stored.headers:
            return stored.data
        row = row_of(stored.subject, self._topology)
        refs = parts_of(stored.data, row)
        try:
            if row.atomic:  # by position, as on a server
                return self._run(row.stream, f"{stored.subject}.{PART}", refs, stored.sequence - len(refs))
            return bytes(self._whole(self._topology.blobs, self._blobs_of(stored), refs))
        except WeightsError as exc:
            raise MessageError(f"a split message on {stored.subject} can't be joined: {exc}") from exc

    def _run(self, stream: str, subject: str, parts: Sequence[PartRef], first_sequence: int) -> bytes:
        """The bytes of `parts` that stand one behind the other in a log. Raises WeightsError."""
        pieces = []
        for sequence, part in enumerate(parts, start=first_sequence):
            stored = self._server.there(stream).get(sequence)
            named = stored is not None and stored.subject == f"{subject}.{part.digest}"
            pieces.append(checked(part, stored.data if named and stored is not None else None, stream, subject))
        return b"".join(pieces)

    def forget(self, stored: Stored) -> None:
        """Delete the parts of an acked task or request. Does nothing for a whole message."""
        if CLAIM in stored.headers:
            blobs = self._server.there(self._topology.blobs)
            for sequence in blobs.matching([f"{self._blobs_of(stored)}.*"], start=1):
                blobs.remove(sequence)

    def _blobs_of(self, stored: Stored) -> str:
        """What the subjects of a task's or request's parts begin with."""
        return self._topology.blob(blob_owner(stored.message_id))
