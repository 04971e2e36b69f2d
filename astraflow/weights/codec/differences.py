"""What changed between two versions of a model: positions and wrapping differences, per tensor.

Not here: bytes on the wire (`delta.py`), applying (`host_copy.py`).
Everything works on the tensors' bits as unsigned integers, so −0.0, NaN payloads and denormals are nothing special:
difference = new − base modulo 2^bits. Differences (and not new values) because most are ±1, and because an update made
of them can be undone exactly.
Invariant: positions are strictly increasing, and no stored difference is 0.
Axes: N changed elements of one tensor.
"""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from astraflow.errors import WeightsError
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor

# Measured best of 2^13 … 2^17 words at 0.5 to 3 % changed (docs/decisions/0001-weight-delta-codec.md).
BLOCK_WORDS = 1 << 16


@dataclass(frozen=True)
class SparseTensor:
    """The changed elements of one tensor."""

    dtype: str  # safetensors name
    shape: tuple[int, ...]
    positions: NDArray[np.int64]  # [N], flat, C order, strictly increasing
    differences: NDArray[Any]  # unsigned[N] of the dtype's width, never 0
    digest: str  # sha256 hex of the tensor's bytes after the update


@dataclass(frozen=True)
class SparseUpdate:
    """All that changed from one version to a later one. Tensors that kept their bits are absent."""

    base_version: int
    version: int
    base_digest: str  # model_digest of the version that it applies to
    digest: str  # model_digest of the version that it leads to
    tensors: Mapping[str, SparseTensor]

    @property
    def changed(self) -> int:
        """Elements that differ."""
        return sum(len(tensor.positions) for tensor in self.tensors.values())


class Described(Protocol):
    """Anything that says what a tensor is: the tensor itself, or its entry in a manifest."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def model_digest(tensors: Mapping[str, Described], digests: Mapping[str, str]) -> str:
    """One sha256 hex for a whole version: its tensors' names, dtypes, shapes and digests, in the order of names."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        shape = ",".join(map(str, tensor.shape))
        whole.update(f"{len(name)}:{name} {tensor.dtype} [{shape}] {digests[name]}\n".encode())
    return whole.hexdigest()


def as_integers(tensor: HostTensor) -> NDArray[Any]:
    """The tensor's bits as flat little-endian unsigned integers; shares its memory, writable if that is."""
    return np.frombuffer(tensor.data, f"<u{ITEM_SIZES[tensor.dtype]}")


def check_same_model(base: Mapping[str, Described], new: Mapping[str, Described]) -> None:
    """Raises WeightsError unless both have the same names, dtypes and shapes."""
    if missing := sorted(base.keys() ^ new.keys()):
        raise WeightsError(f"tensor {missing[0]} is in only one of two versions ({len(missing)} such tensors)")
    for name, tensor in new.items():
        if (tensor.dtype, tensor.shape) != (base[name].dtype, base[name].shape):
            raise WeightsError(
                f"tensor {name} is {tensor.dtype}{list(tensor.shape)}, expected {base[name].dtype}"
                f"{list(base[name].shape)} as in the version before"
            )


