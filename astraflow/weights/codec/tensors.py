"""Tensors without torch: dtype name, shape and bytes, as they travel between learner, bus and engine.

Not a tensor library: no arithmetic. Invariant: `data` is C-ordered, little-endian and exactly as long as dtype × shape.
"""

import hashlib
import math
from dataclasses import dataclass

from astraflow.errors import WeightsError

LONG_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Of each dtype that travels, by safetensors' name: what torch and config.json call it."""
ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class HostTensor:
    """A tensor in host memory. `dtype` is safetensors' name; `data` may be a view of a larger buffer."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview  # format "B", contiguous

    def __post_init__(self) -> None:
        size = ITEM_SIZES.get(self.dtype)
        if size is None:
            raise WeightsError(f"tensor has dtype {self.dtype!r}, expected one of {sorted(ITEM_SIZES)}")
        if math.prod(self.shape) * size != self.data.nbytes:
            raise WeightsError(f"{self.dtype} tensor of shape {self.shape} has {self.data.nbytes} bytes")

    def digest(self) -> str:
        """sha256 hex of the bytes."""
        return hashlib.sha256(self.data).hexdigest()
