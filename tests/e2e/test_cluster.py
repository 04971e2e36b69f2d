"""A cluster of equal nodes as real processes: bus, submit, nodes. What a killed node did is taken over by others."""

import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from astraflow.actors.base.connection import Connection
from astraflow.bus import Bus, NatsBus, Topology
from astraflow.messages import Event
from astraflow.ports import free_port
from tests.cli.toyrun import Command, finished, sets, started, write_toy
from tests.e2e.liverun import QUICK, bus_of
from tests.e2e.processes import batches, trained_tasks

STEPS = 150
LONG = (f"policies.solver.trainer.steps={STEPS}", "policies.solver.trainer.toy_step_s=0.1", *QUICK, "bus.lease_s=1")
THREE_STEPS = ("policies.solver.trainer.steps=3", *QUICK)


@dataclass(frozen=True)
class Hub:
    """`astraflow bus` with a token. `at`: url and the flags that reach it."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def at(self) -> list[str]:
        return [self.url, "--token-file", "hub/token"]

    @property
    def connection(self) -> Connection:
        return Connection(url=self.url, region="local", token_file=self.folder / "hub/token")

    def node(self, *flags: str) -> contextlib.AbstractAsyncContextManager[Command]:
        return started(self.folder, "node", "--join", *self.at, *flags)

    async def submit(self, *overrides: str) -> tuple[int, str]:
        return await finished(self.folder, "submit", "run.toml", "--url", *self.at, *sets(*overrides))

    def home(self, run: str = "demo") -> Path:
        """The one folder of a run's nodes."""
        (home,) = (self.folder / "runs").glob(f"{run}-????????")
        return home


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    """A server that ends with code 0, and behind which nothing is left: no process, no temporary file."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    write_toy(tmp_path)
    hub = Hub(tmp_path, free_port())
    async with started(tmp_path, "bus", "--folder", "hub", "--listen", f"127.0.0.1:{hub.port}") as bus:
        assert (await bus.expect("astraflow node --join")).split() == ["astraflow", "node", "--join", *hub.at]
        yield hub
        assert processes_of(hub) == []
        bus.process.send_signal(signal.SIGTERM)
        assert await bus.end() == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def processes_of(hub: Hub) -> list[str]:
    """Command lines of the actors that reach this server."""
    lines = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().decode().replace("\0", " ")
            if hub.url in line:
                lines.append(line)
    return lines


async def takes(node: Command, *roles: str) -> None:
    """Read a node's lines until it has taken all these roles."""
    for role in roles:
        while not re.search(rf"takes .*\b{role}-", node.output):
            await node.expect(" takes ")


async def events(bus: Bus, name: str) -> list[Event]:
    found = [entry.message async for entry in bus.logs.read(bus.topology.events, follow=False)]
    return [event for event in found if isinstance(event, Event) and event.name == name]


@pytest.mark.slow
async def test_equal_nodes_train_a_run_to_its_end_although_the_first_is_killed(hub: Hub) -> None:
    async with hub.node("--threads", "2", "--name", "a") as a, hub.node("--threads", "2", "--name", "b") as b:
        for node in (a, b):
            await node.expect(f"waiting until a run is submitted to {hub.url}")
        code, output = await hub.submit(*LONG)
        assert (code, f"run demo is on {hub.url} and starts as soon as nodes are there" in output) == (0, True), output
        code, output = await hub.submit(*LONG, "run.seed=9")
        assert (code, "is open on this server with another config (run.seed: 0 → 9)" in output) == (2, True), output

        await takes(a, "trainer", "dataflow", "recorder")
        await takes(b, "policy", "rollout")
        await a.shows("solver step 12/")  # behind the first checkpoint
        a.process.kill()
        await a.end()
        await takes(b, "trainer", "dataflow", "recorder")
        assert await b.end(within_s=200) == 0, b.output
        async with bus_of(hub.connection) as bus:
            assert await events(bus, "cold-resume") == []  # it found the first node's checkpoint
    home = hub.home()
    assert batches(home) == list(range(1, STEPS + 1))
    assert set(trained_tasks(home).values()) == {1}
    summary = json.loads((home / "summary.json").read_text())
    assert (summary["finished"], summary["policies"]["solver"]["steps"]) == (True, STEPS)
    code, output = await hub.submit(*LONG)
    assert (code, "has finished" in output) == (0, True), output


@pytest.mark.slow
async def test_two_runs_on_a_server_dont_see_each_other_nor_do_nodes_of_one_name(hub: Hub) -> None:
    for name in ("demo", "other"):
        code, output = await hub.submit(*THREE_STEPS, f"run.name={name}")
        assert code == 0, output
    code, output = await finished(hub.folder, "node", "--join", *hub.at)
    assert (code, f"several runs are open on {hub.url}: demo, other" in output) == (2, True), output

    twin = ("--run", "demo", "--name", "twin", "--threads", "2")
    async with hub.node(*twin) as first, hub.node(*twin) as second:
        names = {(await node.expect(" joins run demo with ")).split()[1] for node in (first, second)}
        assert len(names) == 2
        assert [await first.end(), await second.end()] == [0, 0], first.output + second.output
    logs = {path.name.removesuffix(".log") for path in (hub.home() / "logs").iterdir()}
    assert {name for name in names if any(name in log for log in logs)} == names

    where = ["--url", *hub.at, "--json"]
    seen = {
        name: json.loads((await finished(hub.folder, "status", "--run", name, *where))[1]) for name in ("demo", "other")
    }
    assert (seen["demo"]["stop_requested"], seen["demo"]["policies"]["solver"]["step"]) == ("finished", 3)
    other = seen["other"]
    assert (other["stop_requested"], other["members"], other["gone"], other["events"]) == ("", [], [], [])
    assert other["policies"]["solver"]["step"] == other["policies"]["solver"]["version"] == 0
    assert set(other["queues"].values()) == {0}
    assert "0 rollout nodes" in other["problems"]
    async with NatsBus.connect(hub.connection.options(), bare("other"), producer="test") as bus:
        records = await bus.runs()
    assert {name: record.stop_requested for name, record in records.items()} == {"demo": "finished", "other": ""}


def bare(run: str) -> Topology:
    return Topology(run=run, region="local", envs=(), policies=())


@pytest.mark.slow
async def test_what_a_node_lacks_is_in_status_and_others_take_it(hub: Hub) -> None:
    (hub.folder / "elsewhere").mkdir()
    (hub.folder / "my_game.py").write_text("from astraflow.envs.toy_env import ToyEnv as Game\n")
    code, output = await hub.submit(*THREE_STEPS, "envs.game.kind=my_game:Game")
    assert code == 0, output
    join = ["node", "--join", hub.url, "--token-file", "../hub/token", "--folder", "../runs", "--name", "poor"]
    async with started(hub.folder / "elsewhere", *join) as poor:
        await poor.expect("not rollout: game: my_game can't be imported here")
        await poor.shows("takes ")
        code, output = await finished(hub.folder, "status", "--url", *hub.at, "--run", "demo")
        assert re.search(r"no dataflow: no tasks are issued \(not on poor-\S+: game: my_game can't be", output), output
        async with hub.node("--name", "rich") as rich:
            await takes(rich, "dataflow", "rollout")
            assert [await rich.end(), await poor.end()] == [0, 0], rich.output + poor.output
    assert not re.search(r"takes .*(dataflow|rollout)", poor.output)
