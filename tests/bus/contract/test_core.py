"""Core messages: at most once, bounded, counted."""

from astraflow.bus import Bus, Topology
from astraflow.messages import ChunkKind, GenCancel, GenChunk, array_of
from tests.bus.contract.place import Place


def _chunk(position: int) -> GenChunk:
    return GenChunk(
        request_id="r", attempt=0, kind=ChunkKind.TOKENS, replica="x", position=position, tokens=array_of([7], "i4")
    )


async def test_chunks_arrive_in_order(bus: Bus, topology: Topology, place: Place) -> None:
    async with (
        place.connect(topology, producer="replica") as replica,
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


async def test_over_the_bound_chunks_are_dropped_and_counted(bus: Bus, topology: Topology, place: Place) -> None:
    subject = topology.gen_cancel("solver")
    async with bus.core.subscribe(subject, max_pending=10) as cancels:
        for number in range(25):
            await bus.core.publish(subject, GenCancel(request_id=str(number)))
        await place.settle(bus)
        got = [(await anext(cancels)).message.request_id for _ in range(10)]
    assert got == [str(number) for number in range(10)]
    assert bus.counters["core.dropped"] == 15


async def test_malformed_chunks_are_skipped_and_counted(bus: Bus, topology: Topology, place: Place) -> None:
    subject = topology.gen_cancel("solver")
    async with bus.core.subscribe(subject) as cancels:
        await place.send_raw(bus, subject, b"\xc1")
        await bus.core.publish(subject, GenCancel(request_id="good"))
        assert (await anext(cancels)).message.request_id == "good"
    assert bus.counters["core.malformed"] == 1
