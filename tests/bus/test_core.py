"""Core messages: at most once, bounded, counted."""

import asyncio

from astraflow.bus import Bus, EmbeddedServer, NatsBus, Topology
from astraflow.messages import ChunkKind, GenCancel, GenChunk, array_of
from tests.support import AT_ONCE_S, eventually, kill


def _chunk(position: int) -> GenChunk:
    return GenChunk(
        request_id="r", attempt=0, kind=ChunkKind.TOKENS, replica="x", position=position, tokens=array_of([7], "i4")
    )


async def test_chunks_arrive_in_order(bus: Bus, topology: Topology, nats_server: EmbeddedServer) -> None:
    async with (
        NatsBus.connect(nats_server.options, topology, producer="replica") as replica,
        bus.core.subscribe(f"{topology.reply('node')}.>") as chunks,
    ):
        for position in range(100):
            await replica.core.publish(f"{topology.reply('node')}.r", _chunk(position))
        got = [await anext(chunks) for _ in range(100)]
    assert [decoded.message.position for decoded in got] == list(range(100))
    assert got[0].envelope.producer == "replica"


async def test_other_nodes_replies_do_not_arrive(bus: Bus, topology: Topology) -> None:
    async with bus.core.subscribe(f"{topology.reply('node')}.>") as chunks:
        await bus.core.publish(f"{topology.reply('other')}.r", _chunk(1))
        await bus.core.publish(f"{topology.reply('node')}.r", _chunk(2))
        assert (await anext(chunks)).message.position == 2


async def test_over_the_bound_chunks_are_dropped_and_counted(bus: Bus, topology: Topology) -> None:
    subject = topology.gen_cancel("solver")
    async with bus.core.subscribe(subject, max_pending=10) as cancels:
        for number in range(25):
            await bus.core.publish(subject, GenCancel(request_id=str(number)))
        await (await bus.link.session()).flush(5.0)
        got = [(await anext(cancels)).message.request_id for _ in range(10)]
    assert got == [str(number) for number in range(10)]
    assert bus.counters["core.dropped"] == 15


async def test_malformed_chunks_are_skipped_and_counted(bus: Bus, topology: Topology) -> None:
    subject = topology.gen_cancel("solver")
    async with bus.core.subscribe(subject) as cancels:
        await (await bus.link.session()).send(subject, b"\xc1")
        await bus.core.publish(subject, GenCancel(request_id="good"))
        assert (await anext(cancels)).message.request_id == "good"
    assert bus.counters["core.malformed"] == 1


async def test_without_a_connection_chunks_are_counted_not_queued(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    await kill(nats_server)
    await eventually(lambda: not bus.link.up.is_set())
    async with asyncio.timeout(AT_ONCE_S):
        await bus.core.publish(topology.gen_cancel("solver"), GenCancel(request_id="lost"))
    assert bus.counters["core.unsent"] == 1


async def test_a_subscription_goes_on_after_a_restart(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    subject = topology.gen_cancel("solver")
    async with bus.core.subscribe(subject) as cancels, asyncio.TaskGroup() as group:
        waiting = group.create_task(anext(cancels))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await kill(nats_server)
        await nats_server.start()
        await eventually(lambda: bus.link.reconnects == 1)

        async def heard() -> bool:
            await bus.core.publish(subject, GenCancel(request_id="again"))
            return waiting.done()

        await eventually(heard)
        assert waiting.result().message.request_id == "again"
