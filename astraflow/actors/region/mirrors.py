"""Keeps a region's copies of the weights as short as the hub's: purges don't pass through a mirror by themselves."""

import asyncio
import logging
from contextlib import aclosing

from astraflow.bus import Bus, wiring
from astraflow.errors import BusError
from astraflow.messages import Head

WITHIN_S = 60.0  # else the link is cut, and nothing new comes either

_log = logging.getLogger(__name__)


async def trim_weights(here: Bus, hub: Bus, policy: str) -> None:
    """After every move of the head, drop what the hub has dropped. For ever."""
    async with aclosing(here.kv.watch(wiring.HEAD.key(policy))) as updates:
        async for update in updates:
            if isinstance(update.message, Head):
                try:
                    async with asyncio.timeout(WITHIN_S):
                        await _trim(here, hub, policy)
                except (TimeoutError, BusError) as exc:
                    _log.warning("mirror isn't trimmed", extra={"policy": policy, "why": str(exc)})


async def _trim(here: Bus, hub: Bus, policy: str) -> None:
    stream = here.topology.weights(policy)
    floor = (await hub.logs.state(hub.topology.weights(policy))).first_sequence
    end = (await here.logs.state(stream)).last_sequence + 1
    await here.logs.purge(stream, below_sequence=min(floor, end))
