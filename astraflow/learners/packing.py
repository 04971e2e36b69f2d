"""Which tokens go through the model together: micro-batches under a token budget, with shared prompts computed once.

Not here: tensors, masks as the model wants them, and the loss (`logprobs.py`, `losses/`).
Invariant: every sampled token of every sequence is predicted exactly once, from exactly its own context, so the plan
changes the cost of a step and nothing else.

A *row* is what the model sees as one sequence. A plain row is one sequence. A shared row is [prompt][completion 1]…
[completion k] of one group: each completion attends to the prompt and to itself, and its positions go on from the
prompt's. Per group the cheapest number of shared rows is taken (all plain if that is cheaper); rows are then bucketed
by length so that little padding is computed.
Axes: T token of a sequence, B row of a micro-batch, L position in a row, N sampled token of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]
PADDING = -1


@dataclass(frozen=True, kw_only=True)
class PackItem:
    """One sequence to train on. `sampled_T[0]` is False: nothing predicts the first token."""

    group: str  # only sequences of one group are searched for a shared prompt
    tokens_T: NDArray[np.int32]
    sampled_T: NDArray[np.bool_]
    first_target: int  # index of its first sampled token among those of the whole batch


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One forward pass. Padding stands right of a row's tokens, where causal attention never looks."""

    tokens_BL: _Ints
    positions_BL: _Ints
    segments_BL: _Ints | None  # 0 prompt, k ≥ 1 completion k, −1 padding; None: plain rows, a causal mask says it all
    sources_N: _Ints  # flat index (b·L + l) of the hidden state that predicts sampled token n
    targets_N: _Ints  # token ids
    order_N: _Ints  # index of sampled token n among those of the whole batch


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a forward and backward pass costs, in units of one token's matrix products."""

    attention: float = 0.0  # per token and attended position; about 2 · layers · width / parameters
    micro_batch: float = 32.0  # per pass: weights are read and gradients added up again

    def rows(self, count: int, length: int, *, shared: bool) -> float:
        """Of `count` rows of `length` positions; an explicit mask also computes what lies above the diagonal."""
        return count * length * (1.0 + self.attention * length * (1.0 if shared else 0.5))


@dataclass(frozen=True)
class _Row:
    prefix: int  # positions of the shared prompt; 0 = plain row
    members: tuple[PackItem, ...]
    length: int


def plan_micro_batches(
    items: Sequence[PackItem], *, budget_tokens: int, costs: Costs, share_prefixes: bool
) -> list[MicroBatch]:
    """Cut a batch into micro-batches of at most `budget_tokens` positions, padding included.

    A row that alone exceeds the budget gets a pass of its own. Sequences without sampled tokens are left out. The plan
    depends on the arguments only; the longest rows come first, so memory peaks in the first pass.
    """
    groups: dict[str, list[PackItem]] = {}
    for item in items:
        if item.sampled_T.any():
            groups.setdefault(item.group, []).append(item)
    plain: list[_Row] = []
    shared: list[_Row] = []
    for members in groups.values():
        for row in _rows_of_group(members, budget_tokens, costs) if share_prefixes else map(_plain_row, members):
            (shared if row.prefix else plain).append(row)
    return [
        _assemble(bucket)
        for rows in (shared, plain)
        for bucket in _buckets(rows, budget_tokens=budget_tokens, costs=costs)
    ]


def empty_micro_batch() -> MicroBatch:
    """One row that predicts nothing: what a rank computes while others have a pass more."""
    none = np.zeros(0, np.int64)
    return MicroBatch(
        tokens_BL=np.zeros((1, 2), np.int64),
        positions_BL=np.arange(2, dtype=np.int64)[None],
        segments_BL=None,
        sources_N=none,
        targets_N=none,
        order_N=none,
    )


