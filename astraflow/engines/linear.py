"""Linear maps for inference, from weights that oneDNN has reordered for itself where it can.

It copies no weights (`decoder_weights.py`).

torch's `F.linear` reorders a bf16 weight on every call, which doubles the time of a small batch (measured here, one
thread, 3072 × 576: 438 → 250 µs for 1 row, 559 → 280 µs for 8, 1437 → 1175 µs for 64; results are identical).
The price is a second copy of the weight, and a reorder whenever it changes.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

PACKED_DTYPES = frozenset({torch.bfloat16})  # F.linear packs fp32 weights at no cost worth a copy


class Linear:
    """x · Wᵀ + b. Where it `packs`, the product reads a copy of `weight`: `packed` makes it, `use` puts it in."""

    def __init__(self, rows: int, columns: int, *, bias: bool, dtype: torch.dtype) -> None:
        self.weight = torch.zeros(rows, columns, dtype=dtype)
        self.bias = torch.zeros(rows, dtype=dtype) if bias else None
        self._packed: Tensor | None = None  # None: not for this dtype or machine

    def __call__(self, x: Tensor) -> Tensor:
        """Args: x: float[N, columns]. Returns: float[N, rows]."""
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        return _apply(x, self._packed, self.bias)

    @property
    def packs(self) -> bool:
        """Whether this CPU gains from a reordered copy."""
        return self.weight.dtype in PACKED_DTYPES and packing_works(self.weight.dtype)

    def packed(self, weight: Tensor) -> Tensor:
        """A reordered copy of a weight of this shape. From any thread."""
        found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
        return found

    def use(self, packed: Tensor) -> None:
        """Multiply with it from now on."""
        self._packed = packed

    def places(self, start: int, end: int, name: str) -> dict[str, Tensor]:
        """Output rows [start, end) under a checkpoint's name."""
        found = {f"{name}.weight": self.weight[start:end]}
        if self.bias is not None:
            found[f"{name}.bias"] = self.bias[start:end]
        return found


def _apply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


@cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether torch has these operators, they run on this CPU and agree with `F.linear`. They are torch's own but not
    public (inductor uses them), so this is tried, not assumed."""
    linear = Linear(4, 16, bias=False, dtype=dtype)
    linear.weight[:] = torch.arange(-32, 32).view(4, 16)
    x = torch.arange(-8, 8).view(1, 16).to(dtype)
    try:
        return torch.equal(_apply(x, linear.packed(linear.weight), None), F.linear(x, linear.weight))
    except (AttributeError, RuntimeError):
        return False
