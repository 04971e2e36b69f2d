"""The supervised connection: clients that close for good, servers that hang, blocks that end."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.bus import Bus, BusOptions, EmbeddedServer, NatsBus, Topology
from astraflow.bus.window import Window
from astraflow.concurrency import Background, in_parallel
from astraflow.errors import BusError
from tests.support import AT_ONCE_S, LIMIT_S, eventually, make_episode, server_with


async def test_a_client_that_the_server_closed_for_good_is_replaced(bus: Bus, topology: Topology) -> None:
    session = await bus.link.session()
    await session.send("x", bytes(session.max_payload_bytes), headers={"Too": "big"})  # nats-py checks only the payload
    await eventually(lambda: bus.link.reconnects == 1)
    assert (await bus.publish(topology.episode("math"), make_episode(), msg_id="a")).sequence == 1


async def test_a_frozen_server_is_noticed_and_work_goes_on(
    bus: Bus, topology: Topology, nats_server: EmbeddedServer
) -> None:
    os.kill(nats_server.pid, signal.SIGSTOP)
    try:
        async with asyncio.TaskGroup() as group:
            publish = group.create_task(
                bus.publish(topology.episode("math"), make_episode(), msg_id="a", deadline_s=None)
            )
            await eventually(lambda: not bus.link.up.is_set())
            os.kill(nats_server.pid, signal.SIGCONT)
        assert publish.result().sequence == 1
        assert (await bus.logs.state(topology.episodes)).messages == 1  # the frozen try and the retry are one
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)


async def test_credentials_that_may_not_subscribe_to_inboxes_are_named(tmp_path: Path, topology: Topology) -> None:
    users = 'authorization { users: [ { user: u, password: p, permissions: { subscribe: "nothing" } } ] }'
    async with server_with(users, tmp_path) as url:
        with pytest.raises(BusError, match="_INBOX"):
            async with NatsBus.connect(BusOptions(url=url, user="u", password="p"), topology, producer="test"):
                pass


async def test_the_second_server_of_a_list_is_used(nats_server: EmbeddedServer, topology: Topology) -> None:
    options = BusOptions(url=f"nats://127.0.0.1:1,{nats_server.url}", token=nats_server.token)
    async with NatsBus.connect(options, topology, producer="test") as bus:
        await bus.ensure()


async def test_errors_of_the_block_pass_unwrapped(nats_server: EmbeddedServer, topology: Topology) -> None:
    with pytest.raises(KeyError):
        async with NatsBus.connect(nats_server.options, topology, producer="test"):
            raise KeyError("mine")


async def test_after_the_block_everything_fails_at_once(nats_server: EmbeddedServer, topology: Topology) -> None:
    async with NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        await bus.ensure()
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(BusError, match="closed"):
            await bus.publish(topology.episode("math"), make_episode(), msg_id="a")


async def test_leaving_while_the_server_is_down_is_quick(nats_server: EmbeddedServer, topology: Topology) -> None:
    async with asyncio.timeout(LIMIT_S), NatsBus.connect(nats_server.options, topology, producer="test") as bus:
        await bus.ensure()
        await nats_server.stop()
        await eventually(lambda: not bus.link.up.is_set())


async def test_a_crashed_background_task_ends_the_block_with_its_error() -> None:
    async def crash() -> None:
        raise ValueError("crash")

    async def block() -> None:
        async with Background() as background:
            background.start(crash())
            await asyncio.Event().wait()

    with pytest.raises(ValueError, match="crash"):
        await block()


async def test_the_first_error_of_parallel_work_ends_it_unwrapped() -> None:
    done = []

    async def work(item: int) -> None:
        if item == 3:
            raise ValueError(item)
        done.append(item)
        await asyncio.sleep(0)

    with pytest.raises(ValueError, match="3"):
        await in_parallel(range(100), work, workers=2)
    assert len(done) < 10


async def test_the_window_bounds_bytes_and_survives_cancelled_waiters() -> None:
    window = Window(10)
    under_way = most = 0

    async def hold(size: int) -> None:
        nonlocal under_way, most
        async with window.hold(size):
            under_way += size
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= size

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hold(size)) for size in [6, 6, 3, 10, 1, 1] * 5]
        await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[4].cancel()
    assert most <= 10
    async with asyncio.timeout(AT_ONCE_S), window.hold(100):  # alone, more than the window
        pass


def test_importing_the_bus_does_not_import_nats() -> None:
    code = "import sys, astraflow.bus; assert not [m for m in sys.modules if m == 'nats' or m.startswith('nats.')]"
    subprocess.run([sys.executable, "-c", code], check=True)
