"""What is counted while a loss is computed. Invariant: sums add up over micro-batches, whatever the split.

Axes: N token.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from astraflow.learners.losses.ratios import bounded
from astraflow.learners.losses.regularisers import kl_estimate
from astraflow.learners.losses.tokens import LossTokens

_LARGEST = frozenset({"mismatch_max", "ratio_max"})  # all others are sums


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """Sums over tokens; divide by `tokens` for means."""

    tokens: int = 0
    ratio: float = 0.0  # exp(current − behaviour)
    ratio_square: float = 0.0
    ratio_max: float = 0.0
    kl: float = 0.0  # ratio − 1 − log ratio: ≥ 0, estimates KL(behaviour ‖ current) (k3 of joschu.net/blog/kl-approx)
    clipped: float = 0.0  # tokens that the objective cut
    masked: float = 0.0  # tokens without weight, by M2PO's mask or by masked importance sampling
    mismatch: float = 0.0  # |behaviour − current|
    mismatch_max: float = 0.0
    second_moment: float = 0.0  # (current − behaviour)²
    reference_kl: float = 0.0  # of current to reference, by k3
    token_entropy: float = 0.0  # of the whole distribution

    def __add__(self, other: "TokenSums") -> "TokenSums":
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(TokenSums)}
        return TokenSums(**{name: max(pair) if name in _LARGEST else sum(pair) for name, pair in pairs.items()})

    @classmethod
    def added(cls) -> list[str]:
        """Names of those that are sums."""
        return [f.name for f in fields(cls) if f.name not in _LARGEST]

    @classmethod
    def largest(cls) -> list[str]:
        """Names of those that are largest values."""
        return sorted(_LARGEST)

    @property
    def effective_fraction(self) -> float:
        """Effective sample size over tokens, (Σρ)² / (n·Σρ²): 1 on-policy, near 0 when few tokens weigh everything."""
        return self.ratio**2 / (self.tokens * self.ratio_square) if self.ratio_square else 1.0


@torch.no_grad()
def token_sums(tokens: LossTokens, *, cut_N: Tensor, weight_N: Tensor) -> TokenSums:
    """Of one micro-batch. `weight_N`: what masks and corrections leave of each token's objective."""
    count = tokens.current_N.numel()
    if count == 0:
        return TokenSums()
    gap_N = tokens.current_N - tokens.behaviour_N
    log_ratio_N = bounded(gap_N)
    ratio_N = log_ratio_N.exp()
    reference_N, entropy_N = tokens.reference_N, tokens.entropy_N
    return TokenSums(
        tokens=count,
        ratio=float(ratio_N.sum()),
        ratio_square=float(ratio_N.double().square().sum()),
        ratio_max=float(ratio_N.max()),
        kl=float((torch.expm1(log_ratio_N) - log_ratio_N).clamp_min(0.0).sum()),
        clipped=float(cut_N.sum()),
        masked=float((weight_N == 0).sum()),
        mismatch=float(gap_N.abs().sum()),
        mismatch_max=float(gap_N.abs().max()),
        second_moment=float(gap_N.double().square().sum()),
        reference_kl=0.0 if reference_N is None else float(kl_estimate(tokens.current_N, reference_N, "k3").sum()),
        token_entropy=0.0 if entropy_N is None else float(entropy_N.sum()),
    )
