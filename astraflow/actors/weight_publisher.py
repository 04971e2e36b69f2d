"""The trainer's side of the weights: parts, then a manifest, then the KV head (DESIGN §6, §3 rule 6).

It publishes full snapshots; a manifest already has room for deltas. It does not decide when to publish.
Invariant: the head only ever points at a version whose parts and manifest are stored, and it never goes back.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping

from astraflow.actors.context import ActorContext
from astraflow.actors.metrics import (
    WEIGHTS,
    WEIGHTS_BYTES,
    WEIGHTS_PUBLISH_S,
)
from astraflow.algos.tensors import HostTensor
from astraflow.bus import KvEntry
from astraflow.errors import FencedError
from astraflow.messages import FileEntry, Head, Manifest, Metrics, TensorEntry, VersionKind, VersionStep

RECENT_VERSIONS = 64  # version → step pairs in the head


def pack(tensors: Mapping[str, HostTensor]) -> tuple[bytearray, tuple[TensorEntry, ...]]:
    """All tensors as one payload, and where each lies in it. Blocking: copies and hashes the whole model."""
    payload = bytearray(sum(tensor.data.nbytes for tensor in tensors.values()))
    entries, offset = [], 0
    for name, tensor in tensors.items():
        payload[offset : offset + tensor.data.nbytes] = tensor.data
        entries.append(
            TensorEntry(name=name, dtype=tensor.dtype, shape=tensor.shape, digest=tensor.digest(), offset_bytes=offset)
        )
        offset += tensor.data.nbytes
    return payload, tuple(entries)


class WeightPublisher:
    """Publishes one policy's versions, one at a time. `epoch` is the trainer's lease epoch."""

    def __init__(self, ctx: ActorContext) -> None:
        self._bus = ctx.bus
        self._policy = ctx.policy
        self._stream = ctx.bus.topology.weights(ctx.policy)
        self.epoch = 0
        self._prefix = f"{ctx.record.incarnation}/{ctx.policy}/{ctx.incarnation}"
        self._files: tuple[FileEntry, ...] = ()
        self._recent: list[VersionStep] = []
        self._head_revision = 0
        self._first_sequences: list[int] = []  # of the versions that the log still holds

    async def open(self) -> Head | None:
        """Read the head that is there. Returns None if nothing was published yet."""
        entry: KvEntry | None = await self._bus.kv_get(f"head.{self._policy}")
        if entry is None:
            return None
        head = entry.message
        assert isinstance(head, Head), head
        self._head_revision = entry.revision
        self._recent = list(head.recent)
        manifest = await self._bus.log_entry(self._stream, head.manifest_sequence)
        if manifest is not None and isinstance(manifest.message, Manifest):
            self._first_sequences.append(manifest.message.sequence_first)
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
        """Store a full snapshot and move the head to it. Raises FencedError if another trainer moved the head."""
        started = time.monotonic()
        payload, entries = await asyncio.to_thread(pack, tensors)
        first = (await self._bus.log_state(self._stream)).last_sequence + 1
        subject = self._bus.topology.weight_part(self._policy, self.epoch)
        parts = await self._bus.put_parts(
            self._stream, subject, memoryview(payload), msg_prefix=f"{self._prefix}/v{version}"
        )
        manifest = Manifest(
            policy=self._policy,
            version=version,
            step=step,
            batch=batch,
            epoch=self.epoch,
            kind=VersionKind.FULL,
            tensors=entries,
            parts=parts,
            size_bytes=len(payload),
            files=await self._put_files(files, version),
            sequence_first=first,
        )
        ack = await self._bus.publish(
            self._bus.topology.manifest(self._policy),
            manifest,
            msg_id=f"{self._prefix}/v{version}/manifest",
            deadline_s=None,
        )
        await self._move_head(version=version, step=step, manifest_sequence=ack.sequence, finished=finished)
        await self._purge(first)
        values = {WEIGHTS_PUBLISH_S: time.monotonic() - started, WEIGHTS_BYTES: float(len(payload))}
        await self._bus.metrics(
            Metrics(kind=WEIGHTS, at=time.time(), values=dict(values), policy=self._policy, step=step, version=version)
        )

    async def _put_files(self, files: Mapping[str, bytes], version: int) -> tuple[FileEntry, ...]:
        """Store the model's small files anew with every full, so that a purge never takes the only copy."""
        subject = self._bus.topology.weight_part(self._policy, self.epoch)
        entries = []
        for name, data in files.items():
            parts = await self._bus.put_parts(
                self._stream, subject, data, msg_prefix=f"{self._prefix}/v{version}/{name}"
            )
            digest = hashlib.sha256(data).hexdigest()
            entries.append(FileEntry(name=name, digest=digest, size_bytes=len(data), parts=parts))
        return tuple(entries)

    async def _move_head(self, *, version: int, step: int, manifest_sequence: int, finished: bool) -> None:
        self._recent = [*self._recent, VersionStep(version=version, step=step)][-RECENT_VERSIONS:]
        head = Head(
            policy=self._policy,
            version=version,
            step=step,
            epoch=self.epoch,
            manifest_sequence=manifest_sequence,
            full_manifest_sequence=manifest_sequence,
            recent=tuple(self._recent),
            finished=finished,
        )
        try:
            self._head_revision = await self._bus.kv_put(
                f"head.{self._policy}", head, expected_revision=self._head_revision
            )
        except FencedError as exc:
            raise FencedError(
                f"head of policy {self._policy} was moved by another trainer while version {version} was published; "
                "this trainer must exit"
            ) from exc

    async def _purge(self, first: int) -> None:
        """Keep two fulls: the newest and the one before, which a slow replica may still be reading."""
        self._first_sequences.append(first)
        if len(self._first_sequences) > 2:
            self._first_sequences = self._first_sequences[-2:]
            await self._bus.purge(self._stream, below_sequence=self._first_sequences[0])
