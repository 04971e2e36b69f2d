"""A replica's own copy of one version in host memory, and how an update moves it to the next.

Not here: getting weights into an engine; the shadow is what an engine is then updated from.
Invariant: `digests` are those of the bytes as last verified, and an update is applied whole and verified, or refused
with every byte as it was.
"""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from astraflow.errors import WeightsError
from astraflow.weights.codec.differences import SparseTensor, SparseUpdate, as_integers, check_chain, model_digest
from astraflow.weights.codec.tensors import HostTensor

ALIGNMENT_BYTES = 64


class HostCopy:
    """One version's tensors in memory that it owns. Not thread-safe: one task applies, nobody reads meanwhile."""

    def __init__(self, version: int, tensors: Mapping[str, HostTensor], digests: Mapping[str, str]) -> None:
        """Takes `tensors` over.

        Args:
            digests: sha256 hex of every tensor, already verified by the caller.

        Raises: WeightsError if a tensor is read-only or has no digest.
        """
        for name, tensor in tensors.items():
            if tensor.data.readonly and tensor.data.nbytes:
                raise WeightsError(f"shadow tensor {name} is in read-only memory; take a copy with HostCopy.copy_of")
            if name not in digests:
                raise WeightsError(f"shadow tensor {name} has no digest")
        self.version = version
        self.tensors = dict(tensors)
        self.digests = {name: digests[name] for name in tensors}
        self.digest = model_digest(self.tensors, self.digests)

    @classmethod
    def copy_of(cls, version: int, tensors: Mapping[str, HostTensor], digests: Mapping[str, str]) -> Self:
        """Like the constructor, on a copy of `tensors`."""
        # One large allocation: numpy asks for huge pages, without them page faults cost more than the copy.
        sizes = [-(-tensor.data.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for tensor in tensors.values()]
        buffer = np.empty(sum(sizes), np.uint8).data
        copies, start = {}, 0
        for (name, tensor), size in zip(tensors.items(), sizes, strict=True):
            place = buffer[start : start + tensor.data.nbytes]
            place[:] = tensor.data
            copies[name] = HostTensor(tensor.dtype, tensor.shape, place)
            start += size
        return cls(version, copies, digests)


def apply(update: SparseUpdate, shadow: HostCopy) -> None:
    """Move a shadow to the update's version and verify every tensor that changed. Blocking.

    The base is checked by the digests that the shadow carries, so it costs no pass over the model; bytes that went bad
    since they were verified show in the digests afterwards.

    Raises: WeightsError, with the shadow unchanged, if the update starts from another version (or was applied before),
        is of another model, or leads to bytes that don't match its digests.
    """
    apply_chain([update], shadow)


def apply_chain(updates: Sequence[SparseUpdate], shadow: HostCopy) -> None:
    """Like `apply` for each in turn, but all or none of them, and verified once, at the end.

    Raises: WeightsError as `apply`, or if an update does not start where the one before it ends.
    """
    _check_fits(updates, shadow)
    digests = dict(shadow.digests)
    for update in updates:
        digests.update((name, tensor.digest) for name, tensor in update.tensors.items())
    last = updates[-1]
    if model_digest(shadow.tensors, digests) != last.digest:
        raise WeightsError(f"the digests of an update to version {last.version} contradict each other")
    done: list[tuple[HostTensor, SparseTensor]] = []
    complete = False
    try:
        for name in sorted({name for update in updates for name in update.tensors}):
            target = shadow.tensors[name]
            for change in [update.tensors[name] for update in updates if name in update.tensors]:
                _add(target, change)
                done.append((target, change))
            if target.digest() != digests[name]:
                raise WeightsError(
                    f"tensor {name} of version {last.version} does not match its digest; version {shadow.version} "
                    "stays, ask for a full"
                )
        complete = True
    finally:
        if not complete:
            for target, change in done:
                _subtract(target, change)
    shadow.version, shadow.digests, shadow.digest = last.version, digests, last.digest


def _check_fits(updates: Sequence[SparseUpdate], shadow: HostCopy) -> None:
    check_chain(updates)
    first = updates[0]
    if first.base_version != shadow.version:
        again = ", which it has," if first.version == shadow.version else ""
        raise WeightsError(
            f"an update from version {first.base_version} to {first.version}{again} does not apply to version "
            f"{shadow.version}"
        )
    for update in updates:
        _check_model(update, shadow)
    if first.base_digest != shadow.digest:
        raise WeightsError(
            f"an update to version {first.version} was made against other bytes of version {shadow.version}: digest "
            f"{first.base_digest[:12]}, this shadow has {shadow.digest[:12]}"
        )


def _check_model(update: SparseUpdate, shadow: HostCopy) -> None:
    for name, tensor in update.tensors.items():
        mine = shadow.tensors.get(name)
        if mine is None:
            raise WeightsError(f"version {update.version} changes tensor {name!r}, which the model doesn't have")
        if (tensor.dtype, tensor.shape) != (mine.dtype, mine.shape):
            raise WeightsError(
                f"tensor {name} of version {update.version} is {tensor.dtype}{list(tensor.shape)}, the model has "
                f"{mine.dtype}{list(mine.shape)}"
            )


def _add(target: HostTensor, tensor: SparseTensor) -> None:
    integers = as_integers(target)
    integers[tensor.positions] += tensor.differences


def _subtract(target: HostTensor, tensor: SparseTensor) -> None:
    integers = as_integers(target)
    integers[tensor.positions] -= tensor.differences
