"""Tasks from the hub into a region, some ahead of the slots there, so that a cut link doesn't leave them idle at once.

It plays nothing. At the hub a task stays taken until its record is stored *there*; then it is acked. While the link is
cut that can't be said in time, so the hub gives the task to somebody else as well, and the later record counts `late`.
Invariants: a task that is taken is in the region's queue, or was given back; one that nobody in the region can play any
more is given back.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial

from astraflow.actors.base.handover import start_work
from astraflow.actors.region.members import RegionMembers
from astraflow.bus import Bus, Delivery
from astraflow.concurrency import first_of
from astraflow.errors import BusError
from astraflow.messages import Episode, Task

AHEAD = 2.0  # tasks per slot of the region: one in play, one waiting
_REMEMBERED = 10_000  # settled tasks whose ack may have been lost
LOOK_EVERY_S = 1.0
REFUSED_AGAIN_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Taken:
    """A task that the region has. `ended`: its record is at the hub, or it was given back."""

    env: str
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    given_back: bool = False


class TaskBringer:
    """What a region has taken from the hub's queues."""

    def __init__(self, here: Bus, hub: Bus, members: RegionMembers) -> None:
        self._here = here
        self._hub = hub
        self._members = members
        self._taken: dict[tuple[str, int], _Taken] = {}
        self._settled: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._change = asyncio.Event()

    @property
    def taken(self) -> int:
        """Tasks without a record at the hub yet."""
        return len(self._taken)

    def settle(self, episode: Episode) -> None:
        """The record is stored at the hub."""
        key = (episode.task_id, episode.attempt)
        self._settled[key] = None
        if len(self._settled) > _REMEMBERED:
            self._settled.popitem(last=False)
        self._end(key)

    async def bring(self, env: str, *, evaluation: bool) -> None:
        """Take tasks of one of the hub's queues for ever, while the region has room for them."""
        there, here = self._hub.topology, self._here.topology
        consumer = there.eval_consumer(env) if evaluation else there.task_consumer(env)
        subject = here.eval_task(env) if evaluation else here.task(env)
        async with self._hub.queues.open(there.tasks, consumer) as queue, asyncio.TaskGroup() as group:
            while True:
                deliveries = await queue.fetch(await self._room(env))
                await start_work(group, deliveries, partial(self._take, env=env, subject=subject))

    async def _room(self, env: str) -> int:
        """How many more tasks the region wants, when it wants any."""
        while True:
            slots = self._members.slots(env)
            room = int(AHEAD * self._members.slots()) - self.taken
            if slots and room > 0:
                return min(room, int(AHEAD * slots))
            await self._news()

    async def _news(self) -> None:
        self._change.clear()
        await first_of(self._members.news(LOOK_EVERY_S), self._change.wait())

    async def _take(self, delivery: Delivery, *, env: str, subject: str) -> None:
        task = delivery.message
        assert isinstance(task, Task), task  # the queue holds no other type
        key = (task.id, task.attempt)
        if key in self._settled:
            await delivery.ack()
            return
        new = key not in self._taken
        taken = self._taken.setdefault(key, _Taken(env))  # else it was delivered again: the hub didn't hear of us
        try:
            async with delivery.keep_alive():
                if new:
                    await self._here.relay(subject, delivery.envelope)
                await taken.ended.wait()
            await (delivery.nak() if taken.given_back else delivery.ack())
        except BusError as exc:
            _log.error("a task can't be queued here", extra={"task": task.id, "why": str(exc)})
            self._end(key)
            await delivery.nak(REFUSED_AGAIN_S)
        except asyncio.CancelledError:
            await delivery.nak()
            raise

    def _end(self, key: tuple[str, int], *, given_back: bool = False) -> None:
        taken = self._taken.pop(key, None)
        if taken is not None:
            taken.given_back = given_back
            taken.ended.set()
            self._change.set()

    async def give_back(self) -> None:
        """For ever: when nobody here can play an environment, its tasks are others'."""
        while True:
            await self._members.news(LOOK_EVERY_S)
            for env in {taken.env for taken in self._taken.values()}:
                if not self._members.slots(env):
                    await self._clear(env)
                    for key in [key for key, taken in self._taken.items() if taken.env == env]:
                        self._end(key, given_back=True)

    async def _clear(self, env: str) -> None:
        topology = self._here.topology
        end = (await self._here.logs.state(topology.tasks)).last_sequence + 1
        for subject in (topology.task(env), topology.eval_task(env)):
            await self._here.logs.purge(topology.tasks, below_sequence=end, subject=subject)
