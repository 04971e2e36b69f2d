"""The trainer actor of one policy: for batch in samples: step → publish → checkpoint.

It takes batches in the order of their numbers and refuses any other; it never chooses data. Publishing a version
overlaps the next step. A trainer that loses the head or its lease is fenced and exits (lease.py).
Shutdown order: finish the step → wait for the publish in flight → checkpoint → close → release the lease.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.diskfull import ROOM_EVERY_S, naming_full
from astraflow.actors.base.lease import HeldLease, lease
from astraflow.actors.base.owned_key import OwnedKey
from astraflow.actors.trainer.checkpoints import CheckpointState
from astraflow.actors.trainer.publishing import Job, VersionsUnderWay
from astraflow.actors.trainer.resume import (
    Resumed,
    last_progress,
    newest_epoch,
    newest_is_lost,
    policy_folder,
    progress_key,
    publish_frozen,
    resume,
)
from astraflow.bus import LogEntry
from astraflow.concurrency import innermost
from astraflow.config import TrainerSection
from astraflow.errors import CursorError, DiskFullError, LostStateError, MessageError, TrainingError
from astraflow.learners.base import Learner, StepReport
from astraflow.messages import MemberState, Metrics, Progress, SampleBatch, VersionStep
from astraflow.messages.metric_names import (
    TRAIN,
    TRAIN_ADVANTAGE_ABS_MEAN,
    TRAIN_GROUPS,
    TRAIN_REWARD_MEAN,
    TRAIN_SAMPLES,
    TRAIN_SECONDS,
    TRAIN_SKIPPED,
    TRAIN_STALENESS_MAX,
    TRAIN_STALENESS_MEAN,
    TRAIN_WAIT_S,
    TRAINER_STEP,
    TRAINER_VERSION,
)
from astraflow.weights.transfer.full_store import FullStore, full_store
from astraflow.weights.transfer.publisher import RECENT_VERSIONS, WeightPublisher

_LOOK_EVERY_S = 5.0
_RECOVERY = "restore the server's store folder, or start afresh with `astraflow up --fresh`"
T = TypeVar("T")


class Trainer:
    """One policy's training loop and its position."""

    def __init__(
        self, ctx: ActorContext, section: TrainerSection, held: HeldLease, resumed: Resumed, publisher: WeightPublisher
    ) -> None:
        self._ctx = ctx
        self._lease = held
        self._section = section
        self._learner: Learner = resumed.learner
        self._thread = resumed.thread
        self._publishing = VersionsUnderWay(ctx, publisher)
        self._epoch = resumed.epoch
        self._state = resumed.state
        self._durable = resumed.state
        self._oldest_cursor = resumed.oldest_cursor
        self._folder = resumed.folder
        self._checkpoints = resumed.checkpoints
        self._trained = resumed.trained
        self._progress = OwnedKey(ctx.bus, progress_key(ctx.policy))
        self._bad_steps = 0
        self._waits = False  # for a batch
        self._told_unremovable: set[Path] = set()

    @property
    def done(self) -> bool:
        """No batch is needed any more."""
        return self._state.exhausted or self._state.step >= self._section.steps

    async def train(self, group: asyncio.TaskGroup) -> None:
        """Publish the starting version, then consume batches until done or stopped; never stops inside a step."""
        await self._tell_progress()  # of this epoch, before anything else is done in it
        await self._publish(group)
        beside = [group.create_task(self._publishing.answer_requests()), group.create_task(self._look_after())]
        try:
            await self._train(group)
            await self.published()
        finally:
            for task in beside:
                task.cancel()

    async def _look_after(self) -> None:
        """What this trainer has written stays, whoever deletes it; what it waits for can come, or training ends.

        Raises: LostStateError if its next batch is gone.
        """
        while not await self._ctx.stopped_within(_LOOK_EVERY_S):
            if await self._progress.mend():
                await self._rebuilt(f"KV key {progress_key(self._ctx.policy)}")
            if await self._publishing.mend():
                await self._rebuilt(f"the head of {self._ctx.policy}")
            if self._waits and (lost := await self._lost_batch()):
                raise LostStateError(lost)

    async def _rebuilt(self, what: str) -> None:
        text = f"{what} was deleted, or overwritten by somebody who may not; it is written again"
        await self._ctx.bus.event("error", "key-rebuilt", text)

    async def _lost_batch(self) -> str:
        """Of the batch that it waits for: a sentence if it was stored and is gone."""
        bus, state = self._ctx.bus, self._state
        stream, subject = bus.topology.samples(self._ctx.policy), bus.topology.sample(self._ctx.policy)
        behind = state.cursor.sequence if state.cursor is not None else 0
        log = await bus.logs.state(stream)
        if log.last_sequence <= behind:
            return ""
        try:
            found = await bus.logs.next(stream, subject, start=behind + 1)
        except MessageError:  # it is there, and becomes a dead letter
            return ""
        if found is not None or self._state is not state:
            return ""
        return (
            f"batch {state.batch + 1} of {self._ctx.policy} was removed from {stream}, which has nothing behind "
            f"{behind} but went up to {log.last_sequence}; {_RECOVERY}"
        )

    async def _train(self, group: asyncio.TaskGroup) -> None:
        self._ctx.set_state(MemberState.READY)
        stream = self._ctx.bus.topology.samples(self._ctx.policy)
        async with aclosing(self._ctx.bus.logs.read(stream, cursor=self._state.cursor)) as entries:
            while not self.done and not self._ctx.stopping.is_set():
                waiting_since = clock.monotonic()
                self._ctx.waits_for(f"batch {self._state.batch + 1}")
                self._waits = True
                entry = await self._ctx.unless_stopped(anext(entries))
                self._waits = False
                self._ctx.waits_for("")
                await self._lease.held()
                if entry is not None:
                    await self._consume(entry, group, wait_s=clock.monotonic() - waiting_since)

    async def _consume(self, entry: LogEntry, group: asyncio.TaskGroup, *, wait_s: float) -> None:
        batch = entry.message
        assert isinstance(batch, SampleBatch), batch
        if batch.number <= self._state.batch:
            return  # resumed without a cursor: already inside the weights
        if batch.number != self._state.batch + 1:
            raise LostStateError(
                f"batch {batch.number} of {self._ctx.policy} follows batch {self._state.batch}: "
                f"{self._ctx.bus.topology.samples(self._ctx.policy)} lost what is between them; {_RECOVERY}"
            )
        started = clock.monotonic()
        report = await self._step(batch)
        self._advance(entry, batch, report)
        if report.trained:
            await self._publish(group)
        await self._tell_progress()
        await self._tell_metrics(batch, report, seconds=clock.monotonic() - started, wait_s=wait_s)
        if report.trained and self._state.step % self._section.checkpoint_every == 0:
            await self.checkpoint()
        if not report.trained and batch.samples:
            await self._bad_step(batch, report)

    async def _step(self, batch: SampleBatch) -> StepReport:
        if not batch.samples:
            return StepReport(trained=False, skip_reason="empty")
        try:
            return await self._thread(self._learner.step, batch.samples)
        except MessageError as exc:
            self._ctx.last_error = str(exc)
            return StepReport(trained=False, skip_reason="malformed")

    def _advance(self, entry: LogEntry, batch: SampleBatch, report: StepReport) -> None:
        state = self._state
        step, version, recent = state.step, state.version, state.recent
        if report.trained:
            step, version = step + 1, version + 1
            recent = (*recent, VersionStep(version=version, step=step))[-RECENT_VERSIONS:]
            self._trained.add(batch, step=step, epoch=self._epoch)
            self._bad_steps = 0
        self._state = msgspec.structs.replace(
            state,
            batch=batch.number,
            step=step,
            version=version,
            recent=recent,
            cursor=entry.cursor,
            exhausted=batch.last,
        )

    async def _bad_step(self, batch: SampleBatch, report: StepReport) -> None:
        """Count and dump a batch that could not be trained; stop after too many in a row."""
        self._bad_steps += 1
        path = self._folder / "bad-batches" / f"{batch.number:08d}.msgpack"
        await asyncio.to_thread(_dump, path, batch)
        text = f"batch {batch.number} was skipped: {report.skip_reason}; it is kept in {path}"
        await self._ctx.bus.event("warning", "step-skipped", text, batch=batch.number, reason=report.skip_reason)
        if self._bad_steps >= self._section.max_bad_steps:
            raise TrainingError(
                f"{self._bad_steps} steps in a row of {self._ctx.policy} were skipped, the last for "
                f"{report.skip_reason}; lower trainer.learning_rate or look at {path.parent}"
            )

    async def _publish(self, group: asyncio.TaskGroup) -> None:
        """Start publishing the current weights, once the previous publish is through, or has failed."""
        await self._lease.held()
        tensors = await self._thread(self._learner.export)
        probe = await self._thread(self._learner.probe)
        state = self._state
        job = Job(
            tensors=tensors,
            files=self._learner.model_files(),
            version=state.version,
            step=state.step,
            batch=state.batch,
            finished=self.done,
            probe=probe,
        )
        await self._publishing.start(job, group)

    async def published(self) -> None:
        """Wait until the newest version is published."""
        await self._publishing.done()

    async def checkpoint(self) -> None:
        """Make the position durable and tell whoever purges."""
        if self._durable is self._state:
            return
        await self._lease.held()
        state = await self._when_there_is_room(partial(self._save, self._state))
        await self.published()  # a trainer on another disk must find this batch on the bus, if it finds it durable
        self._state = self._durable = state
        await self._tell_unremovable()
        oldest = await asyncio.to_thread(self._checkpoints.oldest)
        self._oldest_cursor = oldest.cursor if oldest is not None else None
        await self._tell_progress()

    async def _tell_unremovable(self) -> None:
        """Once for each old checkpoint that stays on the disk."""
        for path, why in self._checkpoints.unremovable.items():
            if path not in self._told_unremovable:
                self._told_unremovable.add(path)
                text = f"old checkpoint {path} can't be removed: {why}; training goes on, it only takes up the disk"
                await self._ctx.bus.event("warning", "checkpoint-stays", text)

    def _save(self, state: CheckpointState) -> CheckpointState:
        """Blocking: the trained log first, then the checkpoint that knows its size."""
        state = msgspec.structs.replace(state, trained_bytes=self._trained.sync())
        self._checkpoints.save(self._learner, state)
        return state

    async def _when_there_is_room(self, write: Callable[[], T]) -> T:
        """Training waits: a step that no checkpoint can hold would only be repeated."""
        written = await while_full(self._ctx, self._folder, partial(self._thread, write))
        await self._lease.held()
        return written

    async def finish(self) -> None:
        """Write the final model and say that no newer version will come."""
        await self.published()
        await self.checkpoint()
        await self._lease.held()
        write = partial(_write_model, self._learner, self._folder / "model", epoch=self._epoch)
        await self._when_there_is_room(write)
        await self._tell_progress(finished=True)

    async def _tell_progress(self, *, finished: bool = False) -> None:
        state, cursor = self._state, self._oldest_cursor
        count, digest = await asyncio.to_thread(self._trained.totals) if finished else (0, "")
        self._ctx.gauge(TRAINER_STEP, state.step)
        self._ctx.gauge(TRAINER_VERSION, state.version)
        progress = Progress(
            policy=self._ctx.policy,
            consumed=state.batch,
            step=state.step,
            version=state.version,
            epoch=self._epoch,
            durable_batch=self._durable.batch,
            durable_sequence=cursor.sequence if cursor else 0,
            recent=state.recent,
            finished=finished,
            trained_tasks=count,
            trained_digest=digest,
        )
        await self._progress.put(progress)

    async def _tell_metrics(self, batch: SampleBatch, report: StepReport, *, seconds: float, wait_s: float) -> None:
        samples = batch.samples
        values: dict[str, float] = {
            **report.metrics,
            TRAIN_SAMPLES: len(samples),
            TRAIN_GROUPS: len(batch.group_ids),
            TRAIN_SECONDS: seconds,
            TRAIN_WAIT_S: wait_s,
            TRAIN_STALENESS_MEAN: batch.mean_staleness,
            TRAIN_STALENESS_MAX: batch.max_staleness,
            TRAIN_SKIPPED: float(not report.trained),
        }
        if samples:
            values[TRAIN_REWARD_MEAN] = sum(sample.reward for sample in samples) / len(samples)
            values[TRAIN_ADVANTAGE_ABS_MEAN] = sum(abs(sample.advantage) for sample in samples) / len(samples)
        await self._ctx.bus.metrics(
            Metrics(
                kind=TRAIN,
                at=clock.wall(),
                values=values,
                policy=self._ctx.policy,
                step=self._state.step,
                version=self._state.version,
                batch=batch.number,
                lineage=self._epoch,
            )
        )


