"""How the tokens of an update add up to its loss, as one weight for every token of a sample.

Invariant: weights depend on the lengths of *all* samples of the update, those without gradient too, so micro-batches
change nothing and a step doesn't grow with the share of samples that have nothing to teach.
Axes: S sample of the update.
"""

from typing import Literal

import torch
from torch import Tensor

_Aggregation = Literal["token-mean", "sequence-mean", "constant"]


def sample_weights(lengths_S: Tensor, *, kind: _Aggregation, constant: int) -> Tensor:
    """float64[S], for every sampled token of the sample:

    token-mean     1 / tokens of the update: every token counts the same (DAPO, arXiv:2503.14476 §3.3)
    sequence-mean  1 / (samples · tokens of this sample): every sample counts the same (GRPO, arXiv:2402.03300 eq. 3)
    constant       1 / (samples · constant): a token's weight depends on no length (Dr.GRPO, arXiv:2503.20783 §3.2)

    Samples without sampled tokens aren't counted.
    """
    lengths_S = lengths_S.double()
    samples = float((lengths_S > 0).sum().clamp_min(1))
    if kind == "token-mean":
        return torch.full_like(lengths_S, 1.0 / float(lengths_S.sum().clamp_min(1.0)))
    if kind == "sequence-mean":
        return 1.0 / (samples * lengths_S.clamp_min(1.0))
    return torch.full_like(lengths_S, 1.0 / (samples * constant))
