"""User code that blocks an event loop past every deadline: nothing is lost or trained twice, and it is named."""

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
