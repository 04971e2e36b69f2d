"""`astraflow up` as real processes: a toy run from start to end, stopped, continued, extended, refused."""

import json
import os
import signal
import socket
import sys
import tomllib
from pathlib import Path

import pytest

from astraflow.bus import EmbeddedServer
from astraflow.node.runfolder import RunFolder
from astraflow.ports import free_port
from tests.cli.toyrun import ENDED_EARLY, ENDLESS, Command, finished, sets, started, write_toy
from tests.support import eventually

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_toy(tmp_path)
    return tmp_path


@pytest.mark.slow
async def test_a_run_goes_to_its_end_goes_on_with_more_steps_and_is_refused_changes_until_it_is_fresh(
    folder: Path,
) -> None:
    code, output = await finished(folder, "up", "run.toml")
    assert code == 0, output
    home = folder / "runs/demo"
    first = json.loads((home / "summary.json").read_text())
    assert (first["finished"], first["policies"]["solver"]["steps"]) == (True, 4)
    assert tomllib.loads((home / "run.toml").read_text())["policies"]["solver"]["trainer"]["steps"] == 4
    assert sorted(p.name for p in (home / "logs").iterdir()) == [
        f"{role}-local-0.log" for role in ("dataflow", "policy", "recorder", "rollout", "trainer")
    ]

    code, output = await finished(folder, "up", "run.toml")
    assert code == 0
    assert "this run has finished" in output
    assert "--set policies.solver.trainer.steps=8" in output
    assert "start afresh: --fresh" in output

    code, output = await finished(folder, "up", "run.toml", *sets("policies.solver.trainer.steps=6"))
    assert code == 0, output
    assert "changed since the run began: policies.solver.trainer.steps: 4 → 6" in output
    longer = json.loads((home / "summary.json").read_text())
    assert longer["policies"]["solver"]["steps"] == 6
    assert longer["incarnation"] == first["incarnation"]

    code, output = await finished(folder, "up", "run.toml", *sets("run.seed=9"))
    assert code == 2
    assert "run.seed was 0 when run 'demo' began and is 9 now" in output
    assert "Traceback" not in output
    code, output = await finished(folder, "up", "run.toml", "--fresh", *sets("run.seed=9"))
    assert code == 0, output
    assert "the old run is now in runs/demo.old-" in output
    assert json.loads((home / "summary.json").read_text())["policies"]["solver"]["steps"] == 4


@pytest.mark.slow
async def test_a_live_run_refuses_a_second_up_answers_status_replaces_who_leaves_and_continues_after_ctrl_c(
    folder: Path,
) -> None:
    endless = ["up", "run.toml", *sets(*ENDLESS, "node.grace_s=100")]
    async with started(folder, *endless) as command:
        await command.expect("solver step 1/")
        await _a_second_up_is_refused(folder, command)

        os.kill(child_pid(command.process.pid, "--role rollout"), signal.SIGTERM)
        await command.expect("rollout-local-0 ended before the run did; starting it again")
        await command.expect("rollout-local-0 is ready")
        await command.expect("solver step ")
        command.process.send_signal(signal.SIGINT)
        assert await command.end() == ENDED_EARLY, command.output
        assert "draining: work in flight is handed back" in command.output
        assert "the same command continues this run" in command.output
    summary = json.loads((folder / "runs/demo/summary.json").read_text())
    steps = summary["policies"]["solver"]["steps"]
    assert (summary["finished"], steps >= 2) == (False, True)
    code, output = await finished(folder, "status", "--folder", "runs/demo")
    assert code == 1
    assert "run demo is not running; `astraflow up run.toml --set " in output

    async with started(folder, *endless) as command:
        await command.expect(f"solver step {steps + 1}/")
        stopped = child_pid(command.process.pid, "--role rollout")
        os.kill(stopped, signal.SIGSTOP)  # it can't drain: only a second Ctrl-C ends this
        command.process.send_signal(signal.SIGINT)
        await command.expect("draining")
        command.process.send_signal(signal.SIGINT)
        assert await command.end() == 130, command.output


