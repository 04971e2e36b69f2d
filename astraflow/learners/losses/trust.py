"""M2PO's trust region: the second moment of log ratios is kept below τ by leaving out the fewest tokens.

Axes: M sampled token of one update.
"""

import torch
from torch import Tensor


def second_moment_mask(log_ratio_M: Tensor, advantages_M: Tensor, *, threshold: float) -> Tensor:
    """bool[M]: True for the tokens that stay.

    Only tokens that move further away from the behaviour policy can be left out: A > 0 and ρ > 1, or A < 0 and ρ < 1.
    Of those, the ones with the largest (log ρ)² are, until the mean of (log ρ)² over the others is at most `threshold`.

    Source: arXiv:2510.01161 and its authors' code, which looks at the same tokens.
    """
    outward_M = log_ratio_M * advantages_M > 0
    moments, order = (log_ratio_M[outward_M].double() ** 2).sort()
    means = moments.cumsum(0) / torch.arange(1, len(moments) + 1, device=moments.device)
    stays = torch.zeros_like(moments, dtype=torch.bool)
    stays[order] = means <= threshold  # means of sorted numbers rise, so this is a prefix
    mask_M = torch.ones_like(outward_M)
    mask_M[outward_M] = stays
    return mask_M
