"""A trainer against a log of batches that somebody has tampered with, and against its own keys deleted or forged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.trainer.actor import run
from astraflow.actors.trainer.resume import progress_key
from astraflow.bus import wiring
from astraflow.bus.memory import MemoryBus, MemoryServer
from astraflow.concurrency import Background, innermost
from astraflow.config import TrainerSection
from astraflow.errors import AstraflowError, LostStateError, TrainingError
from astraflow.messages import Head, Lease, Message, Progress, Sample, SampleBatch, array_of
from tests.actors.contexts import CONFIG, context
from tests.support import eventually


def sample(*, advantage: float = 1.0) -> Sample:
    return Sample(
        id="g/0#0",
        task_id="g/0",
        group_id="g",
        tokens=array_of([1, 2], "i4"),
        loss_mask=array_of([0, 1], "u1"),
        logprobs=array_of([0.0, -1.0], "f4"),
        versions=(),
        advantage=advantage,
        reward=0.0,
    )


def batch(number: int, **fields: object) -> SampleBatch:
    given = {"policy": "solver", "number": number, "group_ids": (f"g{number}",), "train_step": number - 1}
    return SampleBatch(**{**given, "samples": (sample(),), **fields})  # type: ignore[arg-type]


@asynccontextmanager
async def trainer(server: MemoryServer, folder: Path) -> AsyncIterator[ActorContext]:
    """A trainer's context; its training section has six steps."""
    section = TrainerSection(steps=6, learner="toy", checkpoint_every=2, max_bad_steps=2)
    policy = msgspec.structs.replace(CONFIG.policies["solver"], trainer=section)
    config = msgspec.structs.replace(CONFIG, policies={"solver": policy})
    async with context(server, folder, role="trainer", config=config) as ctx:
        yield ctx


async def emit(ctx: ActorContext, *batches: SampleBatch) -> None:
    for one in batches:
        bus = ctx.bus
        await bus.publish(bus.topology.sample("solver"), one, msg_id=f"batch-{one.number}-{one.policy}")


async def progress(ctx: ActorContext) -> Progress | None:
    entry = await ctx.bus.kv.get(progress_key("solver"))
    return entry.message if entry is not None and isinstance(entry.message, Progress) else None


async def consumed(ctx: ActorContext, number: int) -> None:
    """Until the trainer has told that it is so far."""

    async def told() -> bool:
        found = await progress(ctx)
        return found is not None and found.consumed >= number

    await eventually(told)


async def error_of(ctx: ActorContext) -> AstraflowError:
    """What the trainer ends with."""
    with pytest.raises((AstraflowError, ExceptionGroup)) as found:
        async with asyncio.timeout(600):  # of virtual time
            await run(ctx)
    error = innermost(found.value) if isinstance(found.value, ExceptionGroup) else found.value
    assert isinstance(error, AstraflowError)
    return error


async def events(ctx: ActorContext) -> dict[str, str]:
    read = ctx.bus.logs.read(ctx.bus.topology.events, follow=False)
    return {entry.message.name: entry.message.text async for entry in read}


def remove(ctx: ActorContext, sequence: int) -> None:
    assert isinstance(ctx.bus, MemoryBus)
    ctx.bus.server.there(ctx.bus.topology.samples("solver")).remove(sequence)


async def test_a_batch_removed_from_the_middle_ends_training_with_its_name(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1), batch(2), batch(3))
        remove(ctx, 2)
        error = await error_of(ctx)
        assert isinstance(error, LostStateError)
        assert "batch 3 of solver follows batch 1: AF_test_local_SAMPLES_solver lost" in str(error)
        assert "up --fresh" in str(error)
        found = await progress(ctx)
        assert found is not None
        assert found.consumed == 1


async def test_the_newest_batch_removed_ends_training_instead_of_waiting_for_ever(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1), batch(2))
        remove(ctx, 2)
        error = await error_of(ctx)
        assert isinstance(error, LostStateError)
        assert str(error).startswith("batch 2 of solver was removed from AF_test_local_SAMPLES_solver")


async def test_a_cursor_that_the_log_does_not_bear_out_is_one_sentence_that_no_restart_repeats(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1), batch(2))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 2)
            ctx.stop("drain")
    async with trainer(memory_server, tmp_path) as ctx:
        remove(ctx, 2)
        error = await error_of(ctx)
        assert isinstance(error, LostStateError)
        assert "cursor 2 (batch-2-solver) in AF_test_local_SAMPLES_solver" in str(error)


