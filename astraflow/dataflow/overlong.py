"""A soft penalty for replies that come near the token budget, so that ending in time pays before it is forced.

Invariant: between 0 and `weight`, and it rises evenly over the window.
"""

from typing import NamedTuple


class Overlong(NamedTuple):
    """Nothing up to limit − window tokens, `weight` at `limit` and beyond. Source: arXiv:2503.14476 §3.4."""

    weight: float = 0.0  # taken off the reward; 0 = off
    limit: int = 0  # tokens of one reply
    window: float = 0.0  # tokens

    def penalty(self, tokens: int) -> float:
        """What a reply of so many tokens costs."""
        if not self.weight:
            return 0.0
        return self.weight * min(1.0, max(0.0, (tokens - (self.limit - self.window)) / self.window))


NO_PENALTY = Overlong()
