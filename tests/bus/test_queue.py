"""Work queues: redelivery, free slots, cancellation, malformed and big messages, outages."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from astraflow.bus import Bus, EmbeddedServer, NatsBus, Topology, WorkQueue
from astraflow.messages import GenRequest, Sampling, array_of, encode
from tests.bus.raw import someone_waits
from tests.support import AT_ONCE_S, eventually, kill, make_task, make_topology

BIG = "x" * 1_500_000


@pytest.fixture
async def queue(bus: Bus, topology: Topology) -> AsyncIterator[WorkQueue]:
    async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as opened:
        yield opened


@pytest.fixture
async def quick(nats_server: EmbeddedServer) -> AsyncIterator[Bus]:
    """A bus whose ack wait is one second."""
    topology = make_topology(ack_wait_s=1.0)
    async with NatsBus.connect(nats_server.options, topology, producer="quick") as bus:
        await bus.ensure()
        yield bus


async def _fill(bus: Bus, count: int, env: str = "math") -> None:
    for index in range(count):
        await bus.publish(bus.topology.task(env), make_task(str(index), env), msg_id=f"{env}/{index}")


async def test_the_queue_survives_kill_9_of_the_server(
    bus: Bus, topology: Topology, queue: WorkQueue, nats_server: EmbeddedServer
) -> None:
    await _fill(bus, 2)
    (held,) = await queue.fetch(1)
    async with asyncio.TaskGroup() as group:
        await kill(nats_server)
        fetch = group.create_task(queue.fetch(2))
        await nats_server.start()
        async with asyncio.timeout(AT_ONCE_S):
            deliveries = await fetch
    # kill -9 may cost the server the memory of who holds what: then the held task comes once more, as a first delivery
    assert {delivery.message.id for delivery in deliveries} <= {"0", "1"}
    await held.ack()  # a delivery of the old connection is acked over the new one
    for delivery in deliveries:
        await delivery.ack()
    while (await bus.queues.depths())["task.math"]:
        for delivery in await queue.fetch(2, wait=False):
            await delivery.ack()


async def test_an_open_fetch_goes_on_after_a_restart(bus: Bus, queue: WorkQueue, nats_server: EmbeddedServer) -> None:
    async with asyncio.TaskGroup() as group:
        fetch = group.create_task(queue.fetch(1))
        await eventually(lambda: someone_waits(bus, queue.stream, queue.consumer))
        await kill(nats_server)
        await nats_server.start()
        await _fill(bus, 1)
        async with asyncio.timeout(AT_ONCE_S):
            assert (await fetch)[0].attempts == 1


async def test_a_consumer_that_somebody_deleted_is_made_again(bus: Bus, topology: Topology, queue: WorkQueue) -> None:
    session = await bus.link.session()
    await session.api(f"CONSUMER.DELETE.{topology.tasks}.{queue.consumer}")
    await _fill(bus, 1)
    async with asyncio.timeout(AT_ONCE_S):
        assert len(await queue.fetch(1)) == 1


async def test_depths_can_be_read_of_a_server_that_was_restarted_while_nobody_was_there(
    nats_server: EmbeddedServer, topology: Topology
) -> None:
    async with NatsBus.connect(nats_server.options, topology, producer="before") as before:
        await before.ensure()
    await nats_server.stop()
    await nats_server.start()
    async with NatsBus.connect(nats_server.options, topology, producer="status") as looks:
        depths = await looks.queues.depths()
        assert set(depths.values()) == {0}
        assert any(key.startswith("gen.") for key in depths)
        assert await looks.queues.undelivered() == depths


async def test_generation_requests_go_on_after_a_restart_of_the_server(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    request = GenRequest(
        id="r",
        attempt=0,
        policy="solver",
        prompt_tokens=array_of([1, 2], "i4"),
        sampling=Sampling(),
        seed=0,
        reply_subject="af.test.reply.n.1",
    )
    async with (
        bus.queues.open(topology.gen_requests, topology.gen_consumer("solver")) as queue,
        asyncio.TaskGroup() as group,
    ):
        fetch = group.create_task(queue.fetch(1))
        await eventually(lambda: someone_waits(bus, queue.stream, queue.consumer))
        await kill(nats_server)  # GEN is in memory: the stream is gone
        await nats_server.start()
        await bus.publish(topology.gen("solver"), request, msg_id="r/0", ttl_s=60)
        async with asyncio.timeout(AT_ONCE_S):
            assert (await fetch)[0].message == request


async def _depth(bus: Bus, expected: int) -> bool:
    return (await bus.queues.depths())["task.math"] == expected


def _encoded(number: int) -> bytes:
    return encode(make_task(str(number)), id=str(number))
