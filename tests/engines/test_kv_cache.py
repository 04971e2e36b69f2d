"""The KV cache's rows: contents survive moves, the budget holds, prefixes are found."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.engines.kv_cache import CacheRow, KvCache, common_prefix

BYTES_PER_TOKEN = 2 * 1 * 1 * 2 * 4


def cache(budget_tokens: int, max_rows: int = 4) -> KvCache:
    return KvCache(
        layers=1,
        kv_heads=1,
        head_dim=2,
        dtype=torch.float32,
        max_rows=max_rows,
        budget_bytes=budget_tokens * BYTES_PER_TOKEN,
    )


def fill(row: CacheRow, length: int) -> None:
    """Make a row hold numbers that depend on its tokens, as keys and values do."""
    row.length = length
    tokens = torch.from_numpy(row.tokens[:length]).float()
    row.pool.keys[0, row.index, 0, :length, 0] = tokens
    row.pool.values[0, row.index, 0, :length, 1] = -tokens


def holds(row: CacheRow) -> bool:
    tokens = torch.from_numpy(row.tokens[: row.length]).float()
    keys = row.pool.keys[0, row.index, 0, : row.length, 0]
    values = row.pool.values[0, row.index, 0, : row.length, 1]
    rest = (
        row.pool.keys[0, row.index, 0, row.length :].abs().sum()
        + row.pool.values[0, row.index, 0, row.length :].abs().sum()
    )
    return torch.equal(keys, tokens) and torch.equal(values, -tokens) and float(rest) == 0


def test_a_request_waits_for_room_and_gets_it_when_others_leave() -> None:
    kv = cache(budget_tokens=256)
    rows = [kv.claim(np.full(128, i, dtype=np.int32), 1, 128) for i in range(3)]
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[2] is None
    assert kv.claim(np.zeros(64, dtype=np.int32), 1, 64) is None, "another pool has no more room either"
    kv.release(rows[0])
    assert kv.claim(np.zeros(64, dtype=np.int32), 1, 64) is None, "its row's memory belongs to a pool that is in use"
    kv.release(rows[1])
    assert kv.claim(np.zeros(200, dtype=np.int32), 1, 200) is not None, "idle pools are dropped"
    assert kv.used_tokens == 256


def test_the_longest_request_is_bounded_by_the_budget() -> None:
    assert cache(budget_tokens=300).longest == 256
    assert cache(budget_tokens=256).longest == 256


@settings(max_examples=60)
@given(st.data())
def test_contents_survive_any_order_of_claims_and_releases(data: st.DataObject) -> None:
    kv = cache(budget_tokens=700, max_rows=4)
    alive: list[CacheRow] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if alive and data.draw(st.booleans()):
            kv.release(alive.pop(data.draw(st.integers(0, len(alive) - 1))))
        else:
            family = data.draw(st.integers(0, 2))
            length = data.draw(st.integers(1, 150))
            tokens = np.arange(length, dtype=np.int32) + 1000 * family
            shared = data.draw(st.integers(0, length))
            tokens[shared:] += data.draw(st.integers(0, 5)) * 7
            row = kv.claim(tokens, length, length)
            if row is None:
                continue
            assert row.length < length
            assert holds(row), "what was reused must be what the tokens say"
            fill(row, length)
            alive.append(row)
        assert all(holds(row) for row in alive)
        assert all(row.index < row.pool.active for row in alive)
        assert kv.used_tokens <= 700
        if data.draw(st.integers(0, 9)) == 0:
            kv.invalidate()


def test_prefixes_are_found_in_finished_rows_until_weights_change() -> None:
    kv = cache(budget_tokens=1024)
    tokens = np.arange(100, dtype=np.int32)
    row = kv.claim(tokens, 100, 128)
    assert row is not None
    fill(row, 100)
    kv.release(row)
    again = kv.claim(tokens, 100, 110)
    assert again is not None
    assert again.length == 99
    assert kv.reused_tokens == 99
    kv.release(again)
    kv.invalidate()
    fresh = kv.claim(tokens, 100, 110)
    assert fresh is not None
    assert fresh.length == 0


def test_common_prefix_counts_leading_equal_tokens() -> None:
    a = np.array([1, 2, 3, 4], dtype=np.int32)
    assert common_prefix(a, a) == 4
    assert common_prefix(a, np.array([1, 2, 9, 4], dtype=np.int32)) == 2
    assert common_prefix(a[:0], a[:0]) == 0


def test_a_copy_of_what_old_weights_computed_serves_no_new_sequence() -> None:
    kv = cache(budget_tokens=2048)
    tokens = np.arange(100, dtype=np.int32)
    row = kv.claim(tokens, 100, 128)
    assert row is not None
    fill(row, 100)
    kv.invalidate()  # it goes on, on the cache of the old weights
    sibling = kv.claim(np.arange(500, 600, dtype=np.int32), 100, 256)
    assert sibling is not None
    assert sibling.length == 0
    kv.copy_prefix(row, sibling, 100)
    sibling.tokens = tokens
    kv.release(sibling)
    fresh = kv.claim(tokens, 100, 128)
    assert fresh is not None
    assert fresh.length == 0
