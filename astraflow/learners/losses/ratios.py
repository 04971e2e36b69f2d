"""Importance ratios in log space, of tokens and of sequences. Invariant: their exponentials are finite in fp32.

Axes: N token. Tokens of one sequence have equal numbers in `sequence_N`, in any order.
"""

import torch
from torch import Tensor

# exp(±20) is finite in fp32, squared too, and far outside any clip range; a log ratio of ±700 would overflow. Beyond
# it a ratio no longer moves, so its gradient is 0: the limit of every objective that is bounded there.
LOG_RATIO_LIMIT = 20.0


def bounded(log_ratio_N: Tensor) -> Tensor:
    """Within ±20; NaN stays NaN."""
    return log_ratio_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def sequence_sums(values_N: Tensor, sequence_N: Tensor) -> tuple[Tensor, Tensor]:
    """(sum over its sequence, tokens of its sequence) for every token, with gradient."""
    found, place_N = torch.unique(sequence_N, return_inverse=True)
    sums = values_N.new_zeros(len(found)).index_add(0, place_N, values_N)
    counts = place_N.bincount(minlength=len(found)).to(values_N.dtype)
    return sums[place_N], counts[place_N]


def sequence_means(values_N: Tensor, sequence_N: Tensor) -> Tensor:
    """For every token the mean over its sequence: GSPO's log ratio, s = (π(y) / π_old(y))^(1/|y|)  arXiv:2507.18071."""
    sums_N, counts_N = sequence_sums(values_N, sequence_N)
    return sums_N / counts_N
