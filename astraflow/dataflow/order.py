"""In which order closed groups are trained, by the names used in `[dataflow].order`."""

from typing import Any

from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.staleness import VersionMap, oldest_step


class Fifo:
    """As they closed."""

    def key(self, group: BufferedGroup, versions: VersionMap) -> Any:
        return 0


class Edf:
    """Earliest deadline first: what goes stale first is trained first, then as issued.

    A group's deadline is the step of its oldest version plus `max_staleness`, which is the same for all.
    """

    def key(self, group: BufferedGroup, versions: VersionMap) -> Any:
        return oldest_step(versions, group.versions), group.ordinal
