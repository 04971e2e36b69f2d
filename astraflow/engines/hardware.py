"""Which float type this CPU computes fastest in.

It measures instead of reading CPU flags: what counts is what torch's kernels do here. The probe takes about 10 ms and
runs once per process.
"""

from functools import cache
from typing import Literal

import torch

from astraflow import clock

PROBE_ROWS, PROBE_SIZE = 64, 768
PROBE_REPEATS = 5


@cache
def bf16_is_fast() -> bool:
    """True where a bf16 matrix product of a decode step's shape beats fp32 (AVX512-BF16 or AMX: 1.5 to 4 times)."""
    return _product_s(torch.bfloat16) < _product_s(torch.float32) / 1.2


def _product_s(dtype: torch.dtype) -> float:
    """Best time of a few products, so that a busy machine doesn't decide."""
    a = torch.ones(PROBE_ROWS, PROBE_SIZE, dtype=dtype)
    b = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype)
    best = float("inf")
    for _ in range(PROBE_REPEATS):
        started = clock.monotonic()
        torch.nn.functional.linear(a, b)
        best = min(best, clock.monotonic() - started)
    return best


def compute_dtype(wanted: Literal["auto", "bf16", "fp32"]) -> torch.dtype:
    """The torch dtype behind a config value."""
    if wanted == "auto":
        return torch.bfloat16 if bf16_is_fast() else torch.float32
    return torch.bfloat16 if wanted == "bf16" else torch.float32
