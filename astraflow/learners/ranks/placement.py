"""Where a rank's piece of a sharded tensor lies in the whole tensor, for any rectangular way of cutting it.

Not here: moving pieces between ranks. A tensor that isn't sharded is its own piece.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


class Block(NamedTuple):
    """A rectangle of a tensor."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(o, o + n) for o, n in zip(self.offset, self.shape, strict=True))


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it; not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def block_of(tensor: Tensor) -> Block:
    """Where `local(tensor)` lies."""
    if not isinstance(tensor, DTensor):
        return Block(tuple(tensor.shape), (0,) * tensor.ndim)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Block(tuple(shape), tuple(offset))


def speaks_for(tensor: Tensor, rank: int) -> bool:
    """Whether this rank is the one of those that hold the same piece that writes or sends it."""
    if not isinstance(tensor, DTensor):
        return rank == 0
    place = tensor.device_mesh.get_coordinate()
    assert place is not None, "a tensor of other ranks"
    return all(at == 0 for at, kind in zip(place, tensor.placements, strict=True) if kind.is_replicate())


def copies(tensor: Tensor, world: int) -> float:
    """How many ranks of all hold the same piece. Gradients must have been added up."""
    if not isinstance(tensor, DTensor):
        return float(world)
    assert not any(kind.is_partial() for kind in tensor.placements), "a sum that isn't added up yet"
    cut = [n for n, kind in zip(tensor.device_mesh.shape, tensor.placements, strict=True) if not kind.is_replicate()]
    return world / math.prod(cut)


def flat_indices(whole: Sequence[int], block: Block, start: int, stop: int) -> Tensor:
    """int64: where elements start … stop − 1 of the block, in its own order, are in the flat whole tensor."""
    own = torch.arange(start, stop, dtype=torch.int64)
    if block.shape[1:] == tuple(whole[1:]):  # rows: one run
        return own + (block.offset[0] * math.prod(whole[1:]) if whole else 0)
    index, stride = torch.zeros_like(own), 1
    for size, first, full in zip(reversed(block.shape), reversed(block.offset), reversed(whole), strict=True):
        index += (own % size + first) * stride
        own = own // size
        stride *= full
    return index
