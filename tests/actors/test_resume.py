"""Where a trainer starts from, on a real server: its own lineage, and never behind what another disk made durable."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.policy import actor as policy
from astraflow.actors.trainer.actor import run
from astraflow.actors.trainer.learner_thread import LearnerThread
from astraflow.actors.trainer.resume import Resumed, _build, progress_key, publish_frozen, resume
from astraflow.bus import wiring
from astraflow.bus.memory import MemoryServer
from astraflow.config import LossSection, TrainerSection
from astraflow.errors import FencedError
from astraflow.messages import MemberState, Progress
from astraflow.messages.metric_names import TRAIN_REFERENCE_KL
from astraflow.weights.transfer.catalog import fault_of_newest, head_of, retained
from astraflow.weights.transfer.publisher import WeightPublisher
from tests.actors.contexts import CONFIG, context
from tests.actors.test_checkpoints import state
from tests.actors.test_lost_batches import sample as trained_on
from tests.learners import learner_cases as cases
from tests.learners.learner_cases import model_folder
from tests.support import eventually
from tests.weights.test_faults import damage

SECTION = TrainerSection(steps=9, learner="toy")


async def resumed(ctx: ActorContext, *, epoch: int, durable: int = 0) -> Resumed:
    """A trainer's start after one whose oldest checkpoint was of batch (and sequence) `durable`."""
    publisher = WeightPublisher(ctx, epoch=epoch)
    told = Progress(
        policy="solver",
        consumed=9,
        step=9,
        version=9,
        epoch=epoch - 1,
        durable_batch=durable,
        durable_sequence=durable,
    )
    found = await resume(ctx, SECTION, publisher, told)
    found.trained.close()
    return found


async def publish(ctx: ActorContext, trainer: Resumed, *, batch: int) -> WeightPublisher:
    """The trainer's weights as the version after `batch`."""
    publisher = WeightPublisher(ctx, epoch=trainer.epoch)
    await publisher.open()
    await publisher.publish(
        trainer.learner.export(), trainer.learner.model_files(), version=batch, step=batch, batch=batch
    )
    return publisher


