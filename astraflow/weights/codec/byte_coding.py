"""Small integers as one byte each, with the rare large ones in a list of their own.

Not here: compression, and what the integers mean. A byte says either the value or "the next of the wide list", so
there are exactly as many bytes as values and every size is known before anything is allocated.
Invariant: split, then join, gives the same integers back; join refuses lists whose lengths disagree.
Axes: N values, W ≤ N of them wide.

Unsigned values (gaps between positions) escape at 255. Signed values (wrapping differences of any width) escape at
-128. Wide values keep their full width and are stored as byte planes: all lowest bytes, then all second bytes, …,
because their high bytes are nearly constant and then compress to nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.errors import WeightsError

GAP_ESCAPE = 255
_DIFFERENCE_ESCAPE = -128


def split_gaps(positions_N: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Sorted, distinct positions as (uint8[N], uint64[W]): the distance to the one before, minus 1."""
    gaps_N = np.diff(positions_N, prepend=-1)
    gaps_N -= 1
    wide = np.flatnonzero(gaps_N >= GAP_ESCAPE)
    bytes_N = gaps_N.astype(np.uint8)
    bytes_N[wide] = GAP_ESCAPE
    return bytes_N, gaps_N[wide].astype(np.uint64)


def join_gaps(bytes_N: NDArray[np.uint8], wide_W: NDArray[np.uint64], *, elements: int) -> NDArray[np.int64]:
    """The positions behind `split_gaps`: int64[N], strictly increasing, all below `elements`.

    Raises: WeightsError if the lists' lengths disagree or a position would lie outside the tensor.
    """
    wide = np.flatnonzero(bytes_N == GAP_ESCAPE)
    if len(wide) != len(wide_W):
        raise WeightsError(f"{len(wide)} positions refer to the list of wide gaps, it has {len(wide_W)}")
    # In float64 and before anything is summed as int64: the sum of hostile gaps could wrap back into range.
    if float(wide_W.sum(dtype=np.float64)) > elements:
        raise WeightsError(f"the wide gaps alone leave a tensor of {elements} elements")
    steps_N = bytes_N.astype(np.int64)
    steps_N[wide] = wide_W
    steps_N += 1
    positions_N = np.cumsum(steps_N, out=steps_N)
    if len(positions_N) and int(positions_N[-1]) > elements:
        raise WeightsError(f"position {int(positions_N[-1]) - 1} is outside a tensor of {elements} elements")
    positions_N -= 1
    return positions_N


def split_differences(differences_N: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Wrapping differences (unsigned, any width) as (int8[N], the differences that don't fit [W])."""
    signed_N = differences_N.view(f"i{differences_N.itemsize}")
    bytes_N = signed_N.astype(np.int8)
    wide = np.flatnonzero((bytes_N != signed_N) | (bytes_N == _DIFFERENCE_ESCAPE))
    bytes_N[wide] = _DIFFERENCE_ESCAPE
    return bytes_N, differences_N[wide]


def join_differences(bytes_N: NDArray[np.int8], wide_W: NDArray[Any]) -> NDArray[Any]:
    """The differences behind `split_differences`, in the dtype of `wide_W`.

    Raises: WeightsError if the lists' lengths disagree.
    """
    wide = np.flatnonzero(bytes_N == _DIFFERENCE_ESCAPE)
    if len(wide) != len(wide_W):
        raise WeightsError(f"{len(wide)} differences refer to the list of wide ones, it has {len(wide_W)}")
    differences_N = bytes_N.astype(f"i{wide_W.itemsize}").view(wide_W.dtype)
    differences_N[wide] = wide_W
    return differences_N


def to_planes(wide_W: NDArray[Any]) -> bytes:
    """Unsigned integers as byte planes, lowest first: W × itemsize bytes."""
    little = wide_W.astype(wide_W.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(len(little), little.itemsize).T.tobytes()


def from_planes(planes: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The integers behind `to_planes`; the length of `planes` is a multiple of the dtype's size."""
    bytes_PW = np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, -1)
    little = np.ascontiguousarray(bytes_PW.T).reshape(-1).view(dtype.newbyteorder("<"))
    return little.astype(dtype, copy=False)
