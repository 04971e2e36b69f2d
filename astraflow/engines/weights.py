"""Weights of a running model: named places that changes are checked against, prepared for, and then written into.

It doesn't know architectures. `check` and `prepare` may run in any thread beside the decode loop: everything that takes
time (conversion, looking up places) is in them, so that `Write.run`, between two decode steps, only moves bits.
Invariant: `check` raises before anything is changed; a write has nothing left to refuse or to allocate.
Axes: N elements of one tensor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.errors import WeightsError
from astraflow.models.torch_dtypes import TORCH_DTYPES
from astraflow.weights.codec.changes import Change, ChangedElements
from astraflow.weights.codec.differences import as_integers
from astraflow.weights.codec.tensors import HostTensor

_LOADABLE = ("BF16", "F16", "F32")
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # buffers of old checkpoints; computed from the config here


@dataclass(frozen=True)
class Write:
    """Bits that go into one place of the model."""

    name: str
    target: NDArray[Any]  # unsigned, flat: the place's memory
    positions: NDArray[np.int64] | None  # [N]; None: all of it
    bits: NDArray[Any]  # unsigned[N]

    def run(self) -> None:
        if self.positions is None:
            self.target[:] = self.bits
        else:
            self.target[self.positions] = self.bits

    def into(self, target: Tensor) -> "Write":
        """The same for another tensor of the place's shape and dtype."""
        return Write(self.name, _bits_of(target), self.positions, self.bits)


class WeightSlots:
    """Where each named tensor of a model lives.

    Args:
        places: contiguous tensors, possibly slices of fused ones, by the model's own (Hugging Face) names.
        optional: names that a complete set may leave out: tied copies and buffers.
        ignored: known names that are not stored, by shape: a tied head that a checkpoint repeats.
    """

    def __init__(
        self,
        places: Mapping[str, Tensor],
        *,
        optional: Iterable[str] = (),
        ignored: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._places = places
        self._optional = frozenset(optional)
        self._ignored = ignored or {}

    def check(self, changes: Mapping[str, Change], *, complete: bool = False) -> None:
        """Raise WeightsError for an unknown name, another shape, a dtype that isn't float, or a missing tensor."""
        for name, change in changes.items():
            if name.endswith(_IGNORED_SUFFIXES):
                continue
            place = self._places.get(name)
            expected = self._ignored.get(name) if place is None else tuple(place.shape)
            if expected is None:
                raise WeightsError(f"tensor {name!r} is not one of the model's {len(self._places)} tensors")
            if change.shape != expected:
                raise WeightsError(f"tensor {name!r} has shape {change.shape}, the model has {expected}")
            if change.dtype not in _LOADABLE:
                raise WeightsError(f"tensor {name!r} has dtype {change.dtype}, expected one of {', '.join(_LOADABLE)}")
        missing = [
            name
            for name in self._places
            if not isinstance(changes.get(name), HostTensor) and name not in self._optional
        ]
        if complete and missing:
            raise WeightsError(f"the weights lack {len(missing)} tensors of the model, e.g. {missing[0]!r}")

    def prepare(self, changes: Mapping[str, Change]) -> list[Write]:
        """Checked changes in the model's dtype, rounded to nearest even; what isn't stored is left out.

        Where no conversion is needed a whole tensor is not copied: it must not change until it is written.
        """
        return [_write(name, self._places[name], change) for name, change in changes.items() if name in self._places]


def _bits_of(tensor: Tensor) -> NDArray[Any]:
    """A contiguous tensor's memory as flat unsigned integers."""
    signed = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat: NDArray[Any] = tensor.detach().view(-1).view(signed).numpy()
    return flat.view(f"u{tensor.element_size()}")


def _write(name: str, place: Tensor, change: Change) -> Write:
    positions = change.positions if isinstance(change, ChangedElements) else None
    bits = change.values if isinstance(change, ChangedElements) else as_integers(change)
    return Write(name, _bits_of(place), positions, _converted(bits, TORCH_DTYPES[change.dtype], place.dtype))


def _converted(bits: NDArray[Any], source: torch.dtype, target: torch.dtype) -> NDArray[Any]:
    if source == target:
        return bits
    held = torch.empty(len(bits), dtype=source)
    _bits_of(held)[:] = bits
    return _bits_of(held.to(target))
