"""The elastic benchmark runs from a user's shell and reports what its docstring says."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "elastic.py"


async def figures(*arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(BENCHMARK),
        *arguments,
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found: dict[str, Any] = json.loads(output)
    return found


async def test_pools_are_compared_with_the_sum_of_their_rates() -> None:
    found = await figures("--only", "pool", "slow", "--replicas", "1", "--seconds", "1", "--warm-up", "0.5")
    (one,) = found["pool"]
    assert (one["replicas"], one["sum_of_rates"]) == (1, 40.0)
    assert found["slow"]["sum_of_rates"] == 650.0
    for row in (one, found["slow"]):
        assert 0 < row["efficiency"] == pytest.approx(row["tokens_per_s"] / row["sum_of_rates"], abs=0.01)


@pytest.mark.slow
async def test_a_replica_joins_and_leaves_a_live_run() -> None:
    # A head every two seconds: what the replica knew and what the benchmark saw at that moment are then the same.
    found = await figures("--only", "join", "--rounds", "1", "--train-s", "2")
    assert set(found["join"]) == {"join_s", "join_lag_versions", "drain_s", "handover_s", "rounds"}
    assert found["join"]["join_lag_versions"] <= 1  # engine.max_replica_lag
    assert min(found["join"]["join_s"], found["join"]["drain_s"], found["join"]["handover_s"]) > 0
