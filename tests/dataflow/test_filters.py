"""Filters of groups."""

from collections.abc import Sequence

import numpy as np
import pytest

from astraflow.dataflow.advantages import ADVANTAGES
from astraflow.dataflow.filters import FILTERS, ClosedGroup, Filter
from astraflow.dataflow.stages import Stage
from astraflow.errors import ConfigError
from astraflow.messages import Reason
from astraflow.messages.ids import GroupKey
from tests.support import make_episode

OK, CUT = Reason.OK, Reason.TRUNCATED


def closed(advantages: Sequence[float], reasons: Sequence[Reason] = ()) -> ClosedGroup:
    reasons = reasons or [OK] * len(advantages)
    episodes = tuple(make_episode(f"t{k}", reason=reason) for k, reason in enumerate(reasons))
    advantages_G = np.array(advantages, dtype=np.float64)
    return ClosedGroup(
        policy="solver", key=GroupKey("s", 0, 0), rewards_G=advantages_G, advantages_G=advantages_G, episodes_G=episodes
    )


def built(name: str, **args: object) -> Filter:
    return Stage("filters", name, args, FILTERS, None).algorithm


def test_equal_rewards_have_no_signal() -> None:
    drops = built("zero-advantage").drops
    for advantages in (ADVANTAGES[name] for name in ADVANTAGES.keys() - {"reward", "gae"}):
        assert drops(closed(advantages(np.full(4, 0.1))))
        assert not drops(closed(advantages(np.array([0.0, 0.0, 1.0]))))


def test_rounding_is_no_signal() -> None:
    assert built("zero-advantage").drops(closed([1e-9, -1e-9]))
    assert not built("zero-advantage").drops(closed([1e-3, -1e-3]))
    assert built("zero-advantage", tolerance=0.01).drops(closed([1e-3, -1e-3]))


def test_truncated_drops_groups_that_are_cut_off_by_more_than_half() -> None:
    some = [1.0, -1.0, 0.0, 0.0]
    assert not built("truncated").drops(closed(some, [CUT, CUT, OK, OK]))
    assert built("truncated").drops(closed(some, [CUT, CUT, CUT, OK]))
    assert built("truncated", most=0.25).drops(closed(some, [CUT, CUT, OK, OK]))


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("truncate", {}, "did you mean 'truncated'"),
        ("truncated", {"mots": 0.2}, "no argument 'mots'; did you mean 'most'"),
        ("truncated", {"most": 1.5}, "most is 1.5"),
        ("zero-advantage", {"tolerance": float("nan")}, "at least 0"),
    ],
    ids=["kind", "argument", "value", "nan"],
)
def test_mistakes_are_config_errors(name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(name, **args)
