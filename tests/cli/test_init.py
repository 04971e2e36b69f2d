"""`astraflow init`: what it writes runs at once."""

import json
from pathlib import Path

import pytest

from astraflow.cli.main import main
from tests.cli.toyrun import finished, sets


def test_what_it_writes_is_accepted_and_never_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "first"]) == 0
    assert (
        capsys.readouterr().out == "wrote first/run.toml and first/my_env.py; now: cd first && astraflow up run.toml\n"
    )
    monkeypatch.chdir("first")
    monkeypatch.syspath_prepend("")
    assert main(["check", "run.toml"]) == 0, capsys.readouterr().err
    before = Path("my_env.py").read_bytes()
    assert main(["init"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert Path("my_env.py").read_bytes() == before


def test_examples_come_with_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--examples"]) == 0
    assert {"tiny.toml", "my_env.py", "agents"} <= {path.name for path in Path("examples").iterdir()}
    assert main(["check", "examples/tiny.toml"]) == 0, capsys.readouterr().err


@pytest.mark.slow
async def test_what_it_writes_trains(tmp_path: Path) -> None:
    code, output = await finished(tmp_path, "init")
    assert code == 0, output
    code, output = await finished(tmp_path, "up", "run.toml", *sets("policies.solver.trainer.steps=2"))
    assert code == 0, output
    summary = json.loads((tmp_path / "runs/first/summary.json").read_text())
    assert summary["policies"]["solver"]["steps"] == 2
