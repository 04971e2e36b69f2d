"""Policy-gradient losses on flat arrays of sampled tokens; torch, pure, no model.

Not here: how logprobs are computed (`learners/logprobs.py`) and where advantages come from (`advantages.py`).
Invariant: a loss is a sum over tokens divided by a denominator that the caller took over the *whole* batch, so any
split of the batch into micro-batches or ranks gives the same gradient.
Axes: N sampled tokens of one micro-batch, in any order.

Two kinds of logprobs, never mixed up: `behaviour` was reported by the engine when it sampled the token and is data;
`current` comes from the learner's weights and carries the gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# exp(±20) is finite in fp32 and far outside any clip range; a log ratio of ±700 would overflow.
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """Diagnostics summed over tokens, so that micro-batches add up; divide by `tokens` for means."""

    tokens: int = 0
    ratio: float = 0.0  # exp(current − behaviour)
    kl: float = 0.0  # ratio − 1 − log ratio: ≥ 0, estimates KL(behaviour ‖ current) (k3 of joschu.net/blog/kl-approx)
    clipped: float = 0.0  # tokens whose gradient the clip removed
    mismatch: float = 0.0  # |behaviour − current|
    mismatch_max: float = 0.0

    def __add__(self, other: "TokenSums") -> "TokenSums":
        return TokenSums(
            tokens=self.tokens + other.tokens,
            ratio=self.ratio + other.ratio,
            kl=self.kl + other.kl,
            clipped=self.clipped + other.clipped,
            mismatch=self.mismatch + other.mismatch,
            mismatch_max=max(self.mismatch_max, other.mismatch_max),
        )


def ppo_clip_loss(
    current_N: Tensor,
    behaviour_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    denominator: float,
) -> tuple[Tensor, TokenSums]:
    """Clipped policy-gradient loss with asymmetric bounds: −Σ min(ρA, clip(ρ, 1 − low, 1 + high)·A) / denominator.

    ρ = exp(current − behaviour), its logarithm held within ±20.

    Args:
        current_N: float32[N], logprobs under the weights being trained; carries the gradient.
        behaviour_N: float32[N], logprobs that the engine reported.
        advantages_N: float32[N], the advantage of each token's sample.
        denominator: sampled tokens of the whole batch, all micro-batches and ranks together.

    Returns: the loss (a scalar in nats·advantage per token) and diagnostics of these N tokens.
    Source: arXiv:1707.06347 eq. 7; asymmetric bounds: arXiv:2503.14476 §3.1.
    """
    gap_N = current_N - behaviour_N
    log_ratio_N = gap_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio_N = log_ratio_N.exp()
    clipped_ratio_N = ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    objective_N = torch.minimum(ratio_N * advantages_N, clipped_ratio_N * advantages_N)
    loss = -objective_N.sum() / denominator
    with torch.no_grad():
        cut_N = clipped_ratio_N * advantages_N < ratio_N * advantages_N
        mismatch_N = gap_N.abs()
        sums = TokenSums(
            tokens=gap_N.numel(),
            ratio=float(ratio_N.sum()),
            kl=float((torch.expm1(log_ratio_N) - log_ratio_N).clamp_min(0.0).sum()),
            clipped=float(cut_N.sum()),
            mismatch=float(mismatch_N.sum()),
            mismatch_max=float(mismatch_N.max()) if gap_N.numel() else 0.0,
        )
    return loss, sums
