"""The lock and the disk checks of a run folder."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.errors import ConfigError
from astraflow.node.runfolder import Owner, RunFolder, check_space, disk_errors

OWNER = Owner(pid=os.getpid(), command="astraflow up run.toml", run="demo", started_at=0.0)


def test_a_second_lock_is_refused_and_names_pid_and_command(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs/demo")
    assert not folder.live()
    with folder.lock(OWNER):
        assert folder.live()
        assert folder.owner() == OWNER
        with (
            pytest.raises(ConfigError, match=rf"in use by process {os.getpid()} \(`astraflow up run.toml`\)"),
            folder.lock(OWNER),
        ):
            pass
        assert folder.owner() == OWNER
    assert not folder.live()


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from astraflow.node.runfolder import Owner, RunFolder
with RunFolder(Path({str(tmp_path)!r})).lock(Owner(pid=os.getpid(), command="x", run="demo", started_at=0.0)):
    print("locked", flush=True)
    signal.pause()
"""
    folder = RunFolder(tmp_path)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert folder.live()
        process.kill()
    with folder.lock(OWNER):
        assert folder.owner() == OWNER


def test_a_longer_old_owner_leaves_no_rest(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    long = Owner(pid=1, command="x" * 500, run="demo", started_at=0.0)
    with folder.lock(long):
        pass
    with folder.lock(OWNER):
        assert folder.owner() == OWNER


def test_an_old_run_is_moved_away_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "demo")
    with folder.lock(OWNER) as locked:
        assert locked.move_away() is None
        (folder.path / "nats").mkdir()
        (folder.path / "nats/token").write_text("t")
        (folder.path / "run.toml").write_text("x")
        target = locked.move_away()
        assert target is not None
        assert target.name.startswith("demo.old-")
        assert sorted(p.name for p in target.iterdir()) == ["nats", "run.toml"]
        assert [p.name for p in folder.path.iterdir()] == ["up.lock"]
        assert folder.live()


def test_a_small_disk_is_refused_before_anything_starts(tmp_path: Path) -> None:
    check_space(tmp_path, 0, purpose="this test")
    with pytest.raises(ConfigError, match=r"GB free, but this test needs about 1000000\.07 GB; free some space"):
        check_space(tmp_path, 10**15, purpose="this test")


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the disk is full; free some space"), disk_errors(tmp_path):
        Path("/dev/full").write_bytes(b"x")


def test_a_file_in_the_way_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    folder = RunFolder(tmp_path / "runs/demo")
    with pytest.raises(ConfigError, match="is a file, not a folder"), disk_errors(folder.path), folder.lock(OWNER):
        pass


def test_other_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="bad") as caught, disk_errors(tmp_path):
        raise OSError(errno.EBADF, "bad")
    assert caught.value.errno == errno.EBADF
