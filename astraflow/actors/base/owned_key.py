"""KV keys that only the holder of a lease writes: their values carry its epoch, and an older holder can't overwrite it.

It does not take leases. Invariant: once `seal` or `put` has returned, no holder of an older epoch writes the key: its
compare-and-set fails, and it finds a higher epoch than its own.
"""

from typing import TypeVar

import msgspec

from astraflow.bus import Bus
from astraflow.errors import FencedError, UnreadableValueError
from astraflow.messages import Head, Ledger, Progress, SnapshotPointer

_Owned = TypeVar("_Owned", Head, SnapshotPointer)


async def seal(bus: Bus, key: str, kind: type[_Owned], *, epoch: int) -> tuple[_Owned | None, int]:
    """Put this epoch on the value that is there: value (None = absent) and revision for the next compare-and-set.

    Raises: FencedError if a higher epoch is there.
    """
    while True:
        entry = await bus.kv.get(key)
        if entry is None:
            return None, 0
        value = entry.message
        assert isinstance(value, kind), value
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

    async def put(self, message: Progress | Ledger) -> None:
        """Store it. Raises FencedError if a higher epoch is there."""
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
                if isinstance(there, Progress | Ledger):
                    check_epoch(self._key, there.epoch, message.epoch)
                self._revision = entry.revision if entry is not None else 0


def check_epoch(where: str, there: int, own: int) -> None:
    """Raises FencedError if a later holder has been there."""
    if there > own:
        raise FencedError(f"{where} has lease epoch {there}, this process has {own}: it was replaced and must exit")
