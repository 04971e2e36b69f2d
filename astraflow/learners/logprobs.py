"""Logprobs of sampled tokens under some weights, without ever holding logits of a whole batch.

Not here: the plan of micro-batches (`learners/packing.py`) and the loss (`learners/losses`).
Invariant: only positions that predict a sampled token reach the output layer, a bounded block of rows at a time.
Axes: B row, L position, D width, V vocabulary, N sampled token.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from astraflow.compute import placed
from astraflow.learners.model import LoadedModel
from astraflow.learners.packing import MicroBatch
from astraflow.learners.team import Team

# A block of fp32 logits: big enough for full speed, small beside the activations.
LOGIT_BLOCK_BYTES = 64 << 20

# Logits up to this size, in the compute dtype, are kept for the backward pass; more are computed once more.
KEPT_LOGIT_BYTES = 256 << 20


Temperature = float | Tensor
"""At which tokens were sampled: one for all, or float32[M], one for each sampled token of the batch."""


def micro_batch_logprobs(
    model: LoadedModel, micro_batch: MicroBatch, *, temperature: Temperature, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """float32[N] with gradient: logprobs of the micro-batch's targets, of the temperature-scaled distribution.

    And on request that distribution's entropy at each of them, in nats, with gradient too.
    """

    def work() -> tuple[Tensor, Tensor | None]:
        states_ND = micro_batch_states(model, micro_batch)
        return state_logprobs(model, micro_batch, states_ND, temperature=temperature, with_entropy=with_entropy)

    return model.run(work)


def micro_batch_states(model: LoadedModel, micro_batch: MicroBatch) -> Tensor:
    """[N, D] with gradient, in the compute dtype: the hidden states that the targets are predicted from.

    Only inside `model.run`, as the next.
    """
    tokens_BL = placed(micro_batch.tokens_BL, model.device)
    backbone: Any = model.backbone
    if micro_batch.segments_BL is None:
        states = backbone(input_ids=tokens_BL, use_cache=False).last_hidden_state
    else:
        states = backbone(
            input_ids=tokens_BL,
            attention_mask=_segment_mask(placed(micro_batch.segments_BL, model.device), model.head_VD.dtype),
            position_ids=placed(micro_batch.positions_BL, model.device),
            use_cache=False,
        ).last_hidden_state
    states_ND: Tensor = states.flatten(0, 1)[placed(micro_batch.sources_N, model.device)]
    return states_ND


def state_logprobs(
    model: LoadedModel,
    micro_batch: MicroBatch,
    states_ND: Tensor,
    *,
    temperature: Temperature,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As `micro_batch_logprobs`, of hidden states that are there already."""
    targets_N = placed(micro_batch.targets_N, model.device)
    scale: float | Tensor = 1.0 / temperature
    if isinstance(scale, Tensor):
        scale = scale[placed(micro_batch.order_N, model.device)]
    logprobs_N, entropy_N = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        states_ND, model.head_VD, targets_N, scale, with_entropy
    )
    return logprobs_N, entropy_N if with_entropy else None


@torch.no_grad()
def batch_logprobs(
    model: LoadedModel, plan: Sequence[MicroBatch], elsewhere_M: Tensor, *, temperature: Temperature, team: Team
) -> Tensor:
    """float32[M], no gradient: logprobs of all targets of the plan, and `elsewhere_M` of the tokens outside it."""
    found_M = torch.zeros_like(elsewhere_M)
    for micro_batch in team.own(plan):
        logprobs_N, _ = micro_batch_logprobs(model, micro_batch, temperature=temperature)
        found_M[placed(micro_batch.order_N, model.device)] = logprobs_N
    model.let_go()
    team.add(found_M)  # each target was some rank's own, and is 0 elsewhere
    return planned_or(plan, found_M, elsewhere_M)


def planned_or(plan: Sequence[MicroBatch], found_M: Tensor, elsewhere_M: Tensor) -> Tensor:
    """`found_M` of the targets of the plan, `elsewhere_M` of all others."""
    values_M = elsewhere_M.clone()
    for micro_batch in plan:
        order_N = placed(micro_batch.order_N, elsewhere_M.device)
        values_M[order_N] = found_M[order_N]
    return values_M


