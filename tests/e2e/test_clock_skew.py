"""Machines whose clocks are hours apart: nobody decides anything by another's wall time."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from astraflow.bus import Bus
from astraflow.messages import MemberState
from astraflow.messages.metric_names import POLICY_TOKENS_PER_S, WEIGHTS_LAG_S
from astraflow.ports import free_port
from astraflow.view.status import Status, read_status
from tests.cli.toyrun import ENDED_EARLY, ENDLESS, finished, sets, started, write_toy
from tests.e2e.liverun import bus_of, connection_to
from tests.support import eventually

# What python imports first in every process of a node whose clock is wrong.
SKEW = """
import os, time

ahead_s, real = float(os.environ["SKEW_S"]), time.time
time.time = lambda: real() + ahead_s
"""
AHEAD, BEHIND = "7200", "-7200"
RECENTLY_S = 150.0  # as long as this test may take; far below two hours


def skewed(folder: Path, seconds: str) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(SKEW)
    return {"SKEW_S": seconds, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


async def both_serve(bus: Bus) -> Status | None:
    """The status once both replicas sample tokens."""
    status = await read_status(bus)
    replicas = [m for m in status.members if m.role == "policy"]
    busy = [m for m in replicas if m.state is MemberState.READY and m.gauges.get(POLICY_TOKENS_PER_S, 0) > 0]
    return status if len(busy) == 2 and WEIGHTS_LAG_S in status.policies["solver"].weights else None


@pytest.mark.slow
async def test_replicas_two_hours_ahead_and_behind_serve_as_usual_and_status_sees_them(tmp_path: Path) -> None:
    write_toy(tmp_path)
    (tmp_path / "skew").mkdir()
    port = str(free_port())
    keys = sets(*ENDLESS, "policies.solver.engine={ kind = 'toy', replicas = 0, toy_step_s = 0.01 }")
    async with contextlib.AsyncExitStack() as stack:
        up = await stack.enter_async_context(
            started(tmp_path, "up", "run.toml", "--listen", f"127.0.0.1:{port}", *keys)
        )
        await up.expect("trainer-local-0 is ready")
        joining = ("--join", f"nats://127.0.0.1:{port}", "--run", "demo", "--token-file", "runs/demo/nats/token")
        for name, seconds in (("ahead", AHEAD), ("behind", BEHIND)):
            role = ("--role", "policy:solver", "--name", name, "--folder", name)
            environment = skewed(tmp_path / "skew", seconds)
            await stack.enter_async_context(started(tmp_path, "node", *joining, *role, environment=environment))
        async with bus_of(connection_to(tmp_path / "runs/demo")) as bus:
            status = await eventually(lambda: both_serve(bus))
        assert status.problems == ()
        assert {m.node.partition("-")[0] for m in status.members if m.role == "policy"} == {"ahead", "behind"}
        for member in status.members:
            assert abs(time.time() - member.since) < RECENTLY_S, member
        assert all(abs(time.time() - wait.since) < RECENTLY_S for wait in status.waits)
        assert 0 < status.policies["solver"].weights[WEIGHTS_LAG_S] < RECENTLY_S
        code, output = await finished(tmp_path, "status", "--json", environment=skewed(tmp_path / "skew", AHEAD))
        assert code == 0, output
        seen = json.loads(output)
        assert seen["problems"] == []
        assert {m["actor"] for m in seen["members"]} == {m.actor for m in status.members}
        assert all(abs(seen["at"] - m["since"]) < RECENTLY_S for m in seen["members"]), "by the clock of who looks"
        up.process.send_signal(signal.SIGTERM)
        assert await up.end() == ENDED_EARLY
