"""Groups in which too many answers were cut off: rewards then tell token budgets apart, not answers."""

from astraflow.dataflow.filters.base import ClosedGroup
from astraflow.errors import ConfigError
from astraflow.messages import Reason


class Truncated:
    """Drops a group of which more than the share `most` ran out of tokens."""

    def __init__(self, *, most: float = 0.5) -> None:
        if not 0 <= most < 1:
            raise ConfigError(f"most is {most}, expected a share of at least 0 and less than 1")
        self.most = most

    def drops(self, group: ClosedGroup) -> bool:
        reasons = group.reasons_G
        return sum(reason is Reason.TRUNCATED for reason in reasons) > self.most * len(reasons)
