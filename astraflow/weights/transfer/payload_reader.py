"""Reads the payload of a version from wherever its manifest says that it is, verified part by part.

Places (file, http) come first, then the log; what one place gave is kept when the next one goes on. It plans nothing
and unpacks nothing. Invariant: `payload` returns bytes that match the manifest's digests, or raises WeightsError.
"""

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from astraflow.bus import Bus
from astraflow.concurrency import in_parallel
from astraflow.errors import PlaceError, WeightsError
from astraflow.messages import Manifest, PartRef, Place
from astraflow.weights.transfer.range_reader import ReadRange, range_reader

SPAN_BYTES = 16 << 20  # read from a place in one go
WORKERS = 3  # spans under way


@dataclass(frozen=True)
class Span:
    """Consecutive parts, and where they start in the payload."""

    start: int
    parts: tuple[PartRef, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def _spans_of(parts: Sequence[PartRef]) -> Iterator[Span]:
    """The whole payload in spans of about SPAN_BYTES."""
    start, size, chosen = 0, 0, list[PartRef]()
    for part in parts:
        chosen.append(part)
        size += part.size_bytes
        if size >= SPAN_BYTES:
            yield Span(start, tuple(chosen))
            start, size, chosen = start + size, 0, []
    if chosen:
        yield Span(start, tuple(chosen))


class PayloadReader:
    """Payloads of one policy's versions."""

    def __init__(self, bus: Bus, policy: str) -> None:
        self._bus = bus
        self._stream = bus.topology.weights(policy)

    async def payload(self, manifest: Manifest) -> bytearray:
        """The bytes of a version. Raises WeightsError, in one sentence about every place that was tried."""
        if not manifest.places:
            return await self._from_log(manifest, manifest.parts)
        data = bytearray(sum(part.size_bytes for part in manifest.parts))
        missing, faults = list(_spans_of(manifest.parts)), list[str]()
        for place in manifest.places:
            try:
                await fill(place, missing, memoryview(data), len(data))
                return data
            except PlaceError as exc:
                faults.append(str(exc))
        what = f"full version {manifest.version} of {manifest.policy}"
        if not manifest.parts_stored:
            raise WeightsError(f"{what} is not on the bus, and {'; '.join(faults)}")
        text = f"{what} is read from the bus: {'; '.join(faults)}"
        await self._bus.event("warning", "weights-from-bus", text, version=manifest.version)
        for span in missing:
            piece = await self._from_log(manifest, span.parts)
            data[span.start : span.start + len(piece)] = piece
        return data

    async def copies(self, manifest: Manifest) -> dict[str, str]:
        """Every place of a payload, and the log if it is there, with what is wrong with it; "" = it is whole."""
        found: dict[str, str] = {}
        data = bytearray(sum(part.size_bytes for part in manifest.parts))
        for place in manifest.places:
            found[place.transport] = ""
            try:
                await fill(place, list(_spans_of(manifest.parts)), memoryview(data), len(data))
            except PlaceError as exc:
                found[place.transport] = str(exc)
        if manifest.parts_stored:
            found["nats"] = ""
            try:
                await self._from_log(manifest, manifest.parts)
            except WeightsError as exc:
                found["nats"] = str(exc)
        return found

    async def _from_log(self, manifest: Manifest, parts: Sequence[PartRef]) -> bytearray:
        subject = self._bus.topology.weight_part(manifest.policy, manifest.epoch)
        return await self._bus.parts.get(self._stream, subject, parts)


async def fill(place: Place, missing: list[Span], data: memoryview, size_bytes: int) -> None:
    """Read the spans that are missing; those that were read and verified are taken out of `missing`.

    Raises: PlaceError, with the first fault, if some are left.
    """
    read, stop, faults = range_reader(place, size_bytes), threading.Event(), list[PlaceError]()

    async def one(span: Span) -> None:
        if faults:
            return
        try:
            view = data[span.start : span.start + span.size_bytes]
            await asyncio.to_thread(partial(_read_span, read, place, span, view, stop))
            missing.remove(span)
        except PlaceError as exc:  # the others end by themselves: a thread can't be cancelled, and it writes into data
            faults.append(exc)
            stop.set()

    try:
        await in_parallel(list(missing), one, workers=WORKERS)
    finally:
        stop.set()
    if faults:
        raise faults[0]


def _read_span(read: ReadRange, place: Place, span: Span, view: memoryview, stop: threading.Event) -> None:
    read(span.start, view, stop)
    if stop.is_set():
        raise PlaceError(f"{place.address} was given up")
    offset = 0
    for part in span.parts:
        piece = view[offset : offset + part.size_bytes]
        if hashlib.sha256(piece).hexdigest() != part.digest:
            raise PlaceError(f"{place.transport} {place.address} is damaged near byte {span.start + offset}")
        offset += part.size_bytes
