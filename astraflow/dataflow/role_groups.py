"""Group statistics of one policy that may have played several roles: each role is compared with itself.

In self-play one policy is both sides, and a mean over sides would be 0 for ever. It judges no episode. Invariant: a
policy in one role gets what the advantage function gives for the group.
Axes: G member of a group.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from astraflow.dataflow.advantages import AdvantageFunction

Scores = Mapping[str, float]  # by role


def by_role(scores_G: Sequence[Scores], advantages: AdvantageFunction) -> list[dict[str, float]]:
    """Per member, the advantage of each of its roles among the members that have the role."""
    found: list[dict[str, float]] = [{} for _ in scores_G]
    for role in sorted({role for scores in scores_G for role in scores}):
        members = [member for member, scores in enumerate(scores_G) if role in scores]
        values = advantages(np.array([scores_G[member][role] for member in members], dtype=np.float64))
        for member, value in zip(members, values.tolist(), strict=True):
            found[member][role] = value
    return found


def strongest(scores_G: Sequence[Scores], advantages: AdvantageFunction) -> NDArray[np.float64]:
    """Per member, its advantage of largest size over its roles: 0 only where no role has any. Returns: float64[G]."""
    return np.array([max(each.values(), key=abs) for each in by_role(scores_G, advantages)], dtype=np.float64)
