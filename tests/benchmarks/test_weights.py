"""The weights benchmark runs from a user's shell and reports what its docstring says."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "weights.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_weights_benchmark_measures_delta_full_and_pause_next_to_the_bounds() -> None:
    arguments = ["--model", "tiny", "--rates", "1e-5", "--steps", "2", "--running", "1", "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(BENCHMARK), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()

    (figures,) = json.loads(output).values()
    assert 0 < figures["delta_bytes"] < figures["full_bytes"]
    assert 0 < figures["changed"] < 1
    assert {f"full_{transport}_s" for transport in ("nats", "file", "http")} <= set(figures)
    assert all(figures[name] > 0 for name in ("copy_cpu_s", "loopback_s", "publish_to_served_s"))
    assert 0 < figures["pause_s"] <= figures["publish_to_served_s"]
