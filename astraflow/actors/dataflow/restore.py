"""Bring a dataflow back to where the logs say it is.

Order: snapshot → submissions behind it → batches (their samples are spent) → decisions behind it → the episodes that it
refers to → episodes behind it. (Batches and decisions give the same state in either order: groups close only when their
episodes are read, which comes after both.) Only then may the driver decide again. Users' orders come after that: one
that was carried out twice is better than none. It publishes nothing.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.owned_log import OwnedLog
from astraflow.actors.dataflow.snapshot_copy import SnapshotCopy
from astraflow.actors.dataflow.store import DataflowStore, StoredState
from astraflow.bus import Bus, Cursor
from astraflow.dataflow.core import DataflowCore
from astraflow.envs.base import Environment
from astraflow.errors import CursorError
from astraflow.messages import Decision, Episode, SampleBatch, Submission

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Restored:
    """A core that is level with its logs, and its place in them."""

    core: DataflowCore
    store: DataflowStore
    envs: Mapping[str, Environment]
    decisions: OwnedLog
    samples: dict[str, OwnedLog]  # per trainable policy
    episodes: Cursor | None
    submissions: Cursor | None
    controls: Cursor | None


async def restore(ctx: ActorContext, envs: Mapping[str, Environment], *, epoch: int) -> Restored:
    """The state after the last thing that any dataflow of this run did, taken over for lease `epoch`.

    Raises: CursorError if a log does not fit; FencedError if a later dataflow has started.
    """
    bus, topology, incarnation = ctx.bus, ctx.bus.topology, ctx.record.incarnation
    sizes = await asyncio.to_thread(_sizes, envs)
    copy = SnapshotCopy(ctx.folder, incarnation=incarnation)
    store = DataflowStore(bus, incarnation=incarnation, epoch=epoch, copy=copy)
    stored = await store.load()
    if stored is None:
        core = DataflowCore(ctx.config, incarnation=incarnation, sizes=sizes)
        stored = StoredState(core=b"", episodes=None, decisions=None, samples={})
    else:
        core = DataflowCore.restore(ctx.config, stored.core, sizes=sizes)
    samples = {
        policy: await OwnedLog.open(
            bus, stream=topology.samples(policy), subject=topology.sample(policy), cursor=stored.samples.get(policy)
        )
        for policy, section in ctx.config.policies.items()
        if section.trainer is not None
    }
    decided = await _made_anew(bus, stored, samples)
    decisions = await OwnedLog.open(bus, stream=topology.decisions, subject=topology.decision(), cursor=decided)
    submissions = await _submitted(bus, core, stored.submissions)
    await _replay(core, decisions, samples)
    core.resolve(await _referenced(bus, core.references()))
    episodes = await _catch_up(bus, core, stored.episodes)
    return Restored(
        core=core,
        store=store,
        envs=envs,
        decisions=decisions,
        samples=samples,
        episodes=episodes,
        submissions=submissions,
        controls=stored.controls,
    )


async def _made_anew(bus: Bus, stored: StoredState, samples: Mapping[str, OwnedLog]) -> Cursor | None:
    """The place in DECISIONS, which may have been lost whole: the snapshot has all that was decided up to it.

    What was decided behind it is decided again, under the same ids, unless a batch says that it was trained already:
    then nobody knows what the other groups were, and the cursor is left to fail.
    """
    cursor, stream = stored.decisions, bus.topology.decisions
    if cursor is None:
        return None
    state = await bus.logs.state(stream)
    same = state.incarnation == cursor.incarnation
    if same and (state.last_sequence > cursor.sequence or await bus.logs.entry(stream, cursor.sequence) is not None):
        return cursor
    if any(log.has_unapplied() for log in samples.values()):
        return cursor
    text = f"{stream} was lost and goes on anew; what was decided after the last snapshot is decided again"
    await bus.event("error", "stream-rebuilt", text, stream=stream)
    tail = await bus.logs.last(stream, bus.topology.decision()) if same else None
    return tail.cursor if tail is not None else None


async def _submitted(bus: Bus, core: DataflowCore, cursor: Cursor | None) -> Cursor | None:
    """Take in what users submitted behind the snapshot, before the decisions that issued it; returns the new cursor."""
    async for entry in bus.logs.read(bus.topology.submissions, cursor=cursor, follow=False):
        if isinstance(entry.message, Submission):
            core.users.on_submission(entry.message, entry.sequence, entry.cursor.message_id)
        cursor = entry.cursor
    return cursor


async def _replay(core: DataflowCore, decisions: OwnedLog, samples: Mapping[str, OwnedLog]) -> None:
    """Apply what was emitted and decided after the snapshot."""
    for log in samples.values():
        async for entry in log.unapplied():
            assert isinstance(entry.message, SampleBatch), entry
            core.apply_batch(entry.message)
    async for entry in decisions.unapplied():
        assert isinstance(entry.message, Decision), entry
        core.apply_decision(entry.message)


async def _referenced(bus: Bus, sequences: list[int]) -> dict[int, Episode]:
    """The episodes that the snapshot refers to."""
    episodes = {}
    for sequence in sequences:
        entry = await bus.logs.entry(bus.topology.episodes, sequence)
        if entry is None or not isinstance(entry.message, Episode):
            raise CursorError(
                f"dataflow's snapshot refers to episode {sequence}, which {bus.topology.episodes} no longer holds; "
                "restore the server's store, or start afresh with `astraflow up --fresh`"
            )
        episodes[sequence] = entry.message
    return episodes


async def _catch_up(bus: Bus, core: DataflowCore, cursor: Cursor | None) -> Cursor | None:
    """Apply the episodes that arrived while no dataflow ran; returns the new cursor."""
    async for entry in bus.logs.read(bus.topology.episodes, cursor=cursor, follow=False):
        if isinstance(entry.message, Episode):
            core.on_episode(entry.message, entry.sequence)
        cursor = entry.cursor
    return cursor


def _sizes(envs: Mapping[str, Environment]) -> dict[str, int | None]:
    """Number of tasks of each environment; some read their files for it. Blocking."""
    return {name: env.size for name, env in envs.items()}
