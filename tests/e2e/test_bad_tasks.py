"""An environment that can't make some of its tasks costs these tasks, not the run; one that can make none stops it."""

import json
from pathlib import Path

import pytest

from tests.cli.toyrun import finished, sets
from tests.e2e.finite import FiniteRun
from tests.e2e.processes import trained_tasks

ENV = """\
from astraflow.envs.toy_env import ToyEnv

BAD = {1: {"object": object()}, 2: {"text": "\\ud800"}, 3: {4: 5}, 4: [0], 5: {"big": 1 << 70}}
BAD[6] = {"self": BAD}


class SomeBad(ToyEnv):
    def task(self, index):
        if index == 7:
            raise KeyError(index)
        return BAD.get(index) or super().task(index)


class AllBad(ToyEnv):
    def task(self, index):
        return {"object": object()} if index else super().task(0)  # `check` makes the first one
"""
GROUPS, BAD = 12, 7


def write_run(folder: Path, kind: str) -> FiniteRun:
    (folder / "bad_env.py").write_text(ENV)
    run = FiniteRun(name="bad", groups=GROUPS, step_s=0.0)
    (folder / "run.toml").write_text(run.text().replace('kind = "toy"\nargs', f'kind = "bad_env:{kind}"\nargs'))
    return run


@pytest.mark.slow
async def test_tasks_that_cant_be_made_end_as_the_environments_failures(tmp_path: Path) -> None:
    write_run(tmp_path, "SomeBad")
    code, output = await finished(tmp_path, "up", "run.toml")
    assert code == 0, output
    summary = json.loads((tmp_path / "runs/bad/summary.json").read_text())
    ledger = summary["policies"]["solver"]["ledger"]
    assert ledger["issued"] == GROUPS * 4
    assert ledger["env"] == BAD * 4
    good = {f"game/0/{index}/{member}": 1 for index in (0, *range(8, GROUPS)) for member in range(4)}
    assert trained_tasks(tmp_path / "runs/bad") == good
    told = (tmp_path / "runs/bad/events.jsonl").read_text()
    assert "task 7 of source game can't be made: KeyError: 7" in told


async def test_an_environment_that_can_make_no_task_stops_the_run_with_its_error(tmp_path: Path) -> None:
    write_run(tmp_path, "AllBad")
    code, output = await finished(tmp_path, "up", "run.toml", *sets("dataflow.max_failed_groups=3"))
    assert code != 0
    assert "3 groups in a row ended without enough valid rewards" in output
    assert "can't be encoded" in output
