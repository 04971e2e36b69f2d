"""How a trainer finds its starting point: checkpoint, else newest version on the bus, else base model.

It does no training. The version counter never goes back: whatever is resumed is published as a new, higher version.
Order: lease (the caller's) → head and checkpoints are claimed for its epoch → progress says where training goes on.
After that no older trainer's head, checkpoint or progress can come to count.
"""

import asyncio
import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.owned_key import OwnedKey
from astraflow.actors.trainer.checkpoints import Checkpoints, CheckpointState
from astraflow.actors.trainer.learner_thread import LearnerThread
from astraflow.actors.trainer.trained_log import TrainedLog, bytes_up_to
from astraflow.bus import Cursor, wiring
from astraflow.config import TrainerSection
from astraflow.errors import DamagedCheckpointError, MessageError, UnreadableValueError, WeightsError
from astraflow.learners.base import Learner
from astraflow.learners.factory import build_learner
from astraflow.messages import Head, Manifest, Probe, Progress, VersionStep
from astraflow.models.folder import read_model, write_model
from astraflow.models.resolve import resolve_model
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer.catalog import fault_of_newest
from astraflow.weights.transfer.follower import WeightFollower
from astraflow.weights.transfer.full_store import FullStore
from astraflow.weights.transfer.publisher import WeightPublisher


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A learner at its starting point, with the files that record its way."""

    learner: Learner
    thread: LearnerThread  # the only one that calls the learner
    state: CheckpointState
    oldest_cursor: Cursor | None  # of the oldest checkpoint kept
    epoch: int
    folder: Path  # of this policy, in the run folder
    checkpoints: Checkpoints
    trained: TrainedLog


def progress_key(policy: str) -> str:
    """KV key of a trainer's progress."""
    return wiring.PROGRESS.key(policy)


def policy_folder(run_folder: Path, policy: str) -> Path:
    """Where a policy's checkpoints, trained log and final model are."""
    return run_folder / "policies" / policy


async def resume(ctx: ActorContext, section: TrainerSection, publisher: WeightPublisher, progress: Progress) -> Resumed:
    """Everything a trainer starts from. `progress`: see `last_progress`.

    Raises: FencedError if a later trainer has started; TrainingError, WeightsError if what is there can't be used.
    """
    ctx.waits_for("")
    thread, epoch = LearnerThread(), publisher.epoch
    head = await publisher.open()
    folder = policy_folder(ctx.folder, ctx.policy)
    checkpoints = Checkpoints(folder / "checkpoints", keep=section.keep_checkpoints, epoch=epoch)
    path = _trained_path(folder)
    restored = await _newest_whole(ctx, thread, section, checkpoints, progress)
    if restored is not None:
        learner, state = restored
    elif head is not None and head.step > 0 and progress.durable_batch > 0:
        learner, state = await _from_bus(ctx, thread, section, head, folder)
        batch = max(head.batch, progress.durable_batch - 1)  # batches up to it were skipped, or are in the weights
        state = msgspec.structs.replace(state, batch=batch, trained_bytes=bytes_up_to(path, batch))
    else:  # no checkpoint was ever durable, so the log still holds every batch
        if head is not None and head.step > 0:
            text = (
                f"no checkpoint of {ctx.policy} yet (checkpoint_every = {section.checkpoint_every}): steps 1 to "
                f"{head.step} are trained again from the same batches"
            )
            await ctx.bus.event("warning", "steps-again", text, step=head.step)
        learner = await _build(ctx, thread, section, await _base_model(ctx))
        state = CheckpointState(policy=ctx.policy, batch=0, step=0, version=0, cursor=None)
    state = _with_version(state, 0 if head is None else max(head.version, state.version) + 1)
    oldest = checkpoints.oldest()
    trained = TrainedLog(path, size_bytes=state.trained_bytes, epoch=epoch)
    if trained.damage:
        await ctx.bus.event("error", "damaged-trained-log", trained.damage)
    return Resumed(
        learner=learner,
        thread=thread,
        state=state,
        oldest_cursor=oldest.cursor if oldest is not None else None,
        epoch=epoch,
        folder=folder,
        checkpoints=checkpoints,
        trained=trained,
    )


async def _newest_whole(
    ctx: ActorContext, thread: LearnerThread, section: TrainerSection, checkpoints: Checkpoints, progress: Progress
) -> tuple[Learner, CheckpointState] | None:
    """The learner as the newest checkpoint that a disk has not damaged left it, claimed; None if there is none to use.

    A damaged one is set aside and told of; its predecessor's batches are still in the log, because the oldest
    checkpoint kept is what the log is purged by.
    """
    while True:
        try:
            found = await asyncio.to_thread(checkpoints.newest)
        except DamagedCheckpointError as exc:
            await _set_aside(ctx, checkpoints, exc)
            continue
        if found is not None and _sequence(found[1]) < progress.durable_sequence:
            text = (
                f"checkpoint {found[0]} is older than what is kept of {ctx.policy}: "
                "a trainer on another disk was further"
            )
            await ctx.bus.event("warning", "old-checkpoint", text, batch=found[1].batch, durable=progress.durable_batch)
            found = None
        await asyncio.to_thread(checkpoints.claim, found[0] if found is not None else None)
        if found is None:
            return None
        checkpoint, state = found
        learner = await _build(ctx, thread, section, await _base_model(ctx))
        try:
            await thread(learner.restore, checkpoint)
        except WeightsError as exc:
            await thread(learner.close)
            await _set_aside(ctx, checkpoints, DamagedCheckpointError(str(exc), checkpoint=checkpoint))
        else:
            return learner, state


