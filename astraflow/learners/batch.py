"""Samples as they come off the bus become flat arrays and pack items; checks them on the way.

Not here: tensors and models. Invariant: what leaves here is safe to index with.
Axes: T token of a sample, M sampled token of the whole batch (samples in order, tokens in order), S sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astraflow.errors import MessageError
from astraflow.learners.packing import PackItem
from astraflow.messages import Sample


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One optimizer step's worth of tokens."""

    items: list[PackItem]  # samples that contribute a gradient
    behaviour_M: NDArray[np.float32]  # logprobs that the engine reported; 0 where it reported none
    reported: bool  # whether it reported all of them
    advantages_M: NDArray[np.float32]  # of each token's sample; with a critic its reward, less penalties
    sequence_M: NDArray[np.int64]  # which sample, from 0 on
    groups_S: list[str]
    tasks_S: NDArray[np.int64]  # equal for samples of one environment
    temperatures_M: NDArray[np.float64]  # that each token was sampled at
    skipped: int  # samples without gradient: they only count in the denominator

    @property
    def sampled_tokens(self) -> int:
        """Of all samples, also of those without advantage."""
        return len(self.behaviour_M)

    @property
    def finite(self) -> bool:
        """Whether no logprob or advantage is NaN or infinite."""
        return bool(np.isfinite(self.behaviour_M).all() and np.isfinite(self.advantages_M).all())

    def shares(self, count: int) -> list[NDArray[np.bool_]]:
        """bool[S] for each of `count` updates, or as many as there are groups with tokens: whole groups, dealt out."""
        with_tokens = dict.fromkeys(self.groups_S[s] for s in np.unique(self.sequence_M).tolist())
        place = {group: i % count for i, group in enumerate(with_tokens)}
        place_S = np.array([place.get(group, 0) for group in self.groups_S])
        return [place_S == i for i in range(min(count, len(with_tokens)))]

    def items_of(self, chosen_S: NDArray[np.bool_]) -> list[PackItem]:
        """The items of the chosen samples."""
        return [item for item in self.items if chosen_S[self.sequence_M[item.first_target]]]


def read_batch(
    samples: Sequence[Sample],
    *,
    vocabulary: int,
    only_advantages: bool = True,
    needs_behaviour: bool = True,
    temperature: float = 1.0,
) -> Batch:
    """Raises MessageError for arrays of different lengths, missing logprobs, a sampled first token, a foreign token.

    Args:
        only_advantages: a sample whose advantage is 0 has no gradient, so it is not computed. Its tokens stay in the
            denominator, or the step would grow with the share of solved groups.
        needs_behaviour: samples without logprobs of the engine are refused.
        temperature: of tokens whose sample doesn't say.
    """
    items: list[PackItem] = []
    behaviour: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    temperatures: list[NDArray[np.float64]] = [np.zeros(0, np.float64)]
    counts: list[int] = []
    reported = True
    for sample in samples:
        tokens_T, sampled_T, logprobs_T = _arrays(sample, vocabulary)
        count = int(sampled_T.sum())
        if logprobs_T is None:
            if needs_behaviour and count:
                raise MessageError(
                    f"sample {sample.id} has no logprobs of the engine that sampled it, and the loss compares with "
                    'them; use an engine that reports them, or objective = "logprob" with correction = "none"'
                )
            reported, logprobs_T = False, np.zeros(len(tokens_T), np.float32)
        if count and (sample.advantage != 0.0 or not only_advantages):
            items.append(
                PackItem(group=sample.group_id, tokens_T=tokens_T, sampled_T=sampled_T, first_target=sum(counts)),
            )
        behaviour.append(logprobs_T[sampled_T])
        temperatures.append(_temperatures(sample, len(tokens_T), temperature)[sampled_T])
        counts.append(count)
    names = {name: i for i, name in enumerate(dict.fromkeys(sample.env for sample in samples))}
    sequence_M = np.repeat(np.arange(len(samples)), counts)
    advantages_S = np.array([sample.advantage for sample in samples], np.float32)
    return Batch(
        items=items,
        behaviour_M=np.concatenate(behaviour),
        reported=reported,
        advantages_M=advantages_S[sequence_M],
        sequence_M=sequence_M,
        groups_S=[sample.group_id for sample in samples],
        tasks_S=np.array([names[sample.env] for sample in samples], np.int64),
        skipped=len(samples) - len(items),
        temperatures_M=np.concatenate(temperatures),
    )


def _temperatures(sample: Sample, length: int, temperature: float) -> NDArray[np.float64]:
    """float64[T]. Greedy tokens (0) are reported, and so compared, at 1."""
    temperatures_T = np.full(length, temperature or 1.0, np.float64)
    for span in sample.temperatures:
        if not (0 <= span.start <= span.end <= length and math.isfinite(span.temperature) and span.temperature >= 0):
            raise MessageError(f"sample {sample.id} of {length} tokens has the temperature span {span}")
        temperatures_T[span.start : span.end] = span.temperature or 1.0
    return temperatures_T


def _arrays(sample: Sample, vocabulary: int) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float32] | None]:
    """Tokens, where they were sampled, and the engine's logprobs; None if there are none."""
    tokens_T, mask_T, logprobs_T = sample.tokens.numpy(), sample.loss_mask.numpy(), sample.logprobs.numpy()
    missing = logprobs_T.size == 0
    if tokens_T.ndim != 1 or tokens_T.shape != mask_T.shape or not (missing or tokens_T.shape == logprobs_T.shape):
        raise MessageError(
            f"sample {sample.id} has tokens {tokens_T.shape}, loss_mask {mask_T.shape} and logprobs "
            f"{logprobs_T.shape}, expected three equal lengths"
        )
    if tokens_T.size and (tokens_T.min() < 0 or tokens_T.max() >= vocabulary):
        raise MessageError(f"sample {sample.id} has a token outside 0..{vocabulary - 1}; is it of another model?")
    if mask_T[:1].any():
        raise MessageError(f"sample {sample.id} was sampled from an empty prompt; its first token has no logprob")
    return tokens_T, mask_T.astype(np.bool_), None if missing else logprobs_T
