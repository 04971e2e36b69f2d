"""KL to the reference policy, as part of the loss or of the reward, and advantages normalised over a batch.

Axes: M sampled token of the batch, N of a micro-batch, S sample.
"""

from typing import Literal

import torch
from torch import Tensor

from astraflow.learners.losses.ratios import LOG_RATIO_LIMIT

_Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(policy_N: Tensor, reference_N: Tensor, estimator: _Estimator) -> Tensor:
    """KL(policy ‖ reference) estimated at tokens that the policy sampled, with r = log π − log π_ref:

    k1 = r, k2 = r²/2, k3 = exp(−r) − 1 + r. All are 0 at r = 0; k2 and k3 are never negative. In a loss k2 has the
    gradient of the KL, k3 about that, and k1 one of mean 0 (arXiv:2510.01555): k1 is for rewards.

    Source: http://joschu.net/blog/kl-approx.html.
    """
    log_ratio_N = policy_N - reference_N
    if estimator == "k1":
        return log_ratio_N
    if estimator == "k2":
        return 0.5 * log_ratio_N.square()
    # The exponent alone is bounded, so that r = 700 gives 699 and r = −700 something finite.
    return torch.expm1((-log_ratio_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)) + log_ratio_N


def kl_to_go(kl_M: Tensor, sequence_M: Tensor) -> Tensor:
    """For every token the sum from it to its sequence's end: what a penalty in the reward takes from its return.

    Args: sequence_M: ascending, tokens of a sequence in order. Source: arXiv:2501.03262.
    """
    running_M = kl_M.double().cumsum(0)
    ends_M = torch.searchsorted(sequence_M, sequence_M, right=True) - 1
    return (running_M[ends_M] - running_M + kl_M).to(kl_M.dtype)


def normalised(advantages_M: Tensor, kinds_M: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over the tokens of each kind: the whole batch, or each environment's part.

    Tokens whose advantages are all equal get 0. The deviation divides by the number of tokens less one.
    Source: over the batch arXiv:2501.03262; over each task arXiv:2510.04206.
    """
    result_M = torch.zeros_like(advantages_M)
    for kind in torch.unique(kinds_M):
        chosen_M = kinds_M == kind
        values = advantages_M[chosen_M].double()
        centred = values - values.mean()
        spread = float(centred.square().sum() / max(1, len(values) - 1)) ** 0.5
        if not bool((values == values[0]).all()):
            result_M[chosen_M] = (centred / (spread + 1e-8)).to(result_M.dtype)
    return result_M