async def _a_second_up_is_refused(folder: Path, command: Command) -> None:
    code, output = await finished(folder, "up", "run.toml")
    assert code == 2
    assert f"is in use by process {command.process.pid} (`astraflow up run.toml --set " in output
    code, output = await finished(folder, "up", "run.toml", "--fresh")
    assert (code, "is in use by process" in output) == (2, True)

    code, output = await finished(folder, "status")
    assert code == 0, output
    assert "run demo" in output
    code, output = await finished(folder, "status", "--json", "--folder", "runs/demo")
    assert code == 0, output
    assert json.loads(output)["run"] == "demo"


async def test_ctrl_c_while_starting_gives_up(folder: Path) -> None:
    async with started(folder, "up", "run.toml") as command:
        home = RunFolder(folder / "runs/demo")
        await eventually(home.live)
        command.process.send_signal(signal.SIGINT)
        assert await command.end() == 130, command.output
        assert command.output.endswith("astraflow: interrupted\n")
    assert not home.live()


@pytest.mark.slow
async def test_killed_actors_and_a_killed_server_come_back(folder: Path) -> None:
    many = sets("policies.solver.trainer.steps=60", "policies.solver.trainer.toy_step_s=0.05")
    async with started(folder, "up", "run.toml", *many) as command:
        await command.expect("solver step 2/")
        os.kill(child_pid(command.process.pid, "--role policy"), signal.SIGKILL)
        await command.expect("policy-local-0 was killed by SIGKILL")
        os.kill(child_pid(command.process.pid, "nats-server.conf"), signal.SIGKILL)
        await command.expect("nats-server was killed by SIGKILL; starting it again")
        assert await command.end() == 0, command.output
    summary = json.loads((folder / "runs/demo/summary.json").read_text())
    assert summary["policies"]["solver"]["steps"] == 60


@pytest.mark.slow
async def test_a_crash_that_is_not_made_good_ends_up_with_1_and_leaves_nothing_running(folder: Path) -> None:
    async with started(folder, "up", "run.toml", *sets(*ENDLESS, "node.max_restarts=0")) as command:
        await command.expect("solver step 1/")
        children = descendants(command.process.pid)
        os.kill(child_pid(command.process.pid, "--role rollout"), signal.SIGKILL)
        assert await command.end() == 1, command.output
        assert "was killed by SIGKILL and node.max_restarts is 0" in command.output
        await eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in children))


async def test_a_killed_up_takes_everything_with_it(folder: Path) -> None:
    async with started(folder, "up", "run.toml", *sets(*ENDLESS)) as command:
        await command.expect("solver step 1/")
        children = descendants(command.process.pid)
        assert len(children) >= 6
        command.process.kill()
        await eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in children))
    assert not RunFolder(folder / "runs/demo").live()


@pytest.mark.slow
async def test_another_machine_joins_with_the_printed_line(folder: Path) -> None:
    port = free_port()
    async with started(folder, "up", "run.toml", "--listen", f"127.0.0.1:{port}", *sets(*ENDLESS)) as command:
        line = (await command.expect("astraflow node --join")).strip()
        assert line == (f"astraflow node --join nats://127.0.0.1:{port} --run demo --token-file runs/demo/nats/token")
        await command.expect("solver step 1/")
        async with started(folder, *line.split()[1:], "--role", "rollout") as node:
            await node.expect("joins run demo with rollout-")
            await node.expect("is ready")
            node.process.send_signal(signal.SIGTERM)
            assert await node.end() == 0, node.output
        code, output = await finished(folder, *line.split()[1:], "--role", "trainer")
        assert (code, "write trainer:NAME with one of solver" in output) == (2, True)
        code, output = await finished(folder, *line.split()[1:], "--role", "policy:solvr")
        assert (code, "write policy:NAME with one of solver" in output) == (2, True)
        async with started(folder, *line.replace("demo --token", "other --token").split()[1:]) as waiting:
            await waiting.expect("waiting until run other is submitted to nats://")
            waiting.process.send_signal(signal.SIGTERM)
            assert await waiting.end() == 0
        (folder / "wrong").write_text("not the token")
        wrong = f"node --join nats://127.0.0.1:{port} --run demo --token-file wrong".split()
        code, output = await finished(folder, *wrong)
        assert code == 1
        assert "credentials" in output
        command.process.send_signal(signal.SIGINT)
        assert await command.end() == ENDED_EARLY


