"""How SGLang's venv is made: what is complete stays, what fails says so, and stubs stand in without working."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "deploy/sglang"


def make(venv: Path, python: str | Path, kind: str = "cpu") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(FOLDER / "make_venv.sh"), kind, str(venv), str(python)], capture_output=True, text=True, timeout=60
    )


def fake(folder: Path, body: str) -> Path:
    """An interpreter that does this, and makes a venv of itself."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return python


VENV = 'if [ "$1 $2" = "-m venv" ]; then mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; fi'


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    done = make(tmp_path / "venv", fake(tmp_path, "exit 1"))
    assert done.returncode == 1
    assert "SGLang needs Python 3.10 to 3.13" in done.stderr


def test_a_pip_that_fails_leaves_no_complete_venv(tmp_path: Path) -> None:
    python = fake(tmp_path, f'{VENV}\nif [ "$2" = pip ]; then echo no network >&2; exit 1; fi')
    for _ in range(2):
        done = make(tmp_path / "venv", python)
        assert done.returncode == 1
        assert "no network" in done.stderr
        assert "make_venv: pip could not install" in done.stderr


def test_what_is_complete_is_not_made_again(tmp_path: Path) -> None:
    python = fake(tmp_path, f'{VENV}\necho "$@" >> {tmp_path}/calls')
    assert make(tmp_path / "venv", python, "gpu").returncode == 0
    calls = (tmp_path / "calls").read_text()
    assert "pip install" in calls
    assert "sglang>=0.5.23,<0.6" in calls
    assert make(tmp_path / "venv", "/nowhere/python", "gpu").returncode == 0
    assert (tmp_path / "calls").read_text() == calls
    assert make(tmp_path / "venv", python, "cpu").returncode != 0  # made anew; this fake has no site-packages


def test_pins_are_exact_sorted_and_without_cuda() -> None:
    lines = (FOLDER / "cpu_requirements.txt").read_text().splitlines()
    groups = "\n".join(line for line in lines if not line.startswith("#")).split("\n\n")
    for group in groups:
        names = [line.partition("==")[0].lower() for line in group.splitlines()]
        assert names == sorted(names)
        assert all("==" in line for line in group.splitlines())
    assert not any(word in line for line in lines for word in ("cuda", "flashinfer", "nvidia-nccl"))


def test_stubs_can_be_named_but_not_called() -> None:
    script = """
import cpu_stubs
cpu_stubs.install("absent_package")
import absent_package.deep.module
from absent_package import Mode, function
class Own(Mode): pass
assert Mode.MEMBER is Mode.MEMBER and absent_package.__version__ == "0.0.0" and Mode is absent_package.Mode
try: function()
except RuntimeError as error: assert "stub" in str(error)
else: raise SystemExit("it was called")
try: import another_absent_package
except ModuleNotFoundError: pass
else: raise SystemExit("everything is a stub")
"""
    subprocess.run([sys.executable, "-c", script], cwd=FOLDER, check=True, timeout=60)
