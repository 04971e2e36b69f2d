"""Loss and gradients of an update, micro-batch by micro-batch. Not here: what becomes of them (`torch_learner.py`)."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from astraflow.algos.losses.compose import Loss, Prepared, Weights
from astraflow.algos.losses.diagnostics import TokenSums
from astraflow.algos.packing import MicroBatch
from astraflow.learners.logprobs import micro_batch_logprobs
from astraflow.learners.model import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Backward:
    """What `accumulate_gradients` found on its way."""

    loss: float  # NaN or infinite: gradients are incomplete, drop them
    sums: TokenSums
    forward_s: float
    backward_s: float


def accumulate_gradients(
    model: LoadedModel, plan: Sequence[MicroBatch], loss: Loss, prepared: Prepared, weights: Weights, *,
    temperature: float,
) -> Backward:  # fmt: skip
    """Add the gradient of an update's loss to the model's; stops at the first loss that is not finite.

    Every token weighs what it weighs in the whole update, so the plan has no influence on the result.
    """
    total, sums, forward_s, backward_s = 0.0, TokenSums(), 0.0, 0.0
    for micro_batch in plan:
        started = time.perf_counter()
        current_N, entropy_N = micro_batch_logprobs(
            model, micro_batch, temperature=temperature, with_entropy=loss.needs_entropy
        )
        part, found = loss.loss(prepared, weights, torch.from_numpy(micro_batch.order_N), current_N, entropy_N)
        total, sums = total + float(part.detach()), sums + found
        forward_s += time.perf_counter() - started
        if not math.isfinite(total):
            break
        started = time.perf_counter()
        part.backward()  # type: ignore[no-untyped-call]
        backward_s += time.perf_counter() - started
    return Backward(loss=total, sums=sums, forward_s=forward_s, backward_s=backward_s)
