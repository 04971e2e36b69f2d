"""Losses and gradients of an update, micro-batch by micro-batch, of a policy and perhaps its critic.

Not here: what becomes of them (`torch_learner.py`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from astraflow import clock
from astraflow.compute import placed
from astraflow.learners.critic import Critic
from astraflow.learners.logprobs import Temperature, micro_batch_states, state_logprobs
from astraflow.learners.losses.compose import Loss, Prepared, Weights
from astraflow.learners.losses.diagnostics import TokenSums
from astraflow.learners.model import LoadedModel
from astraflow.learners.packing import MicroBatch
from astraflow.learners.step_metrics import Mean, merged


@dataclass(frozen=True, kw_only=True)
class Backward:
    """What `accumulate_gradients` found on its way."""

    loss: float  # the policy's; NaN or infinite: gradients are incomplete, drop them
    value_loss: float = 0.0  # the critic's; likewise
    sums: TokenSums
    forward_s: float
    backward_s: float
    mismatch_at: Mapping[float, Mean] = field(default_factory=dict)  # by temperature, where there are several


def accumulate_gradients(
    model: LoadedModel,
    plan: Sequence[MicroBatch],
    loss: Loss,
    prepared: Prepared,
    weights: Weights,
    *,
    temperature: Temperature,
    critic: Critic | None = None,
) -> Backward:
    """Add the gradient of an update's loss to the model's; stops at the first loss that is not finite.

    With a critic also that of its loss: to its head's, and by its coefficient to the model's. While it warms up, the
    model gets no gradient at all. Every token weighs what it weighs in the whole update, so the plan has no influence
    on the result.
    """
    total, value_total, sums, forward_s, backward_s = 0.0, 0.0, TokenSums(), 0.0, 0.0
    mismatch_at: dict[float, Mean] = {}
    trains_policy = critic is None or not critic.warming_up
    for micro_batch in plan:
        started = clock.monotonic()
        order_N = placed(micro_batch.order_N, model.device)
        with torch.set_grad_enabled(trains_policy):
            states_ND = micro_batch_states(model, micro_batch)
            current_N, entropy_N = state_logprobs(
                model, micro_batch, states_ND, temperature=temperature, with_entropy=loss.needs_entropy
            )
            part, found = loss.loss(prepared, weights, order_N, current_N, entropy_N)
        total, sums = total + float(part.detach()), sums + found
        if isinstance(temperature, Tensor):
            gap_N = (current_N.detach() - prepared.behaviour_M[order_N]).abs()
            mismatch_at = merged(mismatch_at, _means_at(temperature[order_N], gap_N))
        if critic is not None:
            value_part = loss.value_loss(prepared, weights, order_N, critic.head(states_ND))
            value_total += float(value_part.detach())
            part = part + value_part
        forward_s += clock.monotonic() - started
        if not math.isfinite(total + value_total):
            break
        started = clock.monotonic()
        part.backward()  # type: ignore[no-untyped-call]
        backward_s += clock.monotonic() - started
    return Backward(
        loss=total,
        value_loss=value_total,
        sums=sums,
        forward_s=forward_s,
        backward_s=backward_s,
        mismatch_at=mismatch_at,
    )


def _means_at(temperature_N: Tensor, gap_N: Tensor) -> dict[float, Mean]:
    """The mean gap by temperature."""
    found = {}
    for value in sorted(set(temperature_N.tolist())):
        of_it_N = gap_N[temperature_N == value]
        found[value] = Mean(float(of_it_N.sum()), of_it_N.numel())
    return found
