"""Tokens from logits: temperature, top-k, top-p, greedy, by inverse CDF with position-keyed randomness.

It keeps no state and no generator. B = rows, V = vocabulary, K = kept candidates of a filtered row.
Invariant: a row's token depends on its logits, settings, seed and position only, not on the other rows.

The logprob is of the temperature-scaled distribution before top-k/top-p (greedy: of the unscaled one). Top-p works on
the distribution that top-k leaves, renormalised, as in transformers; it keeps the smallest set that reaches top_p.
The inverse CDF has two levels, blocks and tokens in a block: about 3 ms for 64 × 49152, where torch.multinomial takes
60 ms (facts: profiled on CPU).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.engines.keyed import keyed_uniform, seed_bits
from astraflow.messages import Sampling

_BLOCK = 256  # tokens per block of the two-level CDF
_CHUNK_ROWS = 16  # rows at a time, so that what is worked on stays in the CPU's caches
_NUCLEUS_GUESS = 1024  # candidates sorted before a full sort of the vocabulary is tried


@dataclass(frozen=True)
class Draw:
    """How to sample one row."""

    sampling: Sampling
    seed: int
    position: int  # of the token among all completion tokens


def sample(logits_BV: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """One token per row and its logprob.

    Args: logits_BV: float[B, V], any float dtype; draws: B. Returns: B token ids, B natural logprobs. For a row with a
    NaN, with +inf, or without any finite logit the logprob is NaN and the token has no meaning.
    """
    if not draws:
        return [], []
    tokens: list[int] = []
    logprobs: list[float] = []
    for start in range(0, len(draws), _CHUNK_ROWS):
        part = slice(start, start + _CHUNK_ROWS)
        tokens_B, logprobs_B = _sample(logits_BV[part], draws[part])
        tokens += tokens_B.tolist()
        logprobs += logprobs_B.tolist()
    return tokens, logprobs


def _sample(logits_BV: Tensor, draws: Sequence[Draw]) -> tuple[Tensor, Tensor]:
    """int64[B] and float64[B]."""
    settings = [draw.sampling for draw in draws]
    weights_BV = logits_BV.to(torch.float32, copy=True)
    if any(item.temperature not in (0.0, 1.0) for item in settings):
        weights_BV /= torch.tensor([item.temperature or 1.0 for item in settings]).unsqueeze(1)
    top_B, greedy_B = weights_BV.max(-1, keepdim=True)
    weights_BV.sub_(top_B).exp_()  # unnormalised probabilities, at most 1
    blocks_BN = _block_sums(weights_BV)
    uniform_B = keyed_uniform(
        np.array([seed_bits(draw.seed) for draw in draws], dtype=np.uint64),
        np.array([draw.position for draw in draws], dtype=np.int64),
    )
    tokens_B = _inverse_cdf(weights_BV, blocks_BN, uniform_B)
    for row, item in enumerate(settings):
        if item.temperature == 0:
            tokens_B[row] = greedy_B[row, 0]
        elif item.top_k or item.top_p < 1:
            tokens_B[row] = _sample_filtered(weights_BV[row], item.top_k, item.top_p, float(uniform_B[row]))
    chosen_B = weights_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1).double()
    return tokens_B, chosen_B.log() - blocks_BN.sum(-1).log()


def _block_sums(weights_BV: Tensor) -> Tensor:
    """float64[B, N]: sums over blocks of _BLOCK tokens; the last block may be shorter."""
    size = weights_BV.shape[1]
    whole = size // _BLOCK * _BLOCK
    sums_BN = weights_BV[:, :whole].reshape(weights_BV.shape[0], whole // _BLOCK, _BLOCK).sum(-1)
    if whole < size:
        sums_BN = torch.cat([sums_BN, weights_BV[:, whole:].sum(-1, keepdim=True)], 1)
    return sums_BN.double()


def _inverse_cdf(weights_BV: Tensor, blocks_BN: Tensor, uniform_B: NDArray[np.float64]) -> Tensor:
    """int64[B]: the first token whose cumulative weight exceeds uniform × total."""
    size = weights_BV.shape[1]
    ends_BN = blocks_BN.cumsum(-1)
    goal_B1 = torch.from_numpy(uniform_B).unsqueeze(1) * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, goal_B1, right=True).clamp_(max=blocks_BN.shape[1] - 1)
    rest_B1 = goal_B1 - (ends_BN.gather(1, block_B1) - blocks_BN.gather(1, block_B1))
    # Past the vocabulary its last token stands again and again: what falls there, by rounding only, is that token.
    index_BK = (block_B1 * _BLOCK + torch.arange(_BLOCK)).clamp_(max=size - 1)
    inside_BK = weights_BV.gather(1, index_BK).double()
    cdf_BK = inside_BK.cumsum(-1)
    # Rounding may put the goal at or past the block's end; the block's last token with weight is then the answer.
    rest_B1 = torch.minimum(rest_B1.clamp_(min=0), cdf_BK[:, -1:] * (1 - 1e-12))
    offset_B1 = torch.searchsorted(cdf_BK, rest_B1, right=True).clamp_(max=_BLOCK - 1)
    return index_BK.gather(1, offset_B1).squeeze(1)


def kept_tokens(weights_V: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """What top-k, then top-p keep of one row, the most likely first; at least one token.

    Args: weights_V: float[V], unnormalised probabilities. Returns: int64[K] ids, float64[K] weights.
    """
    size = weights_V.shape[0]
    if 0 < top_k < size:
        values_K, ids_K = _most_likely(weights_V, top_k)
        total = values_K.sum()
    else:
        total = weights_V.double().sum()
        values_K, ids_K = _most_likely(weights_V, min(size, _NUCLEUS_GUESS))
        if values_K.sum() < top_p * total:
            values_K, ids_K = _most_likely(weights_V, size)
    before_K = values_K.cumsum(0) - values_K
    keep = max(1, int((before_K < top_p * total).sum()))
    return ids_K[:keep], values_K[:keep]


def _most_likely(weights_V: Tensor, count: int) -> tuple[Tensor, Tensor]:
    values_K, ids_K = torch.topk(weights_V, count)
    return values_K.double(), ids_K


def _sample_filtered(weights_V: Tensor, top_k: int, top_p: float, uniform: float) -> int:
    ids_K, values_K = kept_tokens(weights_V, top_k, top_p)
    cdf_K = values_K.cumsum(0)
    index = int(torch.searchsorted(cdf_K, uniform * cdf_K[-1], right=True))
    return int(ids_K[min(index, len(ids_K) - 1)])
