"""A trainer whose disk is full: it says so, keeps its last checkpoint, and goes on when there is room."""

import asyncio
from pathlib import Path

import pytest

from astraflow.actors.trainer.actor import while_full
from astraflow.bus.memory import MemoryServer
from astraflow.errors import DiskFullError
from tests.actors.contexts import context
from tests.support import eventually


def full() -> str:
    """Write more than fits, as a checkpoint would."""
    with Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")
    return "unreachable"


async def test_a_write_waits_for_room_and_says_so(memory_server: MemoryServer, tmp_path: Path) -> None:
    there_is_room = asyncio.Event()

    async def write() -> str:
        return "written" if there_is_room.is_set() else await asyncio.to_thread(full)

    async with context(memory_server, tmp_path, role="trainer") as ctx, asyncio.TaskGroup() as group:
        task = group.create_task(while_full(ctx, tmp_path, write))
        await eventually(lambda: f"no room for {tmp_path}: No space left on device" in ctx.last_error)
        entry = await eventually(lambda: ctx.bus.logs.last(ctx.bus.topology.events, ctx.bus.topology.event("error")))
        assert (entry.message.name, entry.message.text) == ("disk-full", ctx.last_error)
        assert not task.done()
        there_is_room.set()
        assert await task == "written"
        assert not ctx.last_error


async def test_a_trainer_that_is_told_to_leave_does_not_wait(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        ctx.stop("drain")
        with pytest.raises(DiskFullError, match="free some space there"):
            await while_full(ctx, tmp_path, lambda: asyncio.to_thread(full))
