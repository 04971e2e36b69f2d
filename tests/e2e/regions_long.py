"""The long form of `test_regions.py`: 100 ms, 10 Mbit/s, a cable that is pulled for minutes. `make test-regions`.

Not part of the suite: its name doesn't begin with `test_`.
"""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.liverun import bus_of, connection_to
from tests.e2e.region import two_regions
from tests.e2e.test_regions import RUN, assert_each_task_was_trained_once, episodes_by, problem
from tests.support import eventually

CUT_S = 150.0
SLOW = RUN.replace("toy_step_s = 0.1 }", "toy_step_s = 1.0 }")  # 12 s per episode: the run outlasts the cut


@pytest.mark.timeout(1200)
async def test_a_cable_that_is_pulled_for_minutes(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(SLOW)
    async with two_regions(tmp_path, delay_s=0.05, bytes_per_s=10e6 / 8) as regions:
        await regions.up.expect("solver step 2/", within_s=180)
        regions.link.cut()
        async with bus_of(connection_to(tmp_path / "runs/far"), "far") as bus:
            await eventually(lambda: problem(bus, "region eu: cut off since"), within_s=60)
            await asyncio.sleep(CUT_S)  # the test's subject
        regions.link.restore()

        await regions.leaf.expect("the hub answers again", within_s=120)
        assert await regions.up.end(within_s=600) == 0, regions.up.output
        assert await regions.node.end(within_s=120) == 0, regions.node.output

    assert_each_task_was_trained_once(tmp_path)
    assert episodes_by(tmp_path, "rollout-far") > 0
