"""Core messages: at most once, bounded, counted."""

import asyncio

from astraflow.bus import Bus, EmbeddedServer, Topology
from astraflow.messages import ChunkKind, GenCancel, GenChunk, array_of
from tests.support import AT_ONCE_S, eventually, kill


def _chunk(position: int) -> GenChunk:
    return GenChunk(
        request_id="r", attempt=0, kind=ChunkKind.TOKENS, replica="x", position=position, tokens=array_of([7], "i4")
    )


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
