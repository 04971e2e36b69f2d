"""Runs that end before their steps are done because somebody wants it so: a goal in the run file, a script."""

import json
from pathlib import Path

import pytest

import astraflow as af
from astraflow.ports import free_port
from tests.cli.toyrun import ENDED_EARLY, ENDLESS, finished, sets, started, write_toy
from tests.e2e.liverun import connection_to

GOAL = 'run.stop_when="eval.held-out.reward of solver >= -1000"'


@pytest.mark.slow
async def test_a_goal_that_is_reached_ends_the_run_well_and_once(tmp_path: Path) -> None:
    write_toy(tmp_path)
    code, output = await finished(tmp_path, "up", "run.toml", *sets(*ENDLESS, GOAL, "record.tensorboard=true"))
    assert code == 0, output
    assert "goal reached: eval.held-out.reward of solver is " in output
    summary = json.loads((tmp_path / "runs/demo/summary.json").read_text())
    assert summary["stop_reason"].startswith("goal reached: eval.held-out.reward of solver is ")
    assert not summary["finished"]
    events = (tmp_path / "runs/demo/events.jsonl").read_text()
    assert "the run ends: goal reached: eval.held-out.reward" in events

    code, shown = await finished(tmp_path, "show", "runs/demo", "--eval", "held-out", "--best", "2")
    assert code == 0, shown
    assert shown.count("━━ #") == 2
    assert "assistant │" in shown
    assert list((tmp_path / "runs/demo/tensorboard/solver").glob("*tfevents*"))

    code, again = await finished(tmp_path, "up", "run.toml", *sets(*ENDLESS, GOAL))
    assert code == 0, again
    assert "go on with another goal" in again
    code, longer = await finished(tmp_path, "up", "run.toml", *sets("policies.solver.trainer.steps=6"))
    assert code == 0, longer
    assert json.loads((tmp_path / "runs/demo/summary.json").read_text())["finished"]


async def test_a_script_stops_a_run(tmp_path: Path) -> None:
    file = write_toy(tmp_path)
    up = ["up", str(file), "--listen", f"127.0.0.1:{free_port()}", *sets(*ENDLESS)]
    async with started(tmp_path, *up) as command:
        await command.expect("astraflow node --join")
        connection = connection_to(tmp_path / "runs" / "demo")
        async with af.connect(connection.url, run="demo", token_file=connection.token_file) as run:
            await run.stop(within_s=60)
        assert await command.end() == ENDED_EARLY, command.output
    assert json.loads((tmp_path / "runs/demo/summary.json").read_text())["stop_reason"] == "stopped"
