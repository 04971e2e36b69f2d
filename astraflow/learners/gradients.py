"""Loss and gradients of a batch, micro-batch by micro-batch. Not here: what is done with them (`torch_learner.py`)."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from astraflow.algos.losses import TokenSums, ppo_clip_loss
from astraflow.algos.packing import MicroBatch
from astraflow.config import TrainerSection
from astraflow.learners.batch import Batch
from astraflow.learners.logprobs import micro_batch_logprobs
from astraflow.learners.model import LoadedModel


@dataclass(frozen=True, kw_only=True)
class Backward:
    """What `accumulate_gradients` found on its way."""

    loss: float  # per sampled token of the batch; NaN or infinite: gradients are incomplete, drop them
    sums: TokenSums
    forward_s: float
    backward_s: float


def accumulate_gradients(
    model: LoadedModel, plan: Sequence[MicroBatch], batch: Batch, section: TrainerSection, *, temperature: float
) -> Backward:
    """Add the gradient of the whole batch's loss to the model's; stops at the first loss that is not finite.

    Every micro-batch divides by the sampled tokens of the whole batch, so the plan has no influence on the result.
    """
    behaviour_M, advantages_M = torch.from_numpy(batch.behaviour_M), torch.from_numpy(batch.advantages_M)
    total, sums, forward_s, backward_s = 0.0, TokenSums(), 0.0, 0.0
    for micro_batch in plan:
        started = time.perf_counter()
        order_N = torch.from_numpy(micro_batch.order_N)
        loss, part = ppo_clip_loss(
            micro_batch_logprobs(model.backbone, model.head_VD, micro_batch, temperature=temperature),
            behaviour_M[order_N],
            advantages_M[order_N],
            clip_low=section.clip_low,
            clip_high=section.clip_high,
            denominator=batch.sampled_tokens,
        )
        total, sums = total + float(loss.detach()), sums + part
        forward_s += time.perf_counter() - started
        if not math.isfinite(total):
            break
        started = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        backward_s += time.perf_counter() - started
    return Backward(loss=total, sums=sums, forward_s=forward_s, backward_s=backward_s)
