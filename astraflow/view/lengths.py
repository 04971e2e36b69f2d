"""How long trajectories are, by what became of them. Pure.

A policy whose wrong answers grow, or whose right ones are all near the limit, shows it here first.
"""

from collections import Counter

import msgspec

from astraflow.messages import Reason
from astraflow.view.jsonl_lines import EpisodeLine

_RIGHT = 0.5  # of `correct`, which may be a share
_MOST = 0.95
RIGHT, WRONG = "right", "wrong"


def outcome(line: EpisodeLine) -> str:
    """`right` or `wrong` of a whole episode that has a notion of it; else its reason."""
    if line.reason == Reason.OK and line.correct is not None:
        return RIGHT if line.correct >= _RIGHT else WRONG
    return line.reason


class Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """Of trajectories, in sampled tokens."""

    count: int
    mean: float
    p95: int  # 95 % of them are no longer
    max: int


def lengths_of(counted: Counter[int]) -> Lengths:
    """Of at least one, counted by how many tokens they have."""
    count, longest, below = counted.total(), max(counted), 0
    for p95 in sorted(counted):
        below += counted[p95]
        if below >= _MOST * count:
            break
    mean = sum(tokens * times for tokens, times in counted.items()) / count
    return Lengths(count=count, mean=round(mean, 1), p95=p95, max=longest)