def find_changes(base: HostTensor, new: HostTensor) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Positions int64[N] and differences unsigned[N] of the elements whose bits differ. Same dtype and shape.

    Compares eight bytes at a time, block by block in cache, and looks at single elements only in words that differ.
    """
    base_ints, new_ints = as_integers(base), as_integers(new)
    lanes = 8 // base_ints.itemsize
    whole = len(base_ints) // lanes * lanes
    base_words, new_words = base_ints[:whole].view("<u8"), new_ints[:whole].view("<u8")
    found = [
        _changes_of_block(base_words[start : start + BLOCK_WORDS], new_words[start : start + BLOCK_WORDS], start, lanes)
        for start in range(0, len(base_words), BLOCK_WORDS)
    ]
    tail = new_ints[whole:] - base_ints[whole:]
    where = np.flatnonzero(tail)
    found.append((where + whole, tail[where]))
    return np.concatenate([positions for positions, _ in found]), np.concatenate([values for _, values in found])


def _changes_of_block(
    base_words: NDArray[np.uint64], new_words: NDArray[np.uint64], start: int, lanes: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    words = np.flatnonzero(base_words != new_words)
    element = f"<u{8 // lanes}"
    differences = new_words[words].view(element) - base_words[words].view(element)
    where = np.flatnonzero(differences != 0)  # on booleans it is several times faster than on integers
    words += start
    words *= lanes
    positions = words[where >> (lanes.bit_length() - 1)]  # lanes is 1, 2, 4 or 8
    positions += where & (lanes - 1)
    return positions, differences[where]


def difference(
    base: Mapping[str, HostTensor],
    new: Mapping[str, HostTensor],
    *,
    base_version: int,
    version: int,
    base_digests: Mapping[str, str],
) -> SparseUpdate:
    """What turns `base` into `new`. Hashes the tensors that changed, and only those.

    Args:
        base_digests: sha256 hex of every tensor of `base`; a publisher has them from the version before.

    Raises: WeightsError if the two versions don't have the same tensors.
    """
    check_same_model(base, new)
    tensors: dict[str, SparseTensor] = {}
    for name in sorted(new):
        tensor = new[name]
        positions, differences = find_changes(base[name], tensor)
        if len(positions):
            tensors[name] = SparseTensor(tensor.dtype, tensor.shape, positions, differences, tensor.digest())
    digests = {**base_digests, **{name: tensor.digest for name, tensor in tensors.items()}}
    return SparseUpdate(base_version, version, model_digest(base, base_digests), model_digest(new, digests), tensors)


def check_chain(updates: Sequence[SparseUpdate]) -> None:
    """Raises WeightsError if there is none, or one does not start where the one before it ends."""
    if not updates:
        raise WeightsError("a chain of no updates")
    for before, after in itertools.pairwise(updates):
        if (before.version, before.digest) != (after.base_version, after.base_digest):
            raise WeightsError(
                f"an update to version {before.version} ({before.digest[:12]}) is followed by one from "
                f"{after.base_version} ({after.base_digest[:12]})"
            )


def combine(pieces: Sequence[SparseUpdate]) -> SparseUpdate:
    """The pieces of one update, each with other tensors, as one.

    Raises: WeightsError if they aren't pieces of the same update, or two have the same tensor.
    """
    first = pieces[0]
    tensors: dict[str, SparseTensor] = {}
    for piece in pieces:
        ends = (piece.base_version, piece.version, piece.base_digest, piece.digest)
        if ends != (first.base_version, first.version, first.base_digest, first.digest):
            raise WeightsError(f"pieces of version {first.version} and of version {piece.version} are mixed up")
        if twice := tensors.keys() & piece.tensors.keys():
            raise WeightsError(f"tensor {min(twice)} is in two pieces of version {first.version}")
        tensors |= piece.tensors
    return SparseUpdate(first.base_version, first.version, first.base_digest, first.digest, tensors)


def merge(updates: Sequence[SparseUpdate]) -> SparseUpdate:
    """One update from the first's base to the last's version. Elements that came back to where they were drop out.

    It saves bytes on the wire. Applying what is already here is cheaper by `shadow.apply_chain`.
    Raises: WeightsError as `check_chain`, or if a tensor changes its dtype or shape on the way.
    """
    check_chain(updates)
    tensors: dict[str, SparseTensor] = {}
    for name in sorted({name for update in updates for name in update.tensors}):
        merged = _merge_tensor(name, [update.tensors[name] for update in updates if name in update.tensors])
        if len(merged.positions):
            tensors[name] = merged
    first, last = updates[0], updates[-1]
    return SparseUpdate(first.base_version, last.version, first.base_digest, last.digest, tensors)


def _merge_tensor(name: str, pieces: Sequence[SparseTensor]) -> SparseTensor:
    last = pieces[-1]
    if any((piece.dtype, piece.shape) != (last.dtype, last.shape) for piece in pieces):
        raise WeightsError(f"can't merge: tensor {name} has several dtypes or shapes")
    positions = np.concatenate([piece.positions for piece in pieces])
    order = np.argsort(positions, kind="stable")  # merges the sorted runs
    positions = positions[order]
    starts = np.flatnonzero(np.diff(positions, prepend=-1))
    differences = np.concatenate([piece.differences for piece in pieces])[order]
    sums = np.add.reduceat(differences, starts, dtype=differences.dtype) if len(starts) else differences
    kept = np.flatnonzero(sums)
    return SparseTensor(last.dtype, last.shape, positions[starts][kept], sums[kept], last.digest)
