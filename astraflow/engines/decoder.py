"""The slot decoder: Llama, Qwen2 and Qwen3 on plain torch, many sequences a step, exact against transformers in fp32.

No sampling, no scheduling, no autograd. Axes: N tokens of a step, B decoding sequences, T attended positions, H query
heads, K key/value heads, G = H / K, D head size, V vocabulary.

One forward pass takes tokens of all kinds: one token of each decoding sequence and pieces of prompts. Matrix products
see them as one batch, without padding; only attention differs. Decoding sequences attend together over a slice of
their pool (two small batched products: 0.7 ms a layer at 64 sequences where scaled_dot_product_attention takes 4.5 ms),
each prompt piece attends alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from astraflow.engines.architecture import DecoderSpec
from astraflow.engines.decoder_weights import DecoderWeights, LayerWeights
from astraflow.engines.kv_cache import CacheRow, KvCache, Pool
from astraflow.engines.rope import inverse_frequencies, rotate, tables
from astraflow.engines.sequences import Running, Segment
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor

_WHOLE_SHARE = 0.75  # of a pool's positions: from here on attending to all of them is cheaper than copying a slice


@dataclass(frozen=True)
class _PoolStep:
    """Decoding sequences of one pool: tokens [start, end) of the step."""

    pool: Pool
    start: int
    end: int
    rows_B: Tensor  # int64: indices in the pool
    positions_B: Tensor  # int64: where this step's key goes
    span: int  # rows [0, span) are attended over; those that don't decode are computed and thrown away
    length: int  # positions attended over
    bias: Tensor | None  # float32[span, 1, 1, length]: −inf where a row has no token; None: all have all


@dataclass(frozen=True)
class _PieceStep:
    """A prompt piece: tokens [start, end) of the step, at positions [before, before + end − start)."""

    row: CacheRow
    start: int
    end: int
    before: int
    mask: Tensor | None  # bool[end − start, before + end − start]; None: causal from position 0


class SlotDecoder:
    """A `BatchModel` over `DecoderWeights` and a `KvCache`; the arguments are theirs."""

    def __init__(
        self,
        spec: DecoderSpec,
        tensors: Mapping[str, HostTensor],
        *,
        dtype: torch.dtype,
        max_sequences: int,
        budget_bytes: int,
    ) -> None:
        self._spec = spec
        self._dtype = dtype
        self._weights = DecoderWeights(spec, tensors, dtype)
        self._inverse = inverse_frequencies(spec)
        self._cache = KvCache(
            layers=spec.layers,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
            max_rows=max_sequences,
            budget_bytes=budget_bytes,
        )
        self._rows: dict[Running, CacheRow] = {}

    @property
    def longest(self) -> int:
        return self._cache.longest

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that were copied instead of computed, since the start."""
        return self._cache.reused_tokens

    def admit(self, sequence: Running) -> bool:
        row = self._cache.claim(sequence.tokens, sequence.known, sequence.tokens.size)
        if row is None:
            return False
        self._rows[sequence] = row
        sequence.computed = row.length
        return True

    def fork(self, source: Running, target: Running, count: int) -> None:
        self._cache.copy_prefix(self._rows[source], self._rows[target], count)
        self._cache.reused_tokens += count - target.computed
        target.computed = count

    def restart(self, sequence: Running) -> None:
        self._cache.restart(self._rows[sequence])
        sequence.computed = 0

    def release(self, sequence: Running) -> None:
        self._cache.release(self._rows.pop(sequence))

    def check(self, changes: Mapping[str, Change]) -> None:
        self._weights.check(changes)

    def prepare(self, changes: Mapping[str, Change]) -> Callable[[], None]:
        put_weights = self._weights.prepare(changes)

        def put() -> None:
            put_weights()
            self._cache.invalidate()

        return put

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Tensor:
        decoding = sorted(
            (item for item in segments if item.count == 1), key=lambda item: self._rows[item.sequence].pool.capacity
        )
        ordered = [*decoding, *(item for item in segments if item.count > 1)]
        tokens_N = torch.cat([_tokens(item) for item in ordered])
        positions_N = torch.cat(
            [torch.arange(item.sequence.computed, item.sequence.computed + item.count) for item in ordered]
        )
        pools = self._plan_pools(decoding, positions_N)
        pieces = self._plan_pieces(ordered[len(decoding) :], len(decoding))
        hidden_N = self._layers(tokens_N, positions_N, pools, pieces)
        ends = torch.tensor([item.count for item in ordered]).cumsum(0) - 1
        last = dict(zip(ordered, ends.tolist(), strict=True))
        for item in ordered:
            item.sequence.computed += item.count
            self._rows[item.sequence].length = item.sequence.computed
        wanted = [last[item] for item in segments if item.sequence.computed == item.sequence.known]
        return self._weights.head(self._norm(hidden_N[wanted], self._weights.final_norm))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._spec.norm_eps)

    def _plan_pools(self, decoding: Sequence[Segment], positions_N: Tensor) -> list[_PoolStep]:
        rows = [self._rows[item.sequence] for item in decoding]
        steps: list[_PoolStep] = []
        start = 0
        while start < len(rows):
            pool = rows[start].pool
            end = start + sum(1 for row in rows[start:] if row.pool is pool)
            rows_B = torch.tensor([row.index for row in rows[start:end]])
            positions_B = positions_N[start:end]
            span, length = int(rows_B.max()) + 1, int(positions_B.max()) + 1
            if length >= _WHOLE_SHARE * pool.capacity:
                length = pool.capacity
            bias = None
            if end - start < span or int(positions_B.min()) + 1 < length:
                seen = torch.ones(span, dtype=torch.int64)
                seen[rows_B] = positions_B + 1
                hidden = torch.arange(length) >= seen.unsqueeze(1)
                bias = torch.zeros(span, length).masked_fill_(hidden, float("-inf")).view(span, 1, 1, length)
            steps.append(_PoolStep(pool, start, end, rows_B, positions_B, span, length, bias))
            start = end
        return steps

    def _plan_pieces(self, pieces: Sequence[Segment], start: int) -> list[_PieceStep]:
        steps: list[_PieceStep] = []
        for item in pieces:
            before, count = item.sequence.computed, item.count
            mask = torch.ones(count, before + count, dtype=torch.bool).tril(before) if before else None
            steps.append(_PieceStep(self._rows[item.sequence], start, start + count, before, mask))
            start += count
        return steps

    def _layers(
        self, tokens_N: Tensor, positions_N: Tensor, pools: Sequence[_PoolStep], pieces: Sequence[_PieceStep]
    ) -> Tensor:
        """float[N, hidden]: the last layer's output, before the final norm."""
        x = self._weights.embedding[tokens_N]
        cos, sin = tables(self._inverse, positions_N, self._dtype)
        for index, layer in enumerate(self._weights.layers):
            x = x + layer.out(self._attention(index, layer, self._norm(x, layer.input_norm), cos, sin, pools, pieces))
            gate, up = layer.gate_up(self._norm(x, layer.middle_norm)).chunk(2, -1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return x

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        pools: Sequence[_PoolStep],
        pieces: Sequence[_PieceStep],
    ) -> Tensor:
        """float[N, H · D]; writes this step's keys and values into the cache."""
        spec = self._spec
        qkv = layer.qkv(x).view(x.shape[0], spec.heads + 2 * spec.kv_heads, spec.head_dim)
        qk, values = qkv[:, : -spec.kv_heads], qkv[:, -spec.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            qk = torch.cat(
                [self._norm(qk[:, : spec.heads], layer.q_norm), self._norm(qk[:, spec.heads :], layer.k_norm)], 1
            )
        qk = rotate(qk, cos, sin)
        queries, keys = qk[:, : spec.heads], qk[:, spec.heads :]
        out = torch.empty(x.shape[0], spec.heads, spec.head_dim, dtype=x.dtype)
        for step in pools:
            part = slice(step.start, step.end)
            out[part] = _decode(index, step, queries[part], keys[part], values[part])
        for piece in pieces:
            part = slice(piece.start, piece.end)
            out[part] = _piece(index, piece, queries[part], keys[part], values[part])
        return out.flatten(1)


def _tokens(item: Segment) -> Tensor:
    start = item.sequence.computed
    return torch.from_numpy(item.sequence.tokens[start : start + item.count]).long()


def _decode(index: int, step: _PoolStep, queries_B: Tensor, keys_B: Tensor, values_B: Tensor) -> Tensor:
    """One query per row over its pool's slice. Args and returns: float[B, heads, D]."""
    keys, values = step.pool.keys[index], step.pool.values[index]
    keys[step.rows_B, :, step.positions_B] = keys_B
    values[step.rows_B, :, step.positions_B] = values_B
    heads, size = queries_B.shape[1:]
    kv_heads = keys.shape[1]
    every = queries_B.new_zeros(step.span, heads, size)
    every[step.rows_B] = queries_B
    grouped = every.view(step.span, kv_heads, heads // kv_heads, size)
    # A slice is made contiguous here: torch's bf16 product does so itself, but ten times slower for a transposed one.
    seen = keys[: step.span, :, : step.length].contiguous()
    scores = torch.matmul(grouped, seen.transpose(-1, -2)).float().mul_(size**-0.5)
    if step.bias is not None:
        scores += step.bias
    weights = torch.softmax(scores, -1).to(queries_B.dtype)
    attended = torch.matmul(weights, values[: step.span, :, : step.length])
    return attended.view(step.span, heads, size)[step.rows_B]


def _piece(index: int, piece: _PieceStep, queries_N: Tensor, keys_N: Tensor, values_N: Tensor) -> Tensor:
    """A prompt piece over everything before it and itself. Args and returns: float[N, heads, D]."""
    row, end = piece.row, piece.before + piece.end - piece.start
    keys, values = row.pool.keys[index, row.index], row.pool.values[index, row.index]
    keys[:, piece.before : end] = keys_N.transpose(0, 1)
    values[:, piece.before : end] = values_N.transpose(0, 1)
    attended = F.scaled_dot_product_attention(
        queries_N.transpose(0, 1).unsqueeze(0),
        keys[:, :end].unsqueeze(0),
        values[:, :end].unsqueeze(0),
        attn_mask=piece.mask,
        is_causal=piece.mask is None,
        enable_gqa=True,
    )
    return attended.squeeze(0).transpose(0, 1)
