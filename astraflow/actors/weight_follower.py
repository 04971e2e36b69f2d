"""The replica's side of the weights: follow the head, fetch, verify; and what a newcomer needs besides tensors.

It never touches an engine: it hands over verified tensors. A version that can't be read or verified raises
WeightsError; the caller keeps serving the old one.
"""

import asyncio
import hashlib
import math
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.actors.context import ActorContext
from astraflow.algos.tensors import ITEM_SIZES, HostTensor
from astraflow.bus import Bus
from astraflow.errors import WeightsError
from astraflow.messages import FileEntry, Head, Manifest
from astraflow.models.tokenizer import ChatTokenizer, load_tokenizer


@dataclass(frozen=True, kw_only=True)
class FetchedVersion:
    """A version in host memory, verified."""

    manifest: Manifest
    tensors: dict[str, HostTensor]


def unpack(manifest: Manifest, payload: bytearray) -> dict[str, HostTensor]:
    """Views of a full's payload by name. Blocking. Raises WeightsError naming the first tensor that does not verify."""
    if len(payload) != manifest.size_bytes:
        raise WeightsError(
            f"version {manifest.version} of {manifest.policy} has {len(payload)} bytes, its manifest says "
            f"{manifest.size_bytes}"
        )
    view, tensors = memoryview(payload), {}
    for entry in manifest.tensors:
        end = entry.offset_bytes + _size(entry.dtype, entry.shape)
        tensor = HostTensor(entry.dtype, entry.shape, view[entry.offset_bytes : end])
        if tensor.digest() != entry.digest:
            raise WeightsError(f"tensor {entry.name} of version {manifest.version} does not match its digest")
        tensors[entry.name] = tensor
    return tensors


def _size(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * ITEM_SIZES.get(dtype, 0)


async def follow_heads(bus: Bus, policy: str) -> AsyncIterator[Head]:
    """The policy's head, now and whenever it moves."""
    async for update in bus.kv_watch(f"head.{policy}"):
        if isinstance(update.message, Head):
            yield update.message


async def first_head(bus: Bus, policy: str) -> Head:
    """The policy's head, waiting for the first one if there is none yet."""
    async for head in follow_heads(bus, policy):
        return head
    raise WeightsError(f"the watch on the head of policy {policy} ended")


async def fetch_manifest(bus: Bus, head: Head) -> Manifest:
    """The manifest that a head points at. Raises WeightsError if the log no longer has it."""
    entry = await bus.log_entry(bus.topology.weights(head.policy), head.manifest_sequence)
    if entry is None or not isinstance(entry.message, Manifest):
        raise WeightsError(f"manifest of version {head.version} of {head.policy} is gone; a newer head will come")
    return entry.message


async def fetch_version(bus: Bus, manifest: Manifest) -> FetchedVersion:
    """All tensors of a full, verified."""
    subject = bus.topology.weight_part(manifest.policy, manifest.epoch)
    payload = await bus.get_parts(bus.topology.weights(manifest.policy), subject, manifest.parts)
    tensors = await asyncio.to_thread(unpack, manifest, payload)
    return FetchedVersion(manifest=manifest, tensors=tensors)


async def fetch_files(bus: Bus, manifest: Manifest) -> dict[str, bytes]:
    """config.json, tokenizer and chat template, verified."""
    return {entry.name: await _fetch_file(bus, manifest, entry) for entry in manifest.files}


async def _fetch_file(bus: Bus, manifest: Manifest, entry: FileEntry) -> bytes:
    subject = bus.topology.weight_part(manifest.policy, manifest.epoch)
    data = bytes(await bus.get_parts(bus.topology.weights(manifest.policy), subject, entry.parts))
    if hashlib.sha256(data).hexdigest() != entry.digest:
        raise WeightsError(f"file {entry.name} of version {manifest.version} does not match its digest")
    return data


async def fetch_tokenizers(ctx: ActorContext) -> dict[str, ChatTokenizer]:
    """Every policy's tokenizer, from the files of its head; waits for heads that are not there yet."""
    return {policy: await _fetch_tokenizer(ctx, policy) for policy in ctx.config.policies}


async def _fetch_tokenizer(ctx: ActorContext, policy: str) -> ChatTokenizer:
    async for head in follow_heads(ctx.bus, policy):
        try:
            files = await fetch_files(ctx.bus, await fetch_manifest(ctx.bus, head))
        except WeightsError as exc:  # purged while we read: the next head has them
            ctx.last_error = str(exc)
            continue
        return await asyncio.to_thread(_tokenizer_of, files)
    raise WeightsError(f"the watch on the head of policy {policy} ended")


def _tokenizer_of(files: dict[str, bytes]) -> ChatTokenizer:
    with tempfile.TemporaryDirectory(prefix="astraflow-tokenizer-") as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        return load_tokenizer(Path(folder))
