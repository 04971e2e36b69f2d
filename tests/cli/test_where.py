"""Which run is meant: --run finds a run on this machine wherever its folder is, and else says what there is."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from astraflow.cli.where import add_where, where
from astraflow.errors import BusError, ConfigError
from astraflow.node.runfolder import Owner, RunFolder

NAME = f"here-{os.getpid()}"  # other runs may be live on this machine


def found(*flags: str) -> tuple[str, str]:
    """The server's address and the run's name that these flags mean."""
    parser = argparse.ArgumentParser()
    add_where(parser)
    connection, run = where(parser.parse_args(flags))
    return connection.url, run


@contextmanager
def live(folder: Path, run: str = NAME, url: str = "nats://127.0.0.1:1") -> Iterator[None]:
    owner = Owner(pid=os.getpid(), command="astraflow up x.toml", run=run, started_at=0.0, url=url)
    with RunFolder(folder).lock(owner):
        yield


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def test_a_live_run_is_found_by_its_name_from_any_folder(tmp_path: Path) -> None:
    with live(tmp_path / "a/runs/x"):
        assert found("--run", NAME) == ("nats://127.0.0.1:1", NAME)
        assert found("--run", NAME, "--url", "nats://h:1") == ("nats://h:1", NAME)
        with pytest.raises(ConfigError, match=f"no run on this machine is called '{NAME}x'; did you mean '{NAME}'"):
            found("--run", f"{NAME}x")
        with pytest.raises(ConfigError, match=rf"no run is live in ./runs \(elsewhere on this machine: .*{NAME} in"):
            found()


def test_of_several_runs_of_one_name_none_is_chosen(tmp_path: Path) -> None:
    first, second = tmp_path / "a/runs/x", tmp_path / "b/runs/x"
    with live(first), live(second, url="nats://127.0.0.1:2"):
        with pytest.raises(ConfigError, match=f"are called {NAME}: {first}, {second}; choose one with --folder"):
            found("--run", NAME)
        assert found("--run", NAME, "--folder", str(second)) == ("nats://127.0.0.1:2", NAME)
        with pytest.raises(ConfigError, match=f"is the folder of run {NAME}, not of other"):
            found("--run", "other", "--folder", str(second))


def test_a_run_that_has_ended_is_found_beside_and_says_how_to_go_on() -> None:
    with live(Path("runs/x")):
        pass
    with pytest.raises(BusError, match=rf"run {NAME} is not running; `astraflow up x.toml` continues it"):
        found("--run", NAME)
