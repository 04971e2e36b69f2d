"""kill −9 each process of a run once: nothing is lost, nothing is trained twice."""

import json
from pathlib import Path

import pytest

from tests.cli.toyrun import started
from tests.e2e.finite import FiniteRun
from tests.e2e.processes import kill


async def run_with_kills(run: FiniteRun, folder: Path, kills: list[tuple[int, str]]) -> dict[str, int]:
    """`astraflow up` to its end; `kills`: after which step to kill which actor. The ledger."""
    (folder / "run.toml").write_text(run.text())
    async with started(folder, "up", "run.toml") as command:
        for step, actor in kills:
            await command.expect(f"solver step {step}/")
            kill(actor, parent=command.process.pid)
        code = await command.end()
        assert code == 0, command.output
    home = folder / "runs" / run.name
    assert run.broken(home) == []
    ledger: dict[str, int] = json.loads((home / "summary.json").read_text())["policies"]["solver"]["ledger"]
    return ledger


@pytest.mark.slow
async def test_each_process_killed_once_loses_and_repeats_nothing(tmp_path: Path) -> None:
    run = FiniteRun(name="kills", groups=56)
    kills = [
        (2, "trainer-local-0"),  # before its first checkpoint
        (4, "rollout-local-0"),
        (8, "policy-local-0"),
        (12, "dataflow-local-0"),
        (17, "trainer-local-0"),
        (22, "recorder-local-0"),
    ]
    ledger = await run_with_kills(run, tmp_path, kills)
    assert ledger["emitted"] == run.groups * run.members


@pytest.mark.slow
async def test_with_filters_no_task_is_trained_twice_and_each_has_one_fate(tmp_path: Path) -> None:
    run = FiniteRun(name="kills", groups=60, filtered=True)
    kills = [(3, "dataflow-local-0"), (6, "trainer-local-0"), (9, "rollout-local-0"), (11, "policy-local-0")]
    ledger = await run_with_kills(run, tmp_path, kills)
    assert ledger["env"] > 0
    assert ledger["zero-advantage"] > 0
