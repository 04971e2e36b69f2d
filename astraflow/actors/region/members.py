"""Who is in a region, by the member records that its actors write there. It tells nobody (`presence.py`)."""

import asyncio
from collections.abc import Iterable

from astraflow import clock
from astraflow.bus import Bus
from astraflow.concurrency import wait_at_most
from astraflow.messages import Member, MemberState
from astraflow.messages.metric_names import ROLLOUT_SLOTS
from astraflow.messages.roles import Role


class RegionMembers:
    """The newest record of each actor, and when it came."""

    def __init__(self, bus: Bus, *, ttl_s: float) -> None:
        """`bus`: of the region."""
        self._bus = bus
        self._ttl_s = ttl_s
        self._heard: dict[str, tuple[Member, float]] = {}
        self._unseen: dict[str, Member] = {}
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Read the records for ever."""
        async for entry in self._bus.logs.read(self._bus.topology.announced):
            member = entry.message
            assert isinstance(member, Member), member
            self._heard[member.actor] = (member, clock.monotonic())
            self._unseen[member.actor] = member
            self._news.set()

    async def news(self, within_s: float) -> None:
        """Returns when a record comes, or the time is over: a record that expires is news without a message."""
        self._news.clear()
        await wait_at_most(self._news, within_s)

    def take(self) -> Iterable[Member]:
        """The records since the last call, the newest of each actor."""
        unseen, self._unseen = self._unseen, {}
        return unseen.values()

    def alive(self) -> list[Member]:
        """Who is there."""
        limit = clock.monotonic() - self._ttl_s
        self._heard = {actor: heard for actor, heard in self._heard.items() if heard[1] > limit}
        return [member for member, _ in self._heard.values() if member.state is not MemberState.GONE]

    def slots(self, env: str = "") -> int:
        """Episodes that can be played here at once, of one environment or of any: every policy must be served here."""
        ready = [m for m in self.alive() if m.state is MemberState.READY]
        if any(
            not any(m.policy == policy for m in ready if m.role == Role.POLICY)
            for policy in self._bus.topology.policies
        ):
            return 0
        rollouts = [m for m in ready if m.role == Role.ROLLOUT]
        return sum(int(m.gauges.get(ROLLOUT_SLOTS, 0)) for m in rollouts if env not in m.unserved)
