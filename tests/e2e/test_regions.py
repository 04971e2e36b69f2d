"""A region behind a leaf link takes part; a cut link loses nothing, and nothing is trained twice."""

import json
from pathlib import Path

import pytest

from astraflow.bus import Bus
from astraflow.view.status import read_status
from tests.e2e.liverun import bus_of, connection_to
from tests.e2e.processes import batches, trained_tasks
from tests.e2e.region import two_regions
from tests.support import eventually

GROUPS, MEMBERS = 60, 4
RUN = f"""\
[run]
name = "far"
seed = 3

[policies.solver]
model = "toy"
engine = {{ kind = "toy", slots = 8, toy_step_s = 0.1 }}
sampling = {{ max_new_tokens = 12 }}

[policies.solver.trainer]
learner = "toy"
steps = 1000
batch_groups = 2
max_staleness = 30
filters = []
checkpoint_every = 3
full_every = 5
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
task_deadline_s = 60

[bus]
ack_wait_s = 1
member_ttl_s = 2
silence_s = 2

[node]
episodes_per_rollout = 8
grace_s = 20
"""


def episodes_by(folder: Path, producer: str) -> int:
    """How many episodes' tokens a node's actors recorded, by the run's episodes.jsonl."""
    lines = (folder / "runs/far/metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return sum(int(m["rollout.episodes"]) for m in found if m["labels"].get("actor", "").startswith(producer))


def assert_each_task_was_trained_once(folder: Path) -> None:
    expected = {f"game/0/{index}/{member}": 1 for index in range(GROUPS) for member in range(MEMBERS)}
    assert trained_tasks(folder / "runs/far") == expected
    assert batches(folder / "runs/far") == list(range(1, GROUPS // 2 + 1))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_killed_leaf_and_a_cut_link_lose_nothing_and_train_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    async with two_regions(tmp_path) as regions:
        await regions.up.expect("solver step 2/", within_s=90)
        async with regions.leaf_killed() as leaf:
            await regions.up.expect("solver step 5/", within_s=90)
            regions.link.cut(reset=True)
            async with bus_of(connection_to(tmp_path / "runs/far"), "far") as bus:
                await eventually(lambda: problem(bus, "region eu: cut off since"), within_s=30)
            await leaf.expect("the hub doesn't answer", within_s=60)
            await regions.up.expect("solver step 9/", within_s=90)  # the home region goes on
            regions.link.restore()

            await leaf.expect("the hub answers again", within_s=60)
            assert await regions.up.end(within_s=120) == 0, regions.up.output
            assert await regions.node.end(within_s=60) == 0, regions.node.output

    assert_each_task_was_trained_once(tmp_path)
    assert episodes_by(tmp_path, "rollout-far") > 0


async def problem(bus: Bus, text: str) -> str:
    return next((problem for problem in (await read_status(bus)).problems if problem.startswith(text)), "")
