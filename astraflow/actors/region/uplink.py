"""A region's outbox: each message is stored at the hub, then acked here and so forgotten.

It doesn't look into the messages. Invariants: what isn't acked by the hub stays in the region's store, however long the
link is cut; ids stay, so that what was sent twice is stored once, or dropped by its reader.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from astraflow.actors.base.handover import start_work
from astraflow.bus import Delivery, WorkQueue
from astraflow.errors import BusError, MessageError

_WINDOW = 64  # messages under way
REFUSED_AGAIN_S = 10.0

_log = logging.getLogger(__name__)


class Uplink:
    """One outbox. `store` puts a delivery's message into the hub and returns when it is there."""

    def __init__(self, queue: WorkQueue, store: Callable[[Delivery], Awaitable[None]]) -> None:
        self._queue = queue
        self._store = store
        self._free = _WINDOW
        self._room = asyncio.Event()

    async def run(self) -> None:
        """For ever, _WINDOW messages at a time."""
        async with asyncio.TaskGroup() as group:
            while True:
                while not self._free:
                    self._room.clear()
                    await self._room.wait()
                deliveries = await self._queue.fetch(self._free)
                self._free -= len(deliveries)
                await start_work(group, deliveries, self._pass_on)

    async def _pass_on(self, delivery: Delivery) -> None:
        try:
            async with delivery.keep_alive():
                await self._store(delivery)
            await delivery.ack()
        except MessageError as exc:
            await delivery.reject(str(exc))
        except BusError as exc:
            _log.error("the hub refuses a message", extra={"id": delivery.envelope.id, "why": str(exc)})
            await delivery.nak(REFUSED_AGAIN_S)
        except asyncio.CancelledError:
            await delivery.nak()
            raise
        finally:
            self._free += 1
            self._room.set()
