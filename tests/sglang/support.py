"""Torch tensors as changes, as the engine makes them, and the loader's named tensors."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astraflow.weights.codec.changes import Change, ChangedElements
from astraflow.weights.codec.tensors import HostTensor

SERVERSIDE = Path(__file__).parents[2] / "astraflow/engines/sglang/serverside"
if str(SERVERSIDE) not in sys.path:  # as PYTHONPATH does in the server
    sys.path.insert(0, str(SERVERSIDE))

NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}


def bits(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Flat unsigned integers."""
    whole = tensor.detach().contiguous().reshape(-1)
    return whole.view(torch.uint8).numpy().view(f"<u{tensor.dtype.itemsize}")


def host(tensor: Tensor) -> HostTensor:
    """All of it."""
    return HostTensor(NAMES[tensor.dtype], tuple(tensor.shape), memoryview(bits(tensor).tobytes()))


def elements(old: Tensor, new: Tensor) -> ChangedElements:
    """Where the bits differ."""
    positions = np.flatnonzero(bits(old) != bits(new))
    return ChangedElements(NAMES[new.dtype], tuple(new.shape), positions, bits(new)[positions])


def disturbed(tensors: dict[str, Tensor], share: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Copies in which a share of the elements has other values."""
    changed = {}
    for name, tensor in tensors.items():
        where = torch.rand(tensor.shape, generator=generator) < share
        changed[name] = torch.where(where, torch.randn(tensor.shape, generator=generator).to(tensor.dtype), tensor)
    return changed


def sparse(old: dict[str, Tensor], new: dict[str, Tensor]) -> dict[str, Change]:
    """All of it by elements."""
    return {name: elements(old[name], new[name]) for name in new}


def as_bytes(text: str | bytes) -> Tensor:
    """A uint8 tensor, as the loader gets everything."""
    return torch.frombuffer(bytearray(text.encode() if isinstance(text, str) else text), dtype=torch.uint8)