async def test_a_taken_port_is_a_sentence(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = await finished(folder, "up", "run.toml", "--listen", f"127.0.0.1:{port}")
    assert code == 1
    assert f"port {port} on 127.0.0.1 is taken" in output
    assert "Traceback" not in output


@pytest.mark.slow
async def test_a_run_on_an_external_server(folder: Path, nats_server: EmbeddedServer) -> None:
    external = [f"bus.url={nats_server.url}", f"bus.token_file={nats_server.token_file}"]
    code, output = await finished(folder, "up", "run.toml", *sets(*external))
    assert code == 0, output
    assert not (folder / "runs/demo/nats").exists()
    token = ["--token-file", str(nats_server.token_file)]
    code, output = await finished(folder, "status", "--url", nats_server.url, "--run", "demo", *token)
    assert (code, "run demo · finished" in output) == (0, True), output
    (folder / "wrong").write_text("not the token")
    code, output = await finished(folder, "up", "run.toml", *sets(external[0], "bus.token_file=wrong"))
    assert (code, "credentials" in output, "Traceback" in output) == (1, True, False), output


@pytest.mark.slow
async def test_an_external_server_that_isnt_there_is_a_sentence(folder: Path) -> None:
    code, output = await finished(folder, "up", "run.toml", *sets(f"bus.url=nats://127.0.0.1:{free_port()}"))
    assert code == 1
    assert "Traceback" not in output
    assert "nats://127.0.0.1:" in output


async def test_flags_that_make_no_sense_are_refused(folder: Path) -> None:
    code, output = await finished(folder, "up", "run.toml", "--listen", "nowhere")
    assert (code, "expected HOST:PORT" in output) == (2, True)
    external = sets("bus.url=nats://127.0.0.1:1")
    code, output = await finished(folder, "up", "run.toml", "--listen", "127.0.0.1:1", *external)
    assert (code, "--listen is for the embedded server" in output) == (2, True)
    code, output = await finished(folder, "up", "run.toml", "--fresh", *external)
    assert (code, "choose another run.name" in output) == (2, True)


async def test_a_damaged_model_is_a_sentence(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{")
    real = ["policies.solver.model=model", "policies.solver.engine.kind=cpu", "policies.solver.trainer.learner=torch"]
    code, output = await finished(folder, "up", "run.toml", *sets(*real))
    assert (code, "Traceback" in output) == (2, False), output
    assert "model" in output


async def test_users_code_that_fails_ends_the_run_with_its_line_told_once(folder: Path) -> None:
    (folder / "own.py").write_text("class Raises:\n    def drops(self, group):\n        raise ValueError('broken')\n")
    code, output = await finished(folder, "up", "run.toml", *sets('policies.solver.trainer.filters=["own:Raises"]'))
    why = (
        "dataflow-local-0: policies.solver.trainer.filters: own:Raises failed in drops(): ValueError: broken "
        "(own.py line 3); mend it and go on"
    )
    assert (code, output.count("own.py line 3")) == (1, 1), output
    assert output.endswith(f"astraflow: {why}\n")
    assert "process-failed" not in output
    summary = json.loads((folder / "runs/demo/summary.json").read_text())
    assert (summary["finished"], summary["stop_reason"], summary["failure"]) == (False, "failed", why)
    events = [json.loads(line) for line in (folder / "runs/demo/events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["name"] == "process-failed"] == [why]


async def test_a_folder_that_cant_be_made_is_a_sentence(folder: Path) -> None:
    (folder / "file").write_text("")
    code, output = await finished(folder, "up", "run.toml", *sets("run.folder=file/runs"))
    assert code == 2
    assert "run folder file/runs/demo: a part of this path is a file, not a folder" in output


def descendants(pid: int) -> list[int]:
    """Process ids of the children of a process, and theirs. Linux."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def child_pid(pid: int, part: str) -> int:
    """The descendant with `part` in its command line."""
    for child in descendants(pid):
        if part in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "):
            return child
    raise AssertionError(f"no child with {part!r}")
