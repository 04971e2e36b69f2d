"""Filters of groups."""

import numpy as np

from astraflow.algos.advantages import ADVANTAGES
from astraflow.algos.filters import FILTERS, filtered_by
from astraflow.messages import Reason

OK, CUT = Reason.OK, Reason.TRUNCATED


def test_equal_rewards_have_no_signal() -> None:
    for advantages in (ADVANTAGES[name] for name in ADVANTAGES.keys() - {"reward"}):
        assert filtered_by(["zero-advantage"], advantages(np.full(4, 0.1)), [OK] * 4) == "zero-advantage"
        assert filtered_by(["zero-advantage"], advantages(np.array([0.0, 0.0, 1.0])), [OK] * 3) == ""


def test_rounding_is_no_signal() -> None:
    assert FILTERS["zero-advantage"](np.array([1e-9, -1e-9]), [OK, OK])
    assert not FILTERS["zero-advantage"](np.array([1e-3, -1e-3]), [OK, OK])


def test_truncated_drops_groups_that_are_cut_off_by_more_than_half() -> None:
    some = np.array([1.0, -1.0, 0.0, 0.0])
    assert filtered_by(["truncated"], some, [CUT, CUT, OK, OK]) == ""
    assert filtered_by(["truncated"], some, [CUT, CUT, CUT, OK]) == "truncated"


def test_the_first_filter_that_fires_is_the_reason() -> None:
    nothing = np.zeros(2)
    assert filtered_by(["truncated", "zero-advantage"], nothing, [CUT, CUT]) == "truncated"
    assert filtered_by(["zero-advantage", "truncated"], nothing, [CUT, CUT]) == "zero-advantage"
    assert filtered_by([], nothing, [CUT, CUT]) == ""
