"""The benchmark of data algorithms runs from a user's shell, prints every figure and draws its picture."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "data_algorithms.py"


@pytest.mark.timeout(400)
async def test_data_benchmark_measures_every_variant_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "figures.png"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(BENCHMARK),
        "--steps",
        "1",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--json",
        "--plot",
        str(picture),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()

    found = json.loads(output)
    assert {name: set(variants) for name, variants in found.items()} == {
        "select": {"accept-all", "filter-solved", "pools", "curriculum", "greso"},
        "order": {f"{order}-{bound}" for order in ("fifo", "edf") for bound in (2, 4, 8)},
        "replay": {"none", "latest", "uniform", "prioritized"},
        "extra": {"0", "1", "2"},
    }
    for variants in found.values():
        for figures in variants.values():
            assert figures["rollouts"] >= figures["useful_groups"] * 8 > 0
            assert figures["rollouts_to_goal"] is None, "one step teaches too little"
    assert found["extra"]["2"]["cancelled_share"] > found["extra"]["0"]["cancelled_share"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
