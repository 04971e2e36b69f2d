"""What the hub knows of a region: its actors' member records, its keeper's own, and who was there last.

It decides nothing. Beats don't wait for each other: behind a thin link an answer may be long on its way.
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable

from astraflow import clock
from astraflow.actors.region.members import RegionMembers
from astraflow.bus import Bus, wiring
from astraflow.errors import BusError
from astraflow.messages import Member, MemberState, Region
from astraflow.messages.roles import Role
from astraflow.view.wording import duration

_BEAT_S = 1.0
_UNDER_WAY = 256  # records; more are left out, newer ones will come
GOODBYE_S = 2.0


class Presence:
    """Tells the hub. `tasks` counts what the region has taken; `report` gets a sentence when the link goes or comes."""

    def __init__(
        self,
        hub: Bus,
        region: str,
        members: RegionMembers,
        *,
        ttl_s: int,
        tasks: Callable[[], int],
        report: Callable[[str], None],
    ) -> None:
        self._hub = hub
        self._region = region
        self._members = members
        self._ttl_s = ttl_s
        self._tasks = tasks
        self._report = report
        self._incarnation = uuid.uuid4().hex[:12]
        self._since = clock.monotonic()
        self._under_way = 0
        self._heard = clock.monotonic()  # when the hub last answered
        self._cut = False

    async def run(self) -> None:
        """A beat every second, for ever; a goodbye at the end."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    for member in [*self._members.take(), self._keeper(MemberState.READY)]:
                        self._put(group, wiring.MEMBER.key(member.actor), member, ttl_s=self._ttl_s)
                    self._put(group, wiring.REGION.key(self._region), self._seen(left=False), ttl_s=None)
                    self._notice()
                    await asyncio.sleep(_BEAT_S)
        finally:
            await self._goodbye()

    def _keeper(self, state: MemberState) -> Member:
        name, state_s = f"region-{self._region}", clock.monotonic() - self._since
        return Member(
            actor=name,
            role=Role.REGION,
            node=self._region,
            incarnation=self._incarnation,
            pid=os.getpid(),
            state=state,
            since=clock.wall() - state_s,
            state_s=state_s,
        )

    def _seen(self, *, left: bool) -> Region:
        actors = tuple(sorted(member.actor for member in self._members.alive()))
        return Region(region=self._region, seen_at=clock.wall(), members=actors, tasks=self._tasks(), left=left)

    def _put(self, group: asyncio.TaskGroup, key: str, message: Member | Region, *, ttl_s: int | None) -> None:
        if self._under_way < _UNDER_WAY:
            self._under_way += 1
            group.create_task(self._store(key, message, ttl_s))

    async def _store(self, key: str, message: Member | Region, ttl_s: int | None) -> None:
        """In time, or not at all: the next beat says it anew."""
        try:
            await self._hub.kv.put(key, message, ttl_s=ttl_s, deadline_s=self._ttl_s)
        except BusError:
            return
        finally:
            self._under_way -= 1
        self._heard = clock.monotonic()

    def _notice(self) -> None:
        silent_s = clock.monotonic() - self._heard
        if not self._cut and silent_s > self._ttl_s:
            self._cut = True
            self._report(f"the hub doesn't answer since {duration(silent_s)}; the region works on with what it has")
        elif self._cut and silent_s < self._ttl_s:
            self._cut = False
            self._report("the hub answers again")

    async def _goodbye(self) -> None:
        with contextlib.suppress(BusError):
            gone = self._keeper(MemberState.GONE)
            await self._hub.kv.put(wiring.MEMBER.key(gone.actor), gone, ttl_s=self._ttl_s, deadline_s=GOODBYE_S)
            await self._hub.kv.put(wiring.REGION.key(self._region), self._seen(left=True), deadline_s=GOODBYE_S)
