"""The probe of a version: a row of tokens to which learner and engine must give the same logprobs.

Not here: who computes what, and who asks (`actors/policy/agreement.py`). Pure, and without torch.
Axes: T token of the row, C token whose logprob counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROW, PROMPT = 32, 8  # tokens; fewer where the context is shorter
_FP32_MOST = 1e-4  # nats, at any token
# nats, on average. Measured between any two of learner, engine and fp32: SmolLM2-135M 0.09, tiny dense models 0.03, and
# 0.16 for a mixture of experts where rounding sent a token to another expert. What is read wrongly is 1 to 8 apart.
_BF16_MEAN = 0.3


def probe_row(vocabulary: int, context_length: int) -> NDArray[np.int32]:
    """int32[T]: the same for everybody, all over the vocabulary. Empty if the context is too short for a probe."""
    length = min(_ROW, context_length)
    if length < 2:
        return np.zeros(0, np.int32)
    return np.random.default_rng(0).integers(0, vocabulary, length).astype(np.int32)


def scored(tokens_T: Sequence[int] | NDArray[np.int32]) -> int:
    """How many tokens at a row's end are scored."""
    return len(tokens_T) - min(PROMPT, len(tokens_T) // 2)


@dataclass(frozen=True)
class Gap:
    """How far two sides are apart, in nats."""

    mean: float
    most: float
    exact: bool  # both computed in fp32

    @property
    def agrees(self) -> bool:
        """False for NaN too."""
        return self.most <= _FP32_MOST if self.exact else self.mean <= _BF16_MEAN

    @property
    def bound(self) -> str:
        return f"{_FP32_MOST:g} at most, in fp32" if self.exact else f"{_BF16_MEAN:g} on average, in bf16"

    def __str__(self) -> str:
        return f"{self.most:.2g} nats at most, {self.mean:.2g} on average"


def gap(one_C: Sequence[float], other_C: Sequence[float], *dtypes: str) -> Gap:
    """Between logprobs of the same tokens, by sides that computed in these dtypes."""
    apart_C = np.abs(np.asarray(one_C, np.float64) - np.asarray(other_C, np.float64))
    return Gap(float(apart_C.mean()), float(apart_C.max()), all(dtype == "float32" for dtype in dtypes))
