"""Groups that aren't worth training on, by the names used in `[policies.<name>.trainer].filters`.

base            what a filter sees and answers, and the built-in ones
truncated       groups in which too many answers were cut off
zero_advantage  dynamic sampling
"""

from astraflow.dataflow.filters.base import FILTERS, ClosedGroup, Filter

__all__ = ["FILTERS", "ClosedGroup", "Filter"]
