"""What an optimizer step reports, from what its updates found. Pure.

Metrics of a step (`StepReport.metrics`), over all its updates where there are several:
    loss             that was minimised, by the run file's aggregation; mean over updates
    grad_norm        before clipping; mean over updates
    lr               step size used
    tokens           sampled tokens of the batch
    computed_tokens  positions that went forward and backward through the model, padding included
    micro_batches    forward and backward passes
    skipped_samples  samples without gradient, not computed
    updates          optimizer updates; skipped_updates: those left out after one that was not finite
    entropy          −mean of the engine's logprobs over all sampled tokens: what it estimates
    prepare_s        passes before the first gradient: proximal, reference, M2PO's
    forward_s, backward_s, optimizer_s   seconds
and, of the computed samples, absent if there are none:
    mismatch         mean |engine − learner| logprob; at one step per batch and no staleness it is numerics alone
    mismatch_max     the largest
    mismatch_at_T    the mean of the tokens that were sampled at temperature T, where the batch has several
    mean_ratio       mean importance ratio of learner over engine; ratio_max: the largest
    ess              effective sample size of these ratios, as a share of the tokens
    second_moment    mean squared log ratio
    approx_kl        estimate of KL(engine ‖ learner) per token
    clip_fraction    tokens whose gradient or weight the objective cut
    masked_fraction  tokens without weight: M2PO's mask, masked importance sampling
    reference_kl     estimate of KL(learner ‖ reference) per token; absent without loss.kl, and while it is exactly 0
    token_entropy    mean entropy of a token's distribution; absent without loss.entropy_bonus
and, with a critic, over all sampled tokens:
    value_loss       half the mean squared error of values, clipped; mean over updates
    value_grad_norm  of the head, before clipping; mean over updates
    value_mean, return_mean   values at the start of the batch, and the returns that they ought to be
    explained_variance   1 − Var(return − value) / Var(return); absent while all returns are equal
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from astraflow.algos.losses.compose import Prepared
from astraflow.algos.losses.diagnostics import TokenSums
from astraflow.algos.losses.values import explained_variance


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
        "loss": sum(each.loss for each in updates) / count,
        "grad_norm": sum(each.grad_norm for each in updates) / count,
        "computed_tokens": float(sum(each.computed_tokens for each in updates)),
        "micro_batches": float(sum(each.micro_batches for each in updates)),
        "updates": float(count),
        "prepare_s": sum(each.prepare_s for each in updates),
        "forward_s": sum(each.forward_s for each in updates),
        "backward_s": sum(each.backward_s for each in updates),
        "optimizer_s": sum(each.optimizer_s for each in updates),
    }
    mismatch_at: Mapping[float, Mean] = reduce(merged, (each.mismatch_at for each in updates), {})
    metrics |= {f"mismatch_at_{key:.4g}": each.total / each.count for key, each in mismatch_at.items()}
    return metrics | _token_means(sum((each.sums for each in updates), TokenSums()))


def value_metrics(prepared: Prepared, updates: Sequence[Update]) -> dict[str, float]:
    """Of a critic; nothing without one."""
    if prepared.values_M is None or prepared.returns_M is None:
        return {}
    explained = explained_variance(prepared.values_M, prepared.returns_M)
    return {
        "value_loss": sum(each.value_loss for each in updates) / len(updates),
        "value_grad_norm": sum(each.value_grad_norm for each in updates) / len(updates),
        "value_mean": float(prepared.values_M.mean()),
        "return_mean": float(prepared.returns_M.mean()),
    } | ({} if explained is None else {"explained_variance": explained})


def _token_means(sums: TokenSums) -> dict[str, float]:
    if sums.tokens == 0:
        return {}
    means = {
        "mismatch": sums.mismatch, "mean_ratio": sums.ratio, "approx_kl": sums.kl, "clip_fraction": sums.clipped,
        "masked_fraction": sums.masked, "second_moment": sums.second_moment,
    }  # fmt: skip
    means |= {name: value for name in ("reference_kl", "token_entropy") if (value := getattr(sums, name))}
    metrics = {name: value / sums.tokens for name, value in means.items()}
    return metrics | {"mismatch_max": sums.mismatch_max, "ratio_max": sums.ratio_max, "ess": sums.effective_fraction}
