"""Arrays on the wire: dtype, shape and little-endian bytes, never lists of numbers."""

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from astraflow.errors import MessageError

WIRE_DTYPES: dict[str, np.dtype[Any]] = {
    "u1": np.dtype("u1"),
    "i4": np.dtype("<i4"),
    "i8": np.dtype("<i8"),
    "f4": np.dtype("<f4"),
}
MAX_DIMENSIONS = 8
MAX_SIDE = 1 << 40  # also of what has no elements: numpy multiplies the sides that aren't 0


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A numpy array on the wire; `data` is C-ordered and little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def numpy(self) -> NDArray[Any]:
        """The array as a read-only view of the message's bytes. Raises MessageError if sizes disagree."""
        dtype = WIRE_DTYPES.get(self.dtype)
        if dtype is None:
            raise MessageError(f"array has dtype {self.dtype!r}, expected one of {sorted(WIRE_DTYPES)}")
        if len(self.shape) > MAX_DIMENSIONS:
            raise MessageError(f"array has {len(self.shape)} dimensions, at most {MAX_DIMENSIONS} are read")
        if any(not 0 <= n <= MAX_SIDE for n in self.shape) or math.prod(self.shape) * dtype.itemsize != len(self.data):
            raise MessageError(f"array of shape {self.shape} and dtype {self.dtype} has {len(self.data)} bytes")
        try:
            return np.frombuffer(self.data, dtype=dtype).reshape(self.shape)
        except (ValueError, OverflowError) as exc:  # numpy's own limits
            raise MessageError(f"array of shape {self.shape} and dtype {self.dtype} can't be read: {exc}") from exc


def array_of(values: Any, dtype: str) -> Array:
    """An `Array` from anything numpy accepts; `dtype` is a key of WIRE_DTYPES."""
    native: NDArray[Any] = np.asarray(values, dtype=WIRE_DTYPES[dtype])
    return Array(dtype, native.shape, native.tobytes())
