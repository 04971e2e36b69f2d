"""One loss of the parts that `[policies.<name>.trainer.loss]` names.

    prepare   once per batch: what ratios are taken against, advantages, off-policy weights
    weigh     once per update: how much each token's loss and objective count, over the whole update
    loss      per micro-batch: Σ weight · (−objective · correction + kl · KL − bonus · entropy)

Invariant: `prepare` and `weigh` see whole batches and updates, `loss` is a plain sum, so micro-batches change nothing.
Axes: M sampled token of the batch, N of a micro-batch, S sample.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.compute import placed
from astraflow.config import CriticSection, LossSection
from astraflow.config.loss import OBJECTIVES
from astraflow.learners.gae import at_last, gae
from astraflow.learners.losses import objectives
from astraflow.learners.losses.aggregation import sample_weights
from astraflow.learners.losses.correction import correction_weights
from astraflow.learners.losses.diagnostics import TokenSums, token_sums
from astraflow.learners.losses.objectives import Objective
from astraflow.learners.losses.own import OwnObjective
from astraflow.learners.losses.ratios import bounded, sequence_means
from astraflow.learners.losses.regularisers import kl_estimate, kl_to_go, normalised
from astraflow.learners.losses.tokens import LossBatch, LossTokens
from astraflow.learners.losses.trust import second_moment_mask
from astraflow.learners.losses.values import value_losses


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch as its loss looks at it; no gradients."""

    behaviour_M: Tensor
    anchor_M: Tensor  # ratios are current over this
    advantages_M: Tensor
    correction_M: Tensor | None  # None = all 1
    reference_M: Tensor | None
    sequence_M: Tensor
    lengths_S: Tensor
    values_M: Tensor | None  # a critic's, at the start of the batch
    returns_M: Tensor | None  # what they ought to have been


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What each token counts in one update."""

    token_M: Tensor  # in the sum over tokens
    objective_M: Tensor  # what its objective is multiplied with besides; 0 = masked
    value: float  # of each token in a critic's loss, which is a mean over the update's tokens


class Loss:
    """Raises ConfigError for a loss of the user's own that can't be found, or gives no value per token.

    With a critic, batches bring its values, and advantages are made of them.
    """

    def __init__(self, section: LossSection, critic: CriticSection | None = None) -> None:
        self._section = section
        self._critic = critic
        self._objective = _objective_of(section)

    @property
    def needs_proximal(self) -> bool:
        """The learner's logprobs at the start of the batch."""
        return self._section.proximal == "recompute"

    @property
    def needs_current(self) -> bool:
        """The learner's logprobs of the whole update before its first gradient: a trust region over all tokens."""
        return self._section.m2_threshold > 0

    @property
    def needs_reference(self) -> bool:
        return self._section.kl > 0

    @property
    def needs_entropy(self) -> bool:
        return self._section.entropy_bonus > 0

    @property
    def needs_behaviour(self) -> bool:
        """Some part compares with the engine's logprobs."""
        section = self._section
        unused = section.objective == "logprob" or section.proximal == "recompute"
        return not unused or section.correction != "none" or section.m2_threshold > 0

    @property
    def only_advantages(self) -> bool:
        """A token whose advantage is 0 has no gradient, whatever the other tokens are."""
        section = self._section
        own = section.objective not in OBJECTIVES
        more = self.needs_reference or self.needs_entropy or self._critic is not None
        return not (own or more or section.normalise != "none")

    def prepare(self, batch: LossBatch) -> Prepared:
        section = self._section
        anchor_M = batch.behaviour_M if batch.proximal_M is None else batch.proximal_M
        advantages_M, returns_M, penalty_M = batch.advantages_M, None, None
        if section.kl > 0 and section.kl_in == "reward":
            assert batch.reference_M is not None
            penalty_M = section.kl * kl_estimate(anchor_M, batch.reference_M, section.kl_estimator)
        if self._critic is not None:
            advantages_M, returns_M = _by_critic(batch, penalty_M, self._critic)
        elif penalty_M is not None:
            advantages_M = advantages_M - kl_to_go(penalty_M, batch.sequence_M)
        if section.normalise != "none":
            kinds_S = batch.task_S if section.normalise == "task" else torch.zeros_like(batch.task_S)
            advantages_M = normalised(advantages_M, kinds_S[batch.sequence_M])
        correction_M = None
        if section.correction != "none":
            assert batch.proximal_M is not None
            correction_M = correction_weights(
                batch.proximal_M,
                batch.behaviour_M,
                batch.sequence_M,
                kind=section.correction,
                level=section.correction_level,
                cap=section.correction_cap,
                floor=section.correction_floor,
            )
        return Prepared(
            behaviour_M=batch.behaviour_M,
            anchor_M=anchor_M,
            advantages_M=advantages_M,
            correction_M=correction_M,
            reference_M=batch.reference_M,
            sequence_M=batch.sequence_M,
            lengths_S=batch.lengths_S,
            values_M=batch.values_M,
            returns_M=returns_M,
        )

    def weigh(self, prepared: Prepared, *, chosen_S: Tensor, current_M: Tensor | None = None) -> Weights:
        """Of the update over the chosen samples.

        Args:
            chosen_S: bool.
            current_M: logprobs before the update, where `needs_current`; those of other tokens are ignored.
        """
        section, chosen_M = self._section, chosen_S[prepared.sequence_M]
        per_sample_S = sample_weights(
            prepared.lengths_S * chosen_S, kind=section.aggregation, constant=section.aggregation_constant
        )
        token_M = (per_sample_S * chosen_S)[prepared.sequence_M].to(prepared.advantages_M.dtype)
        ones_M = torch.ones_like(prepared.advantages_M)
        objective_M = ones_M if prepared.correction_M is None else prepared.correction_M
        if section.m2_threshold > 0:
            assert current_M is not None
            log_ratio_M = bounded(current_M - prepared.anchor_M) * chosen_M
            kept_M = second_moment_mask(log_ratio_M, prepared.advantages_M, threshold=section.m2_threshold)
            objective_M = objective_M * kept_M
        tokens = max(1, int((prepared.lengths_S * chosen_S).sum()))
        return Weights(token_M=token_M, objective_M=objective_M, value=1.0 / tokens)

    def loss(
        self, prepared: Prepared, weights: Weights, order_N: Tensor, current_N: Tensor, entropy_N: Tensor | None = None
    ) -> tuple[Tensor, TokenSums]:
        """A scalar, and the diagnostics of these tokens.

        Args:
            order_N: int64, the tokens' places in the batch; whole sequences.
            current_N: their logprobs, with gradient. entropy_N: with gradient, where `needs_entropy`.
        """
        section = self._section
        tokens = self._tokens(prepared, order_N, current_N, entropy_N)
        objective_N, cut_N = self._objective(tokens, section)
        weight_N = weights.objective_M[order_N]
        loss_N = -objective_N * weight_N
        if tokens.reference_N is not None and section.kl_in == "loss":
            loss_N = loss_N + section.kl * kl_estimate(current_N, tokens.reference_N, section.kl_estimator)
        if entropy_N is not None:
            loss_N = loss_N - section.entropy_bonus * entropy_N
        loss = (loss_N * weights.token_M[order_N]).sum()
        return loss, token_sums(tokens, cut_N=cut_N, weight_N=weight_N)

    def value_loss(self, prepared: Prepared, weights: Weights, order_N: Tensor, values_N: Tensor) -> Tensor:
        """The critic's part of an update's value loss, a scalar. `values_N`: of the tokens `order_N`, with gradient."""
        assert self._critic is not None
        assert prepared.values_M is not None
        assert prepared.returns_M is not None
        old_N, returns_N = prepared.values_M[order_N], prepared.returns_M[order_N]
        return value_losses(values_N, old_N, returns_N, clip=self._critic.value_clip).sum() * weights.value

    def backward(self, part: Tensor) -> None:
        """Add the gradient of a micro-batch's loss. Raises ConfigError if a user's own has none of its values."""
        if isinstance(self._objective, OwnObjective):
            self._objective.backward(part)
        else:
            part.backward()  # type: ignore[no-untyped-call]

    def _tokens(self, prepared: Prepared, order_N: Tensor, current_N: Tensor, entropy_N: Tensor | None) -> LossTokens:
        anchor_N, sequence_N = prepared.anchor_M[order_N], prepared.sequence_M[order_N]
        log_ratio_N = current_N - anchor_N
        if self._section.ratio == "sequence":
            log_ratio_N = sequence_means(log_ratio_N, sequence_N)
        return LossTokens(
            current_N=current_N,
            log_ratio_N=bounded(log_ratio_N),
            anchor_N=anchor_N,
            behaviour_N=prepared.behaviour_M[order_N],
            advantages_N=prepared.advantages_M[order_N],
            sequence_N=sequence_N,
            entropy_N=entropy_N,
            reference_N=None if prepared.reference_M is None else prepared.reference_M[order_N],
        )


def _by_critic(batch: LossBatch, penalty_M: Tensor | None, critic: CriticSection) -> tuple[Tensor, Tensor]:
    """GAE's advantages and returns: each sample's reward at its last token, less the penalty of every token."""
    assert batch.values_M is not None
    sequence_M = batch.sequence_M.cpu().numpy()
    rewards_M = at_last(batch.advantages_M.double().cpu().numpy(), sequence_M)
    if penalty_M is not None:
        rewards_M = rewards_M - penalty_M.double().cpu().numpy()
    advantages_M, returns_M = gae(
        rewards_M, batch.values_M.double().cpu().numpy(), sequence_M, gamma=critic.gamma, gae_lambda=critic.gae_lambda
    )
    device, dtype = batch.advantages_M.device, batch.advantages_M.dtype
    return placed(advantages_M, device).to(dtype), placed(returns_M, device).to(dtype)


def _objective_of(section: LossSection) -> Objective:
    if section.objective in OBJECTIVES:
        built_in: Objective = getattr(objectives, section.objective)
        return built_in
    return OwnObjective(section)
