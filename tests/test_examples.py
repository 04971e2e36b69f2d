"""`astraflow check` accepts every example as it is, in a fresh clone and without a network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.cli.main import main

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.toml"))


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_accepted(example, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["check", example]) == 0, capsys.readouterr().err


def test_check_tells_what_will_be_downloaded(tmp_path):
    command = [sys.executable, "-m", "astraflow.cli.main", "check", "examples/gsm8k_sglang.toml"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"HF_HOME": str(tmp_path)}
    )
    for what in ("model Qwen/Qwen3-1.7B of solver", "hf://datasets/openai/gsm8k/main/train of environment gsm8k"):
        assert f"{what} is downloaded from the Hugging Face hub at the first start" in done.stdout
    assert list(tmp_path.iterdir()) == []  # nothing was
