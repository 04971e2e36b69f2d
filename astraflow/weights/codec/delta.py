"""A sparse update as bytes: the delta that travels between a trainer and its replicas.

Not here: how changes are found (`differences.py`) or applied (`host_copy.py`), how integers become bytes
(`byte_coding.py`), the frame around them (`payload.py`).
Invariant: decode(encode(base, new)) turns base into new to the last bit. Decoding hostile bytes raises WeightsError or
gives an update that fits the model, in at most 48 bytes of memory per element of that model.

A delta has seven streams, each with one kind of number of all tensors in the header's order:
gaps u8 | wide gaps u64 | differences i8 | wide differences of 1 byte | of 2 | 4 | 8; the wide ones as byte planes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.errors import WeightsError
from astraflow.weights.codec.byte_coding import (
    from_planes,
    join_differences,
    join_gaps,
    split_differences,
    split_gaps,
    to_planes,
)
from astraflow.weights.codec.differences import SparseTensor, SparseUpdate, difference
from astraflow.weights.codec.payload import WIDTHS, DeltaEntry, DeltaHeader, read_delta, write_delta
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor


@dataclass(frozen=True)
class EncodedDelta:
    """A delta ready to travel. `digests` has the changed tensors only: {**base_digests, **digests} is the version's."""

    base_version: int
    version: int
    payload: bytes
    changed: int  # elements
    digest: str  # model_digest of the version that it leads to
    digests: Mapping[str, str]  # name to sha256 hex after the update


def pays(delta_bytes: int, full_bytes: int) -> bool:
    """Whether to publish the delta rather than a full: only if a chain of two still costs a newcomer less than a full.

    A delta above half a full would end its chain at once anyway.
    """
    return 2 * delta_bytes <= full_bytes


def encode(
    base: Mapping[str, HostTensor],
    new: Mapping[str, HostTensor],
    *,
    base_version: int,
    version: int,
    base_digests: Mapping[str, str],
    level: int = 1,
) -> EncodedDelta:
    """What turns `base` into `new`, as bytes. Blocking; run it in a thread.

    Args:
        base_digests: sha256 hex of every tensor of `base`, known from the version before.
        level: of zstd. Higher ones cost time and gain 1 % at most (docs/decisions/0001-weight-delta-codec.md).

    Raises: WeightsError if the two versions don't have the same tensors.
    """
    update = difference(base, new, base_version=base_version, version=version, base_digests=base_digests)
    return encode_update(update, level=level)


def encode_update(update: SparseUpdate, *, level: int = 1) -> EncodedDelta:
    """An update, for example a merged one, as bytes."""
    gaps: list[NDArray[np.uint8]] = []
    wide_gaps: list[NDArray[np.uint64]] = []
    small: list[NDArray[np.int8]] = []
    wide: dict[int, list[NDArray[Any]]] = {width: [] for width in WIDTHS}
    entries = []
    for name, tensor in update.tensors.items():
        gap_bytes, gap_list = split_gaps(tensor.positions)
        difference_bytes, difference_list = split_differences(tensor.differences)
        gaps.append(gap_bytes)
        wide_gaps.append(gap_list)
        small.append(difference_bytes)
        wide[ITEM_SIZES[tensor.dtype]].append(difference_list)
        digest = bytes.fromhex(tensor.digest)
        sizes = (len(gap_bytes), len(gap_list), len(difference_list))
        entries.append(DeltaEntry(name, tensor.dtype, tensor.shape, *sizes, digest))
    streams = [
        _joined(gaps, np.uint8).tobytes(),
        to_planes(_joined(wide_gaps, np.uint64)),
        _joined(small, np.int8).tobytes(),
        *(to_planes(_joined(wide[width], np.dtype(f"<u{width}"))) for width in WIDTHS),
    ]
    ends = (bytes.fromhex(update.base_digest), bytes.fromhex(update.digest))
    header = DeltaHeader(update.base_version, update.version, *ends, tuple(entries))
    payload = write_delta(header, streams, level=level)
    digests = {name: tensor.digest for name, tensor in update.tensors.items()}
    return EncodedDelta(update.base_version, update.version, payload, update.changed, update.digest, digests)


def decode(payload: bytes | bytearray | memoryview, model: Mapping[str, HostTensor]) -> SparseUpdate:
    """The update in a payload, checked against the tensors that it is meant for. Blocking.

    Args:
        model: any version of it; only names, dtypes and shapes are looked at.

    Raises: WeightsError if the payload is truncated, damaged or of another format or model. Nothing is allocated from a
        size that the payload claims and the model does not bear out.
    """
    header, streams = read_delta(memoryview(payload), model)
    gaps, small = _Stream(np.frombuffer(streams[0], np.uint8)), _Stream(np.frombuffer(streams[2], np.int8))
    wide_gaps = _Stream(from_planes(streams[1], np.dtype("<u8")))
    wide = {width: _Stream(from_planes(streams[3 + i], np.dtype(f"<u{width}"))) for i, width in enumerate(WIDTHS)}
    tensors: dict[str, SparseTensor] = {}
    for entry in header.tensors:
        gap_bytes, gap_list = gaps.take(entry.changed), wide_gaps.take(entry.wide_gaps)
        positions = join_gaps(gap_bytes, gap_list, elements=math.prod(entry.shape))
        difference_list = wide[ITEM_SIZES[entry.dtype]].take(entry.wide_differences)
        differences = join_differences(small.take(entry.changed), difference_list)
        if not differences.all():
            raise WeightsError(f"a delta says that an element of tensor {entry.name} changes by 0")
        tensors[entry.name] = SparseTensor(entry.dtype, entry.shape, positions, differences, entry.digest.hex())
    return SparseUpdate(header.base_version, header.version, header.base_digest.hex(), header.digest.hex(), tensors)


class _Stream:
    """Numbers handed out in order. Their count was checked against the header, so it is never short."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        self._start = 0

    def take(self, count: int) -> NDArray[Any]:
        self._start += count
        return self._values[self._start - count : self._start]


def _joined(arrays: list[Any], dtype: Any) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
