"""What an optimizer step reports (`StepReport.metrics`), from what its updates found. Pure.

The table in messages/metric_names.py says what each number is. Over all updates of the step where there are several;
what has no data is left out: ratios and mismatch while no sample was computed, a critic's numbers without one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from astraflow.learners.losses.compose import Prepared
from astraflow.learners.losses.diagnostics import TokenSums
from astraflow.learners.losses.values import explained_variance
from astraflow.messages.metric_names import (
    TRAIN_APPROX_KL,
    TRAIN_BACKWARD_S,
    TRAIN_CLIP_FRACTION,
    TRAIN_COMPUTED_TOKENS,
    TRAIN_ESS,
    TRAIN_EXPLAINED_VARIANCE,
    TRAIN_FORWARD_S,
    TRAIN_GRAD_NORM,
    TRAIN_LOSS,
    TRAIN_MASKED_FRACTION,
    TRAIN_MEAN_RATIO,
    TRAIN_MICRO_BATCHES,
    TRAIN_MISMATCH,
    TRAIN_MISMATCH_AT,
    TRAIN_MISMATCH_MAX,
    TRAIN_OPTIMIZER_S,
    TRAIN_PREPARE_S,
    TRAIN_RATIO_MAX,
    TRAIN_REFERENCE_KL,
    TRAIN_RETURN_MEAN,
    TRAIN_SECOND_MOMENT,
    TRAIN_TOKEN_ENTROPY,
    TRAIN_UPDATES,
    TRAIN_VALUE_GRAD_NORM,
    TRAIN_VALUE_LOSS,
    TRAIN_VALUE_MEAN,
)


@dataclass(frozen=True)
class Mean:
    """A mean that adds up."""

    total: float
    count: int


def merged(one: Mapping[float, Mean], other: Mapping[float, Mean]) -> dict[float, Mean]:
    """Both together, key by key."""
    nothing = Mean(0.0, 0)
    pairs = {key: (one.get(key, nothing), other.get(key, nothing)) for key in {*one, *other}}
    return {key: Mean(a.total + b.total, a.count + b.count) for key, (a, b) in sorted(pairs.items())}


@dataclass(frozen=True, kw_only=True)
class Update:
    """One optimizer update, or what kept it from being made."""

    skip_reason: str = ""  # nan_loss | nan_gradient | "" = made
    loss: float
    grad_norm: float = 0.0
    value_loss: float = 0.0
    value_grad_norm: float = 0.0
    computed_tokens: int = 0
    micro_batches: int = 0
    prepare_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    sums: TokenSums = field(default_factory=TokenSums)
    mismatch_at: Mapping[float, Mean] = field(default_factory=dict)  # by temperature, where there are several


def step_metrics(updates: Sequence[Update]) -> dict[str, float]:
    """Of at least one update, all of them made."""
    count = len(updates)
    metrics = {
        TRAIN_LOSS: sum(each.loss for each in updates) / count,
        TRAIN_GRAD_NORM: sum(each.grad_norm for each in updates) / count,
        TRAIN_COMPUTED_TOKENS: float(sum(each.computed_tokens for each in updates)),
        TRAIN_MICRO_BATCHES: float(sum(each.micro_batches for each in updates)),
        TRAIN_UPDATES: float(count),
        TRAIN_PREPARE_S: sum(each.prepare_s for each in updates),
        TRAIN_FORWARD_S: sum(each.forward_s for each in updates),
        TRAIN_BACKWARD_S: sum(each.backward_s for each in updates),
        TRAIN_OPTIMIZER_S: sum(each.optimizer_s for each in updates),
    }
    mismatch_at: Mapping[float, Mean] = reduce(merged, (each.mismatch_at for each in updates), {})
    metrics |= {TRAIN_MISMATCH_AT.of(f"{key:.4g}"): each.total / each.count for key, each in mismatch_at.items()}
    return metrics | _token_means(sum((each.sums for each in updates), TokenSums()))


def value_metrics(prepared: Prepared, updates: Sequence[Update]) -> dict[str, float]:
    """Of a critic; nothing without one."""
    if prepared.values_M is None or prepared.returns_M is None:
        return {}
    explained = explained_variance(prepared.values_M, prepared.returns_M)
    return {
        TRAIN_VALUE_LOSS: sum(each.value_loss for each in updates) / len(updates),
        TRAIN_VALUE_GRAD_NORM: sum(each.value_grad_norm for each in updates) / len(updates),
        TRAIN_VALUE_MEAN: float(prepared.values_M.mean()),
        TRAIN_RETURN_MEAN: float(prepared.returns_M.mean()),
    } | ({} if explained is None else {TRAIN_EXPLAINED_VARIANCE: explained})


def _token_means(sums: TokenSums) -> dict[str, float]:
    if sums.tokens == 0:
        return {}
    means = {
        TRAIN_MISMATCH: sums.mismatch,
        TRAIN_MEAN_RATIO: sums.ratio,
        TRAIN_APPROX_KL: sums.kl,
        TRAIN_CLIP_FRACTION: sums.clipped,
        TRAIN_MASKED_FRACTION: sums.masked,
        TRAIN_SECOND_MOMENT: sums.second_moment,
    }
    optional = {TRAIN_REFERENCE_KL: sums.reference_kl, TRAIN_TOKEN_ENTROPY: sums.token_entropy}
    means |= {name: value for name, value in optional.items() if value}
    metrics = {name: value / sums.tokens for name, value in means.items()}
    return metrics | {
        TRAIN_MISMATCH_MAX: sums.mismatch_max,
        TRAIN_RATIO_MAX: sums.ratio_max,
        TRAIN_ESS: sums.effective_fraction,
    }
