"""`astraflow weights` on a run that goes on and on one that has ended, whose fulls travelled by http and by file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow.cli.main import main
from tests.cli.toyrun import ENDLESS, PATIENCE_S, finished, sets, started, write_toy
from tests.support import eventually


def weights(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astraflow.cli.main", "weights", *arguments, "--folder", "runs/demo"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


async def test_a_live_run_with_fulls_by_http_is_listed_and_a_reader_takes_them_there(tmp_path: Path) -> None:
    write_toy(tmp_path)
    given = sets(*ENDLESS, "policies.solver.weights.full_transport=http")
    async with started(tmp_path, "up", "run.toml", *given) as run:
        await run.expect("run demo in")

        def listed() -> list[dict[str, Any]]:
            result = weights(tmp_path, "ls", "--json")
            found = json.loads(result.stdout)["solver"] if result.returncode == 0 else []
            return found if found and found[-1]["version"] > 3 else []

        found = await eventually(listed)
        assert {(row["kind"], *row["places"]) for row in found} == {
            ("full", "http", "nats")
        }  # 256 bytes: no delta pays
        assert all(row["loadable"] for row in found)
        for number in range(3):  # what is the newest is purged soon
            exported = weights(tmp_path, "export", "newest", f"out-{number}")
            assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "out-2" / "model.safetensors").exists()
    assert "is read from the bus" not in (tmp_path / "runs" / "demo" / "events.jsonl").read_text()


async def test_an_ended_run_with_fulls_in_a_folder_is_listed_verified_and_exported(tmp_path: Path) -> None:
    write_toy(tmp_path)
    shared = tmp_path / "shared"
    shared.mkdir()
    table = f"policies.solver.weights={{ full_transport = 'file', folder = '{shared}', full_on_nats = false }}"
    code, output = await finished(tmp_path, "up", "run.toml", *sets(table))
    assert code == 0, output

    lock = (tmp_path / "runs" / "demo" / "up.lock").read_bytes()
    found = json.loads(weights(tmp_path, "ls", "--json").stdout)["solver"]
    assert [(row["version"], row["kind"], row["places"]) for row in found] == [
        (3, "full", ["file"]),
        (4, "full", ["file"]),
    ]
    right = weights(tmp_path, "verify")
    assert (right.returncode, right.stdout.count("right")) == (0, 2)
    exported = weights(tmp_path, "export", "3", "three")
    assert (exported.returncode, exported.stdout) == (0, "version 3 of solver is in three\n")
    assert {path.name for path in (tmp_path / "three").iterdir()} == {"config.json", "model.safetensors"}
    assert (tmp_path / "runs" / "demo" / "up.lock").read_bytes() == lock

    file = next(shared.rglob("*-00000003-*.full"))
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    wrong = weights(tmp_path, "verify")
    assert wrong.returncode == 1
    assert [line.endswith("right, 256 B") for line in wrong.stdout.splitlines()] == [False, True]
    assert "is damaged near byte 0" in wrong.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ls", "--folder", "nowhere"], "nowhere is not a run folder"),
        (["ls"], "no run is live in ./runs"),
        (["verify", "--url", "nats://127.0.0.1:1"], "--url needs --run NAME"),
    ],
    ids=["folder", "none", "name"],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["weights", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_version_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["weights", "export", "one", "out"])
    assert "'one' is not the number of a version" in capsys.readouterr().err
