"""Samples as they come off the bus become flat arrays and pack items; checks them on the way.

Not here: tensors and models. Invariant: what leaves here is safe to index with.
Axes: T token of a sample, M sampled token of the whole batch (samples in order, tokens in order).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astraflow.algos.packing import PackItem
from astraflow.errors import MessageError
from astraflow.messages import Sample


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One optimizer step's worth of tokens."""

    items: list[PackItem]  # samples that contribute a gradient
    behaviour_M: NDArray[np.float32]  # logprobs that the engine reported
    advantages_M: NDArray[np.float32]  # of each token's sample
    skipped: int  # samples without advantage or without sampled tokens: they only count in the denominator

    @property
    def sampled_tokens(self) -> int:
        """Of all samples, also of those without advantage: the loss's denominator."""
        return len(self.behaviour_M)

    @property
    def finite(self) -> bool:
        """Whether no logprob or advantage is NaN or infinite."""
        return bool(np.isfinite(self.behaviour_M).all() and np.isfinite(self.advantages_M).all())


def read_batch(samples: Sequence[Sample], *, vocabulary: int) -> Batch:
    """Raises MessageError for arrays of different lengths, a sampled first token, or a token out of range.

    A sample whose advantage is 0 has no gradient under a loss that is only a policy gradient, so it is not computed;
    its tokens stay in the denominator, or the step would grow with the share of solved groups.
    """
    items: list[PackItem] = []
    behaviour: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    advantages: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    total = 0
    for sample in samples:
        tokens_T, sampled_T, logprobs_T = _arrays(sample, vocabulary)
        count = int(sampled_T.sum())
        if sample.advantage != 0.0 and count:
            items.append(
                PackItem(group=sample.group_id, tokens_T=tokens_T, sampled_T=sampled_T, first_target=total),
            )
        behaviour.append(logprobs_T[sampled_T])
        advantages.append(np.full(count, sample.advantage, np.float32))
        total += count
    return Batch(
        items=items,
        behaviour_M=np.concatenate(behaviour),
        advantages_M=np.concatenate(advantages),
        skipped=len(samples) - len(items),
    )


def _arrays(sample: Sample, vocabulary: int) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float32]]:
    tokens_T, mask_T, logprobs_T = sample.tokens.numpy(), sample.loss_mask.numpy(), sample.logprobs.numpy()
    if tokens_T.ndim != 1 or tokens_T.shape != mask_T.shape or tokens_T.shape != logprobs_T.shape:
        raise MessageError(
            f"sample {sample.id} has tokens {tokens_T.shape}, loss_mask {mask_T.shape} and logprobs "
            f"{logprobs_T.shape}, expected three equal lengths"
        )
    if tokens_T.size and (tokens_T.min() < 0 or tokens_T.max() >= vocabulary):
        raise MessageError(f"sample {sample.id} has a token outside 0..{vocabulary - 1}; is it of another model?")
    if mask_T[:1].any():
        raise MessageError(f"sample {sample.id} was sampled from an empty prompt; its first token has no logprob")
    return tokens_T, mask_T.astype(np.bool_), logprobs_T
