"""The trainer's side of the weights: parts, then a manifest, then the KV head.

It does not decide when to publish, only how: an exact delta against the version before, a full where a delta would not
pay, and both where a chain has become long: then replicas follow by the delta and newcomers start from the full.
It sees names, digests and sizes; the tensors are the ranks' (`rank_share.py`).
Invariants: the head only ever points at a version whose parts and manifest are stored, and it never goes back; a
publish that fails, or is cancelled, leaves head and chain as they were, and can be made again.
"""

import asyncio
import hashlib
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.owned_key import check_epoch, seal
from astraflow.bus import LogEntry, wiring
from astraflow.errors import FencedError, UnreadableValueError
from astraflow.messages import FileEntry, Head, Manifest, Metrics, Probe, TensorEntry, VersionKind, VersionStep
from astraflow.messages.metric_names import (
    WEIGHTS,
    WEIGHTS_BYTES,
    WEIGHTS_CHANGED,
    WEIGHTS_ENCODE_S,
    WEIGHTS_FULL_BYTES,
    WEIGHTS_PUBLISH_S,
)
from astraflow.weights.codec.delta import pays
from astraflow.weights.codec.differences import model_digest
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.full_store import FullStore
from astraflow.weights.transfer.rank_share import STORE_WITHIN_S, LocalRank, Offer, RankShare, StoreOrder

T = TypeVar("T")

RECENT_VERSIONS = 64  # version → step pairs in the head
_MOST_VERSIONS = 1 << 40


@dataclass(frozen=True)
class _Chain:
    """The newest full and the deltas since."""

    full_sequence: int  # of its manifest
    full_bytes: int
    length: int = 0  # deltas
    delta_bytes: int = 0

    def longer_by(self, size_bytes: int) -> "_Chain":
        return replace(self, length=self.length + 1, delta_bytes=self.delta_bytes + size_bytes)


@dataclass(frozen=True, kw_only=True)
class _Version:
    """What is being published, or was published last."""

    version: int
    step: int
    batch: int
    finished: bool
    files: Mapping[str, bytes]
    ready_at: float  # monotonic, when its weights were there
    probe: Probe | None
    offers: Sequence[Offer]
    digest: str  # model_digest
    sequence: int = 0  # of the manifest that the head points at

    @property
    def elements(self) -> int:
        return sum(math.prod(entry.shape) for offer in self.offers for entry in offer.entries)


