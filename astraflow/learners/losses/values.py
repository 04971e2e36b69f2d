"""What a critic minimises, and how well it does. Pure torch, no model.

Axes: M sampled token of the batch, N of a micro-batch.
"""

import torch
from torch import Tensor


def value_losses(values_N: Tensor, old_N: Tensor, returns_N: Tensor, *, clip: float) -> Tensor:
    """float[N]: ½·max((V − R)², (V_old + clamp(V − V_old, ±clip) − R)²), with gradient.

    A value that moved further than `clip` towards its return since the batch began has no gradient any more; `clip` 0
    leaves it out. Source: the PPO implementations' companion to arXiv:1707.06347, e.g. arXiv:2005.12729 §2.
    """
    error_N = (values_N - returns_N).square()
    if clip:
        near_N = old_N + (values_N - old_N).clamp(-clip, clip)
        error_N = torch.maximum(error_N, (near_N - returns_N).square())
    return 0.5 * error_N


def explained_variance(values_M: Tensor, returns_M: Tensor) -> float | None:
    """1 − Var(R − V) / Var(R): 1 is perfect, 0 as good as a constant, below 0 worse. None if all returns are equal."""
    returns_M, rest_M = returns_M.double(), (returns_M - values_M).double()
    if not len(returns_M) or bool((returns_M == returns_M[0]).all()):
        return None
    return 1.0 - float(rest_M.var(correction=0) / returns_M.var(correction=0))
