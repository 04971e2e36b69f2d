"""Start fp32 master weights inside their bf16 cell instead of at its centre.

Not here: when to do it (`learners/master.py`) and why it pays (docs/decisions/0002-dithered-master.md).
Invariant: the result rounds back to exactly the bf16 weights it came from, whatever their bits (NaN stays NaN).
"""

import torch
from torch import Tensor


def on_bf16_grid(weights: Tensor) -> bool:
    """Whether every value of a floating tensor is a bf16 value, so that nothing is known below bf16's last bit."""
    if weights.dtype == torch.bfloat16:
        return True
    low_bits = weights.float().contiguous().view(torch.int32).bitwise_and(0xFFFF)
    return not bool(low_bits.any())


def dithered_master(weights: Tensor, generator: torch.Generator) -> Tensor:
    """An fp32 master at w + u·ulp(w), u uniform in ±1/2, kept only where it rounds back to w.

    ulp(w) is the distance to the next bf16 value away from zero. Below a power of two the spacing halves, so there
    a quarter of the draws don't round back and keep w itself. Draws reach the very edge of the cell: with a margin, an
    update smaller than the margin would move no bf16 weight at all. Values whose spacing is subnormal in fp32 (so ±0
    too), infinities and NaN are left alone.

    Args:
        weights: bf16, any shape. generator: a seeded CPU generator; equal seeds give equal masters.

    Returns: float32, contiguous, same shape, with `.to(bf16)` equal to `weights` bit for bit.
    """
    exact = weights.float().contiguous()
    magnitude = weights.abs()
    spacing = torch.nextafter(magnitude, torch.full_like(magnitude, float("inf"))).float() - magnitude.float()
    offset = (
        torch.rand(weights.shape, generator=generator, dtype=torch.float32, device=generator.device)
        .sub_(0.5)
        .to(weights.device)
    )
    moved = offset.mul_(spacing).add_(exact)
    keeps = moved.to(torch.bfloat16).view(torch.int16) == weights.contiguous().view(torch.int16)
    keeps &= (spacing >= torch.finfo(torch.float32).tiny) & moved.isfinite()
    return torch.where(keeps, moved, exact)
