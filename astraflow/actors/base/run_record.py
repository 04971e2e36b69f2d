"""The run's record on the bus. It reads, and writes nothing."""

from astraflow.bus import HUB_DOMAIN, Bus, wiring
from astraflow.errors import ApiError
from astraflow.messages import RunRecord

NOT_FOUND = 404


async def read_record(bus: Bus) -> RunRecord | None:
    """The run's record; None if the run was never started on this bus."""
    try:
        entry = await bus.kv.get(wiring.RUN.key())
    except ApiError as exc:
        if exc.code != NOT_FOUND:  # without streams there never was such a run
            raise
        return None
    return entry.message if entry is not None and isinstance(entry.message, RunRecord) else None


def other_region(bus: Bus) -> str:
    """For a run that isn't found: the end of a sentence if the server is another region's than was said."""
    domain = bus.link.domain
    if domain in ("", HUB_DOMAIN, bus.topology.region):
        return ""
    return f" (this server is region {domain}'s: say --region {domain})"
