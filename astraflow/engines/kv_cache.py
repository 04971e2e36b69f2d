"""Memory for keys and values: rows in pools of equal capacity, with reuse of equal prefixes.

It computes nothing. Axes: L layers, R rows, K key/value heads, C tokens, D head size.

A pool's tensors span all of its rows, but the kernel backs only what was written; a row counts against the budget once
it is used. Rows [0, active) of a pool belong to running sequences, so a decode step attends over one slice; rows behind
them hold what finished sequences left, and serve as prefix cache for new ones until they are overwritten.
Invariants: used rows of all pools together never exceed the budget, so neither does resident memory. Behind its length
a row holds zeros: these positions are attended to with weight 0, and 0 · NaN, left by weights that were broken, is NaN.
Keys and values computed by older weights are never reused for a new sequence: `invalidate` forgets them.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MIN_CAPACITY = 64
_MIN_REUSE = 8  # tokens; shorter common prefixes aren't worth a copy


@dataclass(eq=False)
class CacheRow:
    """Room for one sequence. `length` tokens of it are valid."""

    pool: "Pool"
    index: int
    tokens: NDArray[np.int32]  # the sequence's; entries [0, length) are what the row holds
    length: int = 0
    reusable: bool = True  # all of it was computed by the current weights
    used_at: int = 0


class Pool:
    """Rows of one capacity."""

    def __init__(
        self, *, layers: int, rows: int, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        shape = (layers, rows, kv_heads, capacity, head_dim)
        self.keys, self.values = _lazy_zeros(shape, dtype), _lazy_zeros(shape, dtype)
        self.capacity = capacity
        self.max_rows = rows
        self.rows: list[CacheRow] = []  # by index: active ones, then leftovers
        self.active = 0

    def truncate(self, row: CacheRow, length: int) -> None:
        """Forget a row's tokens from `length` on."""
        for cache in (self.keys, self.values):
            cache[:, row.index, :, length : row.length] = 0
        row.length = length

    def exchange(self, a: CacheRow, b: CacheRow) -> None:
        """Swap two rows' places and contents."""
        if a is b:
            return
        for cache in (self.keys, self.values):
            kept = cache[:, a.index, :, : a.length].clone()
            cache[:, a.index, :, : b.length] = cache[:, b.index, :, : b.length]
            cache[:, a.index, :, b.length : a.length] = 0
            cache[:, b.index, :, : a.length] = kept
            cache[:, b.index, :, a.length : b.length] = 0
        a.index, b.index = b.index, a.index
        self.rows[a.index], self.rows[b.index] = a, b


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that cost no memory until they are written: numpy's come from calloc, torch writes its own."""
    raw = np.zeros(shape, dtype=np.uint16 if dtype.itemsize == 2 else np.uint32)
    return torch.from_numpy(raw).view(dtype)


class KvCache:
    """All pools of one model.

    Args:
        budget_bytes: keys and values never take more.
        max_rows: sequences that run together, at most.
    """

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, max_rows: int, budget_bytes: int
    ) -> None:
        self._shape = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim}
        self._dtype = dtype
        self._max_rows = max_rows
        self._budget_tokens = budget_bytes // (2 * layers * kv_heads * head_dim * dtype.itemsize)
        self._pools: dict[int, Pool] = {}
        self._clock = itertools.count()
        self.reused_tokens = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits the budget."""
        return 1 << (self._budget_tokens.bit_length() - 1) if self._budget_tokens else 0

    @property
    def used_tokens(self) -> int:
        """What counts against the budget."""
        return sum(len(pool.rows) * pool.capacity for pool in self._pools.values())

    def claim(self, tokens: NDArray[np.int32], known: int, longest: int) -> CacheRow | None:
        """A row for a sequence, holding what could be reused of its first known − 1 tokens; None: no room now.

        Args: tokens: int32, the first `known` are valid; longest: tokens that it may grow to.
        """
        source, length = self._best_prefix(tokens[: known - 1])
        row = self._place(max(_MIN_CAPACITY, 1 << (longest - 1).bit_length()), source)
        if row is None:
            return None
        if row is source:
            row.pool.truncate(row, length)
        else:
            row.reusable = True
            if source is not None:
                self.copy_prefix(source, row, length)
        row.tokens = tokens
        self.reused_tokens += row.length
        return row

    def copy_prefix(self, source: CacheRow, target: CacheRow, length: int) -> None:
        """Make the first `length` tokens of `target`, which has no more, those of `source`."""
        to, of = target.pool, source.pool
        to.keys[:, target.index, :, :length] = of.keys[:, source.index, :, :length]
        to.values[:, target.index, :, :length] = of.values[:, source.index, :, :length]
        target.length, target.reusable = length, source.reusable

    def restart(self, row: CacheRow) -> None:
        """Forget all of a running sequence's tokens; what it computes from now on is of the current weights."""
        row.pool.truncate(row, 0)
        row.reusable = True

    def release(self, row: CacheRow) -> None:
        """The sequence is done; what it leaves can be reused until it is overwritten."""
        pool = row.pool
        pool.active -= 1
        pool.exchange(row, pool.rows[pool.active])
        row.used_at = next(self._clock)

    def invalidate(self) -> None:
        """The weights changed: nothing here may serve as a new sequence's prefix."""
        for pool in self._pools.values():
            for row in pool.rows:
                row.reusable = False

    def _best_prefix(self, tokens_T: NDArray[np.int32]) -> tuple[CacheRow | None, int]:
        """The row that shares the most leading tokens, if these are enough to be worth a copy."""
        best, best_length = None, _MIN_REUSE - 1
        for pool in self._pools.values():
            for row in pool.rows:
                shared = min(row.length, tokens_T.size)
                if row.reusable and shared > best_length:
                    length = common_prefix(row.tokens[:shared], tokens_T[:shared])
                    if length > best_length:
                        best, best_length = row, length
        return best, best_length

    def _place(self, capacity: int, source: CacheRow | None) -> CacheRow | None:
        """The last active row of the pool of this capacity: a new one, or the longest unused leftover but `source`."""
        pool = self._pools.get(capacity)
        if (pool is None or len(pool.rows) < pool.max_rows) and self._make_room(capacity):
            pool = self._pools.get(capacity) or self._new_pool(capacity)
            pool.rows.append(CacheRow(pool, len(pool.rows), np.empty(0, dtype=np.int32)))
            row = pool.rows[-1]
        elif pool is not None and pool.active < len(pool.rows):
            row = min(pool.rows[pool.active :], key=lambda item: (item is source, item.reusable, item.used_at))
        else:
            return None
        if row is not source:
            pool.truncate(row, 0)
        pool.exchange(row, pool.rows[pool.active])
        pool.active += 1
        return row

    def _make_room(self, capacity: int) -> bool:
        """Forget pools that only hold leftovers until one more row of this capacity fits the budget."""
        for other in [pool for pool in self._pools.values() if pool.active == 0 and pool.capacity != capacity]:
            if self.used_tokens + capacity <= self._budget_tokens:
                break
            del self._pools[other.capacity]
        return self.used_tokens + capacity <= self._budget_tokens

    def _new_pool(self, capacity: int) -> Pool:
        rows = min(self._max_rows, self._budget_tokens // capacity)
        pool = Pool(rows=rows, capacity=capacity, dtype=self._dtype, **self._shape)
        self._pools[capacity] = pool
        return pool


def common_prefix(a_T: NDArray[np.int32], b_T: NDArray[np.int32]) -> int:
    """Leading tokens that two sequences of equal length share."""
    differs = a_T != b_T
    return int(differs.argmax()) if differs.any() else int(a_T.size)
