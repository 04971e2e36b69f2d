"""Dataflow's durable side: snapshots with the cursors of every log it reads, and what may be purged after one.

A copy of the newest snapshot is in the run folder (`snapshot_copy.py`): the logs that led to it are purged, so without
one a damaged or lost SNAPSHOTS would end the run. It does not interpret the core's state. Invariant: state and
positions are in one blob, so they can't disagree, and nothing is purged that the newest durable snapshot still needs.
"""

import asyncio
import logging
import math
from collections.abc import Mapping

import msgspec

from astraflow import clock
from astraflow.actors.base.owned_key import seal
from astraflow.actors.dataflow.snapshot_copy import SnapshotCopy
from astraflow.bus import Bus, Cursor, wiring
from astraflow.errors import BusError, FencedError, LostStateError, MessageError, UnreadableValueError, WeightsError
from astraflow.messages import Member, MemberState, PartRef, SnapshotPointer
from astraflow.messages.metric_names import RECORDER_EPISODES
from astraflow.messages.roles import Role

_POINTER_KEY = wiring.SNAPSHOT.key("dataflow")
_log = logging.getLogger(__name__)


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. A cursor of None means that nothing of that log was applied yet."""

    core: bytes
    episodes: Cursor | None
    decisions: Cursor | None
    samples: dict[str, Cursor | None]  # per policy
    submissions: Cursor | None = None
    controls: Cursor | None = None


class DataflowStore:
    """Saves and loads snapshots of one run."""

    def __init__(self, bus: Bus, *, incarnation: str, epoch: int, copy: SnapshotCopy) -> None:
        self._bus = bus
        self._copy = copy
        self._first = 0  # sequence of the newest snapshot's first part
        self._incarnation = incarnation
        self._epoch = epoch
        self._revision = 0
        self._saved = 0

    async def load(self) -> StoredState | None:
        """The newest snapshot, or None; from now on no older dataflow can store one, and so none can purge.

        Raises: FencedError if a later dataflow has started; LostStateError if it is gone or damaged, the copy too.
        """
        try:
            pointer, self._revision = await seal(self._bus, _POINTER_KEY, SnapshotPointer, epoch=self._epoch)
            why = f"KV key {_POINTER_KEY} is gone" if pointer is None else f"KV key {_POINTER_KEY} names none"
        except UnreadableValueError as exc:
            pointer, self._revision, why = None, exc.revision, str(exc)
        if pointer is None:
            self._revision = await self._bus.kv.put(
                _POINTER_KEY, self._pointer((), 0), expected_revision=self._revision
            )
        if pointer is not None and pointer.parts:
            try:
                return await self._read(pointer.parts)
            except (MessageError, WeightsError) as exc:
                why = str(exc)
        return await self._read_copy(why, needed=pointer is not None and bool(pointer.parts))

    async def _read(self, parts: tuple[PartRef, ...]) -> StoredState:
        topology = self._bus.topology
        return _decoded(bytes(await self._bus.parts.get(topology.snapshots, topology.snapshot_part(), parts)))

    async def _read_copy(self, why: str, *, needed: bool) -> StoredState | None:
        """The copy in the run folder, in place of a snapshot that the bus has lost. None: there never was one."""
        copied = await asyncio.to_thread(self._copy.read)
        if copied is None:
            decided = await self._bus.logs.state(self._bus.topology.decisions)
            if not needed and decided.first_sequence <= 1:  # the whole log is there: the run begins, or is replayed
                return None
            raise LostStateError(
                f"dataflow's snapshot is lost ({why}), and this machine has no copy of it ({self._copy.path}): go on "
                "where the copy is, restore the server's store folder, or start afresh with `astraflow up --fresh`"
            )
        text = f"dataflow's snapshot is lost on the bus ({why}); it goes on from the copy {self._copy.path}"
        await self._bus.event("error", "snapshot-rebuilt", text)
        return _decoded(copied.data)

    async def save(self, state: StoredState) -> None:
        """Store a snapshot, move the pointer, then renew the copy. Raises FencedError if another dataflow moved it."""
        topology = self._bus.topology
        data = msgspec.msgpack.encode(state)
        first = await self._next_sequence()
        self._saved += 1
        prefix = f"{self._incarnation}/{self._epoch}/snapshot-{self._saved}"
        parts: tuple[PartRef, ...] = await self._bus.parts.put(
            topology.snapshots, topology.snapshot_part(), data, msg_prefix=prefix
        )
        await self._move(self._pointer(parts, len(data)))
        self._first = first
        await self._write_copy(data)
        await self._bus.logs.purge(topology.snapshots, below_sequence=first, subject=f"{topology.snapshot_part()}.*")

    async def is_lost(self) -> bool:
        """Whether the newest snapshot of this process is no longer on the bus."""
        if not self._first:
            return False
        try:
            state = await self._bus.logs.state(self._bus.topology.snapshots)
            entry = await self._bus.kv.get(_POINTER_KEY)
        except (BusError, UnreadableValueError):
            return True
        return not state.messages or state.last_sequence < self._first or entry is None

    async def _next_sequence(self) -> int:
        """Of SNAPSHOTS; a stream that somebody deleted is made anew."""
        stream = self._bus.topology.snapshots
        try:
            state = await self._bus.logs.state(stream)
        except BusError as exc:
            await self._bus.ensure()
            state = await self._bus.logs.state(stream)
            text = f"{exc}; it was made anew, and the snapshot is written again"
            await self._bus.event("error", "stream-rebuilt", text, stream=stream)
        return state.last_sequence + 1

    async def _move(self, pointer: SnapshotPointer) -> None:
        """Compare and set; a pointer that is gone or can't be read is no other dataflow's."""
        while True:
            try:
                self._revision = await self._bus.kv.put(_POINTER_KEY, pointer, expected_revision=self._revision)
                return
            except FencedError:
                try:
                    entry = await self._bus.kv.get(_POINTER_KEY)
                except UnreadableValueError as exc:
                    self._revision = exc.revision
                    continue
                if entry is not None:
                    raise
                self._revision = 0

    async def _write_copy(self, data: bytes) -> None:
        """Without one the run goes on: the bus has it."""
        try:
            await asyncio.to_thread(self._copy.write, data, epoch=self._epoch)
        except OSError as exc:
            _log.warning("snapshot_copy_failed", extra={"path": str(self._copy.path), "why": str(exc)})

    def _pointer(self, parts: tuple[PartRef, ...], size_bytes: int) -> SnapshotPointer:
        return SnapshotPointer(size_bytes=size_bytes, parts=parts, epoch=self._epoch, saved_at=clock.wall())

    async def purge(
        self, state: StoredState, *, floor: int, durable_samples: Mapping[str, int], keep_episodes: bool
    ) -> None:
        """Drop what neither this snapshot nor a trainer's checkpoint needs.

        Args:
            floor: lowest EPISODES sequence still referred to.
            durable_samples: per policy, the SAMPLES sequence inside the trainer's durable checkpoint.
            keep_episodes: leave EPISODES alone.
        """
        topology = self._bus.topology
        if state.episodes is not None and not keep_episodes:
            await self._bus.logs.purge(topology.episodes, below_sequence=min(floor, state.episodes.sequence))
        if state.decisions is not None:
            await self._bus.logs.purge(topology.decisions, below_sequence=state.decisions.sequence)
        for stream, place in ((topology.submissions, state.submissions), (topology.controls, state.controls)):
            if place is not None:
                await self._bus.logs.purge(stream, below_sequence=place.sequence)
        for policy, cursor in state.samples.items():
            if cursor is not None:
                below = min(cursor.sequence, durable_samples.get(policy, 0))
                await self._bus.logs.purge(topology.samples(policy), below_sequence=below)


def _decoded(data: bytes) -> StoredState:
    try:
        return msgspec.msgpack.decode(data, type=StoredState)
    except msgspec.MsgspecError as exc:
        raise MessageError(f"dataflow's snapshot of {len(data)} bytes can't be read: {exc}") from exc


async def recorded_floor(bus: Bus) -> int | None:
    """Who purges EPISODES must keep this sequence and what follows: a recorder that lives has not recorded it yet.

    A killed recorder still counts until its member record expires, so that it misses nothing if it is back by then.
    None: there is no recorder. 0: one is there that has not said where it stands.
    """
    members = (entry.message for entry in (await bus.kv.entries(wiring.MEMBER.prefix)).values())
    recorders = [
        m for m in members if isinstance(m, Member) and m.role == Role.RECORDER and m.state != MemberState.GONE
    ]
    places = [m.gauges.get(RECORDER_EPISODES, 0.0) for m in recorders]
    return min((int(place) if math.isfinite(place) else 0 for place in places), default=None)
