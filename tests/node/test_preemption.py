"""Preemption notices from real files and real commands."""

import asyncio
import signal
from pathlib import Path

import pytest

from astraflow.node.preemption import Notice, Preemption, run_command
from tests.support import eventually


async def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    async with asyncio.TaskGroup() as group:
        notice = group.create_task(Preemption(file=str(file)).noticed(report=print))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.shield(notice)
        file.write_text("")
    assert notice.result() == Notice(text=f"file {file} exists")


async def test_a_command_is_a_notice_once_it_succeeds(tmp_path: Path) -> None:
    runs, go = tmp_path / "runs", tmp_path / "go"
    command = f"echo >> {runs}; test -e {go}"
    async with asyncio.TaskGroup() as group:
        source = Preemption(command=command, command_every_s=0.02)
        notice = group.create_task(source.noticed(report=print))
        await eventually(lambda: runs.exists() and len(runs.read_text()) >= 2)
        assert not notice.done()
        go.write_text("")
    assert notice.result() == Notice(text=f"`{command}` succeeded")


async def test_a_command_that_isnt_there_is_reported_once() -> None:
    reports: list[str] = []
    source = Preemption(command="no-such-command-7f3a", command_every_s=0.02)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await source.noticed(report=reports.append)
    assert reports == [
        "the preemption command `no-such-command-7f3a` can't be found; this node won't notice a preemption"
    ]


async def test_without_a_source_there_is_never_a_notice() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await Preemption().noticed(report=print)


async def test_a_command_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = await run_command(f"sleep 100 & echo $! > {pid}; wait", deadline_s=0.5)
    assert code == -signal.SIGKILL
    await eventually(lambda: not Path(f"/proc/{pid.read_text().strip()}/exe").exists())
