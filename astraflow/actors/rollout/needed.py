"""Which tasks nobody needs any more: dataflow has closed their group, because it has enough members, say.

It plays nothing. A word that comes late, or not at all, costs work and nothing else: the record of such a task counts
`late`. Invariant: what is remembered is bounded by the lifetime of the keys.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astraflow.bus import Bus, wiring
from astraflow.errors import NotNeededError
from astraflow.messages import GroupClosed


class NeededTasks:
    """The closed groups, as KV tells of them, and what is being played."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}  # KV key → group id
        self._closed: set[str] = set()  # the same group ids
        self._playing: dict[str, set[asyncio.Timeout]] = {}  # by group id

    async def watch(self, bus: Bus) -> None:
        """Follow dataflow for ever."""
        async for update in bus.kv.watch(wiring.CLOSED.prefix):
            if isinstance(update.message, GroupClosed):
                self._keys[update.key] = update.message.group_id
                self.close(update.message.group_id)
            else:
                self._closed.discard(self._keys.pop(update.key, ""))

    def close(self, group_id: str) -> None:
        """Nothing of the group is needed; end what is being played."""
        self._closed.add(group_id)
        for scope in self._playing.get(group_id, ()):
            if not scope.expired():
                scope.reschedule(0.0)

    @asynccontextmanager
    async def while_needed(self, group_id: str) -> AsyncIterator[None]:
        """Cancels its body when the group closes, and raises NotNeededError; at once if it is closed already."""
        if group_id in self._closed:
            raise NotNeededError
        scope = asyncio.timeout(None)  # no deadline yet: `close` sets one
        try:
            async with scope:
                playing = self._playing.setdefault(group_id, set())
                playing.add(scope)
                try:
                    yield
                finally:
                    playing.discard(scope)
                    if not playing:
                        self._playing.pop(group_id, None)
        except TimeoutError:
            if not scope.expired():
                raise
            raise NotNeededError from None
