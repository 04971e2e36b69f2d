"""Nodes as real processes: they join a toy run, work, are drained, killed and preempted, and leave when it ends."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from astraflow.bus import EmbeddedServer
from astraflow.messages import MemberState
from astraflow.ports import free_port
from tests.cli.toyrun import ENDED_EARLY, ENDLESS, Command, finished, sets, started, write_toy
from tests.e2e.liverun import QUICK, bus_of, connection_to, episode_from, members
from tests.e2e.processes import pid_of
from tests.support import eventually, kill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_toy(tmp_path)
    return tmp_path


async def join_line(up: Command) -> list[str]:
    """The arguments that `up --listen` prints for other machines."""
    return (await up.expect("astraflow node --join")).split()[1:]


async def name_of(node: Command) -> str:
    """The name under which a node has joined."""
    return (await node.expect(" joins run demo with ")).split()[1]


@pytest.mark.slow
async def test_nodes_come_and_go_while_a_run_goes_on_and_leave_when_it_is_stopped(folder: Path) -> None:
    up = ["up", "run.toml", "--listen", f"127.0.0.1:{free_port()}", *sets(*ENDLESS, *QUICK)]
    async with started(folder, *up) as first_up:
        join = [*await join_line(first_up), "--threads", "2", "--name", "extra"]
        await first_up.expect("solver step 1/")
        async with bus_of(connection_to(folder / "runs/demo")) as bus, asyncio.timeout(300):
            await works_and_is_drained(folder, join, bus)
            await is_killed(folder, join, bus)
            await first_up.expect("solver step ")
            await is_preempted(folder, join)
            await first_up.expect("solver step ")
            async with started(folder, *join) as node, started(folder, "top") as top:
                await name_of(node)
                await top.expect("solver step ")
                code, output = await finished(folder, "stop")
                assert (code, "run demo stops" in output) == (0, True), output
                assert [await node.end(), await top.end(), await first_up.end()] == [0, 0, ENDED_EARLY], node.output
        assert "the same command continues this run" in first_up.output
    async with started(folder, *up) as second_up:  # it goes on where the checkpoints are
        line = await second_up.expect("solver step ")
        assert int(line.split("solver step ")[1].split("/")[0]) > 3
        second_up.process.send_signal(signal.SIGTERM)
        assert await second_up.end() == ENDED_EARLY


async def works_and_is_drained(folder: Path, join: list[str], bus) -> None:
    async with started(folder, *join) as node:
        name = await name_of(node)
        assert name.startswith("extra-")
        await episode_from(bus, f"rollout-{name}-0")
        await eventually(lambda: is_ready(bus, f"policy-{name}-0"))
        code, output = await finished(folder, "drain", f"policy-{name}-0")
        assert (code, f"policy-{name}-0 has left after" in output) == (0, True), output
        await episode_from(bus, f"rollout-{name}-0")
        assert set(await members(bus, name)) == {f"node-{name}", f"rollout-{name}-0"}
        code, output = await finished(folder, "drain", name)
        assert (code, f"{name} has left after" in output) == (0, True), output
        assert await node.end() == 0
        assert "draining this node, asked by" in node.output
    code, output = await finished(folder, "drain", name)
    assert (code, f"no actor and no node of this run is called '{name}'" in output) == (2, True), output


async def is_killed(folder: Path, join: list[str], bus) -> None:
    async with started(folder, *join) as node:
        name = await name_of(node)
        await episode_from(bus, f"rollout-{name}-0")
        node.process.kill()
        await node.end()
    await eventually(lambda: nobody(bus, name))


async def is_preempted(folder: Path, join: list[str]) -> None:
    async with started(folder, *join, "--preempt-file", "notice", "--role", "rollout") as node:
        await node.expect("is ready")
        (folder / "notice").write_text("")
        assert await node.end() == 0, node.output
        assert "is preempted: file notice exists; draining" in node.output


async def is_ready(bus, actor: str) -> bool:
    member = (await members(bus)).get(actor)
    return member is not None and member.state is MemberState.READY


async def nobody(bus, node: str) -> bool:
    return not await members(bus, node)


@pytest.mark.slow
async def test_a_node_outlives_its_server_and_starts_nothing_before_it_is_back(
    folder: Path, nats_server: EmbeddedServer
) -> None:
    external = [f"bus.url={nats_server.url}", f"bus.token_file={nats_server.token_file}"]
    join = ["node", "--join", nats_server.url, "--run", "demo", "--token-file", str(nats_server.token_file)]
    async with started(folder, "up", "run.toml", *sets(*external, *ENDLESS, *QUICK)) as up:
        await up.expect("solver step 1/")
        code, output = await finished(folder, "up", "run.toml", *sets(*external, "run.folder=elsewhere"))
        assert (code, "run 'demo' is already up on this server" in output) == (2, True), output
        async with started(folder, *join, "--role", "rollout") as node:
            name = await name_of(node)
            await node.expect("is ready")
            await kill(nats_server)
            os.kill(pid_of(f"rollout-{name}-0", parent=node.process.pid), signal.SIGKILL)
            await node.expect(f"rollout-{name}-0 was killed by SIGKILL")
            server = EmbeddedServer(nats_server.folder, host=nats_server.host, port=nats_server.port)
            await server.start()
            try:
                await node.expect(f"rollout-{name}-0 is joining")
                code, output = await finished(folder, "stop", *join_to_url(join))
                assert code == 0, output
                assert [await node.end(), await up.end()] == [0, ENDED_EARLY], node.output
            finally:
                await server.stop()


def join_to_url(join: list[str]) -> list[str]:
    return ["--url", *join[2:]]
