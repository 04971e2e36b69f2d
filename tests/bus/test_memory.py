"""The bus in memory, beyond the contract: what it costs, and its own times."""

import asyncio
import time
from contextlib import AsyncExitStack, aclosing

from astraflow.bus import Bus, wiring
from astraflow.bus.memory import MemoryBus, MemoryServer
from astraflow.bus.wiring import DUPLICATE_WINDOW_S
from astraflow.errors import BusError
from astraflow.messages import Member, MemberState, RunRecord
from astraflow.virtual_time import run_in_virtual_time
from tests.support import make_episode, make_task, make_topology

NODES = 1000
RUN = RunRecord(name="test", incarnation="i", config_json=b"{}", created_at=0.0)
DAY_S = 86_400.0


async def _idle(bus: Bus, told: list[str]) -> None:
    """What a node waits for: a change of the run, a task, a chunk."""
    topology = bus.topology

    async def watch() -> None:
        async with aclosing(bus.kv.watch(wiring.RUN.key())) as updates:
            async for update in updates:
                if update.key:
                    told.append(update.key)

    async def work() -> None:
        async with bus.queues.open(topology.tasks, topology.task_consumer("math")) as queue:
            while True:
                for delivery in await queue.fetch(1):
                    told.append(delivery.message.id)
                    await delivery.ack()

    async def listen() -> None:
        async with bus.core.subscribe(f"{topology.reply(bus.producer)}.>") as chunks:
            async for chunk in chunks:
                told.append(chunk.envelope.id)

    async with asyncio.TaskGroup() as group:
        for job in (watch(), work(), listen()):
            group.create_task(job)


def test_a_thousand_idle_nodes_cost_nothing_and_all_hear_what_is_for_them() -> None:
    async def main() -> tuple[int, float]:
        server, topology, told = MemoryServer(), make_topology(), []
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            buses = [
                await stack.enter_async_context(MemoryBus.connect(server, topology, producer=f"n-{number}"))
                for number in range(NODES)
            ]
            await buses[0].ensure()
            tasks = [group.create_task(_idle(bus, told)) for bus in buses]
            await asyncio.sleep(1)
            began = time.process_time()
            await asyncio.sleep(DAY_S)
            waiting_s = time.process_time() - began
            await buses[0].kv.put(wiring.RUN.key(), RUN, ttl_s=5)
            for number in range(NODES):
                await buses[1].publish(topology.task("math"), make_task(str(number)), msg_id=str(number))
            await asyncio.sleep(10)
            for task in tasks:
                task.cancel()
        return len(told), waiting_s

    heard, waiting_s = run_in_virtual_time(main())
    assert heard == 3 * NODES, "the record, its end, and one task for each"
    assert waiting_s < 0.1, "nothing is polled"


def test_a_thousand_members_beat_for_a_minute() -> None:
    """Each is seen as gone once its record has expired, and not before."""

    async def main() -> tuple[set[str], float]:
        server, topology = MemoryServer(), make_topology()
        async with MemoryBus.connect(server, topology, producer="watcher") as bus, asyncio.TaskGroup() as group:
            await bus.ensure()

            async def beat(number: int) -> None:
                for _ in range(10):
                    await bus.kv.put(f"member.m-{number}", _member(f"m-{number}"), ttl_s=9)
                    await asyncio.sleep(6)

            for number in range(NODES):
                group.create_task(beat(number))
            gone: set[str] = set()
            began = asyncio.get_running_loop().time()
            async with aclosing(bus.kv.watch(wiring.MEMBER.prefix)) as updates:
                async for update in updates:
                    if update.key and update.message is None:
                        gone.add(update.key)
                        if len(gone) == NODES:
                            break
            return gone, asyncio.get_running_loop().time() - began

    gone, after_s = run_in_virtual_time(main())
    assert len(gone) == NODES
    assert 9 * 6 + 9 - 0.1 <= after_s <= 9 * 6 + 9 + 0.1


def test_ids_are_forgotten_after_the_window() -> None:
    async def main() -> list[bool]:
        async with MemoryBus.connect(MemoryServer(), make_topology(), producer="test") as bus:
            await bus.ensure()
            told = []
            for wait_s in (DUPLICATE_WINDOW_S - 1, 2.0, 0.0):
                ack = await bus.publish(bus.topology.episode("math"), make_episode(), msg_id="a")
                told.append(ack.duplicate)
                await asyncio.sleep(wait_s)
            return told

    assert run_in_virtual_time(main()) == [False, True, False]


def test_a_region_is_refused() -> None:
    async def main() -> str:
        topology = make_topology()
        far = type(topology)(run="test", region="far", home="local", envs=["math"], policies=["solver"])
        async with MemoryBus.connect(MemoryServer(), far, producer="test") as bus:
            try:
                await bus.ensure()
            except BusError as exc:
                return str(exc)
        return ""

    assert run_in_virtual_time(main()) == "region far isn't the run's home: a bus in memory has no mirrors"


def _member(actor: str) -> Member:
    return Member(actor=actor, role="rollout", node="n", incarnation="i", pid=1, state=MemberState.READY)
