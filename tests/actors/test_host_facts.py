"""What summary.json says of where a run was run."""

import os
import subprocess
from pathlib import Path

import pytest

from astraflow.actors.recorder.host import host_facts


def git(folder: Path, *words: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_commit_command_and_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (host_facts().git_commit, host_facts().git_changed) == ("", False)
    (tmp_path / "env.py").write_text("a = 1\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        git(tmp_path, *words)
    (tmp_path / "untracked").touch()
    clean = host_facts()
    assert (clean.git_commit, clean.git_changed) == (git(tmp_path, "rev-parse", "HEAD").strip(), False)
    (tmp_path / "env.py").write_text("a = 2\n")
    assert host_facts().git_changed
    assert clean.folder == str(tmp_path)
    assert {"numpy", "nats-py"} <= clean.packages.keys()
    assert clean.cores > 0
    assert clean.memory_bytes > 1 << 28


def test_a_password_in_an_address_is_not_written_down(tmp_path: Path) -> None:
    line = tmp_path / str(os.getppid()) / "cmdline"
    line.parent.mkdir()
    line.write_bytes(b"astraflow\0node\0--join\0nats://me:secret@hub:4222,tls://you:hidden@b:1\0")
    facts = host_facts(tmp_path)
    assert facts.command == ("astraflow", "node", "--join", "nats://…@hub:4222,tls://…@b:1")


def test_what_is_not_there_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = host_facts(tmp_path)
    assert (facts.command, facts.git_commit, facts.gpus) == ((), "", ())
