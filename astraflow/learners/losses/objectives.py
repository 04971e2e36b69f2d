"""What is maximised at each token, by the names of `[policies.<name>.trainer.loss].objective`.

Not here: weights, masks, regularisers. Invariant: finite for every log ratio, and at ratio 1 each objective has the
gradient of A·log π, so they differ off-policy only.
Axes: N token. `cut_N` marks tokens whose gradient the trust region removed, or whose weight it bounded.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from astraflow.config import LossSection
from astraflow.learners.losses.tokens import LossTokens

Objective = Callable[[LossTokens, LossSection], tuple[Tensor, Tensor]]  # (objective_N, cut_N)


def clip(tokens: LossTokens, section: LossSection) -> tuple[Tensor, Tensor]:
    """min(ρA, clip(ρ, 1 − low, 1 + high)·A); with dual clip not below c·A where A < 0.

    Source: arXiv:1707.06347 eq. 7; asymmetric bounds arXiv:2503.14476 §3.1; dual clip arXiv:1912.09729.
    """
    ratio_N, advantages_N = tokens.log_ratio_N.exp(), tokens.advantages_N
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1.0 - section.clip_low, 1.0 + section.clip_high) * advantages_N
    objective_N, cut_N = torch.minimum(plain_N, clipped_N), clipped_N < plain_N
    if section.dual_clip:
        floor_N = section.dual_clip * advantages_N
        below_N = (advantages_N < 0) & (objective_N < floor_N)
        objective_N, cut_N = torch.where(below_N, floor_N, objective_N), cut_N | below_N
    return objective_N, cut_N


def ratio(tokens: LossTokens, section: LossSection) -> tuple[Tensor, Tensor]:
    """ρA without bounds: REINFORCE with importance sampling. M2PO's, with its mask (arXiv:2510.01161)."""
    objective_N = tokens.log_ratio_N.exp() * tokens.advantages_N
    return objective_N, torch.zeros_like(objective_N, dtype=torch.bool)


def logprob(tokens: LossTokens, section: LossSection) -> tuple[Tensor, Tensor]:
    """A·log π: REINFORCE as if the data were on-policy (Williams 1992)."""
    objective_N = tokens.current_N * tokens.advantages_N
    return objective_N, torch.zeros_like(objective_N, dtype=torch.bool)


def cispo(tokens: LossTokens, section: LossSection) -> tuple[Tensor, Tensor]:
    """sg[clip(ρ, 1 − low, 1 + high)]·A·log π: the weight is bounded, every token keeps a gradient.

    Source: arXiv:2506.13585.
    """
    ratio_N = tokens.log_ratio_N.detach().exp()
    bounded_N = ratio_N.clamp(1.0 - section.clip_low, 1.0 + section.clip_high)
    return bounded_N * tokens.advantages_N * tokens.current_N, bounded_N != ratio_N


def sapo(tokens: LossTokens, section: LossSection) -> tuple[Tensor, Tensor]:
    """(4/τ)·σ(τ(ρ − 1))·A, with a τ for each sign of A: a soft gate in place of the clip. It cuts nothing off.

    Source: arXiv:2511.20347.
    """
    advantages_N = tokens.advantages_N
    tau_N = torch.full_like(advantages_N, section.tau_negative)
    tau_N[advantages_N > 0] = section.tau_positive
    gate_N = torch.sigmoid(tau_N * (tokens.log_ratio_N.exp() - 1.0)) * (4.0 / tau_N)
    return gate_N * advantages_N, torch.zeros_like(advantages_N, dtype=torch.bool)
