"""The trainer's side of the weights: parts, then a manifest, then the KV head (DESIGN §6, §3 rule 6).

It does not decide when to publish, only how: an exact delta against the version before, or a full.
Invariant: the head only ever points at a version whose parts and manifest are stored, and it never goes back.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.metrics import WEIGHTS, WEIGHTS_BYTES, WEIGHTS_PUBLISH_S
from astraflow.actors.base.owned_key import seal
from astraflow.actors.weights.payload import Payload, delta_payload, full_payload, part_refs
from astraflow.actors.weights.store import FullStore
from astraflow.algos.tensors import HostTensor
from astraflow.errors import FencedError
from astraflow.messages import FileEntry, Head, Manifest, Metrics, PartRef, Place, VersionKind, VersionStep

RECENT_VERSIONS = 64  # version → step pairs in the head


@dataclass
class _Chain:
    """The newest full and the deltas since."""

    full_sequence: int  # of its manifest
    full_bytes: int
    length: int = 0  # deltas
    delta_bytes: int = 0


@dataclass(frozen=True)
class _Base:
    """The version that the next delta is made against."""

    version: int
    sequence: int  # of its manifest
    tensors: Mapping[str, HostTensor]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class _Full:
    """A full that is retained."""

    first_sequence: int  # of its parts in the log
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """Where a payload is, as the manifest tells it."""

    parts: tuple[PartRef, ...]
    places: tuple[Place, ...] = ()
    in_log: bool = True


class WeightPublisher:
    """Publishes one policy's versions, one at a time.

    Attributes:
        epoch: the trainer's lease epoch.
        full_every: versions between fulls, at most.
        fulls: where fulls go besides the log, or instead of it; None = to the log only.
    """

    def __init__(
        self, ctx: ActorContext, *, epoch: int = 0, full_every: int = 1, fulls: FullStore | None = None
    ) -> None:
        self.epoch = epoch
        self._fulls = fulls
        self._bus = ctx.bus
        self._policy = ctx.policy
        self._full_every = full_every
        self._stream = ctx.bus.topology.weights(ctx.policy)
        self._prefix = f"{ctx.record.incarnation}/{ctx.policy}/{ctx.incarnation}"
        self._recent: list[VersionStep] = []
        self._head_revision = 0
        self._kept: list[_Full] = []
        self._chain: _Chain | None = None
        self._base: _Base | None = None

    async def open(self) -> Head | None:
        """Take over the head that is there: from now on an older trainer can't move it. None if there is none yet.

        Raises: FencedError if a later trainer has it.
        """
        head, self._head_revision = await seal(self._bus, f"head.{self._policy}", Head, epoch=self.epoch)
        if head is None:
            return None
        self._recent = list(head.recent)
        full = await self._bus.log_entry(self._stream, head.full_manifest_sequence)
        if full is not None and isinstance(full.message, Manifest):
            self._kept.append(_Full(full.message.sequence_first, full.message.places))
        return head

    async def publish(
        self,
        tensors: Mapping[str, HostTensor],
        files: Mapping[str, bytes],
        *,
        version: int,
        step: int,
        batch: int,
        finished: bool = False,
    ) -> None:
        """Store a version and move the head to it. `tensors` must not change afterwards.

        Raises: FencedError if another trainer moved the head; BusError if it can't be stored.
        """
        started = time.monotonic()
        payload = await self._payload(tensors, version)
        first = (await self._bus.log_state(self._stream)).last_sequence + 1
        prefix = f"{self._prefix}/v{version}"
        stored = await self._put(payload, prefix, version=version)
        full = payload.kind is VersionKind.FULL
        manifest = Manifest(
            policy=self._policy,
            version=version,
            step=step,
            batch=batch,
            epoch=self.epoch,
            kind=payload.kind,
            tensors=payload.entries,
            parts=stored.parts,
            places=stored.places,
            parts_stored=stored.in_log,
            changed_elements=payload.changed_elements,
            size_bytes=len(payload.data),
            base_version=-1 if full or self._base is None else self._base.version,
            base_sequence=0 if full or self._base is None else self._base.sequence,
            files=await self._put_files(files, prefix) if full else (),
            sequence_first=first,
        )
        ack = await self._bus.publish(
            self._bus.topology.manifest(self._policy), manifest, msg_id=f"{prefix}/manifest", deadline_s=None
        )
        self._extend_chain(payload, ack.sequence)
        await self._move_head(manifest, sequence=ack.sequence, finished=finished)
        self._base = _Base(version, ack.sequence, tensors, payload.digests)
        if full:
            await self._purge(_Full(first, stored.places))
        values = {WEIGHTS_PUBLISH_S: time.monotonic() - started, WEIGHTS_BYTES: float(len(payload.data))}
        await self._bus.metrics(
            Metrics(kind=WEIGHTS, at=time.time(), values=values, policy=self._policy, step=step, version=version)
        )

    async def _payload(self, tensors: Mapping[str, HostTensor], version: int) -> Payload:
        """A delta if there is a base and it pays, else a full."""
        base, chain = self._base, self._chain
        if base is not None and chain is not None and chain.length + 1 < self._full_every:
            delta = await asyncio.to_thread(
                delta_payload, base.tensors, base.digests, tensors, base_version=base.version, version=version
            )
            if 2 * (chain.delta_bytes + len(delta.data)) <= chain.full_bytes:
                return delta
        return await asyncio.to_thread(full_payload, tensors)

    async def _put(self, payload: Payload, prefix: str, *, version: int) -> _Stored:
        """Store the payload: a delta in the log, a full where `fulls` says; in the log too if that can't take it."""
        data, places = memoryview(payload.data), tuple[Place, ...]()
        if payload.kind is VersionKind.FULL and self._fulls is not None:
            places = await self._fulls.put(payload, epoch=self.epoch, version=version)
            if places and not self._fulls.on_nats:
                return _Stored(parts=await asyncio.to_thread(part_refs, data), places=places, in_log=False)
        subject = self._bus.topology.weight_part(self._policy, self.epoch)
        parts = await self._bus.put_parts(self._stream, subject, data, msg_prefix=prefix)
        return _Stored(parts=parts, places=places)

    def _extend_chain(self, payload: Payload, sequence: int) -> None:
        if payload.kind is VersionKind.FULL or self._chain is None:
            self._chain = _Chain(full_sequence=sequence, full_bytes=len(payload.data))
        else:
            self._chain.length += 1
            self._chain.delta_bytes += len(payload.data)

    async def _put_files(self, files: Mapping[str, bytes], prefix: str) -> tuple[FileEntry, ...]:
        """Store the model's small files anew with every full, so that a purge never takes the only copy."""
        subject = self._bus.topology.weight_part(self._policy, self.epoch)
        entries = []
        for name, data in files.items():
            parts = await self._bus.put_parts(self._stream, subject, data, msg_prefix=f"{prefix}/{name}")
            digest = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
            entries.append(FileEntry(name=name, digest=digest, size_bytes=len(data), parts=parts))
        return tuple(entries)

    async def _move_head(self, manifest: Manifest, *, sequence: int, finished: bool) -> None:
        assert self._chain is not None
        step = VersionStep(version=manifest.version, step=manifest.step)
        self._recent = [*self._recent, step][-RECENT_VERSIONS:]
        head = Head(
            policy=self._policy,
            version=manifest.version,
            step=manifest.step,
            batch=manifest.batch,
            epoch=self.epoch,
            manifest_sequence=sequence,
            full_manifest_sequence=self._chain.full_sequence,
            recent=tuple(self._recent),
            finished=finished,
        )
        try:
            self._head_revision = await self._bus.kv_put(
                f"head.{self._policy}", head, expected_revision=self._head_revision, deadline_s=None
            )
        except FencedError as exc:
            raise FencedError(
                f"head of policy {self._policy} was moved by another trainer while version {manifest.version} was "
                "published; this trainer must exit"
            ) from exc

    async def _purge(self, full: _Full) -> None:
        """Keep two fulls and the chain since the older one, which a slow replica may still be reading."""
        self._kept = [*self._kept, full][-2:]
        if len(self._kept) == 2:
            await self._bus.purge(self._stream, below_sequence=self._kept[0].first_sequence)
        if self._fulls is not None:
            await self._fulls.keep([place for kept in self._kept for place in kept.places], epoch=self.epoch)
