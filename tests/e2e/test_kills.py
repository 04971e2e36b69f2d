"""kill −9 each process of a run once: nothing is lost, nothing is trained twice (DESIGN §3, §13)."""

import json
from pathlib import Path

import pytest

from tests.cli.toyrun import Command, started
from tests.e2e.processes import batches, kill, trained_tasks

GROUPS, MEMBERS = 60, 4
RUN = f"""\
[run]
name = "kills"
seed = 3

[policies.solver]
model = "toy"
engine = {{ kind = "toy", slots = 8, toy_step_s = 0.002 }}
sampling = {{ max_new_tokens = 12 }}

[policies.solver.trainer]
learner = "toy"
steps = 1000
batch_groups = 2
max_staleness = 30
filters = []
checkpoint_every = 3
toy_step_s = 0.1

[envs.game]
kind = "toy"
args = {{ size = {GROUPS} }}

[sources.game]
env = "game"
group_size = {MEMBERS}
epochs = 1

[dataflow]
snapshot_every_s = 0.5
task_deadline_s = 20

[bus]
ack_wait_s = 1
member_ttl_s = 2
silence_s = 2

[node]
episodes_per_rollout = 8
"""


async def run_with_kills(folder: Path, kills: list[tuple[int, str]], text: str = RUN) -> Command:
    """`astraflow up` to its end; `kills`: after which step to kill which actor."""
    (folder / "run.toml").write_text(text)
    async with started(folder, "up", "run.toml") as command:
        for step, actor in kills:
            await command.expect(f"solver step {step}/")
            kill(actor, parent=command.process.pid)
        code = await command.end(within_s=150)
        assert code == 0, command.output
        return command


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_each_process_killed_once_loses_and_repeats_nothing(tmp_path: Path) -> None:
    kills = [
        (2, "trainer-local-0"),  # before its first checkpoint
        (4, "rollout-local-0"),
        (8, "policy-local-0"),
        (12, "dataflow-local-0"),
        (17, "trainer-local-0"),
        (22, "recorder-local-0"),
    ]

    await run_with_kills(tmp_path, kills)

    expected = {f"game/0/{index}/{member}": 1 for index in range(GROUPS) for member in range(MEMBERS)}
    assert trained_tasks(tmp_path / "runs/kills") == expected
    assert batches(tmp_path / "runs/kills") == list(range(1, GROUPS // 2 + 1))
    summary = json.loads((tmp_path / "runs/kills/summary.json").read_text())
    assert summary["finished"] is True
    assert summary["policies"]["solver"]["trained_tasks"] == GROUPS * MEMBERS


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_with_filters_no_task_is_trained_twice_and_each_has_one_fate(tmp_path: Path) -> None:
    text = RUN.replace("filters = []", 'filters = ["zero-advantage"]').replace(
        f"size = {GROUPS}", f"size = {GROUPS}, flat_share = 0.4, fail_every = 13"
    )
    kills = [(3, "dataflow-local-0"), (6, "trainer-local-0"), (9, "rollout-local-0"), (11, "policy-local-0")]

    await run_with_kills(tmp_path, kills, text)

    trained = trained_tasks(tmp_path / "runs/kills")
    summary = json.loads((tmp_path / "runs/kills/summary.json").read_text())
    ledger = summary["policies"]["solver"]["ledger"]
    assert set(trained.values()) == {1}
    assert ledger["issued"] == GROUPS * MEMBERS
    assert ledger["emitted"] == trained.total()
    assert ledger["env"] > 0
    assert ledger["zero-advantage"] > 0
    ends = {reason: n for reason, n in ledger.items() if reason not in {"issued", "late", "retried", "unknown"}}
    assert sum(ends.values()) == ledger["issued"], ledger
    assert ledger["open"] == ledger["buffered"] == 0
