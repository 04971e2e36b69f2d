"""KV keys that only the holder of a lease writes: their values carry its epoch, and an older holder can't overwrite it.

It does not take leases, but knows that epochs come from them: a value with a higher epoch than its lease's was written
by nobody who may, and counts as one that can't be read. Invariant: once `seal` or `put` has returned, no holder of an
older epoch writes the key: its compare-and-set fails, and it finds a higher epoch than its own.
"""

import asyncio
from typing import TypeVar

import msgspec

from astraflow.bus import Bus, wiring
from astraflow.errors import FencedError, UnreadableValueError
from astraflow.messages import Head, Lease, Ledger, Progress, SnapshotPointer

_Owned = TypeVar("_Owned", Head, SnapshotPointer)


async def seal(bus: Bus, key: str, kind: type[_Owned], *, epoch: int) -> tuple[_Owned | None, int]:
    """Put this epoch on the value that is there: value (None = absent) and revision for the next compare-and-set.

    Raises: FencedError if a higher epoch is there; UnreadableValueError if what is there is nobody's.
    """
    while True:
        entry = await bus.kv.get(key)
        if entry is None:
            return None, 0
        value = entry.message
        assert isinstance(value, kind), value
        if value.epoch > epoch and await is_forged(bus, key, value.epoch):
            raise UnreadableValueError(key, entry.revision, f"its epoch {value.epoch} is above its lease's")
        check_epoch(key, value.epoch, epoch)
        if value.epoch == epoch:
            return value, entry.revision
        sealed = msgspec.structs.replace(value, epoch=epoch)
        try:
            return sealed, await bus.kv.put(key, sealed, expected_revision=entry.revision, deadline_s=None)
        except FencedError:
            continue  # the older holder's last write came first


class OwnedKey:
    """A key whose newest value is all that counts; a value of a lower epoch is overwritten."""

    def __init__(self, bus: Bus, key: str) -> None:
        self._bus = bus
        self._key = key
        self._revision = 0
        self._writing = asyncio.Lock()
        self._newest: Progress | Ledger | None = None

    async def put(self, message: Progress | Ledger) -> None:
        """Store it. Raises FencedError if a higher epoch is there."""
        async with self._writing:
            await self._put(message)
            self._newest = message

    async def mend(self) -> bool:
        """Write the newest value again if it isn't there any more; whether that was needed. Raises like `put`."""
        async with self._writing:
            if self._newest is None:
                return False
            try:
                entry = await self._bus.kv.get(self._key)
                if entry is not None and entry.revision == self._revision:
                    return False
            except UnreadableValueError:
                pass
            await self._put(self._newest)
            return True

    async def _put(self, message: Progress | Ledger) -> None:
        while True:
            try:
                self._revision = await self._bus.kv.put(
                    self._key, message, expected_revision=self._revision, deadline_s=None
                )
                return
            except FencedError:
                try:
                    entry = await self._bus.kv.get(self._key)
                except UnreadableValueError as exc:  # of nobody who knows better
                    self._revision = exc.revision
                    continue
                there = entry.message if entry is not None else None
                if isinstance(there, Progress | Ledger) and not (
                    there.epoch > message.epoch and await is_forged(self._bus, self._key, there.epoch)
                ):
                    check_epoch(self._key, there.epoch, message.epoch)
                self._revision = entry.revision if entry is not None else 0


async def is_forged(bus: Bus, key: str, epoch: int) -> bool:
    """Whether no holder of the key's lease can have had this epoch yet: the lease is always written first."""
    policies = wiring.HEAD.tokens_of(key) if wiring.HEAD.has(key) or wiring.PROGRESS.has(key) else ()
    name = f"trainer-{policies[0]}" if policies else "dataflow"
    try:
        entry = await bus.kv.get(wiring.LEASE.key(name))
    except UnreadableValueError:
        return False
    return entry is not None and isinstance(entry.message, Lease) and entry.message.epoch < epoch


def check_epoch(where: str, there: int, own: int) -> None:
    """Raises FencedError if a later holder has been there."""
    if there > own:
        raise FencedError(f"{where} has lease epoch {there}, this process has {own}: it was replaced and must exit")
