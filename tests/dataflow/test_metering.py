"""Credit, worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.metering import LEAST_YIELD, bound, credit, next_yield


@pytest.mark.parametrize(
    ("max_staleness", "consumed", "remaining", "batch", "expected"),
    [
        (1, 0, 100, 8, 16),  # (1 + 0 + 1) · 8
        (0, 0, 100, 8, 8),  # on-policy: one batch at a time
        (2, 7, 93, 4, 40),  # (2 + 7 + 1) · 4
        (2, 99, 1, 4, 400),  # one step is left, so one batch: (99 + 1) · 4
        (2, 100, 0, 4, 400),  # nothing beyond what was consumed
    ],
)
def test_bound(max_staleness: int, consumed: int, remaining: int, batch: int, expected: int) -> None:
    found = bound(max_staleness=max_staleness, consumed=consumed, remaining_steps=remaining, batch_groups=batch)
    assert found == expected


def test_credit_counts_what_is_in_flight_by_its_yield() -> None:
    # 16 allowed, 4 buffered or emitted, 8 in flight of which half will pass: 16 − (4 + 8 · 0.5) = 8
    assert credit(16, accepted=4, in_flight=8, observed_yield=0.5) == 8


def test_credit_returns_when_a_group_is_dropped() -> None:
    before = credit(16, accepted=10, in_flight=6, observed_yield=1.0)
    after = credit(16, accepted=10, in_flight=5, observed_yield=1.0)
    assert (before, after) == (0, 1)


@given(st.lists(st.booleans(), max_size=300))
def test_yield_stays_between_an_eighth_and_one(passes: list[bool]) -> None:
    observed = 1.0
    for passed in passes:
        observed = next_yield(observed, passed)
        assert LEAST_YIELD <= observed <= 1.0


def test_yield_approaches_what_is_seen() -> None:
    observed = 1.0
    for k in range(400):
        observed = next_yield(observed, k % 2 == 0)
    assert observed == pytest.approx(0.5, abs=0.05)
    assert next_yield(1.0, passed=False) == pytest.approx(15 / 16)
