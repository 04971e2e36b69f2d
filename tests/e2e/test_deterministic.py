"""Deterministic mode: two runs of the same file agree to the last bit, model and episodes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.toyrun import finished

RUN = """\
[run]
name = "same"
seed = 5
deterministic = true

[policies.solver]
model = "tiny-reverse"
engine = { slots = 64, context_length = 16, dtype = "fp32" }
sampling = { max_new_tokens = 8 }

[policies.solver.trainer]
steps = 4
batch_groups = 4
learning_rate = 3e-4
max_staleness = 0
prefetch = 0
dtype = "fp32"

[envs.reverse]
kind = "tiny"
args = { task = "reverse" }

[sources.reverse]
env = "reverse"
group_size = 4

[eval.held-out]
env = "reverse"
size = 16
every_steps = 2
"""


def episodes(folder: Path) -> list[Any]:
    """What every episode was and earned, without ids of the run, times and order of arrival."""
    lines = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return sorted([line["task_id"].split("/", 1)[1], line["prompt"], line["replies"]] for line in lines)


@pytest.mark.slow
async def test_two_runs_agree_to_the_last_bit(tmp_path: Path) -> None:
    models, played = [], []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "run.toml").write_text(RUN)
        code, output = await finished(folder, "up", "run.toml")
        assert code == 0, output
        run = folder / "runs/same"
        models.append(hashlib.sha256((run / "policies/solver/model/model.safetensors").read_bytes()).hexdigest())
        played.append(episodes(run))
    assert len(played[0]) >= 4 * 4 * 4 + 3 * 16
    assert played[0] == played[1]
    assert models[0] == models[1]
