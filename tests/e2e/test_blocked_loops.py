"""User code that blocks an event loop past every deadline: nothing is lost or trained twice, and it is named."""

import json
from pathlib import Path

import pytest

from tests.cli.toyrun import started
from tests.e2e.finite import FiniteRun

OWN = """\
import time
from pathlib import Path

from astraflow.envs.toy_env import ToyEnv


def block_once(what):
    try:
        Path(what).unlink()
    except FileNotFoundError:
        return
    time.sleep(7)  # what a user should not do: ack wait 1 s, lease and member 2 s


class BlockingEnv(ToyEnv):
    async def run(self, task, policies):
        block_once("block-rollout")
        return await super().run(task, policies)


class BlockingFilter:
    def drops(self, group):
        block_once("block-dataflow")
        return ""
"""


@pytest.mark.slow
async def test_a_blocked_rollout_and_a_blocked_dataflow_lose_and_repeat_nothing(tmp_path: Path) -> None:
    run = FiniteRun(name="blocked", groups=24, rollouts=2, standbys=1)
    text = run.text().replace('kind = "toy"\nargs', 'kind = "own:BlockingEnv"\nargs')
    (tmp_path / "run.toml").write_text(text.replace("filters = []", 'filters = ["own:BlockingFilter"]'))
    (tmp_path / "own.py").write_text(OWN)
    for what in ("rollout", "dataflow"):
        (tmp_path / f"block-{what}").touch()
    async with started(tmp_path, "up", "run.toml") as command:
        await command.expect("it was silent (epoch 2)")
        await command.expect("was fenced off and starts again: ")
        assert await command.end() == 0, command.output
    assert run.broken(tmp_path / "runs/blocked") == []
    events = (tmp_path / "runs/blocked/events.jsonl").read_text()
    for role in ("rollout", "dataflow"):
        assert f"the event loop of {role}-local-" in events
    assert "own.py:12 block_once" in events


HELD_UP = """\
import time

from astraflow.envs.toy_env import ToyEnv


class HeldUp(ToyEnv):
    async def run(self, task, policies):
        outcome = await super().run(task, policies)
        if task.payload["index"] == 1:
            time.sleep(3600)
        return outcome

    async def close(self):
        exit("closed")
"""


@pytest.mark.slow
async def test_code_that_holds_the_loop_up_for_good_is_named_and_the_process_replaced(tmp_path: Path) -> None:
    run = FiniteRun(name="held", groups=6, rollouts=1, standbys=0)
    text = run.text().replace('kind = "toy"\nargs', 'kind = "own:HeldUp"\nargs')
    (tmp_path / "run.toml").write_text(text)
    (tmp_path / "own.py").write_text(HELD_UP)
    async with started(tmp_path, "up", "run.toml", "--set", "node.blocked_s=1.5") as command:
        assert await command.end() == 0, command.output
    folder = tmp_path / "runs/held"
    lines = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    failed = {line["task_id"].split("/", 1)[1]: line for line in lines if line["reason"] == "env"}
    assert sorted(failed) == [f"game/0/1/{member}" for member in range(4)]
    for line in failed.values():
        assert "it held the event loop up for" in line["error"]
        assert "own.py line 10, run, and its process was ended" in line["error"]
    log = next((folder / "logs").glob("rollout-local-0*")).read_text()
    assert "environment game can't be closed: SystemExit: closed (own.py line 14)" in log
