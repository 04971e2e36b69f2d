"""From a pull to the tasks that work: no delivery is lost in between.

It knows nothing of the work. Invariant: a delivery's work has begun, and then answers for it, or the delivery is nak'd.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from astraflow.bus import Delivery


async def start_work(
    group: asyncio.TaskGroup, deliveries: Sequence[Delivery], work: Callable[[Delivery], Awaitable[None]]
) -> None:
    """Run `work` for each delivery in a task of `group`; returns when all have begun.

    A task that is cancelled before its first step runs none of its code, not even a `finally`.
    """
    begun: set[int] = set()

    async def begin(place: int, delivery: Delivery) -> None:
        begun.add(place)
        await work(delivery)

    for place, delivery in enumerate(deliveries):
        group.create_task(begin(place, delivery))
    try:
        await asyncio.sleep(0)  # the new tasks are ahead of us in the loop's queue
    except asyncio.CancelledError:
        for place, delivery in enumerate(deliveries):
            if place not in begun:
                await delivery.nak()
        raise
