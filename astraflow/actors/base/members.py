"""Who is there, by the run's member records. It reads them and writes none."""

from collections.abc import Callable
from contextlib import aclosing

from astraflow.bus import Bus, wiring
from astraflow.messages import Member, MemberState


async def left(bus: Bus, concerned: Callable[[Member], bool]) -> None:
    """Return when no member that `concerned` picks is there any more; deadlines are the caller's."""
    present: set[str] = set()
    caught_up = False
    async with aclosing(bus.kv.watch(wiring.MEMBER.prefix)) as updates:
        async for update in updates:
            member, actor = update.message, update.key.removeprefix(wiring.MEMBER.prefix)
            if isinstance(member, Member) and member.state is not MemberState.GONE and concerned(member):
                present.add(actor)
            else:
                present.discard(actor)
            caught_up = caught_up or not update.key
            if caught_up and not present:
                return