class WeightPublisher:
    """Publishes one policy's versions, one at a time.

    Attributes:
        epoch: the trainer's lease epoch.
        full_every: versions between fulls, at most.
        fulls: where fulls go besides the log, or instead of it; None = to the log only.
        ranks: who has the tensors; by default this process has them all.
    """

    def __init__(
        self,
        ctx: ActorContext,
        *,
        epoch: int = 0,
        full_every: int = 1,
        fulls: FullStore | None = None,
        ranks: Sequence[RankShare] | None = None,
    ) -> None:
        self.epoch = epoch
        self._fulls = fulls
        self._bus = ctx.bus
        self._policy = ctx.policy
        self._full_every = full_every
        self._stream = ctx.bus.topology.weights(ctx.policy)
        self._prefix = f"{ctx.record.incarnation}/{ctx.policy}/{ctx.incarnation}"
        self._own = LocalRank(ctx.bus, ctx.policy, prefix=self._prefix, fulls=fulls)
        self._ranks: Sequence[RankShare] = (self._own,) if ranks is None else ranks
        self._recent: list[VersionStep] = []
        self._head_revision = 0
        self._heading = asyncio.Lock()
        self._newest_head: Head | None = None  # that this publisher wrote
        self._manifest_sequence: int | None = None  # of the newest manifest; None: not looked up yet
        self._kept: list[Manifest] = []  # of the fulls that are retained
        self._chain: _Chain | None = None
        self._last: _Version | None = None  # the base of the next delta

    @property
    def version(self) -> int:
        """The newest version that this publisher has published; -1 = none."""
        return -1 if self._last is None else self._last.version

    @property
    def full_sequence(self) -> int:
        """Of the manifest of the newest full; 0 = none of this publisher."""
        return 0 if self._chain is None else self._chain.full_sequence

    async def open(self) -> Head | None:
        """Take over the head that is there: from now on an older trainer can't move it. None if there is none yet.

        Raises: FencedError if a later trainer has it.
        """
        key = wiring.HEAD.key(self._policy)
        try:
            head, self._head_revision = await seal(self._bus, key, Head, epoch=self.epoch)
            why = f"KV key {key} is gone" if head is None else await self._why_impossible(head)
        except UnreadableValueError as exc:
            head, self._head_revision, why = None, exc.revision, str(exc)
        if why and (rebuilt := await self._head_of_log()) is not None:
            head = rebuilt
            await self._bus.event("error", "head-rebuilt", f"{why}; the head is made anew from {self._stream}")
            await self._put_head(head)
        if head is None:
            return None
        self._recent = list(head.recent)
        full = await self._bus.logs.entry(self._stream, head.full_manifest_sequence)
        if full is not None and isinstance(full.message, Manifest):
            self._kept.append(full.message)
        return head

    async def _why_impossible(self, head: Head) -> str:
        """Why no trainer can have written this head; "" if one can. What was purged can't be told from what never was,
        but the newest manifest is never purged."""
        sequence = await self._bus.logs.last_sequence(self._stream, self._bus.topology.manifest(self._policy))
        if head.manifest_sequence > sequence or (sequence and not 0 <= head.version < _MOST_VERSIONS):
            return (
                f"the head of {self._policy} says version {head.version} at {head.manifest_sequence}, but the newest "
                f"manifest is at {sequence}"
            )
        return ""

    async def mend(self) -> bool:
        """Write the head again if it isn't there any more; whether that was needed. Raises like `publish`."""
        async with self._heading:
            newest = self._newest_head
            if newest is None:
                return False
            try:
                entry = await self._bus.kv.get(wiring.HEAD.key(self._policy))
                if entry is not None and entry.revision == self._head_revision:
                    return False
            except UnreadableValueError:
                pass
            await self._write_head(newest)
            return True

    async def publish(
        self,
        tensors: Mapping[str, HostTensor],
        files: Mapping[str, bytes],
        *,
        version: int,
        step: int,
        batch: int,
        finished: bool = False,
        probe: Probe | None = None,
    ) -> None:
        """Store a version and move the head to it. `tensors` must not change afterwards.

        Raises: FencedError if another trainer moved the head; BusError if it can't be stored, and then it can be tried
            again, also with a newer version.
        """
        self._own.give(tensors.items())
        await self.publish_ranks(files, version=version, step=step, batch=batch, finished=finished, probe=probe)

    async def publish_ranks(
        self,
        files: Mapping[str, bytes],
        *,
        version: int,
        step: int,
        batch: int,
        finished: bool = False,
        probe: Probe | None = None,
    ) -> None:
        """Like `publish`, of the tensors that the ranks have now."""
        started = clock.monotonic()
        offers = await _all([rank.offer(version) for rank in self._ranks])
        new = _Version(
            version=version,
            step=step,
            batch=batch,
            finished=finished,
            files=files,
            ready_at=started,
            probe=probe,
            offers=offers,
            digest=_digest(offers),
        )
        delta_bytes = await self._publish_delta(new)
        published_s = clock.monotonic() - started
        full_bytes = 0
        if self._full_is_due(new):
            full_bytes = await self._publish_full(new)
        full_s = clock.monotonic() - started
        changed = sum(offer.changed for offer in offers) / max(1, new.elements) if delta_bytes else 1.0
        values = {
            WEIGHTS_PUBLISH_S: published_s if delta_bytes else full_s,
            WEIGHTS_ENCODE_S: max(offer.encode_s for offer in offers),
            WEIGHTS_BYTES: float(delta_bytes or full_bytes),
            WEIGHTS_FULL_BYTES: float(full_bytes),
            WEIGHTS_CHANGED: changed,
        }
        await self._bus.metrics(
            Metrics(kind=WEIGHTS, at=clock.wall(), values=values, policy=self._policy, step=step, version=version)
        )

    async def publish_full_again(self) -> None:
        """Store the newest version's full anew: somebody can't read the one that is there. Raises as `publish`."""
        if self._last is not None:
            await self._publish_full(self._last)

    async def _publish_delta(self, new: _Version) -> int:
        """Store and show the version as a delta, if there is a base and it pays; returns the payload's bytes."""
        base, chain = self._last, self._chain
        sizes = [offer.delta_bytes for offer in new.offers]
        full_bytes = sum(offer.full_bytes for offer in new.offers)
        if base is None or chain is None or self._full_every == 1 or not all(sizes) or not pays(sum(sizes), full_bytes):
            return 0
        order = StoreOrder(
            kind=VersionKind.DELTA,
            version=new.version,
            epoch=self.epoch,
            base_digest=base.digest,
            digest=new.digest,
        )
        manifest = await self._stored(new, order, base=base)
        sequence = await self._put_manifest(manifest)
        longer = chain.longer_by(manifest.size_bytes)
        await self._move_head(new, sequence=sequence, full_sequence=chain.full_sequence)
        self._published(replace(new, sequence=sequence), longer)
        return manifest.size_bytes

    def _full_is_due(self, new: _Version) -> bool:
        chain = self._chain
        if chain is None or self.version != new.version:
            return True
        return chain.length >= self._full_every or 2 * chain.delta_bytes > chain.full_bytes

    async def _publish_full(self, new: _Version) -> int:
        """Store and show the version as a full; returns the payload's bytes."""
        order = StoreOrder(kind=VersionKind.FULL, version=new.version, epoch=self.epoch)
        manifest = await self._stored(new, order, base=None)
        sequence = await self._put_manifest(manifest)
        last = self._last
        has_delta = last is not None and last.version == new.version and last.sequence != self.full_sequence
        shown = last.sequence if last is not None and has_delta else sequence
        await self._move_head(new, sequence=shown, full_sequence=sequence)
        chain = _Chain(full_sequence=sequence, full_bytes=manifest.size_bytes)
        self._published(replace(new, sequence=shown), chain)
        await self._purge(manifest)
        return manifest.size_bytes

    def _published(self, new: _Version, chain: _Chain) -> None:
        self._last, self._chain = new, chain
        for rank in self._ranks:
            rank.keep(new.version)

    async def _stored(self, new: _Version, order: StoreOrder, *, base: _Version | None) -> Manifest:
        """All ranks' parts and the files, as the manifest that names them."""
        first = (await self._bus.logs.state(self._stream)).last_sequence + 1
        pieces = await _all([rank.store(order) for rank in self._ranks])
        full = base is None
        known = {} if base is None else {entry.name: entry.digest for o in base.offers for entry in o.entries}
        return Manifest(
            policy=self._policy,
            version=new.version,
            step=new.step,
            batch=new.batch,
            epoch=self.epoch,
            kind=order.kind,
            tensors=tuple(entry for entry in _entries(new.offers) if known.get(entry.name) != entry.digest),
            parts=tuple(part for piece in pieces for part in piece.parts),
            places=tuple(place for piece in pieces for place in piece.places),
            parts_stored=all(piece.in_log for piece in pieces),
            changed_elements=-1 if full else sum(offer.changed for offer in new.offers),
            size_bytes=sum(piece.size_bytes for piece in pieces),
            base_version=-1 if base is None else base.version,
            base_sequence=0 if base is None else base.sequence,
            files=await self._put_files(new) if full else (),
            sequence_first=first,
            pieces=tuple(piece.size_bytes for piece in pieces) if len(pieces) > 1 else (),
            probe=new.probe,
        )

    async def _put_files(self, new: _Version) -> tuple[FileEntry, ...]:
        """Store the model's small files anew with every full, so that a purge never takes the only copy."""
        subject = self._bus.topology.weight_part(self._policy, self.epoch)
        entries = []
        for name, data in new.files.items():
            parts = await self._bus.parts.put(
                self._stream,
                subject,
                data,
                msg_prefix=f"{self._prefix}/v{new.version}/{name}",
                deadline_s=STORE_WITHIN_S,
            )
            digest = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
            entries.append(FileEntry(name=name, digest=digest, size_bytes=len(data), parts=parts))
        return tuple(entries)

    async def _put_manifest(self, manifest: Manifest) -> int:
        """Behind the newest manifest that this trainer knows of; one of an older epoch is passed over.

        Raises: FencedError if a later trainer's is there.
        """
        subject = self._bus.topology.manifest(self._policy)
        if self._manifest_sequence is None:
            self._manifest_sequence = await self._bus.logs.last_sequence(self._stream, subject)
        msg_id = f"{self._prefix}/v{manifest.version}/{manifest.kind}/{manifest.sequence_first}"
        while True:
            try:
                ack = await self._bus.publish(
                    subject,
                    manifest,
                    msg_id=msg_id,
                    expected_last_sequence=self._manifest_sequence,
                    deadline_s=STORE_WITHIN_S,
                )
            except FencedError:
                tail = await self._bus.logs.last(self._stream, subject)
                if tail is not None and isinstance(tail.message, Manifest):
                    check_epoch(f"manifest {tail.sequence} of {self._policy}", tail.message.epoch, self.epoch)
                self._manifest_sequence = await self._bus.logs.last_sequence(self._stream, subject)
            else:
                self._manifest_sequence = ack.sequence
                return ack.sequence

    async def _move_head(self, new: _Version, *, sequence: int, full_sequence: int) -> None:
        recent = self._recent
        if not recent or recent[-1].version != new.version:
            recent = [*recent, VersionStep(version=new.version, step=new.step)][-RECENT_VERSIONS:]
        head = Head(
            policy=self._policy,
            version=new.version,
            step=new.step,
            batch=new.batch,
            epoch=self.epoch,
            manifest_sequence=sequence,
            full_manifest_sequence=full_sequence,
            recent=tuple(recent),
            finished=new.finished,
            ready_s=clock.monotonic() - new.ready_at,
        )
        await self._put_head(head)
        self._recent = recent

    async def _head_of_log(self) -> Head | None:
        """What the head must have been, by the manifests there are. Raises FencedError if a later trainer wrote."""
        newest: LogEntry | None = None
        full = 0
        versions: dict[int, int] = {}
        subject = self._bus.topology.manifest(self._policy)
        async for entry in self._bus.logs.read(self._stream, subject=subject, follow=False):
            newest = entry
            versions[entry.message.version] = entry.message.step
            if entry.message.kind is VersionKind.FULL:
                full = entry.sequence
        if newest is None:
            return None
        last: Manifest = newest.message
        check_epoch(self._stream, last.epoch, self.epoch)
        recent = [VersionStep(version=version, step=step) for version, step in versions.items()][-RECENT_VERSIONS:]
        return Head(
            policy=self._policy,
            version=last.version,
            step=last.step,
            batch=last.batch,
            epoch=self.epoch,
            manifest_sequence=newest.sequence,
            full_manifest_sequence=full,
            recent=tuple(recent),
        )

    async def _put_head(self, head: Head) -> None:
        async with self._heading:
            await self._write_head(head)
            self._newest_head = head

    async def _write_head(self, head: Head) -> None:
        key = wiring.HEAD.key(self._policy)
        while True:
            try:
                self._head_revision = await self._bus.kv.put(
                    key, head, expected_revision=self._head_revision, deadline_s=STORE_WITHIN_S
                )
                return
            except FencedError:  # perhaps by a publish of this trainer that was cancelled when it was stored already
                try:
                    _, self._head_revision = await seal(self._bus, key, Head, epoch=self.epoch)
                except UnreadableValueError as damaged:  # by nobody who knows better
                    self._head_revision = damaged.revision
                except FencedError as exc:
                    raise FencedError(
                        f"head of policy {self._policy} was moved by another trainer while version {head.version} was "
                        "published; this trainer must exit"
                    ) from exc

    async def _purge(self, full: Manifest) -> None:
        """Keep two fulls and the chain since the older one, which a slow replica may still be reading."""
        self._kept = [*self._kept, full][-2:]
        if len(self._kept) == 2:
            await self._bus.logs.purge(self._stream, below_sequence=self._kept[0].sequence_first)
        if self._fulls is not None:
            await self._fulls.keep([place for kept in self._kept for place in kept.places], epoch=self.epoch)


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results. Raises the first rank's error, not a group of them."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


def _entries(offers: Sequence[Offer]) -> list[TensorEntry]:
    """All ranks' tensors, with offsets in the whole payload of a full."""
    entries, start = [], 0
    for offer in offers:
        for entry in offer.entries:
            entries.append(
                TensorEntry(
                    name=entry.name,
                    dtype=entry.dtype,
                    shape=entry.shape,
                    digest=entry.digest,
                    offset_bytes=start + entry.offset_bytes,
                )
            )
        start += offer.full_bytes
    return entries


def _digest(offers: Sequence[Offer]) -> str:
    entries = {entry.name: entry for offer in offers for entry in offer.entries}
    return model_digest(entries, {name: entry.digest for name, entry in entries.items()})
