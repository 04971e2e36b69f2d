"""A region behind a leaf link takes part; a cut link loses nothing, and nothing is trained twice (DESIGN §6)."""

import json
from pathlib import Path

import pytest

from astraflow.actors.view.status import read_status
from astraflow.bus import Bus
from tests.e2e.finite import FiniteRun
from tests.e2e.liverun import bus_of, connection_to
from tests.e2e.region import two_regions
from tests.support import eventually

RUN = FiniteRun(name="far", groups=60, engine_step_s=0.05, new_tokens=12)


def episodes_by(folder: Path, producer: str) -> int:
    """How many episodes' tokens a node's actors recorded, by the run's episodes.jsonl."""
    lines = (folder / "runs/far/metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return sum(int(m["rollout.episodes"]) for m in found if m["labels"].get("actor", "").startswith(producer))


@pytest.mark.slow
async def test_a_killed_leaf_and_a_cut_link_lose_nothing_and_train_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN.text())
    async with two_regions(tmp_path) as regions:
        await regions.up.expect("solver step 2/")
        async with regions.leaf_killed() as leaf:
            await regions.up.expect("solver step 5/")
            regions.link.cut(reset=True)
            async with bus_of(connection_to(tmp_path / "runs/far"), "far") as bus:
                await eventually(lambda: problem(bus, "region eu: cut off since"))
            await leaf.expect("the hub doesn't answer")
            await regions.up.expect("solver step 9/")  # the home region goes on
            regions.link.restore()

            await leaf.expect("the hub answers again")
            assert await regions.up.end() == 0, regions.up.output
            assert await regions.node.end() == 0, regions.node.output

    assert RUN.broken(tmp_path / "runs/far") == []
    assert episodes_by(tmp_path, "rollout-far") > 0


async def problem(bus: Bus, text: str) -> str:
    return next((problem for problem in (await read_status(bus)).problems if problem.startswith(text)), "")
