"""Which version a replica serves, and whether that is new enough to take requests.

It follows the policy's head and has the engine moved along (updates.py); it knows no requests.
Invariant: `version` changes only after the engine serves it, and whoever waits for a change is woken.
"""

import asyncio
from collections.abc import Callable

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.policy.updates import Updates
from astraflow.messages import Head
from astraflow.weights.transfer.follower import follow_heads


class ServedVersion:
    """The version in place next to the newest that is known. Args: say: called when either has changed."""

    def __init__(self, ctx: ActorContext, updates: Updates, head: Head, say: Callable[[], None]) -> None:
        self._ctx = ctx
        self._updates = updates
        self._say = say
        self._changed = asyncio.Condition()
        self._head: Head | None = None  # the newest that is known; None: the watch hasn't told yet
        self._behind_since = 0.0  # monotonic: when the first head newer than what is served was seen; 0: none
        self.version = head.version

    @property
    def current(self) -> bool:
        """Whether the weights are new enough to serve, as far as is known."""
        lag = self._ctx.policy_section.engine.max_replica_lag
        return self._head is not None and self._head.version - self.version <= lag

    @property
    def lag_versions(self) -> int:
        """How far the newest version that is known is ahead."""
        return max(0, self._head.version - self.version) if self._head is not None else 0

    @property
    def lag_s(self) -> float:
        """Since when a newer version is known."""
        return clock.monotonic() - self._behind_since if self._behind_since else 0.0

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Wait until something holds; it is looked at when the version or the head changes, and at `look`."""
        async with self._changed:
            await self._changed.wait_for(predicate)

    async def look(self) -> None:
        """Have those who wait look again."""
        async with self._changed:
            self._changed.notify_all()

    async def follow(self) -> None:
        """Swap to each new head, the newest first; a version that can't be used leaves the old one serving."""
        newest = asyncio.Event()
        latest: list[tuple[Head, float]] = []  # and when it was heard of

        async def watch() -> None:
            async for head in follow_heads(self._ctx.bus, self._ctx.policy):
                latest[:] = [(head, clock.monotonic())]
                newest.set()
                if head.version > self.version and not self._behind_since:
                    self._behind_since = clock.monotonic()
                self._head = head
                await self.look()
                self._say()

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            while True:
                await newest.wait()
                newest.clear()
                head, heard_at = latest[0]
                if head.version > self.version:
                    await self._update(head, heard_at)

    async def _update(self, head: Head, heard_at: float) -> None:
        served = await self._updates.to(head, serving=self.version, heard_at=heard_at)
        if served is None:
            return
        self.version = served.version
        self._behind_since = clock.monotonic() if self.lag_versions else 0.0
        await self.look()
        self._say()
        await self._updates.look(served)
