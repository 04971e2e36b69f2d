"""Dataflow's durable side: snapshots with the cursors of every log it reads, and what may be purged after one.

It does not interpret the core's state. Invariant: state and positions are in one blob, so they can't disagree, and
nothing is purged that the newest durable snapshot still needs.
"""

import math
from collections.abc import Mapping

import msgspec

from astraflow import clock
from astraflow.actors.base.owned_key import seal
from astraflow.bus import Bus, Cursor, wiring
from astraflow.errors import BusError
from astraflow.messages import Member, MemberState, PartRef, SnapshotPointer
from astraflow.messages.metric_names import RECORDER_EPISODES
from astraflow.messages.roles import Role

_POINTER_KEY = wiring.SNAPSHOT.key("dataflow")


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

    def __init__(self, bus: Bus, *, incarnation: str, epoch: int) -> None:
        self._bus = bus
        self._incarnation = incarnation
        self._epoch = epoch
        self._revision = 0
        self._saved = 0

    async def load(self) -> StoredState | None:
        """The newest snapshot, or None; from now on no older dataflow can store one, and so none can purge.

        Raises: FencedError if a later dataflow has started; BusError if its parts are gone or damaged.
        """
        pointer, self._revision = await seal(self._bus, _POINTER_KEY, SnapshotPointer, epoch=self._epoch)
        if pointer is None:
            self._revision = await self._bus.kv.put(_POINTER_KEY, self._pointer((), 0), expected_revision=0)
            return None
        if not pointer.parts:
            return None
        topology = self._bus.topology
        data = await self._bus.parts.get(topology.snapshots, topology.snapshot_part(), pointer.parts)
        try:
            return msgspec.msgpack.decode(data, type=StoredState)
        except msgspec.MsgspecError as exc:
            raise BusError(f"dataflow's snapshot of {len(data)} bytes can't be read: {exc}") from exc

    async def save(self, state: StoredState) -> None:
        """Store a snapshot, then move the pointer. Raises FencedError if another dataflow moved it."""
        topology = self._bus.topology
        data = msgspec.msgpack.encode(state)
        first = (await self._bus.logs.state(topology.snapshots)).last_sequence + 1
        self._saved += 1
        prefix = f"{self._incarnation}/{self._epoch}/snapshot-{self._saved}"
        parts: tuple[PartRef, ...] = await self._bus.parts.put(
            topology.snapshots, topology.snapshot_part(), data, msg_prefix=prefix
        )
        self._revision = await self._bus.kv.put(
            _POINTER_KEY, self._pointer(parts, len(data)), expected_revision=self._revision
        )
        await self._bus.logs.purge(topology.snapshots, below_sequence=first, subject=f"{topology.snapshot_part()}.*")

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
