"""Groups that aren't worth training on, by the names used in `[policies.<name>.trainer].filters`.

Pure tests of one group; counting and credit are the caller's. Invariant: a filter that fires says so by its own name.
Axes: G valid group member.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from astraflow.messages import Reason

# Advantages below this move nothing; equal rewards may differ by rounding.
ZERO_ADVANTAGE = 1e-6
# Above this share of truncated members, rewards tell the token budget apart, not the answers.
MOST_TRUNCATED = 0.5

Filter = Callable[[NDArray[np.float64], Sequence[Reason]], bool]


def zero_advantage(advantages_G: NDArray[np.float64], reasons_G: Sequence[Reason]) -> bool:
    """True if no member is better than another, so that the group's gradient is 0."""
    return bool(np.all(np.abs(advantages_G) <= ZERO_ADVANTAGE))


def truncated(advantages_G: NDArray[np.float64], reasons_G: Sequence[Reason]) -> bool:
    """True if more than half of the members ran out of tokens."""
    return sum(reason is Reason.TRUNCATED for reason in reasons_G) > MOST_TRUNCATED * len(reasons_G)


FILTERS: Mapping[str, Filter] = {"zero-advantage": zero_advantage, "truncated": truncated}


def filtered_by(names: Iterable[str], advantages_G: NDArray[np.float64], reasons_G: Sequence[Reason]) -> str:
    """The first filter in `names` that drops the group; "" = it passes."""
    return next((name for name in names if FILTERS[name](advantages_G, reasons_G)), "")