async def test_a_repeat_and_another_policys_batch_are_passed_over(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1), batch(1, policy="judge"), batch(2))
        await ctx.bus.publish(ctx.bus.topology.sample("solver"), batch(2), msg_id="again")
        await emit(ctx, batch(3))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 3)
            ctx.stop("drain")
        found = await progress(ctx)
        assert found is not None
        assert (found.consumed, found.step) == (3, 3)


async def test_a_skipped_batch_is_consumed_and_bad_steps_count_only_in_a_row(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    bad = {"samples": (sample(advantage=float("nan")),)}
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1), batch(2, **bad), batch(3), batch(4, **bad), batch(5), batch(6, **bad))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 6)
            ctx.stop("drain")
        found = await progress(ctx)
        assert found is not None
        assert (found.consumed, found.step) == (6, 3)
        assert [path.name for path in sorted((tmp_path / "policies/solver/bad-batches").iterdir())] == [
            f"{number:08d}.msgpack" for number in (2, 4, 6)
        ]


async def test_bad_steps_in_a_row_end_training(memory_server: MemoryServer, tmp_path: Path) -> None:
    bad = {"samples": (sample(advantage=float("nan")),)}
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1), batch(2, **bad), batch(3, **bad), batch(4))
        error = await error_of(ctx)
        assert isinstance(error, TrainingError)
        assert "2 steps in a row of solver were skipped, the last for nan_loss" in str(error)


@pytest.mark.parametrize("forged", [None, {"version": 10**9, "manifest_sequence": 10**6}, {"epoch": 10**6}])
async def test_a_head_that_is_deleted_or_forged_is_written_again(
    memory_server: MemoryServer, tmp_path: Path, forged: dict[str, int] | None
) -> None:
    key = wiring.HEAD.key("solver")
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 1)

            async def current() -> Head | None:
                entry = await ctx.bus.kv.get(key)
                return entry.message if entry is not None and entry.message.step == 1 else None

            real = await eventually(current)
            await _damage(ctx, key, real, forged)

            async def again() -> bool:
                entry = await ctx.bus.kv.get(key)
                return entry is not None and entry.message == real

            await eventually(again)
            assert "key-rebuilt" in await events(ctx)
            ctx.stop("drain")


@pytest.mark.parametrize("forged", [None, {"consumed": 10**6}, {"epoch": 10**6}])
async def test_a_progress_that_is_deleted_or_forged_is_written_again(
    memory_server: MemoryServer, tmp_path: Path, forged: dict[str, int] | None
) -> None:
    async with trainer(memory_server, tmp_path) as ctx:
        await emit(ctx, batch(1))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 1)
            real = await progress(ctx)
            assert real is not None
            await _damage(ctx, progress_key("solver"), real, forged)

            async def again() -> bool:
                return await progress(ctx) == real

            await eventually(again)
            ctx.stop("drain")


async def _damage(ctx: ActorContext, key: str, real: Message, forged: dict[str, int] | None) -> None:
    if forged is None:
        await ctx.bus.kv.delete(key)
    else:
        await ctx.bus.kv.put(key, msgspec.structs.replace(real, **forged))


async def test_after_the_keys_are_lost_a_trainer_begins_above_every_epoch_that_has_been(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    keys = (wiring.LEASE.key("trainer-solver"), wiring.HEAD.key("solver"), progress_key("solver"))
    async with trainer(memory_server, tmp_path) as ctx:
        await ctx.bus.kv.put(keys[0], Lease(holder="", epoch=41))
        await emit(ctx, batch(1), batch(2))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 2)
            ctx.stop("drain")
    async with trainer(memory_server, tmp_path) as ctx:
        for key in keys:
            await ctx.bus.kv.delete(key)
        await emit(ctx, batch(3))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 3)
            ctx.stop("drain")
        found = await progress(ctx)
        assert found is not None
        assert (found.epoch, found.step) == (43, 3)
        assert "head-rebuilt" in await events(ctx)
        entry = await ctx.bus.kv.get(keys[1])
        assert entry is not None
        assert entry.message.version == found.version > 3


async def test_a_checkpoint_is_not_told_before_its_version_is_on_the_bus(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with trainer(memory_server, tmp_path) as ctx:
        stream = ctx.bus.topology.weights("solver")
        await emit(ctx, batch(1))
        async with Background() as background:
            background.start(run(ctx))
            await consumed(ctx, 1)
            away = memory_server.streams.pop(stream)
            await emit(ctx, batch(2))
            await consumed(ctx, 2)
            for _ in range(100):
                await asyncio.sleep(0.1)
                found = await progress(ctx)
                assert found is not None
                assert found.durable_batch == 0
            memory_server.streams[stream] = away

            async def durable() -> bool:
                found = await progress(ctx)
                return found is not None and found.durable_batch == 2

            await eventually(durable)
            ctx.stop("drain")
