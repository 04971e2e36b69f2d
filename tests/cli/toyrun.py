"""A whole run without torch: toy model, engine, learner and environment, as real processes."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

TOY = """\
[run]
name = "demo"

[record]
curve = false # it takes matplotlib seconds; test_learns and test_recorder have it drawn

[policies.solver]
model = "toy"
engine = { kind = "toy" }

[policies.solver.trainer]
steps = 4
learner = "toy"
batch_groups = 2

[envs.game]
kind = "toy"

[sources.game]
env = "game"
group_size = 4

[eval.held-out]
env = "game"
size = 8
"""

ENDED_EARLY = 5  # exit code of an `up` that a person ended
PATIENCE_S = 150.0  # a toy run takes 5 s alone; on two cores that fifteen other processes wanted it took over 60
# Five steps a second are enough.
ENDLESS = ("policies.solver.trainer.steps=100000", "policies.solver.trainer.toy_step_s=0.2")


def write_toy(folder: Path, text: str = TOY) -> Path:
    """The run file in a folder."""
    file = folder / "run.toml"
    file.write_text(text)
    return file


class Command:
    """A running `astraflow` process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output = ""

    async def expect(self, text: str, within_s: float = PATIENCE_S) -> str:
        """Read lines until one holds `text`; that line."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                while line := (await self.process.stdout.readline()).decode():
                    self.output += line
                    if text in line:
                        return line
        except TimeoutError:
            pass
        raise AssertionError(f"no {text!r} in:\n{self.output}")

    async def shows(self, text: str) -> None:
        """Its output holds this, or will: for lines whose place among others isn't given."""
        if text not in self.output:
            await self.expect(text)

    async def end(self, within_s: float = PATIENCE_S) -> int:
        """Read to the end; the exit code."""
        assert self.process.stdout is not None
        async with asyncio.timeout(within_s):
            self.output += (await self.process.stdout.read()).decode()
            return await self.process.wait()


@contextlib.asynccontextmanager
async def started(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Command]:
    """`astraflow …` in a folder, with this added to the environment; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-m",
        "astraflow.cli.main",
        *arguments,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=1 << 20,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def finished(
    folder: Path, *arguments: str, within_s: float = PATIENCE_S, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and output of a whole `astraflow …`."""
    async with started(folder, *arguments, environment=environment) as command:
        code = await command.end(within_s)
        return code, command.output


def sets(*overrides: str) -> list[str]:
    """`--set` arguments."""
    return [part for override in overrides for part in ("--set", override)]
