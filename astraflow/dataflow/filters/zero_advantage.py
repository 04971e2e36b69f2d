"""Dynamic sampling: a group in which no member is better than another has gradient 0 (arXiv:2503.14476 §3.2)."""

import numpy as np

from astraflow.dataflow.filters.base import ClosedGroup
from astraflow.errors import ConfigError


class ZeroAdvantage:
    """Drops a group whose advantages are all within `tolerance` of 0; equal rewards may differ by rounding."""

    def __init__(self, *, tolerance: float = 1e-6) -> None:
        if not tolerance >= 0:
            raise ConfigError(f"tolerance is {tolerance}, expected at least 0")
        self.tolerance = tolerance

    def drops(self, group: ClosedGroup) -> bool:
        return bool(np.all(np.abs(group.advantages_G) <= self.tolerance))
