"""Weights of a running model: named places that host tensors are checked against, then copied into.

It doesn't know architectures. Invariant: `check` raises before anything is changed, and what it accepts, `write` can't
refuse; so a swap is all or nothing.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from astraflow.algos.tensors import HostTensor
from astraflow.errors import WeightsError

TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)  # buffers of old checkpoints; computed from the config here


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

    def check(self, tensors: Mapping[str, HostTensor], *, complete: bool = False) -> None:
        """Raise WeightsError for an unknown name, another shape, a dtype that isn't float, or a missing tensor."""
        for name, tensor in tensors.items():
            if name.endswith(IGNORED_SUFFIXES):
                continue
            place = self._places.get(name)
            expected = self._ignored.get(name) if place is None else tuple(place.shape)
            if expected is None:
                raise WeightsError(f"tensor {name!r} is not one of the model's {len(self._places)} tensors")
            if tensor.shape != expected:
                raise WeightsError(f"tensor {name!r} has shape {tensor.shape}, the model has {expected}")
            if tensor.dtype not in TORCH_DTYPES:
                raise WeightsError(f"tensor {name!r} has dtype {tensor.dtype}, expected one of {sorted(TORCH_DTYPES)}")
        missing = [name for name in self._places if name not in tensors and name not in self._optional]
        if complete and missing:
            raise WeightsError(f"the weights lack {len(missing)} tensors of the model, e.g. {missing[0]!r}")

    def write(self, tensors: Mapping[str, HostTensor]) -> frozenset[str]:
        """Copy checked tensors in place, converting to the model's dtype. Returns: the names that were stored."""
        stored = [name for name in tensors if name in self._places]
        for name in stored:
            copy_into(self._places[name], tensors[name])
        return frozenset(stored)


def copy_into(place: Tensor, tensor: HostTensor) -> None:
    """Copy a host tensor's bytes into a contiguous torch tensor of the same shape; rounds to nearest even."""
    source = TORCH_DTYPES[tensor.dtype]
    target = place if place.dtype == source else torch.empty(place.shape, dtype=source)
    if tensor.data.nbytes:
        target.detach().view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(tensor.data, dtype=np.uint8)
    if target is not place:
        place.detach().copy_(target)
