"""The multi-policy benchmark runs from a user's shell and reports what its docstring says."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "multi_policy.py"
SMALLEST = ["--scale", "0.01", "--groups", "2", "--slots", "8", "--iterations", "1", "--lock-step-iterations", "1"]


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_multi_policy_benchmark_measures_both_ways_against_the_bound() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(BENCHMARK),
        *SMALLEST,
        "--warm-up",
        "1",
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    figures = json.loads(output)
    for way in ("astraflow", "lock_step"):
        measured = figures[way]
        assert measured["iteration_s"] >= 48, "no iteration is faster than the slower trainer"
        assert set(measured["busy"]) == {"generation", "solver", "verifier"}
    assert figures["lock_step"]["iteration_s"] >= 88, "one trainer after the other"
    assert figures["published"]["speed_up"] == 2.74
