"""A full version as bytes: every tensor behind the other. Blocking, pure. A delta's: `weights/codec/delta.py`.

Whoever reads a payload checks it against its manifest: here for a full, in `weights/codec/host_copy.py` for a delta.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping

from astraflow.errors import WeightsError
from astraflow.messages import Manifest, PartRef, TensorEntry
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor

PART_BYTES = 1 << 20  # of a payload that isn't in the log


def entries_of(tensors: Mapping[str, HostTensor], digests: Mapping[str, str]) -> Iterator[TensorEntry]:
    """What a manifest says of tensors that lie behind each other from offset 0 on."""
    offset = 0
    for name, tensor in tensors.items():
        yield TensorEntry(name=name, dtype=tensor.dtype, shape=tensor.shape, digest=digests[name], offset_bytes=offset)
        offset += tensor.data.nbytes


def full_payload(tensors: Mapping[str, HostTensor]) -> bytearray:
    """All tensors behind each other. Copies the whole model."""
    data = bytearray(sum(tensor.data.nbytes for tensor in tensors.values()))
    offset = 0
    for tensor in tensors.values():
        data[offset : offset + tensor.data.nbytes] = tensor.data
        offset += tensor.data.nbytes
    return data


def part_refs(data: memoryview) -> tuple[PartRef, ...]:
    """What the parts of a payload are called that the log doesn't hold."""
    pieces = (data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES))
    return tuple(PartRef(digest=hashlib.sha256(piece).hexdigest(), size_bytes=len(piece)) for piece in pieces)


def unpack_full(manifest: Manifest, payload: bytearray) -> dict[str, HostTensor]:
    """Views of a full's payload by name, verified. Raises WeightsError naming the first tensor that does not fit."""
    if len(payload) != manifest.size_bytes:
        raise WeightsError(
            f"version {manifest.version} of {manifest.policy} has {len(payload)} bytes, its manifest says "
            f"{manifest.size_bytes}"
        )
    view, tensors = memoryview(payload), {}
    for entry in manifest.tensors:
        end = entry.offset_bytes + math.prod(entry.shape) * ITEM_SIZES.get(entry.dtype, 0)
        tensor = HostTensor(entry.dtype, entry.shape, view[entry.offset_bytes : end])
        if tensor.digest() != entry.digest:
            raise WeightsError(f"tensor {entry.name} of version {manifest.version} does not match its digest")
        tensors[entry.name] = tensor
    return tensors


def split_payload(manifest: Manifest, payload: bytearray) -> list[memoryview]:
    """The ranks' pieces of a delta. Raises WeightsError if they don't add up."""
    sizes, view = manifest.pieces or (len(payload),), memoryview(payload)
    if min(sizes) < 0 or sum(sizes) != len(view):
        raise WeightsError(f"the pieces of version {manifest.version} don't add up to its {len(view)} bytes")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [view[end - size : end] for end, size in zip(ends, sizes, strict=True)]
