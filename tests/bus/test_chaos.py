"""kill -9 of the server under load: nothing acked is lost, nothing is stored twice."""

import asyncio

from astraflow.bus import Bus, EmbeddedServer, Topology, wiring
from astraflow.messages import Lease
from tests.support import LIMIT_S, eventually, kill, make_episode, make_task

TASKS = 300


async def test_publish_queue_log_and_watch_go_on_through_three_kills(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    worked: set[str] = set()
    logged: list[str] = []
    watched: list[int] = []

    async def produce() -> None:
        for number in range(TASKS):
            await bus.publish(topology.task("math"), make_task(str(number)), msg_id=f"t{number}", deadline_s=None)

    async def work() -> None:
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
            while len(worked) < TASKS:
                for delivery in await queue.fetch(8):
                    name = delivery.message.id
                    await bus.publish(topology.episode("math"), make_episode(name), msg_id=f"e{name}", deadline_s=None)
                    worked.add(name)
                    await delivery.ack()

    async def follow() -> None:
        async for entry in bus.logs.read(topology.episodes):
            logged.append(entry.message.task_id)
            if len(logged) == TASKS:
                return

    async def count() -> None:
        revision = await bus.kv.put(wiring.LEASE.key("x"), Lease(holder="h", epoch=0), expected_revision=0)
        for epoch in range(1, 60):
            revision = await bus.kv.put(
                wiring.LEASE.key("x"), Lease(holder="h", epoch=epoch), expected_revision=revision
            )
            await asyncio.sleep(0.01)

    async def watch() -> None:
        async for update in bus.kv.watch(wiring.LEASE.prefix):
            if update.message is not None:
                watched.append(update.message.epoch)
            if watched and watched[-1] == 59:
                return

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        for actor in (produce(), work(), follow(), count(), watch()):
            group.create_task(actor)
        for share in (0.2, 0.5, 0.8):
            await eventually(lambda share=share: len(worked) > share * TASKS)
            await kill(nats_server)
            await nats_server.start()

    assert worked == {str(number) for number in range(TASKS)}
    assert len(logged) == len(set(logged)) == TASKS
    assert watched == sorted(watched)
    assert bus.link.reconnects >= 3
    assert (await bus.logs.state(topology.episodes)).messages == TASKS
