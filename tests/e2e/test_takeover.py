"""Standbys and fenced processes on a real run: whoever leads, nothing is lost, repeated or mixed."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.toyrun import Command, started
from tests.e2e.finite import BATCH_GROUPS, FiniteRun
from tests.e2e.processes import kill, pid_of
from tests.support import eventually

RUN = FiniteRun(name="takeover", groups=72, step_s=0.3)
GATED = """\
import asyncio
from pathlib import Path

from astraflow.envs.toy_env import ToyEnv


class Gated(ToyEnv):
    \"""Plays as many groups as the file `gate` says: however slow a machine is, the run isn't over too early.\"""

    begun = 0

    async def run(self, task, policies):
        Gated.begun += 1
        number = Gated.begun
        while number > int(Path("gate").read_text() or 0) * task.group_size:
            await asyncio.sleep(0.05)
        return await super().run(task, policies)
"""


def leader(command: Command) -> str:
    """The dataflow that leads: the other one was last seen as the standby."""
    standby = re.findall(r"dataflow-local-(\d) is standby", command.output)[-1]
    return f"dataflow-local-{1 - int(standby)}"


def command_line(pid: int) -> list[str]:
    """The arguments of a running process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


@contextlib.asynccontextmanager
async def actor(arguments: list[str], *, name: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An actor with the arguments of another one, under its own name; killed at the end."""
    changed = list(arguments)
    changed[changed.index("--name") + 1] = name
    with (folder / f"{name}.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(*changed, cwd=folder, stdout=output, stderr=output)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_a_killed_and_a_frozen_dataflow_are_replaced_and_the_frozen_one_is_fenced(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(GATED)
    (tmp_path / "gate").write_text("12")
    text = replace(RUN, standbys=1).text().replace('kind = "toy"\nargs', 'kind = "gated:Gated"\nargs')
    (tmp_path / "run.toml").write_text(text)
    async with started(tmp_path, "up", "run.toml") as command:
        await command.expect("is standby")
        await command.shows("solver step 3/")
        killed = leader(command)
        kill(killed, parent=command.process.pid)
        await command.expect(f"takes over dataflow from {killed}: its process has ended (epoch 2)")
        await command.expect(f"{killed} is standby")
        (tmp_path / "gate").write_text("24")
        await command.expect("solver step ")

        frozen = leader(command)
        pid = pid_of(frozen, parent=command.process.pid)
        os.kill(pid, signal.SIGSTOP)
        await command.expect(f"takes over dataflow from {frozen}: it was silent (epoch 3)")
        (tmp_path / "gate").write_text("48")
        for _ in range(3):
            await command.expect("solver step ")
        os.kill(pid, signal.SIGCONT)
        await command.expect(f"{frozen} was fenced off and starts again: ")
        (tmp_path / "gate").write_text(str(RUN.groups))

        assert await command.end() == 0, command.output

    assert RUN.broken(tmp_path / "runs/takeover") == []


@pytest.mark.slow
async def test_two_trainers_of_one_policy_in_one_folder_never_mix(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN.text())
    folder = tmp_path / "runs/takeover"
    async with started(tmp_path, "up", "run.toml") as command:
        await command.expect("solver step 4/")
        pid = pid_of("trainer-local-0", parent=command.process.pid)
        arguments = command_line(pid)
        os.kill(pid, signal.SIGSTOP)
        async with actor(arguments, name="trainer-other-0", folder=tmp_path) as other:
            await command.expect("trainer-other-0 takes over trainer-solver from trainer-local-0: it was silent")
            await command.expect("solver step ")
            os.kill(pid, signal.SIGCONT)
            await command.expect("trainer-local-0 was fenced off and starts again: ")
            await command.expect("trainer-local-0 is standby")
            checkpoints = folder / "policies/solver/checkpoints"
            await eventually(lambda: list(checkpoints.glob("000002-*")))  # its work outlives it
            other.kill()
            await command.expect(
                "trainer-local-0 takes over trainer-solver from trainer-other-0: its process has ended"
            )
            assert await command.end() == 0, command.output

    assert RUN.broken(folder) == []
    lines = [json.loads(line) for line in (folder / "policies/solver/trained.jsonl").read_text().splitlines()]
    epochs = [line["epoch"] for line in lines]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2, 3}
    names = sorted(item.name for item in checkpoints.iterdir() if item.is_dir())
    assert names[-1] == f"000003-{RUN.groups // BATCH_GROUPS:08d}"
