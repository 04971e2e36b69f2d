"""The replica's side of the weights: follow the head and keep a verified copy of the newest version in host memory.

It plans the cheapest path from what it has (a chain of deltas, else the newest full and the deltas since), and never
touches an engine. Invariant: `shadow` always holds one whole, verified version; what can't be read or verified raises
WeightsError and leaves it as it was.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from astraflow.actors.weights.payload import unpack_full
from astraflow.actors.weights.reader import PayloadReader
from astraflow.algos.delta import decode
from astraflow.algos.shadow import Shadow, apply_chain
from astraflow.algos.tensors import HostTensor
from astraflow.bus import Bus
from astraflow.errors import WeightsError
from astraflow.messages import FileEntry, Head, Manifest, VersionKind


async def follow_heads(bus: Bus, policy: str) -> AsyncGenerator[Head, None]:
    """The policy's head, now and whenever it moves, once what it points to is here. Leave it only inside `aclosing`."""
    async with aclosing(bus.kv_watch(f"head.{policy}")) as updates:
        async for update in updates:
            if isinstance(update.message, Head):
                await bus.reached(bus.topology.weights(policy), update.message.manifest_sequence)
                yield update.message


async def first_head(bus: Bus, policy: str) -> Head:
    """The policy's head, waiting for the first one if there is none yet."""
    async with aclosing(follow_heads(bus, policy)) as heads:
        return await anext(heads)


@dataclass(frozen=True, kw_only=True)
class _Path:
    """How to get to a version: perhaps a full first, then deltas, oldest first."""

    full: Manifest | None
    deltas: list[Manifest]


class WeightFollower:
    """One policy's weights, as of the last head that it advanced to."""

    def __init__(self, bus: Bus, policy: str) -> None:
        self._bus = bus
        self._stream = bus.topology.weights(policy)
        self._reader = PayloadReader(bus, policy)
        self.shadow: Shadow | None = None  # None until the first advance

    async def advance(self, head: Head) -> Mapping[str, HostTensor]:
        """Move the shadow to `head`; returns the tensors that changed, as views of the shadow.

        Raises: WeightsError if a part or manifest is gone or damaged, or the version does not fit the model.
        """
        path = await self._plan(head)
        payloads = [await self._reader.payload(manifest) for manifest in path.deltas]
        if path.full is None:
            assert self.shadow is not None, "deltas need a base"
            return await asyncio.to_thread(_apply, payloads, self.shadow)
        payload = await self._reader.payload(path.full)
        self.shadow = await asyncio.to_thread(_rebuilt, path.full, payload, payloads)
        return self.shadow.tensors

    def reset(self) -> None:
        """Forget the shadow: the next `advance` starts from a full version, and all tensors count as changed."""
        self.shadow = None

    async def _plan(self, head: Head) -> _Path:
        have = -1 if self.shadow is None else self.shadow.version
        manifest = await self._manifest(head.manifest_sequence)
        deltas: list[Manifest] = []
        while manifest.kind is VersionKind.DELTA:
            deltas.insert(0, manifest)
            if manifest.base_version == have:
                return _Path(full=None, deltas=deltas)
            manifest = await self._manifest(manifest.base_sequence)
        return _Path(full=manifest, deltas=deltas)

    async def _manifest(self, sequence: int) -> Manifest:
        entry = await self._bus.log_entry(self._stream, sequence)
        if entry is None or not isinstance(entry.message, Manifest):
            raise WeightsError(f"the manifest at {sequence} of {self._stream} is gone; a newer head will come")
        return entry.message

    async def files(self, head: Head) -> dict[str, bytes]:
        """config.json, tokenizer and chat template, verified; they travel with the newest full."""
        manifest = await self._manifest(head.full_manifest_sequence)
        return {entry.name: await self._file(manifest, entry) for entry in manifest.files}

    async def _file(self, manifest: Manifest, entry: FileEntry) -> bytes:
        subject = self._bus.topology.weight_part(manifest.policy, manifest.epoch)
        data = bytes(await self._bus.get_parts(self._stream, subject, entry.parts))
        if (
            await asyncio.to_thread(hashlib.sha256, data)
        ).hexdigest() != entry.digest:  # a tokenizer.json has megabytes
            raise WeightsError(f"file {entry.name} of version {manifest.version} does not match its digest")
        return data


def _apply(payloads: list[bytearray], shadow: Shadow) -> Mapping[str, HostTensor]:
    """Apply deltas, all or none; returns the tensors that changed. Blocking."""
    updates = [decode(payload, shadow.tensors) for payload in payloads]
    apply_chain(updates, shadow)
    return {name: shadow.tensors[name] for update in updates for name in update.tensors}


def _rebuilt(full: Manifest, payload: bytearray, deltas: list[bytearray]) -> Shadow:
    """A shadow made of a full version and the deltas since. Blocking."""
    shadow = Shadow(full.version, unpack_full(full, payload), {entry.name: entry.digest for entry in full.tensors})
    if deltas:
        _apply(deltas, shadow)
    return shadow
