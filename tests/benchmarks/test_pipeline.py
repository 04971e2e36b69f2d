"""The pipeline benchmark runs from a user's shell and reports what its docstring says."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "pipeline.py"


@pytest.mark.slow
async def test_pipeline_benchmark_measures_the_path_and_the_raw_limit() -> None:
    arguments = ["--shape", "small", "--seconds", "0.5", "--warm-up", "0", "--seed", "1", "--json"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(BENCHMARK),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()

    (figures,) = json.loads(output)
    assert figures["trajectories_per_s"] > 0
    assert figures["raw_trajectories_per_s"] > 0
    processes = {"up", "nats-server", *(f"{role}-local-0" for role in ("dataflow", "rollout", "policy", "trainer"))}
    assert processes <= set(figures["cpu_ms_by_process"])
    assert {"task", "gen", "reply", "ack", "episode", "sample"} <= set(figures["messages_per_trajectory"])
    assert figures["messages_per_trajectory"]["episode"] == 1
