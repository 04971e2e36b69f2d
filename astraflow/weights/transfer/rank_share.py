"""One rank's share of a version: it finds what changed in its own tensors and stores them, and nobody else sees them.

A model on one rank has one such share, with all tensors; the ranks of a sharded learner have some whole tensors each
(FSDP: a rank gathers the tensors that are its own one after the other, the whole model is never in one place).
It decides nothing: offer → the lead (`publisher.py`) says what to store → store → keep. What passes between a rank and
the lead is small: names, shapes, digests and sizes.
Invariant: an offer that isn't kept leaves the base, against which the next one is made, as it was.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from astraflow import clock
from astraflow.bus import Bus
from astraflow.errors import WeightsError
from astraflow.messages import PartRef, Place, TensorEntry, VersionKind
from astraflow.weights.codec.delta import encode_update
from astraflow.weights.codec.differences import check_same_model, difference
from astraflow.weights.codec.payload import bind_delta
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.full_payload import entries_of, full_payload, part_refs
from astraflow.weights.transfer.full_store import FullStore

STORE_WITHIN_S = 60.0  # a part that isn't stored for this long: the publish has failed and is told


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank could store for a version."""

    entries: tuple[TensorEntry, ...]  # all tensors of the rank; offsets from its own 0 on
    full_bytes: int
    delta_bytes: int = 0  # 0: it has no base, or one of another shape
    changed: int = 0  # elements, of the delta
    encode_s: float = 0.0


class StoreOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the lead wants stored; the digests are of the whole model, over all ranks."""

    kind: VersionKind
    version: int
    epoch: int
    base_digest: str = ""
    digest: str = ""


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has stored."""

    parts: tuple[PartRef, ...]
    size_bytes: int
    places: tuple[Place, ...] = ()  # where else it is
    in_log: bool = True


class RankShare(Protocol):
    """A share of the model, here or in another process."""

    async def offer(self, version: int) -> Offer:
        """Encode the newest tensors, which are this version's. Off the event loop."""
        ...

    async def store(self, order: StoreOrder) -> Contribution:
        """Store what was offered, or the kept version's full. Raises BusError if it can't be."""
        ...

    def keep(self, version: int) -> None:
        """This version is published: later deltas start from it."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Share:
    """A version's tensors on this rank, and their delta from the version kept before."""

    version: int
    tensors: Mapping[str, HostTensor]
    digests: Mapping[str, str]
    delta: bytes = b""  # bound to this rank's tensors only
    changed: int = 0


class LocalRank:
    """The share of a learner in this process.

    Args:
        prefix: unique among ranks and incarnations; starts message ids.
        fulls: where fulls go besides the log, or instead of it; only for a rank that has all tensors.
    """

    def __init__(self, bus: Bus, policy: str, *, prefix: str, fulls: FullStore | None = None) -> None:
        self._fulls = fulls
        self._bus = bus
        self._policy = policy
        self._stream = bus.topology.weights(policy)
        self._prefix = prefix
        self._tensors: Iterable[tuple[str, HostTensor]] = ()
        self._kept: _Share | None = None
        self._offered: _Share | None = None

    def give(self, tensors: Iterable[tuple[str, HostTensor]]) -> None:
        """The tensors of the next offer, taken one after the other; their bytes must not change any more."""
        self._tensors = tensors

    async def offer(self, version: int) -> Offer:
        started = clock.monotonic()
        if self._kept is not None and self._kept.version >= version:
            raise WeightsError(f"version {version} is offered after version {self._kept.version}")
        share = self._offered = await asyncio.to_thread(_share, version, self._tensors, self._kept)
        self._tensors = ()
        return Offer(
            entries=tuple(entries_of(share.tensors, share.digests)),
            full_bytes=sum(tensor.data.nbytes for tensor in share.tensors.values()),
            delta_bytes=len(share.delta),
            changed=share.changed,
            encode_s=clock.monotonic() - started,
        )

    async def store(self, order: StoreOrder) -> Contribution:
        share = next(it for it in (self._offered, self._kept) if it is not None and it.version == order.version)
        if order.kind is VersionKind.FULL:
            return await self._store_full(share, order)
        delta = await asyncio.to_thread(bind_delta, share.delta, base_digest=order.base_digest, digest=order.digest)
        return Contribution(parts=await self._to_log(memoryview(delta), order), size_bytes=len(delta))

    async def _store_full(self, share: _Share, order: StoreOrder) -> Contribution:
        """Where `fulls` says; in the log too if that can't take it."""
        data = memoryview(await asyncio.to_thread(full_payload, share.tensors))
        places: tuple[Place, ...] = ()
        if self._fulls is not None:
            digests = share.digests.values()
            places = await self._fulls.put(data, digests=digests, epoch=order.epoch, version=order.version)
            if places and not self._fulls.on_nats:
                parts = await asyncio.to_thread(part_refs, data)
                return Contribution(parts=parts, size_bytes=len(data), places=places, in_log=False)
        return Contribution(parts=await self._to_log(data, order), size_bytes=len(data), places=places)

    async def _to_log(self, data: memoryview, order: StoreOrder) -> tuple[PartRef, ...]:
        return await self._bus.parts.put(
            self._stream,
            self._bus.topology.weight_part(self._policy, order.epoch),
            data,
            msg_prefix=f"{self._prefix}/v{order.version}",
            deadline_s=STORE_WITHIN_S,
        )

    def keep(self, version: int) -> None:
        if self._offered is not None and self._offered.version == version:
            self._kept, self._offered = self._offered, None


def _share(version: int, given: Iterable[tuple[str, HostTensor]], kept: _Share | None) -> _Share:
    """Blocking. Without a usable base everything is hashed."""
    tensors = dict(given)
    try:
        if kept is None or not tensors:
            raise WeightsError("there is no base")
        check_same_model(kept.tensors, tensors)
    except WeightsError:
        digests = {name: tensor.digest() for name, tensor in tensors.items()}
        return _Share(version=version, tensors=tensors, digests=digests)
    update = difference(kept.tensors, tensors, base_version=kept.version, version=version, base_digests=kept.digests)
    delta = encode_update(update)
    digests = {name: delta.digests.get(name, kept.digests[name]) for name in tensors}
    return _Share(version=version, tensors=tensors, digests=digests, delta=delta.payload, changed=delta.changed)
