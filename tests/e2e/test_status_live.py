"""What `astraflow status` says of real runs in trouble."""

import re
import signal
import time
from pathlib import Path

import pytest

from astraflow.bus import Bus
from astraflow.ports import free_port
from astraflow.view.status import read_status
from astraflow.view.status_text import COLUMNS, LINES
from tests.cli.toyrun import ENDED_EARLY, ENDLESS, TOY, finished, sets, started, write_toy
from tests.e2e.liverun import QUICK, bus_of, connection_to
from tests.support import eventually

BLOCKING = '''\
import time
from pathlib import Path

from astraflow.envs.toy_env import ToyEnv


class Blocking(ToyEnv):
    """Blocks the event loop for as long as the file `block` is there."""

    async def run(self, task, policies):
        while Path("block").exists():
            time.sleep(0.01)  # what a user should not do
        return await super().run(task, policies)
'''
OWN_ENV = TOY + '\n[envs.own]\nkind = "my_env:Blocking"\n\n[sources.own]\nenv = "own"\ngroup_size = 4\n'


@pytest.mark.slow
async def test_who_is_missing_and_who_waits_is_said_in_sentences(tmp_path: Path) -> None:
    write_toy(tmp_path)
    nobody = sets("node.rollouts=0", "policies.solver.engine={ kind = 'toy', replicas = 0 }")
    async with started(tmp_path, "up", "run.toml", *nobody) as up:
        await up.expect("trainer-local-0 is ready")
        async with bus_of(connection_to(tmp_path / "runs/demo")) as bus:
            nobody_plays, nobody_answers = await eventually(lambda: two_problems(bus))
            assert nobody_plays.startswith("0 rollout nodes: tasks wait (")
            assert "game.eval 8" in nobody_plays
            assert nobody_answers == "no policy replica for solver"
            waits = {w.who: w for w in (await read_status(bus)).waits}
            assert waits["trainer solver"].waits_for == "batch 1: 0 of 2 groups"
            assert time.time() - waits["trainer solver"].since < 60
        code, output = await finished(tmp_path, "status")
        assert code == 0
        assert "trainer solver waits for batch 1: 0 of 2 groups" in output
        assert "!  0 rollout nodes: tasks wait" in output
        up.process.send_signal(signal.SIGTERM)
        assert await up.end() == ENDED_EARLY


async def two_problems(bus: Bus) -> tuple[str, ...]:
    """Both, once dataflow has issued its tasks."""
    problems = await complaints(bus)
    return problems if len(problems) == 2 and "tasks wait" in problems[0] else ()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_blocked_loop_and_code_that_a_node_lacks_are_named(tmp_path: Path) -> None:
    write_toy(tmp_path, OWN_ENV)
    (tmp_path / "my_env.py").write_text(BLOCKING)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    up_line = ["up", "run.toml", "--listen", f"127.0.0.1:{free_port()}", *sets(*ENDLESS, *QUICK)]
    async with started(tmp_path, *up_line) as up:
        join = (await up.expect("astraflow node --join")).replace("runs/demo", str(tmp_path / "runs/demo")).split()[1:]
        await up.expect("solver step 1/")
        async with bus_of(connection_to(tmp_path / "runs/demo")) as bus:
            (tmp_path / "block").write_text("")
            sentence = await eventually(lambda: only_complaint(bus, "rollout-local-0 is stuck since "))
            assert re.search(r"my_env\.py:1[23] run", sentence)  # in its loop
            event = await eventually(lambda: loop_event(bus))
            assert "the event loop of rollout-local-0 is blocked since" in event
            assert re.search(r"my_env\.py:1[23] run", event)
            (tmp_path / "block").unlink()
            await eventually(lambda: well(bus))
            lines = (await eventually(lambda: page_without_problems(tmp_path), within_s=120)).splitlines()
            assert len(lines) <= LINES, lines
            assert max(map(len, lines)) <= COLUMNS, lines
            async with started(elsewhere, *join, "--role", "rollout") as node:
                name = (await node.expect(" joins run demo with ")).split()[1]
                await node.expect(f"rollout-{name}-0 is ready")
                lacks = f"rollout-{name}-0 isn't given own: environment my_env:Blocking: there is no mod"
                assert await eventually(lambda: only_complaint(bus, lacks))
                node.process.send_signal(signal.SIGTERM)
                assert await node.end() == 0
        up.process.send_signal(signal.SIGTERM)
        assert await up.end() == ENDED_EARLY


async def page_without_problems(folder: Path) -> str:
    code, output = await finished(folder, "status")
    return output if code == 0 and "\n  !  " not in output else ""


async def only_complaint(bus: Bus, begins: str) -> str:
    """The one sentence of the problems, if it begins so; "" while there is none, another or a second one."""
    found = await complaints(bus)
    return found[0] if len(found) == 1 and found[0].startswith(begins) else ""


async def loop_event(bus: Bus) -> str:
    return next((e.text for e in (await read_status(bus)).events if e.name == "loop-blocked"), "")


async def complaints(bus: Bus) -> tuple[str, ...]:
    return (await read_status(bus)).problems


async def well(bus: Bus) -> bool:
    return not await complaints(bus)
