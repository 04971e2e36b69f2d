"""Find and kill the real processes of a run."""

import json
import os
import signal
from collections import Counter
from pathlib import Path


def pid_of(actor: str, *, parent: int) -> int:
    """The pid of a run's actor by its `--name`. `parent`: pid of the `astraflow up` that started it."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            status = (entry / "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if actor.encode() in arguments and int(status.rpartition(")")[2].split()[1]) == parent:
            return int(entry.name)
    raise AssertionError(f"no process {actor} below {parent}")


def kill(actor: str, *, parent: int) -> None:
    """kill −9."""
    os.kill(pid_of(actor, parent=parent), signal.SIGKILL)


def trained_tasks(run_folder: Path, policy: str = "solver") -> Counter[str]:
    """How often each task was trained, by source/epoch/index/member."""
    lines = (run_folder / "policies" / policy / "trained.jsonl").read_text().splitlines()
    ids = [task_id for line in lines for task_id in json.loads(line)["task_ids"]]
    return Counter(task_id.split("/", 1)[1] for task_id in ids)


def batches(run_folder: Path, policy: str = "solver") -> list[int]:
    """Numbers of the trained batches, in order."""
    lines = (run_folder / "policies" / policy / "trained.jsonl").read_text().splitlines()
    return [json.loads(line)["batch"] for line in lines]
