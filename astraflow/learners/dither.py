"""Start fp32 master weights inside their bf16 cell instead of at its centre.

Where in the cell is a hash of (seed, tensor's name, element), in integers only: a run starts from the same masters on
one process or many ranks, however they cut its tensors, on CPUs and GPUs.
Not here: when to do it (`learners/master.py`) and why it pays (docs/decisions/0002-dithered-master.md).
Invariant: the result rounds back to exactly the bf16 weights it came from, whatever their bits (NaN stays NaN).
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

_BLOCK = 1 << 18  # elements at a time: what is made of them on the way stays in the cache


def on_bf16_grid(weights: Tensor) -> bool:
    """Whether every value of a floating tensor is a bf16 value, so that nothing is known below bf16's last bit."""
    if weights.dtype == torch.bfloat16:
        return True
    low_bits = weights.float().contiguous().view(torch.int32).bitwise_and(0xFFFF)
    return not bool(low_bits.any())


def dithered_master(
    weights: Tensor, *, seed: int, name: str, elements: Callable[[int, int], Tensor] = torch.arange
) -> Tensor:
    """An fp32 master at w + u·ulp(w), u uniform in ±1/2, kept only where it rounds back to w.

    ulp(w) is the distance to the next bf16 value away from zero. Below a power of two the spacing halves, so there
    a quarter of the draws don't round back and keep w itself. Draws reach the very edge of the cell: with a margin, an
    update smaller than the margin would move no bf16 weight at all. Values whose spacing is subnormal in fp32 (so ±0
    too), infinities and NaN are left alone.

    Args:
        weights: bf16, any shape: a tensor, or a rank's piece of it.
        name: of the tensor in its model.
        elements: (start, stop) → int64: where the piece's elements start … stop − 1, in its own order, are in the whole
            tensor's. A whole tensor's are where they are.

    Returns: float32, contiguous, same shape, with `.to(bf16)` equal to `weights` bit for bit.
    """
    key = _key(seed, name)
    flat = weights.contiguous().view(-1)
    master = torch.empty(flat.shape, dtype=torch.float32, device=weights.device)
    for start in range(0, len(flat), _BLOCK):
        stop = min(start + _BLOCK, len(flat))
        offsets = _uniform(elements(start, stop).to(weights.device), key)
        master[start:stop] = _moved(flat[start:stop], offsets)
    return master.view(weights.shape)


def _moved(weights: Tensor, offsets: Tensor) -> Tensor:
    exact, magnitude = weights.float(), weights.abs()
    spacing = torch.nextafter(magnitude, torch.full_like(magnitude, float("inf"))).float() - magnitude.float()
    moved = offsets.mul_(spacing).add_(exact)
    keeps = moved.to(torch.bfloat16).view(torch.int16) == weights.view(torch.int16)
    keeps &= (spacing >= torch.finfo(torch.float32).tiny) & moved.isfinite()
    return torch.where(keeps, moved, exact)


def _key(seed: int, name: str) -> tuple[int, int]:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def _uniform(indices: Tensor, key: tuple[int, int]) -> Tensor:
    """float32 in [−1/2, 1/2), 24 bits of it, one for each index."""
    mixed = _mix((indices & 0xFFFFFFFF) ^ key[0])
    mixed = _mix(mixed ^ (((indices >> 32) + key[1]) & 0xFFFFFFFF))
    return (mixed >> 8).to(torch.float32).mul_(2.0**-24).sub_(0.5)


def _mix(bits: Tensor) -> Tensor:
    """32 bits in an int64, in place: xor-shift-multiply twice (constants: github.com/skeeto/hash-prospector).

    Multipliers are below 2³¹, so that no product leaves an int64.
    """
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits &= 0xFFFFFFFF
    bits ^= bits >> 15
    bits *= 0x46CA68B5
    bits &= 0xFFFFFFFF
    bits ^= bits >> 16
    return bits
