"""Losses and gradients of an update, micro-batch by micro-batch, of a policy and perhaps its critic.

Not here: what becomes of them (`torch_learner.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

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
from astraflow.learners.team import Team


@dataclass(frozen=True, kw_only=True)
class Backward:
    """What `accumulate_gradients` found on its way."""

    loss: float  # the policy's; NaN or infinite: drop the gradients
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
    team: Team,
) -> Backward:
    """Add the gradient of an update's loss to the model's.

    With a critic also that of its loss: to its head's, and by its coefficient to the model's. While it warms up, the
    model gets no gradient at all. Every token weighs what it weighs in the whole update, so the plan has no influence
    on the result; nor has it how the team shares it: what is returned is of all ranks. None leaves the loop early, also
    where its loss is not finite: the others would wait for it.
    """
    total, value_total, sums, forward_s, backward_s = 0.0, 0.0, TokenSums(), 0.0, 0.0
    mismatch_at: dict[float, Mean] = {}
    trains_policy = critic is None or not critic.warming_up
    for micro_batch in team.own(plan):
        started = clock.monotonic()
        order_N = placed(micro_batch.order_N, model.device)
        with torch.set_grad_enabled(trains_policy):
            states_ND, current_N, entropy_N = model.run(
                partial(_pass, model, micro_batch, temperature=temperature, with_entropy=loss.needs_entropy)
            )
            if len(order_N):
                part, found = loss.loss(prepared, weights, order_N, current_N, entropy_N)
            else:  # a pass of no tokens, for the others' sake; its gradient is 0
                part, found = current_N.sum() if entropy_N is None else current_N.sum() + entropy_N.sum(), TokenSums()
        total, sums = total + float(part.detach()), sums + found
        if isinstance(temperature, Tensor):
            gap_N = (current_N.detach() - prepared.behaviour_M[order_N]).abs()
            mismatch_at = merged(mismatch_at, _means_at(temperature[order_N], gap_N))
        if critic is not None:
            value_part = loss.value_loss(prepared, weights, order_N, critic.head(states_ND))
            value_total += float(value_part.detach())
            part = part + value_part
        forward_s += clock.monotonic() - started
        started = clock.monotonic()
        loss.backward(part)
        backward_s += clock.monotonic() - started
    if not trains_policy:
        model.let_go()
    if critic is not None:
        for parameter in critic.head.parameters():  # the model's own are added up as they are computed
            if parameter.grad is not None:
                team.add(parameter.grad)
    found_here = Backward(
        loss=total,
        value_loss=value_total,
        sums=sums,
        forward_s=forward_s,
        backward_s=backward_s,
        mismatch_at=mismatch_at,
    )
    return _together(found_here, temperature, team)


def _pass(
    model: LoadedModel, micro_batch: MicroBatch, *, temperature: Temperature, with_entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    states_ND = micro_batch_states(model, micro_batch)
    return states_ND, *state_logprobs(model, micro_batch, states_ND, temperature=temperature, with_entropy=with_entropy)


def _together(own: Backward, temperature: Temperature, team: Team) -> Backward:
    """What all ranks found: sums and largest values, in float64, so that one rank's are its own to the last bit."""
    keys = sorted(set(temperature.tolist())) if isinstance(temperature, Tensor) else []
    names, largest = TokenSums.added(), TokenSums.largest()
    means = [own.mismatch_at.get(key, Mean(0.0, 0)) for key in keys]
    flat = [number for mean in means for number in (mean.total, float(mean.count))]
    added = torch.tensor(
        [own.loss, own.value_loss, *(float(getattr(own.sums, name)) for name in names), *flat], dtype=torch.float64
    )
    most = torch.tensor([getattr(own.sums, name) for name in largest], dtype=torch.float64)
    team.add(added)
    team.largest(most)
    loss, value_loss, *rest = added.tolist()
    values = dict(zip(names, rest[: len(names)], strict=True)) | dict(zip(largest, most.tolist(), strict=True))
    pairs = zip(keys, rest[len(names) :: 2], rest[len(names) + 1 :: 2], strict=True)
    return replace(
        own,
        loss=loss,
        value_loss=value_loss,
        sums=TokenSums(**values | {"tokens": int(values["tokens"])}),
        mismatch_at={key: Mean(total, int(count)) for key, total, count in pairs if count},
    )


def _means_at(temperature_N: Tensor, gap_N: Tensor) -> dict[float, Mean]:
    """The mean gap by temperature."""
    found = {}
    for value in sorted(set(temperature_N.tolist())):
        of_it_N = gap_N[temperature_N == value]
        found[value] = Mean(float(of_it_N.sum()), of_it_N.numel())
    return found
