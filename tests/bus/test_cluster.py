"""Three equal servers: what one of them acked survives its death, and clients go on with the others."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from astraflow.bus import Bus, EmbeddedServer, NatsBus, Topology, wiring
from astraflow.bus.link import open_session
from astraflow.errors import BusError
from astraflow.messages import Lease
from tests.servers import cluster_of, options_of
from tests.support import LIMIT_S, eventually, kill, make_episode, make_task, make_topology

TASKS = 240


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[list[EmbeddedServer]]:
    async with cluster_of(tmp_path) as started:
        yield started


async def copies(servers: Sequence[EmbeddedServer], *streams: str) -> set[int]:
    """How many servers keep these streams."""
    session = await open_session(options_of(servers), name="look", epoch=0)
    found = [await session.api(f"STREAM.INFO.{stream}") for stream in streams]
    await session.close()
    return {info["config"]["num_replicas"] for info in found}


async def follow(bus: Bus, topology: Topology, logged: list[str]) -> None:
    async for entry in bus.logs.read(topology.episodes):
        logged.append(entry.message.task_id)
        if len(logged) == TASKS:
            return


async def watch(bus: Bus, watched: list[int], last: int) -> None:
    async for update in bus.kv.watch(wiring.LEASE.prefix):
        if update.message is not None:
            watched.append(update.message.epoch)
        if watched and watched[-1] == last:
            return


@pytest.mark.slow
async def test_nothing_acked_is_lost_when_each_server_is_killed_once(
    servers: list[EmbeddedServer], topology: Topology
) -> None:
    worked: set[str] = set()
    logged: list[str] = []
    watched: list[int] = []

    async def produce(bus: Bus) -> None:
        for number in range(TASKS):
            await bus.publish(topology.task("math"), make_task(str(number)), msg_id=f"t{number}", deadline_s=None)

    async def work(bus: Bus) -> None:
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
            while len(worked) < TASKS:
                for delivery in await queue.fetch(8):
                    name = delivery.message.id
                    await bus.publish(topology.episode("math"), make_episode(name), msg_id=f"e{name}", deadline_s=None)
                    worked.add(name)
                    await delivery.ack()

    async def count(bus: Bus) -> None:
        revision = await bus.kv.put(wiring.LEASE.key("x"), Lease(holder="h", epoch=0), expected_revision=0)
        for epoch in range(1, 60):
            revision = await bus.kv.put(
                wiring.LEASE.key("x"), Lease(holder="h", epoch=epoch), expected_revision=revision
            )
            await asyncio.sleep(0.01)

    async with NatsBus.connect(options_of(servers), topology, producer="test") as bus:
        await bus.ensure()
        assert await copies(servers, topology.tasks, topology.episodes) == {3}
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for actor in (produce(bus), work(bus), follow(bus, topology, logged), count(bus), watch(bus, watched, 59)):
                group.create_task(actor)
            for number, share in enumerate((0.2, 0.5, 0.8)):
                await eventually(lambda share=share: len(worked) > share * TASKS)
                await kill(servers[number])
                await asyncio.sleep(1)
                await servers[number].start()
        assert (await bus.logs.state(topology.episodes)).messages == TASKS
    assert worked == {str(number) for number in range(TASKS)}
    assert len(logged) == len(set(logged)) == TASKS
    assert watched == sorted(watched)


@pytest.mark.slow
async def test_who_was_given_one_address_finds_the_others_when_it_dies(
    servers: list[EmbeddedServer], topology: Topology
) -> None:
    async with NatsBus.connect(options_of(servers[:1]), topology, producer="test") as bus:
        await bus.ensure()
        await kill(servers[0])
        ack = await bus.publish(topology.task("math"), make_task(), msg_id="t", deadline_s=None)
        assert ack.sequence == 1
        assert bus.link.reconnects >= 1


@pytest.mark.slow
async def test_a_stream_that_too_few_servers_could_keep_says_so(tmp_path: Path) -> None:
    async with (
        cluster_of(tmp_path, count=2) as pair,
        NatsBus.connect(options_of(pair), make_topology(), producer="test") as bus,
    ):
        with pytest.raises(BusError, match=r"by 3 servers, and cluster astraflow has too few .* start the others"):
            await bus.ensure()
    one = EmbeddedServer(tmp_path / "alone")
    await one.start()
    try:
        async with NatsBus.connect(one.options, make_topology(replicas=3), producer="test") as bus:
            with pytest.raises(BusError, match=r"this server, which is in no cluster, .* set bus.replicas = 1"):
                await bus.ensure()
    finally:
        await one.stop()


@pytest.mark.slow
async def test_a_stream_of_one_copy_is_made_where_that_is_asked_for_and_then_kept(
    servers: list[EmbeddedServer],
) -> None:
    topology = make_topology(replicas=1)
    async with NatsBus.connect(options_of(servers), topology, producer="test") as bus:
        await bus.ensure()
    assert await copies(servers, topology.tasks) == {1}
    async with NatsBus.connect(options_of(servers), make_topology(), producer="test") as bus:
        await bus.ensure()
    assert await copies(servers, topology.tasks) == {1}


async def test_a_port_that_is_taken_is_named_before_anything_starts(
    servers: list[EmbeddedServer], tmp_path: Path
) -> None:
    door = servers[0].cluster
    assert door is not None
    other = EmbeddedServer(tmp_path / "other", cluster=door)
    with pytest.raises(BusError, match=rf"127.0.0.1:{door.port}: Address already in use; choose another"):
        await other.start()
