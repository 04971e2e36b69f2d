"""The replica's side of the weights: follow the head and keep a verified copy of the newest version in host memory.

It never touches an engine, but remembers in which elements one may be behind (`behind`).
Invariant: `shadow` always holds one whole, verified version; what can't be read or verified raises WeightsError and
leaves it as it was.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from astraflow import clock
from astraflow.bus import Bus, wiring
from astraflow.errors import MessageError, WeightsError
from astraflow.messages import FileEntry, Head, Manifest, Probe, VersionKind
from astraflow.weights.codec.changes import Behind
from astraflow.weights.codec.delta import decode
from astraflow.weights.codec.differences import SparseUpdate, check_same_model, combine
from astraflow.weights.codec.host_copy import HostCopy, apply_chain
from astraflow.weights.transfer.full_payload import split_payload, unpack_full
from astraflow.weights.transfer.payload_reader import PayloadReader
from astraflow.weights.transfer.update_plan import Path, plan


async def follow_heads(bus: Bus, policy: str) -> AsyncGenerator[Head, None]:
    """The policy's head, now and whenever it moves, once what it points to is here; `ready_s` is as of then.

    Leave it only inside `aclosing`.
    """
    async with aclosing(bus.kv.watch(wiring.HEAD.key(policy))) as updates:
        async for update in updates:
            if isinstance(update.message, Head):
                heard_at, head = clock.monotonic(), update.message
                await bus.logs.reached(bus.topology.weights(policy), head.manifest_sequence)
                age_s = update.age_s + clock.monotonic() - heard_at
                yield msgspec.structs.replace(head, ready_s=head.ready_s + age_s)


async def first_head(bus: Bus, policy: str) -> Head:
    """The policy's head, waiting for the first one if there is none yet."""
    async with aclosing(follow_heads(bus, policy)) as heads:
        return await anext(heads)


@dataclass(frozen=True, kw_only=True)
class Advance:
    """How a shadow came to a head."""

    head: Head  # the one asked for, or a newer one
    fetched_bytes: int
    transfer_s: float
    verify_s: float  # decoding and applying included


class WeightFollower:
    """One policy's weights, as of the last head that it advanced to.

    Attributes:
        shadow: None until the first advance.
        behind: where a copy of the model may differ from the shadow; who has made it equal clears this.
    """

    def __init__(self, bus: Bus, policy: str) -> None:
        self._bus = bus
        self._policy = policy
        self._stream = bus.topology.weights(policy)
        self._reader = PayloadReader(bus, policy)
        self.shadow: HostCopy | None = None
        self.behind = Behind()

    async def advance(self, head: Head, *, afresh: bool = False, exactly: bool = False) -> Advance:
        """Move the shadow to `head`, or to a newer one if parts were purged meanwhile.

        Args:
            afresh: don't trust the shadow: start from a full, and everything counts as changed.
            exactly: not to a newer one.

        Raises: WeightsError if a part or manifest is gone or damaged, or the version does not fit the model.
        """
        while True:
            try:
                return await self._advance(head, afresh=afresh)
            except WeightsError:
                newer = await self._bus.kv.get(wiring.HEAD.key(self._policy))
                if exactly or newer is None or not isinstance(newer.message, Head) or not _later(newer.message, head):
                    raise
                head = newer.message

    async def _advance(self, head: Head, *, afresh: bool) -> Advance:
        started = clock.monotonic()
        have = None if afresh or self.shadow is None else self.shadow.version
        if have is not None and have >= head.version:  # told twice, or late
            return Advance(head=head, fetched_bytes=0, transfer_s=0.0, verify_s=0.0)
        path = await plan(head, have, self._read)
        payloads = [await self._reader.payload(manifest) for manifest in path.deltas]
        full = bytearray() if path.full is None else await self._reader.payload(path.full)
        fetched = clock.monotonic()
        if path.full is not None:
            new = await asyncio.to_thread(_rebuilt, path, full, payloads)
            await self._replace(new, afresh=afresh)
        elif path.deltas:
            assert self.shadow is not None, "a chain starts from the shadow"
            updates = await asyncio.to_thread(_apply, path.deltas, payloads, self.shadow)
            self.behind.add(updates)
        return Advance(
            head=head,
            fetched_bytes=path.size_bytes,
            transfer_s=fetched - started,
            verify_s=clock.monotonic() - fetched,
        )

    async def _replace(self, new: HostCopy, *, afresh: bool) -> None:
        old = self.shadow
        if old is not None:
            check_same_model(old.tensors, new.tensors)  # an engine couldn't see that a tensor is missing
        self.shadow = new
        if afresh or old is None:
            self.behind.add_whole(new.tensors)
        else:
            await asyncio.to_thread(self.behind.add_difference, old, new)

    async def _read(self, sequence: int) -> Manifest | None:
        try:
            entry = await self._bus.logs.entry(self._stream, sequence)
        except MessageError as exc:
            raise WeightsError(f"the manifest at {sequence} of {self._stream} can't be read: {exc}") from exc
        if entry is not None and not isinstance(entry.message, Manifest):
            raise WeightsError(f"there is no manifest at {sequence} of {self._stream}")
        return entry.message if entry is not None else None

    async def files(self, head: Head) -> dict[str, bytes]:
        """config.json, tokenizer and chat template, verified; they travel with the newest full."""
        manifest = await self._read(head.full_manifest_sequence)
        if manifest is None:
            raise WeightsError(f"the full that version {head.version} of {self._policy} starts from is gone")
        return {entry.name: await self._file(manifest, entry) for entry in manifest.files}

    async def probe(self, head: Head) -> Probe | None:
        """What its publisher's learner made of this version; None if it can't be known any more."""
        manifest = await self._read(head.manifest_sequence)
        return manifest.probe if manifest is not None else None

    async def _file(self, manifest: Manifest, entry: FileEntry) -> bytes:
        subject = self._bus.topology.weight_part(manifest.policy, manifest.epoch)
        data = bytes(await self._bus.parts.get(self._stream, subject, entry.parts))
        if (
            await asyncio.to_thread(hashlib.sha256, data)
        ).hexdigest() != entry.digest:  # a tokenizer.json has megabytes
            raise WeightsError(f"file {entry.name} of version {manifest.version} does not match its digest")
        return data


def _later(newer: Head, than: Head) -> bool:
    """Whether it is worth planning again."""
    return newer.version >= than.version and msgspec.structs.replace(newer, ready_s=than.ready_s) != than


def _apply(manifests: Sequence[Manifest], payloads: Sequence[bytearray], shadow: HostCopy) -> list[SparseUpdate]:
    """Apply deltas, all or none. Blocking."""
    updates = []
    for manifest, payload in zip(manifests, payloads, strict=True):
        assert manifest.kind is VersionKind.DELTA, manifest
        pieces = [decode(piece, shadow.tensors) for piece in split_payload(manifest, payload)]
        updates.append(combine(pieces))
        if updates[-1].version != manifest.version:
            raise WeightsError(f"the delta of version {manifest.version} leads to version {updates[-1].version}")
    apply_chain(updates, shadow)
    return updates


def _rebuilt(path: Path, payload: bytearray, deltas: Sequence[bytearray]) -> HostCopy:
    """A shadow made of a full version and the deltas since. Blocking."""
    full = path.full
    assert full is not None
    shadow = HostCopy(full.version, unpack_full(full, payload), {entry.name: entry.digest for entry in full.tensors})
    if deltas:
        _apply(path.deltas, deltas, shadow)
    return shadow
