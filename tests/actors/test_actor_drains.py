"""Who carries out an order to drain: the actor itself if it runs without a node, and its node otherwise."""

import asyncio
from pathlib import Path

import pytest

from astraflow.actors.__main__ import parse
from astraflow.actors.base.acting import follow_drains
from astraflow.bus import wiring
from astraflow.bus.memory import MemoryServer
from astraflow.node.orders import order_drain
from astraflow.node.processes import NodeProcesses, roles_of
from tests.actors.contexts import CONFIG, context
from tests.cli.test_node import CONNECTION
from tests.support import LIMIT_S, eventually


@pytest.mark.parametrize("target", ["rollout-hand-0", "local"])
async def test_an_actor_without_a_node_hears_an_order_to_it_or_to_its_node(
    memory_server: MemoryServer, tmp_path: Path, target: str
) -> None:
    async with context(memory_server, tmp_path, role="rollout", name="rollout-hand-0") as ctx:

        async def heard() -> bool:  # the first orders may be from before it listens
            await order_drain(ctx.bus, "somebody-else", by="test")
            await order_drain(ctx.bus, target, by="test")
            return ctx.stopping.is_set()

        async with asyncio.TaskGroup() as group:
            group.create_task(follow_drains(ctx))
            await eventually(heard)
        assert ctx.stop_reason == "drain"


async def test_an_order_from_before_its_start_is_not_for_it(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout", name="rollout-hand-0") as ctx:
        await order_drain(ctx.bus, "rollout-hand-0", by="yesterday")
        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            following = group.create_task(follow_drains(ctx))
            async for update in ctx.bus.kv.watch(
                wiring.DRAIN.prefix
            ):  # a second watcher has caught up: so has the first, soon
                if not update.key:
                    break
            await asyncio.sleep(0)
            assert not ctx.stopping.is_set()
            following.cancel()


def test_actors_of_a_node_leave_orders_to_it() -> None:
    processes = NodeProcesses(config=CONFIG, node="n", connection=CONNECTION, folder=Path("runs/x"), cores=2)
    for planned in processes.plan(roles_of(CONFIG)):
        assert parse(list(planned.spec.command[3:])).supervised