def shared_prefix(members: Sequence[PackItem]) -> int:
    """Tokens that all sequences have in common before the first sampled one of any."""
    limit = min(int(item.sampled_T.argmax()) for item in members)
    heads = np.stack([item.tokens_T[:limit] for item in members])
    differs = (heads != heads[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else limit


def _plain_row(item: PackItem) -> _Row:
    return _Row(0, (item,), len(item.tokens_T))


def _rows_of_group(members: list[PackItem], budget_tokens: int, costs: Costs) -> list[_Row]:
    plain = [_plain_row(item) for item in members]
    prefix = shared_prefix(members)
    if len(members) == 1 or prefix == 0:
        return plain
    best, best_cost = plain, sum(costs.rows(1, row.length, shared=False) for row in plain)
    for count in range(1, len(members)):
        rows = [_shared_row(prefix, members[i::count]) for i in range(count)]
        if max(row.length for row in rows) > budget_tokens:
            continue
        cost = sum(costs.rows(1, row.length, shared=True) for row in rows)
        if cost < best_cost:
            best, best_cost = rows, cost
    return best


def _shared_row(prefix: int, members: Sequence[PackItem]) -> _Row:
    return _Row(prefix, tuple(members), prefix + sum(len(item.tokens_T) - prefix for item in members))


def _buckets(rows: list[_Row], *, budget_tokens: int, costs: Costs) -> list[list[_Row]]:
    """Cut rows, sorted by length, where padding plus passes cost least: shortest path over the cut positions."""
    rows = sorted(rows, key=lambda row: -row.length)
    lengths = np.array([row.length for row in rows], dtype=np.int64)
    shared = bool(rows) and rows[0].prefix > 0
    padded = np.array([costs.rows(1, int(n), shared=shared) for n in lengths])  # a row padded to the length of row j
    best = np.zeros(len(rows) + 1)
    cut = np.zeros(len(rows) + 1, dtype=np.int64)
    for end in range(1, len(rows) + 1):
        counts = end - np.arange(end)  # rows of a bucket that starts at j and stops before `end`
        cost = best[:end] + padded[:end] * counts + costs.micro_batch
        cost[(lengths[:end] * counts > budget_tokens) & (counts > 1)] = np.inf
        cut[end] = cost.argmin()
        best[end] = cost[cut[end]]
    buckets: list[list[_Row]] = []
    end = len(rows)
    while end:
        buckets.append(rows[cut[end] : end])
        end = int(cut[end])
    return buckets[::-1]


def _assemble(rows: list[_Row]) -> MicroBatch:
    shape = (len(rows), max(row.length for row in rows))
    tokens_BL, positions_BL = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segments_BL = np.full(shape, PADDING, np.int64)
    sources: list[_Ints] = []
    targets: list[_Ints] = []
    order: list[_Ints] = []
    for b, row in enumerate(rows):
        start = 0
        for segment, item in enumerate(row.members, start=1):
            skip = row.prefix if start else 0  # the first member brings the prompt along
            stop = start + len(item.tokens_T) - skip
            tokens_BL[b, start:stop] = item.tokens_T[skip:]
            positions_BL[b, start:stop] = np.arange(skip, len(item.tokens_T))
            segments_BL[b, start:stop] = segment
            at = np.flatnonzero(item.sampled_T)
            # Token t is predicted at t − 1: in the shared prompt up to its end, else in the member's own stretch.
            before = at - 1
            local = np.where(before < row.prefix, before, before - skip + start) if row.prefix else before
            sources.append(b * shape[1] + local)
            targets.append(item.tokens_T[at].astype(np.int64))
            order.append(item.first_target + np.arange(len(at)))
            start = stop
        segments_BL[b, : row.prefix] = 0
    return MicroBatch(
        tokens_BL=tokens_BL,
        positions_BL=positions_BL,
        segments_BL=segments_BL if rows[0].prefix else None,
        sources_N=np.concatenate(sources),
        targets_N=np.concatenate(targets),
        order_N=np.concatenate(order),
    )
