"""What a loss sees of a batch. Only data.

Four policies gave logprobs to the same sampled tokens, and they are never mixed up:
    behaviour   the engine's when it sampled; older than the learner, and of other numerics. Data
    proximal    the learner's at the start of the batch, recomputed where a loss asks for it. Data
    current     the learner's now; carries the gradient
    reference   a frozen copy of the model that training began with. Data
Axes: M sampled token of the whole batch (samples in order, tokens in order), N of one micro-batch (any order),
S sample.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LossBatch:
    """One batch, before any of it goes through the model."""

    behaviour_M: Tensor  # float32
    advantages_M: Tensor  # float32, of each token's sample; its reward where there are values
    sequence_M: Tensor  # int64, index of each token's sample; ascending
    task_S: Tensor  # int64: samples of one environment have equal numbers
    proximal_M: Tensor | None = None  # None: no part of the loss needs it
    reference_M: Tensor | None = None
    values_M: Tensor | None = None  # float32, a critic's at the start of the batch

    @property
    def lengths_S(self) -> Tensor:
        """int64: sampled tokens of each sample."""
        return self.sequence_M.bincount(minlength=len(self.task_S))


@dataclass(frozen=True, kw_only=True)
class LossTokens:
    """The tokens of one micro-batch. A loss of a user's own gets this and returns its value for every token."""

    current_N: Tensor  # float32, logprobs with gradient
    log_ratio_N: Tensor  # current − anchor within ±20, with gradient; of whole sequences if loss.ratio = "sequence"
    anchor_N: Tensor  # what ratios are taken against: proximal where it is recomputed, else behaviour
    behaviour_N: Tensor
    advantages_N: Tensor
    sequence_N: Tensor  # int64: tokens of one sample have equal numbers, and all of them are here
    reference_N: Tensor | None  # None unless loss.kl > 0
    entropy_N: Tensor | None  # of the whole distribution at each token, with gradient; None unless loss.entropy_bonus
