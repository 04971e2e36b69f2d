"""A version as bytes: a full is every tensor behind the other, a delta is what `algos/delta.py` makes. Blocking, pure.

Whoever reads a payload checks it against its manifest: here for a full, in `algos/shadow.py` for a delta.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.algos.delta import encode
from astraflow.algos.tensors import ITEM_SIZES, HostTensor
from astraflow.errors import WeightsError
from astraflow.messages import Manifest, PartRef, TensorEntry, VersionKind

PART_BYTES = 1 << 20  # of a payload that isn't in the log


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The bytes of a version, and what its manifest says of the tensors."""

    kind: VersionKind
    data: bytes | bytearray
    entries: tuple[TensorEntry, ...]  # of a delta: the changed ones
    digests: Mapping[str, str]  # of every tensor of the version
    changed_elements: int = -1  # of a delta


def full_payload(tensors: Mapping[str, HostTensor]) -> Payload:
    """All tensors behind each other. Copies and hashes the whole model."""
    data = bytearray(sum(tensor.data.nbytes for tensor in tensors.values()))
    entries, offset = [], 0
    for name, tensor in tensors.items():
        data[offset : offset + tensor.data.nbytes] = tensor.data
        entries.append(_entry(name, tensor, tensor.digest(), offset))
        offset += tensor.data.nbytes
    digests = {entry.name: entry.digest for entry in entries}
    return Payload(kind=VersionKind.FULL, data=data, entries=tuple(entries), digests=digests)


def delta_payload(
    base: Mapping[str, HostTensor],
    base_digests: Mapping[str, str],
    new: Mapping[str, HostTensor],
    *,
    base_version: int,
    version: int,
) -> Payload:
    """What turns `base` into `new`, exactly."""
    delta = encode(base, new, base_version=base_version, version=version, base_digests=base_digests)
    entries = tuple(_entry(name, new[name], digest, 0) for name, digest in delta.digests.items())
    digests = {**base_digests, **delta.digests}
    return Payload(
        kind=VersionKind.DELTA, data=delta.payload, entries=entries, digests=digests, changed_elements=delta.changed
    )


def part_refs(data: memoryview) -> tuple[PartRef, ...]:
    """What the parts of a payload are called that the log doesn't hold."""
    pieces = (data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES))
    return tuple(PartRef(digest=hashlib.sha256(piece).hexdigest(), size_bytes=len(piece)) for piece in pieces)


def _entry(name: str, tensor: HostTensor, digest: str, offset: int) -> TensorEntry:
    return TensorEntry(name=name, dtype=tensor.dtype, shape=tensor.shape, digest=digest, offset_bytes=offset)


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
