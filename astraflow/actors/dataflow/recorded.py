"""What the recorders still need of the EPISODES log, for who purges it. It reads member records and keeps no state."""

import math

from astraflow.bus import Bus, wiring
from astraflow.messages import Member, MemberState
from astraflow.messages.metric_names import RECORDER_EPISODES


async def recorded_floor(bus: Bus) -> int | None:
    """Who purges EPISODES must keep this sequence and what follows: a recorder that lives has not recorded it yet.

    A killed recorder still counts until its member record expires, so that it misses nothing if it is back by then.
    None: there is no recorder. 0: one is there that has not said where it stands.
    """
    members = (entry.message for entry in (await bus.kv.entries(wiring.MEMBER.prefix)).values())
    recorders = [m for m in members if isinstance(m, Member) and m.role == "recorder" and m.state != MemberState.GONE]
    places = [m.gauges.get(RECORDER_EPISODES, 0.0) for m in recorders]
    return min((int(place) if math.isfinite(place) else 0 for place in places), default=None)
