"""The norm of all gradients, and scaling them, whatever pieces of them a rank holds.

Not here: when gradients are clipped (`master.py`). torch's own fp32 norms of one long tensor are off on CPUs, by 1e-5
for a million elements and 1.6e-3 for 28 million, and by another amount for every way of cutting it.
Invariant: the same norm on every rank, to 1e-6 that of float64, NaN or infinite if any gradient is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from astraflow.learners.ranks.placement import copies, local
from astraflow.learners.team import Team

_BLOCK = 1 << 16  # elements whose squares are added in fp32; such sums are added in float64


def gradient_norm(gradients: Sequence[Tensor], team: Team) -> float:
    """Over all ranks. What several of them hold alike counts once."""
    total = torch.zeros(1, dtype=torch.float64)
    for gradient in gradients:
        total += _squares(local(gradient)).cpu() / copies(gradient, team.size)
    team.add(total)
    return float(total.sqrt())


def scale(gradients: Sequence[Tensor], factor: float) -> None:
    """In place."""
    if gradients:
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor)


def _squares(gradient: Tensor) -> Tensor:
    """float64: Σ g²."""
    if not gradient.numel():
        return torch.zeros((), dtype=torch.float64)
    blocks = torch.split(gradient.detach().reshape(-1).float(), _BLOCK)
    return torch.stack([torch.dot(block, block) for block in blocks]).double().sum()
