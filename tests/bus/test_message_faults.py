"""Single messages that get lost, doubled or overtaken on the wire, by kind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astraflow.bus import Bus, EmbeddedServer, KvUpdate, NatsBus, wiring
from astraflow.messages import Lease
from tests.faultproxy import FaultProxy, Kind, Rates, every, proxied
from tests.support import LIMIT_S, eventually, make_episode, make_task, make_topology

QUICK = make_topology(ack_wait_s=0.5, answer_s=0.3)
WILD = Rates(drop=0.2, duplicate=0.2, delay=0.2)


@asynccontextmanager
async def behind_a_proxy(server: EmbeddedServer, seed: int = 1) -> AsyncIterator[tuple[Bus, FaultProxy]]:
    """A bus whose messages pass a proxy that does nothing yet."""
    async with proxied(server.port, seed=seed) as proxy:
        options = type(server.options)(url=proxy.url, token=server.token)
        async with NatsBus.connect(options, QUICK, producer="test") as bus:
            await bus.ensure()
            yield bus, proxy


async def test_lost_and_doubled_publishes_and_answers_are_each_stored_once(nats_server: EmbeddedServer) -> None:
    async with behind_a_proxy(nats_server) as (bus, proxy):
        proxy.rates = every(WILD, Kind.PUBLISH, Kind.PUBACK)
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            for number in range(100):
                name = str(number)
                group.create_task(bus.publish(QUICK.episode("math"), make_episode(name), msg_id=name, deadline_s=None))
        proxy.rates = {}
        logged = [entry.message.task_id async for entry in bus.logs.read(QUICK.episodes, follow=False)]
        assert sorted(logged) == sorted(str(number) for number in range(100))
        assert proxy.counts["publish dropped"] > 0
        assert proxy.counts["puback dropped"] > 0


async def test_a_deadline_holds_when_no_answer_ever_comes(nats_server: EmbeddedServer) -> None:
    async with behind_a_proxy(nats_server) as (bus, proxy):
        proxy.rates = every(Rates(drop=1), Kind.PUBLISH)
        with pytest.raises(Exception, match=r"isn't stored after 1 s: no answer on .* within 0.3 s"):
            await bus.publish(QUICK.episode("math"), make_episode(), msg_id="a", deadline_s=1)


@pytest.mark.parametrize("seed", [1, 2])
async def test_deliveries_and_acks_that_get_lost_come_again_until_the_queue_is_empty(
    nats_server: EmbeddedServer, seed: int
) -> None:
    worked: set[str] = set()
    async with (
        behind_a_proxy(nats_server, seed) as (bus, proxy),
        bus.queues.open(QUICK.tasks, QUICK.task_consumer("math")) as queue,
    ):
        for number in range(20):
            await bus.publish(QUICK.task("math"), make_task(str(number)), msg_id=f"t{number}")
        proxy.rates = every(WILD, Kind.DELIVERY, Kind.ACK) | every(Rates(duplicate=0.2, delay=0.2), Kind.PULL)
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:

            async def work() -> None:
                while True:
                    for delivery in await queue.fetch(8):
                        worked.add(delivery.message.id)
                        await delivery.ack()

            task = group.create_task(work())
            await eventually(lambda: _empty(bus))
            task.cancel()
    assert worked == {str(number) for number in range(20)}


async def test_doubled_pulls_are_answered_twice_and_asked_once(nats_server: EmbeddedServer) -> None:
    async with (
        behind_a_proxy(nats_server) as (bus, proxy),
        bus.queues.open(QUICK.tasks, QUICK.task_consumer("math")) as queue,
        bus.queues.open(QUICK.tasks, QUICK.task_consumer("code")) as other,
        asyncio.TaskGroup() as group,
    ):
        proxy.rates = every(Rates(duplicate=1, delay_s=0.0), Kind.PULL)
        read: list[str] = []

        async def read_on() -> None:
            async for entry in bus.logs.read(QUICK.episodes):
                read.append(entry.message.task_id)

        reading, waiting = group.create_task(read_on()), group.create_task(other.fetch(8))
        for number in range(10):
            await bus.publish(QUICK.task("math"), make_task(str(number)), msg_id=str(number))
            await bus.publish(QUICK.episode("math"), make_episode(str(number)), msg_id=f"e{number}")
            (delivery,) = await queue.fetch(1)
            await delivery.ack()
        await eventually(lambda: len(read) == 10)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(6):  # past a pull's end; each answer was taken for the next pull's: thousands
                await queue.fetch(8)
        assert proxy.counts["pull doubled"] < 60
        for task in (reading, waiting):
            task.cancel()


async def _empty(bus: Bus) -> bool:
    return (await bus.queues.depths())["task.math"] == 0


async def test_a_reader_misses_nothing_when_the_last_message_of_a_log_gets_lost(nats_server: EmbeddedServer) -> None:
    async with behind_a_proxy(nats_server) as (bus, proxy):
        proxy.rates = every(Rates(drop=1), Kind.LOG)
        await bus.publish(QUICK.episode("math"), make_episode("only"), msg_id="a")
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            first = group.create_task(anext(bus.logs.read(QUICK.episodes)))
            await eventually(lambda: proxy.counts["log dropped"])
            proxy.rates = {}
            assert (await first).message.task_id == "only"


async def test_a_log_and_a_watch_are_read_in_order_through_faults(nats_server: EmbeddedServer) -> None:
    async with behind_a_proxy(nats_server) as (bus, proxy):
        for number in range(60):
            await bus.publish(QUICK.episode("math"), make_episode(str(number)), msg_id=str(number))
        proxy.rates = every(WILD, Kind.LOG)
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            logged = [entry.message.task_id async for entry in bus.logs.read(QUICK.episodes, follow=False)]
            assert logged == [str(number) for number in range(60)]

            watched: list[KvUpdate] = []
            watching = group.create_task(_watch(bus, watched))
            for epoch in range(30):
                await bus.kv.put(wiring.LEASE.key("x"), Lease(holder="h", epoch=epoch))
            await eventually(lambda: watched and watched[-1].message.epoch == 29)
            watching.cancel()
        revisions = [update.revision for update in watched]
        assert revisions == sorted(revisions)


async def _watch(bus: Bus, into: list[KvUpdate]) -> None:
    async for update in bus.kv.watch(wiring.LEASE.prefix):
        if update.message is not None:
            into.append(update)
