"""The command line: help, exit codes, and errors as one sentence. Every call is a real process."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from astraflow.cli.arguments import listen_address
from astraflow.errors import ConfigError
from tests.cli.toyrun import PATIENCE_S, TOY, write_toy


def astraflow(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astraflow.cli.main", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def complaint(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr."""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("astraflow: ").strip()


@pytest.mark.parametrize(
    "verb",
    ["up", "check", "status", "top", "node", "drain", "stop", "bus", "submit", "version", "weights"],
)
def test_every_verb_has_help_with_an_example(verb: str, tmp_path: Path) -> None:
    result = astraflow(verb, "--help", cwd=tmp_path)
    assert result.returncode == 0
    assert f"example:\n  astraflow {verb}" in result.stdout


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom astraflow.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'nats', 'rich', 'reasoning_gym', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_no_verb_or_a_wrong_one_is_a_usage_error(tmp_path: Path) -> None:
    assert astraflow(cwd=tmp_path).returncode == 2
    assert astraflow("upp", cwd=tmp_path).stderr == "astraflow: unknown VERB 'upp'; did you mean 'up'?\n"


def test_a_misspelt_flag_is_answered_with_the_nearest(tmp_path: Path) -> None:
    result = astraflow("up", "run.toml", "--frsh", cwd=tmp_path)
    assert (result.returncode, "'--frsh'; did you mean '--fresh'?" in result.stderr) == (2, True)


def test_version(tmp_path: Path) -> None:
    sentences = {astraflow(word, cwd=tmp_path).stdout for word in ("version", "--version")}
    assert len(sentences) == 1
    assert sentences.pop().startswith("astraflow 0.")
    command = [sys.executable, "-m", "astraflow", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("astraflow 0.")


def test_check_prints_the_resolved_file(tmp_path: Path) -> None:
    file = write_toy(tmp_path)
    result = astraflow("check", str(file), "--set", "run.seed=7", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    tree = tomllib.loads(result.stdout)
    assert tree["run"]["seed"] == 7
    assert tree["dataflow"]["order"] == "edf"


def test_a_mistake_in_the_run_file_is_one_sentence_and_an_exit_code(tmp_path: Path) -> None:
    file = write_toy(tmp_path, TOY.replace("steps = 4", "stepps = 4"))
    for verb, code in (("check", 1), ("up", 2)):
        result = astraflow(verb, file.name, cwd=tmp_path)
        assert result.returncode == code
        where = "policies.solver.trainer.stepps in run.toml line 12"
        assert complaint(result) == f"unknown key {where}; did you mean 'steps'?"


def test_environments_beside_the_run_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('broken module')\n")
    file = write_toy(tmp_path)
    result = astraflow("check", file.name, "--set", "envs.game.kind=mine:Mine", cwd=tmp_path)
    assert result.returncode == 1
    assert "broken module" in complaint(result)


@pytest.mark.parametrize("text", ["4222", ":4222", "host:", "host:0", "host:99999", "host:port"])
def test_listen_needs_host_and_port(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        listen_address(text)


def test_listen_addresses() -> None:
    assert listen_address("0.0.0.0:4222") == ("0.0.0.0", 4222)
    assert listen_address("[::]:1") == ("::", 1)


def test_status_without_a_run_says_what_to_name(tmp_path: Path) -> None:
    result = astraflow("status", cwd=tmp_path)
    assert result.returncode == 2
    assert complaint(result).startswith("no run is live in ./runs")  # then, where others are on this machine
    assert complaint(result).endswith("; name one with --run or --folder, or --url and --run")
    assert "is not a run folder" in complaint(astraflow("status", "--folder", "x", cwd=tmp_path))
    assert "needs --run NAME" in complaint(astraflow("status", "--url", "nats://h:1", cwd=tmp_path))
    assert "is not like nats://HOST:PORT" in complaint(astraflow("status", "--url", "h:1", "--run", "r", cwd=tmp_path))


@pytest.mark.slow
def test_joining_nowhere_is_a_sentence(tmp_path: Path) -> None:
    result = astraflow("node", "--join", "nats://127.0.0.1:1", "--run", "demo", cwd=tmp_path)
    assert result.returncode == 1
    assert "127.0.0.1:1" in complaint(result)
    missing = astraflow("node", "--join", "nats://127.0.0.1:1", "--run", "demo", "--token-file", "no", cwd=tmp_path)
    assert missing.returncode == 2
    assert complaint(missing) == "token file no can't be read: No such file or directory"
