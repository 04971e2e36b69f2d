"""Groups that aren't worth training on, by the names used in `[policies.<name>.trainer].filters`."""

from astraflow.dataflow.filters.base import FILTERS, ClosedGroup, Filter

__all__ = ["FILTERS", "ClosedGroup", "Filter"]