async def test_a_checkpoint_is_resumed_unless_a_newer_one_is_on_another_disk(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        first = await resumed(ctx, epoch=1)
        assert (first.state.batch, first.state.version) == (0, 0)
        first.checkpoints.save(first.learner, state(3))
        await publish(ctx, first, batch=5)

        second = await resumed(ctx, epoch=2, durable=3)
        assert (second.state.batch, second.state.version) == (3, 6)

        third = await resumed(ctx, epoch=3, durable=5)
        assert (third.state.batch, third.state.version, third.state.cursor) == (5, 6, None)


async def test_from_a_later_start_on_an_older_trainer_moves_no_head_and_saves_no_checkpoint(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        old = await resumed(ctx, epoch=1)
        publisher = await publish(ctx, old, batch=1)

        await resumed(ctx, epoch=2)

        tensors, files = old.learner.export(), old.learner.model_files()
        with pytest.raises(FencedError, match="moved by another trainer"):
            await publisher.publish(tensors, files, version=2, step=2, batch=2)
        with pytest.raises(FencedError, match="lease epoch 2, this process has 1"):
            old.checkpoints.save(old.learner, state(2))
        with pytest.raises(FencedError, match="lease epoch 2, this process has 1"):
            await resumed(ctx, epoch=1)


async def test_a_trainer_that_follows_a_finished_one_does_nothing(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        trainer = CONFIG.policies["solver"].trainer
        assert trainer is not None
        done = Progress(policy="solver", consumed=3, step=trainer.steps, version=3, epoch=1, finished=True)
        revision = await ctx.bus.kv.put(progress_key("solver"), done)

        await run(ctx)

        entry = await ctx.bus.kv.get(progress_key("solver"))
        assert entry is not None
        assert entry.revision == revision
        assert await ctx.bus.kv.get(wiring.HEAD.key("solver")) is None


async def test_two_trainers_of_a_frozen_policy_publish_it_once(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        await publish_frozen(ctx, epoch=1)
        first = await ctx.bus.logs.state(ctx.bus.topology.weights("solver"))
        await publish_frozen(ctx, epoch=2)
        assert await ctx.bus.logs.state(ctx.bus.topology.weights("solver")) == first


async def test_a_frozen_policy_whose_weights_were_damaged_says_what_to_do_and_the_next_start_repairs_it(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with (
        context(memory_server, tmp_path, role="trainer") as ctx,
        context(memory_server, tmp_path, role="policy") as replica,
        asyncio.TaskGroup() as group,
    ):
        await publish_frozen(ctx, epoch=1)
        (version,) = await retained(ctx.bus, "solver")
        await damage(ctx.bus, version.manifest.parts[0], epoch=1)
        serving = group.create_task(policy.run(replica))
        await eventually(lambda: "start its trainer again" in replica.last_error)
        assert "is damaged" in replica.last_error
        await publish_frozen(ctx, epoch=2)
        await eventually(lambda: replica.state is MemberState.READY)
        assert await fault_of_newest(ctx.bus, "solver") == ""
        replica.stop("drain")
        await serving


async def test_a_finished_trainer_whose_weights_were_damaged_publishes_them_anew_when_it_is_started_again(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        trainer = CONFIG.policies["solver"].trainer
        assert trainer is not None
        started = await resumed(ctx, epoch=1)
        started.checkpoints.save(started.learner, state(trainer.steps))
        await publish(ctx, started, batch=trainer.steps)
        done = Progress(policy="solver", consumed=3, step=trainer.steps, version=3, epoch=1, finished=True)
        await ctx.bus.kv.put(progress_key("solver"), done)
        (version,) = await retained(ctx.bus, "solver")
        await damage(ctx.bus, version.manifest.parts[0], epoch=1)
        assert "is damaged" in await fault_of_newest(ctx.bus, "solver")

        await run(ctx)

        assert await fault_of_newest(ctx.bus, "solver") == ""
        head = await head_of(ctx.bus, "solver")
        assert head is not None
        assert (head.step, head.finished) == (trainer.steps, True)
        entry = await ctx.bus.kv.get(progress_key("solver"))
        assert entry is not None
        assert entry.message.finished


@pytest.mark.parametrize("file", ["trainer.json", "toy.json"])
@pytest.mark.parametrize("data", [None, b"", b"{", b"\xff"])
async def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(
    memory_server: MemoryServer, tmp_path: Path, file: str, data: bytes | None
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        first = await resumed(ctx, epoch=1)
        first.checkpoints.save(first.learner, state(3))
        newest = first.checkpoints.save(first.learner, state(4))
        assert (newest / file).is_file(), list(newest.iterdir())
        (newest / file).unlink() if data is None else (newest / file).write_bytes(data)

        second = await resumed(ctx, epoch=2, durable=3)

        assert second.state.batch == 3
        assert newest.with_name(f"damaged-{newest.name}").is_dir()
        told = [entry.message.name async for entry in ctx.bus.logs.read(ctx.bus.topology.events, follow=False)]
        assert "damaged-checkpoint" in told


async def test_a_resumed_learner_goes_on_as_if_nothing_had_been(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        first = await resumed(ctx, epoch=1)
        await first.thread(first.learner.step, [trained_on()])
        first.checkpoints.save(first.learner, state(3))
        second = await resumed(ctx, epoch=2, durable=3)
        for one in (first, second):
            await one.thread(one.learner.step, [trained_on()])
        exported = [
            {name: bytes(tensor.data) for name, tensor in one.learner.export().items()} for one in (first, second)
        ]
        assert exported[0] == exported[1]


async def test_without_a_checkpoint_here_batches_that_are_no_longer_kept_are_not_waited_for(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        first = await resumed(ctx, epoch=1)
        await publish(ctx, first, batch=5)
        second = await resumed(ctx, epoch=2, durable=9)  # 6 to 8 were skipped, and are purged
        assert second.state.batch == 8


async def test_what_the_kl_is_taken_against_is_the_base_model_whatever_is_resumed(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    base, other = model_folder(tmp_path / "base"), model_folder(tmp_path / "other", seed=1)
    section = cases.section(loss=LossSection(objective="ratio", kl=0.1, kl_in="loss"))
    solver = msgspec.structs.replace(CONFIG.policies["solver"], model=str(base), trainer=section)
    config = msgspec.structs.replace(CONFIG, policies={"solver": solver})
    async with context(memory_server, tmp_path, role="trainer", config=config) as ctx:
        thread, found = LearnerThread(), []
        for folder in (base, other):
            learner = await _build(ctx, thread, section, folder)
            report = await thread(learner.step, cases.batch())
            found.append(report.metrics.get(TRAIN_REFERENCE_KL, 0.0))
        thread.close()
        assert found[0] == pytest.approx(0.0, abs=1e-6)
        assert abs(found[1]) > 1e-3
