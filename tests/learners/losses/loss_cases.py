"""Batches of a few tokens for the tests of losses, in float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

from astraflow.config import LossSection
from astraflow.learners.losses.compose import Loss, Prepared
from astraflow.learners.losses.diagnostics import TokenSums
from astraflow.learners.losses.tokens import LossBatch


def numbers(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def batch_of(
    behaviour: Sequence[float],
    advantages: Sequence[float],
    *,
    lengths: Sequence[int] | None = None,
    tasks: Sequence[int] | None = None,
    proximal: Sequence[float] | None = None,
    reference: Sequence[float] | None = None,
) -> LossBatch:
    """`advantages` per token; one token per sample unless `lengths` says otherwise."""
    lengths = lengths or [1] * len(behaviour)
    return LossBatch(
        behaviour_M=numbers(behaviour),
        advantages_M=numbers(advantages),
        sequence_M=torch.arange(len(lengths)).repeat_interleave(torch.tensor(list(lengths))),
        task_S=torch.tensor(list(tasks or [0] * len(lengths))),
        proximal_M=None if proximal is None else numbers(proximal),
        reference_M=None if reference is None else numbers(reference),
    )


def value_of(
    section: LossSection,
    batch: LossBatch,
    current: Sequence[float],
    *,
    micro_batches: Sequence[Sequence[int]] | None = None,
    entropy: Sequence[float] | None = None,
    first: Sequence[float] | None = None,
) -> tuple[float, list[float], TokenSums]:
    """Loss, gradient by token and diagnostics of one update over the whole batch.

    Args:
        micro_batches: places of their tokens; None: all in one.
        first: logprobs before the update; None: `current`.
    """
    loss = Loss(section)
    prepared: Prepared = loss.prepare(batch)
    current_M = numbers(current).requires_grad_()
    first_M = current_M.detach() if first is None else numbers(first)
    chosen_S = torch.ones(len(batch.task_S), dtype=torch.bool)
    weights = loss.weigh(prepared, chosen_S=chosen_S, current_M=first_M)
    total, sums = 0.0, TokenSums()
    for order in micro_batches or [range(len(current))]:
        order_N = torch.tensor(list(order))
        entropy_N = None if entropy is None else numbers(entropy)[order_N]
        part, found = loss.loss(prepared, weights, order_N, current_M[order_N], entropy_N)
        part.backward()
        total, sums = total + float(part.detach()), sums + found
    assert current_M.grad is not None
    return total, current_M.grad.tolist(), sums
