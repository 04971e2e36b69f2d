"""What a filter sees and answers, and the built-in ones.

Counting and credit are the caller's. Invariant: a filter looks at one closed group and one policy, and changes nothing.
Axes: G valid group member.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from astraflow.messages import Episode, Reason
from astraflow.messages.ids import GroupKey

FILTERS = {
    "truncated": "astraflow.dataflow.filters.truncated:Truncated",
    "zero-advantage": "astraflow.dataflow.filters.zero_advantage:ZeroAdvantage",
}


@dataclass(frozen=True, kw_only=True)
class ClosedGroup:
    """One policy's view of a closed group: its members with a valid reward, in order of member."""

    policy: str
    key: GroupKey
    rewards_G: NDArray[np.float64]
    advantages_G: NDArray[np.float64]  # of a member with several roles: the one of largest size
    episodes_G: tuple[Episode, ...]

    @property
    def reasons_G(self) -> list[Reason]:
        return [episode.reason for episode in self.episodes_G]


class Filter(Protocol):
    """A stage (see stages.py) that keeps groups from training."""

    def drops(self, group: ClosedGroup) -> bool:
        """True: don't train on it."""
        ...
