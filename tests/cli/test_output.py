"""What a command prints on can be full, closed or poor in characters: said where it is the product, else ignored."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.toyrun import PATIENCE_S, sets, write_toy

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def call(
    *arguments: str, cwd: Path, stdout: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "astraflow", *arguments]
    with (stdout or Path(os.devnull)).open("wb") as sink:
        return subprocess.run(
            command,
            cwd=cwd,
            stdout=sink if stdout else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
            env=os.environ | environment,
        )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_an_encoding_lacks_are_replaced(encoding: str, tmp_path: Path) -> None:
    write_toy(tmp_path)
    result = call("check", "run.toml", cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"?" in result.stdout


def test_a_product_that_cant_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    write_toy(tmp_path)
    result = call("check", "run.toml", cwd=tmp_path, stdout=FULL)
    assert result.returncode == 1
    assert result.stderr == b"astraflow: the output can't be written: No space left on device\n"


def test_a_reader_that_leaves_early_is_no_traceback(tmp_path: Path) -> None:
    write_toy(tmp_path)
    command = f"{sys.executable} -m astraflow check run.toml | head -1"
    result = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.stderr, result.stdout.count("\n")) == ("", 1)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["full", "ascii"])
def test_a_run_goes_on_to_its_end_without_its_view(broken: str, tmp_path: Path) -> None:
    write_toy(tmp_path)
    arguments = ["up", "run.toml", *sets("policies.solver.trainer.steps=2")]
    if broken == "full":
        result = call(*arguments, cwd=tmp_path, stdout=FULL)
    else:
        result = call(*arguments, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, b"")
    assert (tmp_path / "runs/demo/summary.json").is_file()
