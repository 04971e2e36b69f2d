"""Byte strings as parts of about 512 KiB on a stream, each found by its digest (weights, snapshots, split messages).

The contract is `interface.Parts`. It knows nothing of what the bytes mean. Invariant: `get` returns exactly the bytes
whose digests were asked for, or raises WeightsError that names the part. (nats-py's object store reads quadratically.)
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from astraflow.bus.link import Link
from astraflow.bus.publish import Publisher
from astraflow.bus.session import SEQUENCE, SUBJECT
from astraflow.concurrency import in_parallel
from astraflow.errors import BusError, LinkLostError, NoAnswerError, WeightsError
from astraflow.messages import PartRef

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_HEADROOM_BYTES = 4096  # for subject and headers: over max_payload the server ends the connection
WORKERS = 12  # parts under way
RETRY_S = 0.05


def part_size(link: Link, max_message_bytes: int) -> int:
    """Bytes that go into one message on this server."""
    return min(max_message_bytes, link.max_payload_bytes - _HEADROOM_BYTES)


def cut(data: bytes | memoryview, size_bytes: int) -> Iterator[memoryview]:
    """Consecutive views of `data`, all but the last one `size_bytes` long."""
    view = memoryview(data).cast("B")
    return (view[start : start + size_bytes] for start in range(0, len(view), size_bytes))


class NatsParts:
    """`Parts`: puts and gets byte strings, several parts at a time, hashing off the loop."""

    def __init__(self, link: Link, publisher: Publisher, *, max_message_bytes: int) -> None:
        self._link = link
        self._publisher = publisher
        self._max_message_bytes = max_message_bytes

    async def put(
        self,
        stream: str,
        subject: str,
        data: bytes | memoryview,
        *,
        msg_prefix: str,
        headers: dict[str, str] | None = None,
        deadline_s: float | None = None,
    ) -> tuple[PartRef, ...]:
        """`headers` go with every part."""
        size = part_size(self._link, self._max_message_bytes)
        pieces = list(cut(data, size))
        refs: list[PartRef | None] = [None] * len(pieces)
        sent: set[str] = set()
        call = f"{msg_prefix}/{secrets.token_hex(6)}"

        async def put_one(index: int) -> None:
            piece = pieces[index]
            digest = await asyncio.to_thread(digest_of, piece)
            refs[index] = PartRef(digest=digest, size_bytes=len(piece))
            if digest not in sent:
                sent.add(digest)
                await self._publisher.store(
                    f"{subject}.{digest}",
                    piece,
                    stream=stream,
                    msg_id=f"{call}/{digest}",
                    headers=headers,
                    deadline_s=deadline_s,
                )

        await in_parallel(range(len(pieces)), put_one, workers=WORKERS)
        return tuple(ref for ref in refs if ref is not None)

    async def get(self, stream: str, subject: str, parts: Sequence[PartRef]) -> bytearray:
        data = bytearray(sum(part.size_bytes for part in parts))
        view = memoryview(data)
        places: list[tuple[PartRef, int]] = []
        offset = 0
        for part in parts:
            places.append((part, offset))
            offset += part.size_bytes

        async def get_one(place: tuple[PartRef, int]) -> None:
            part, start = place
            piece = await self._fetch(stream, f"{subject}.{part.digest}")
            whole = await asyncio.to_thread(checked, part, piece, stream, subject)
            view[start : start + len(whole)] = whole

        await in_parallel(places, get_one, workers=WORKERS)
        return data

    async def get_run(self, stream: str, subject: str, parts: Sequence[PartRef], *, first_sequence: int) -> bytes:
        """The bytes of `parts` that stand one behind the other in a log. Raises WeightsError. It holds no more than
        what is stored there."""
        pieces: list[bytes] = [b""] * len(parts)

        async def get_one(index: int) -> None:
            part, sequence = parts[index], first_sequence + index
            msg = await self._ask(stream, "", json.dumps({"seq": sequence}).encode()) if sequence > 0 else None
            named = (msg.headers or {}).get(SUBJECT, "") if msg is not None else ""
            if msg is None or named != f"{subject}.{part.digest}" or len(msg.data) != part.size_bytes:
                raise WeightsError(f"part {part.digest} of {subject} isn't at {sequence} in stream {stream}")
            if await asyncio.to_thread(digest_of, msg.data) != part.digest:
                raise WeightsError(f"part {part.digest} of {subject} at {sequence} in stream {stream} is damaged")
            pieces[index] = msg.data

        await in_parallel(range(len(parts)), get_one, workers=WORKERS)
        return b"".join(pieces)

    async def _fetch(self, stream: str, subject: str) -> bytes | None:
        msg = await self._ask(stream, f".{subject}", b"")
        return msg.data if msg is not None else None

    async def _ask(self, stream: str, subject: str, request: bytes) -> "Msg | None":
        """One stored message; None if there is none."""
        while True:
            session = await self._link.session()
            try:
                msg = await session.request(f"{session.api_prefix}.DIRECT.GET.{stream}{subject}", request)
            except LinkLostError:
                continue
            except NoAnswerError:
                await asyncio.sleep(RETRY_S)
                continue
            headers = msg.headers or {}
            if SEQUENCE in headers:  # a message, whatever its sender put into its headers
                return msg
            if headers.get("Status") == "404":
                return None
            raise BusError(f"nats-server refused a read of {subject or request!r} in {stream}: {headers}")


def checked(part: PartRef, piece: bytes | None, stream: str, subject: str) -> bytes:
    """The piece, if it is that part. Raises WeightsError if it is missing or damaged. Blocking."""
    if piece is None:
        raise WeightsError(f"part {part.digest} of {subject} isn't in stream {stream}: purged or never sent")
    if len(piece) != part.size_bytes or digest_of(piece) != part.digest:
        raise WeightsError(
            f"part {part.digest} of {subject} in stream {stream} is damaged: {len(piece)} bytes, expected "
            f"{part.size_bytes} with that digest"
        )
    return piece


def digest_of(piece: bytes | memoryview) -> str:
    """A part's name."""
    return hashlib.sha256(piece).hexdigest()
