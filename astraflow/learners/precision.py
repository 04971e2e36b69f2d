"""Which dtype to train in. Not here: what that means for masters and gradients (`master.py`)."""

import functools

import torch

from astraflow import clock

# With bf16 units bf16 products are about 4 times faster than fp32 here, without them several times slower, so the
# bound is far from both even on a busy machine.
WORTHWHILE = 1.5


def compute_dtype(name: str) -> torch.dtype:
    """The dtype of weights and activations for `[trainer].dtype`: bf16 | fp32 | auto (bf16 where it is fast)."""
    if name == "auto":
        return torch.bfloat16 if bf16_is_fast() else torch.float32
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[name]


@functools.cache
def bf16_is_fast() -> bool:
    """Whether this CPU multiplies bf16 matrices clearly faster than fp32 ones. Measured once, in about 30 ms."""
    return _product_s(torch.float32) > WORTHWHILE * _product_s(torch.bfloat16)


def _product_s(dtype: torch.dtype) -> float:
    left, right = torch.ones(256, 1024, dtype=dtype), torch.ones(1024, 1024, dtype=dtype)
    times = []
    for _ in range(5):
        started = clock.monotonic()
        torch.mm(left, right)
        times.append(clock.monotonic() - started)
    return min(times)