async def while_full(ctx: ActorContext, folder: Path, write: Callable[[], Awaitable[T]]) -> T:
    """The result of `write`, as soon as the disk of `folder` has room; while it has none, an event and `status` say so.

    Raises: DiskFullError if the actor is told to leave meanwhile: what no checkpoint holds is trained again.
    """
    told = ""
    while True:
        try:
            with naming_full(folder):
                result = await write()
        except DiskFullError as exc:
            if not told:
                ctx.last_error = told = str(exc)
                await ctx.bus.event("error", "disk-full", told)
            if await ctx.stopped_within(ROOM_EVERY_S):
                raise
        else:
            if told:
                ctx.last_error = ""
            return result


def _write_model(learner: Learner, folder: Path, *, epoch: int) -> None:
    """The final model, whole or not at all."""
    temporary = folder.with_name(f".tmp-model-{epoch}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    learner.export_model(temporary)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _dump(path: Path, batch: SampleBatch) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.msgpack.encode(batch))


async def run(ctx: ActorContext) -> None:
    """Train until done, or until told to stop; while another trainer holds the policy's lease, wait for it.

    Raises: FencedError if the lease was lost; LostStateError if the log doesn't fit what was trained.
    """
    async with lease(ctx, f"trainer-{ctx.policy}", above=await newest_epoch(ctx)) as held:
        if held is None:
            return
        section = ctx.policy_section.trainer
        async with full_store(ctx) as fulls:
            if section is None:
                await publish_frozen(ctx, epoch=held.epoch, fulls=fulls)
            else:
                await _train(ctx, section, held, fulls)


async def _train(ctx: ActorContext, section: TrainerSection, held: HeldLease, fulls: FullStore | None) -> None:
    progress = await last_progress(ctx)
    if progress.finished and progress.step >= section.steps:
        checkpoints = policy_folder(ctx.folder, ctx.policy) / "checkpoints"
        if not any(checkpoints.glob("*")) or not await newest_is_lost(ctx):
            return  # the trainer before has done it all
    publisher = WeightPublisher(ctx, epoch=held.epoch, full_every=section.full_every, fulls=fulls)
    resumed = await resume(ctx, section, publisher, progress)
    trainer = Trainer(ctx, section, held, resumed, publisher)
    try:
        async with asyncio.TaskGroup() as publishing:
            await trainer.train(publishing)
            await trainer.checkpoint()
            if trainer.done:
                await trainer.finish()
    except* CursorError as group:  # another start would find the same
        raise LostStateError(str(innermost(group))) from group
    finally:
        await asyncio.to_thread(resumed.learner.close)  # first: other processes of its thread end with the thread
        resumed.trained.close()
        resumed.thread.close()
