"""Where the elements of a checkpoint's tensor land in the server's memory: strided windows, and positions through them.

Not here: how windows are found (`tracing.py`). Pure arithmetic on integers.
Invariant: a window maps distinct source elements to distinct targets.
Axes: N positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CopyWindow:
    """A copy of source elements into a storage. Strides count elements; `dims` has the largest source stride first."""

    storage: int  # its address
    dtype: torch.dtype  # of the target
    source_start: int
    target_start: int
    dims: tuple[tuple[int, int, int], ...]  # (size, source stride, target stride); sizes over 1, neighbours merged

    @property
    def source_end(self) -> int:
        """Behind the last source position."""
        return self.source_start + 1 + sum((size - 1) * stride for size, stride, _ in self.dims)

    @property
    def target_end(self) -> int:
        """Behind the last target element."""
        return self.target_start + 1 + sum((size - 1) * stride for size, _, stride in self.dims)

    @property
    def is_run(self) -> bool:
        """A gap-free piece lands as a gap-free piece."""
        return all(source == target == 1 for _, source, target in self.dims)


def window_of(storage: int, target: Tensor, source: Tensor) -> CopyWindow | None:
    """The window of a copy between two views, or None if it isn't one-to-one or can't be inverted step by step."""
    source = source.expand(target.shape)
    dims = sorted(
        (each for each in zip(target.shape, source.stride(), target.stride(), strict=True) if each[0] > 1),
        key=lambda dim: -dim[1],
    )
    merged: list[tuple[int, int, int]] = []
    for size, source_stride, target_stride in reversed(dims):
        if merged and (source_stride, target_stride) == (merged[0][0] * merged[0][1], merged[0][0] * merged[0][2]):
            merged[0] = (merged[0][0] * size, *merged[0][1:])
        else:
            merged.insert(0, (size, source_stride, target_stride))
    if not (_is_nested([dim[:2] for dim in merged]) and _is_nested(sorted(((n, t) for n, _, t in merged), key=_last))):
        return None
    return CopyWindow(storage, target.dtype, int(source.storage_offset()), int(target.storage_offset()), tuple(merged))


def _last(dim: tuple[int, int]) -> int:
    return -dim[1]


def _is_nested(dims: Sequence[tuple[int, int]]) -> bool:
    """Whether each stride, largest first, exceeds what all smaller ones can reach: then no two indices meet."""
    reach = 0
    for size, stride in reversed(dims):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def overlap(one: CopyWindow, other: CopyWindow) -> bool:
    """Whether the spans of their targets meet; said of some that only interleave, too."""
    return one.storage == other.storage and one.target_start < other.target_end and other.target_start < one.target_end


def targets_of(window: CopyWindow, positions_N: Tensor) -> tuple[Tensor, Tensor | None]:
    """Target elements int64, and which positions are in the window at all (bool[N]); None: all, by construction.

    Args:
        positions_N: int64, within [source_start, source_end).
    """
    if window.is_run:
        return positions_N + (window.target_start - window.source_start), None
    rest_N = positions_N - window.source_start
    targets_N = torch.full_like(positions_N, window.target_start)
    inside_N = torch.ones_like(positions_N, dtype=torch.bool)
    for size, source_stride, target_stride in window.dims:
        index_N = rest_N if source_stride == 1 else torch.div(rest_N, source_stride, rounding_mode="floor")
        inside_N &= index_N < size
        targets_N += index_N * target_stride
        rest_N = rest_N - index_N * source_stride
    return targets_N, inside_N & (rest_N == 0)
