"""Weights for what the behaviour policy sampled instead of the proximal one: w = π_proximal / π_behaviour.

Both differ by staleness and by the numerics of engine and learner. Weights carry no gradient. A masked token stays in
the loss's denominator, as a clipped one does: the fewer tokens are trusted, the smaller is the step.
Source: decoupled objective arXiv:2110.00641 and arXiv:2505.24298; truncated weights: Yao et al. 2025, "Your efficient
RL framework secretly brings you off-policy RL training"; masked ones, of tokens and sequences: Liu et al. 2025, "When
speed kills stability".
Axes: M sampled token of the batch.
"""

from typing import Literal

import torch
from torch import Tensor

from astraflow.learners.losses.ratios import bounded, sequence_sums


def correction_weights(
    proximal_M: Tensor,
    behaviour_M: Tensor,
    sequence_M: Tensor,
    *,
    kind: Literal["truncate", "mask"],
    level: Literal["token", "sequence"],
    cap: float,
    floor: float,
) -> Tensor:
    """float[M] ≥ 0.

    Args:
        kind: truncate: min(w, cap); mask: w, and 0 outside of floor … cap.
        level: sequence: every token has the weight of its whole sequence, the product of its tokens' weights.
    """
    log_weight_M = proximal_M - behaviour_M
    if level == "sequence":
        log_weight_M, _ = sequence_sums(log_weight_M, sequence_M)
    weight_M = bounded(log_weight_M).exp()
    if kind == "truncate":
        return weight_M.clamp(max=cap)
    return torch.where((weight_M >= floor) & (weight_M <= cap), weight_M, 0.0)