def _segment_mask(segments_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask [B, 1, L, L]: a position sees what precedes it in the prompt (0) and its own segment."""
    length = segments_BL.shape[1]
    keys, queries = segments_BL[:, None, None, :], segments_BL[:, None, :, None]
    seen = ((keys == 0) | (keys == queries)) & torch.ones(length, length, dtype=torch.bool, device=keys.device).tril()
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(scale · h @ headᵀ)[target] and the entropy of that softmax, blockwise; few logits are kept.

    `scale` is one for all or [N].
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, scale: float | Tensor, with_entropy: bool
    ) -> tuple[Tensor, Tensor]:
        normalisers, chosen, entropies, kept = [], [], [], []
        keeps = len(hidden_ND) * head_VD.shape[0] * head_VD.element_size() <= KEPT_LOGIT_BYTES
        for rows in _blocks(hidden_ND, head_VD):
            raw = F.linear(hidden_ND[rows], head_VD)
            kept += [raw] if keeps else []
            logits = _scaled(raw, scale, rows)
            normalisers.append(torch.logsumexp(logits, dim=-1))
            chosen.append(logits.gather(1, targets_N[rows, None]).squeeze(1))
            if with_entropy:
                chances = (logits - normalisers[-1][:, None]).exp_()
                entropies.append(normalisers[-1] - chances.mul_(logits).sum(-1))
        normaliser_N = torch.cat(normalisers)
        entropy_N = torch.cat(entropies) if with_entropy else torch.zeros(0, device=normaliser_N.device)
        ctx.save_for_backward(hidden_ND, head_VD, targets_N, normaliser_N, entropy_N, *kept)
        ctx.scale = scale
        return torch.cat(chosen) - normaliser_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_ND, head_VD, targets_N, normaliser_N, entropy_N, *kept = ctx.saved_tensors
        gradient_N = gradients[0] * ctx.scale
        hidden_gradient = torch.empty_like(hidden_ND)
        head_gradient: Tensor | None = None
        entropy_gradient_N = gradients[1] * ctx.scale if len(entropy_N) else gradients[1]
        for i, rows in enumerate(_blocks(hidden_ND, head_VD)):
            logits = _scaled(kept[i] if kept else F.linear(hidden_ND[rows], head_VD), ctx.scale, rows)
            logs = logits.sub(normaliser_N[rows, None])
            factor = -gradient_N[rows, None]  # d logprob / d logits = onehot(target) − softmax
            if len(entropy_N):  # d entropy / d logits = −softmax · (log softmax + entropy)
                factor = factor - entropy_gradient_N[rows, None] * (logs + entropy_N[rows, None])
            flow = logs.exp_().mul_(factor)
            flow.scatter_add_(1, targets_N[rows, None], gradient_N[rows, None])
            flow = flow.to(head_VD.dtype)
            torch.mm(flow, head_VD, out=hidden_gradient[rows])
            block = flow.t() @ hidden_ND[rows]
            # Blocks add up in fp32: bf16 sums would lose the small ones.
            head_gradient = block.float() if head_gradient is None else head_gradient.add_(block)
        if head_gradient is None:
            head_gradient = torch.zeros_like(head_VD)
        return hidden_gradient, head_gradient.to(head_VD.dtype), None, None, None


def _scaled(raw: Tensor, scale: float | Tensor, rows: slice) -> Tensor:
    logits = raw.float()
    if isinstance(scale, Tensor):
        return logits * scale[rows, None]
    return logits if scale == 1.0 else logits * scale


def _blocks(hidden_ND: Tensor, head_VD: Tensor) -> list[slice]:
    rows = max(1, LOGIT_BLOCK_BYTES // (4 * head_VD.shape[0]))
    count = len(hidden_ND)
    return [slice(i, min(i + rows, count)) for i in range(0, max(1, count), rows)]  # an empty pass has one, of none
