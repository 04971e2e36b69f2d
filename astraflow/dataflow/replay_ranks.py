"""What is replayed first, by the names used in `[policies.<name>.trainer.replay].kind`."""

import math

from astraflow.dataflow.replay import ReplayGroup
from astraflow.errors import ConfigError


class Latest:
    """The newest batches' groups."""

    def rank(self, group: ReplayGroup, *, age_steps: int, draw: float) -> float:
        return group.group.ordinal


class Uniform:
    """Every group with the same chance."""

    def rank(self, group: ReplayGroup, *, age_steps: int, draw: float) -> float:
        return draw


class Prioritized:
    """Groups with much to teach, while that is fresh: drawn in proportion to weight = (worth · e^(−age / decay))^alpha.

    Proportional prioritisation is arXiv:1511.05952 §3.3, the decay of old priorities arXiv:2604.16918. Ranking by
    log(draw) / weight draws without replacement in proportion to the weights (Efraimidis and Spirakis, 2006).

    Args:
        alpha: 0 = uniform, 1 = in full proportion.
        decay: steps after which a priority has fallen to 1/e.
    """

    def __init__(self, *, alpha: float = 0.6, decay: float = 4.0) -> None:
        if not alpha >= 0:
            raise ConfigError(f"alpha is {alpha}, expected at least 0")
        if not decay > 0:
            raise ConfigError(f"decay is {decay}, expected more than 0 steps")
        self.alpha = alpha
        self.decay = decay

    def weight(self, group: ReplayGroup, age_steps: int) -> float:
        """Its chance, up to a common factor; never quite 0."""
        return math.pow(max(1e-12, group.worth * math.exp(-age_steps / self.decay)), self.alpha)

    def rank(self, group: ReplayGroup, *, age_steps: int, draw: float) -> float:
        return math.log(draw) / self.weight(group, age_steps)