async def _set_aside(ctx: ActorContext, checkpoints: Checkpoints, damage: DamagedCheckpointError) -> None:
    kept = await asyncio.to_thread(checkpoints.set_aside, damage.checkpoint)
    text = f"{damage}; it is kept as {kept}, and {ctx.policy} goes on from what is older"
    await ctx.bus.event("error", "damaged-checkpoint", text)


def _trained_path(folder: Path) -> Path:
    """The log of trained batches in a policy's folder."""
    return folder / "trained.jsonl"


async def last_progress(ctx: ActorContext) -> Progress:
    """What the trainer before told last; epoch 0 if there was none."""
    try:
        entry = await ctx.bus.kv.get(progress_key(ctx.policy))
    except UnreadableValueError:  # told anew from the checkpoint
        entry = None
    if entry is not None and isinstance(entry.message, Progress):
        return entry.message
    return Progress(policy=ctx.policy, consumed=0, step=0, version=0, epoch=0)


def _sequence(state: CheckpointState) -> int:
    """Of its last batch in SAMPLES."""
    return state.cursor.sequence if state.cursor is not None else 0


def _with_version(state: CheckpointState, version: int) -> CheckpointState:
    recent = (*state.recent, VersionStep(version=version, step=state.step))
    return msgspec.structs.replace(state, version=version, recent=recent)


async def _base_model(ctx: ActorContext) -> Path:
    """Where training starts; made or downloaded if need be, which may take minutes."""
    return await asyncio.to_thread(resolve_model, ctx.policy_section.model)


async def _build(ctx: ActorContext, thread: LearnerThread, section: TrainerSection, model: Path) -> Learner:
    build = partial(
        build_learner,
        section,
        model,
        seed=ctx.config.run.seed,
        threads=ctx.threads,
        temperature=ctx.policy_section.sampling.temperature,
        reference_folder=await _base_model(ctx),
    )
    return await thread(build)


async def _from_bus(
    ctx: ActorContext, thread: LearnerThread, section: TrainerSection, head: Head, folder: Path
) -> tuple[Learner, CheckpointState]:
    """The newest version on the bus, with a cold optimizer: no checkpoint is on this machine."""
    follower = WeightFollower(ctx.bus, ctx.policy)
    files = await follower.files(head)
    head = (await follower.advance(head)).head
    assert follower.shadow is not None
    tensors = follower.shadow.tensors
    model = folder / "model-from-bus"
    await asyncio.to_thread(_replace_model, model, files, tensors)
    text = f"no checkpoint of {ctx.policy} here: resumed version {head.version} from the bus with a cold optimizer"
    await ctx.bus.event("warning", "cold-resume", text, version=head.version, step=head.step)
    state = CheckpointState(
        policy=ctx.policy, batch=head.batch, step=head.step, version=head.version, cursor=None, recent=head.recent
    )
    return await _build(ctx, thread, section, model), state


def _replace_model(folder: Path, files: Mapping[str, bytes], tensors: Mapping[str, HostTensor]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_model(folder, files, tensors)


async def newest_epoch(ctx: ActorContext) -> int:
    """The highest lease epoch that a trainer of this policy has left on this disk or in the log; 0 = none."""
    checkpoints = Checkpoints(policy_folder(ctx.folder, ctx.policy) / "checkpoints", keep=1, epoch=0)
    epoch = await asyncio.to_thread(checkpoints.newest_epoch)
    topology = ctx.bus.topology
    try:
        entry = await ctx.bus.logs.last(topology.weights(ctx.policy), topology.manifest(ctx.policy))
    except MessageError:
        entry = None
    manifest = entry.message if entry is not None else None
    return max(epoch, manifest.epoch) if isinstance(manifest, Manifest) else epoch


async def newest_is_lost(ctx: ActorContext) -> bool:
    """Whether the newest version on the bus can't be loaded; then an event says that it is published anew."""
    fault = await fault_of_newest(ctx.bus, ctx.policy)
    if fault:
        await ctx.bus.event("warning", "full-again", f"{ctx.policy} is published anew: {fault}")
    return bool(fault)


def _read_frozen(folder: Path) -> tuple[Mapping[str, bytes], Mapping[str, HostTensor], Probe | None]:
    """As a learner would export it, so that every engine gets the same names; a server of SGLang's own takes it as it
    is where there is no transformers."""
    if importlib.util.find_spec("transformers") is None:
        return (*read_model(folder), None)
    from astraflow.models.loading import load_frozen

    return load_frozen(folder)


async def publish_frozen(ctx: ActorContext, *, epoch: int, fulls: FullStore | None = None) -> None:
    """Publish a policy that is never trained: once, as version 0, and again only if that can't be read any more."""
    publisher = WeightPublisher(ctx, epoch=epoch, fulls=fulls)
    head = await publisher.open()
    if head is None or await newest_is_lost(ctx):
        files, tensors, probe = await asyncio.to_thread(_read_frozen, await _base_model(ctx))
        version = 0 if head is None else head.version + 1
        await publisher.publish(tensors, files, version=version, step=0, batch=0, finished=True, probe=probe)
    done = Progress(policy=ctx.policy, consumed=0, step=0, version=0, epoch=epoch, finished=True)
    await OwnedKey(ctx.bus, progress_key(ctx.policy)).put(done)
