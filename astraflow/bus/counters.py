"""What the bus counts, and which gauges people see of it. Pure: the counting is done where things happen."""

from collections.abc import Mapping

from astraflow.messages.metric_names import BUS_ACKS_LOST, BUS_DROPPED, BUS_DUPLICATES, BUS_MALFORMED

_GAUGES = {  # by reason as `Bus.counters` has it, or by its first word
    "publish.duplicates": BUS_DUPLICATES,
    "core.unsent": BUS_DROPPED,
    "core.dropped": BUS_DROPPED,
    "events.dropped": BUS_DROPPED,
    "queue.acks_lost": BUS_ACKS_LOST,
    "core.malformed": BUS_MALFORMED,
    "dead_letters": BUS_MALFORMED,
}


def bus_gauges(counters: Mapping[str, int]) -> dict[str, float]:
    """What a bus counted as gauges; those that are 0 are left out."""
    gauges: dict[str, float] = {}
    for reason, count in counters.items():
        name = _GAUGES.get(reason) or _GAUGES.get(reason.partition(".")[0])
        if name is not None:
            gauges[name] = gauges.get(name, 0) + count
    return gauges
