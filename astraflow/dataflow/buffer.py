"""Closed groups that wait for a batch, in the order in which they will be trained.

It holds references to episodes, not episodes. Invariant: a group is in it at most once.
"""

from collections.abc import Collection
from typing import Any, Protocol

import msgspec

from astraflow.dataflow.stages import Stage
from astraflow.dataflow.staleness import VersionMap, staleness
from astraflow.messages.ids import GroupKey

ORDERS = {"edf": "astraflow.dataflow.order:Edf", "fifo": "astraflow.dataflow.order:Fifo"}


class BufferedGroup(msgspec.Struct, frozen=True):
    """A group that one policy may train on. In snapshots; append fields only."""

    id: str
    key: GroupKey
    ordinal: int  # issue order
    members: tuple[int, ...]  # the valid ones
    sequences: tuple[int, ...]  # of their episodes in EPISODES, same order
    rewards: tuple[float, ...]  # the policy's, same order
    versions: tuple[int, ...]  # that sampled the policy's tokens, sorted
    roles: tuple[dict[str, float], ...] = ()  # the rewards by role, same order; () = all in the role ""

    @property
    def scores(self) -> tuple[dict[str, float], ...]:
        """What advantages are made of, by member and role."""
        return self.roles or tuple({"": reward} for reward in self.rewards)


class Order(Protocol):
    """A stage (see stages.py) that says which group is trained first."""

    def key(self, group: BufferedGroup, versions: VersionMap) -> Any:
        """What groups are sorted by, the smallest first; equal ones go as they closed."""
        ...


class Buffer:
    """One policy's groups."""

    def __init__(self, order: Stage[Order], groups: Collection[BufferedGroup] = ()) -> None:
        self.order = order
        self._groups = {group.id: group for group in groups}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> list[BufferedGroup]:
        """All of them, as they closed."""
        return list(self._groups.values())

    def tasks(self) -> int:
        """Members of all groups together."""
        return sum(len(group.members) for group in self._groups.values())

    def add(self, group: BufferedGroup) -> None:
        """A group closed."""
        self._groups[group.id] = group

    def remove(self, group_id: str) -> BufferedGroup | None:
        """Take a group out; None if it isn't here."""
        return self._groups.pop(group_id, None)

    def stale(self, versions: VersionMap, train_step: int, max_staleness: int) -> list[BufferedGroup]:
        """What would be past `max_staleness` at `train_step`, so at every later step too; it stays here."""
        return [g for g in self._groups.values() if staleness(versions, g.versions, train_step) > max_staleness]

    def first(self, count: int, versions: VersionMap, *, newest: int) -> list[BufferedGroup]:
        """The next `count` groups, or fewer if there are fewer; they stay here.

        Args:
            newest: version that the trainer told of last. What a newer one sampled waits: its step isn't known.
        """
        known = [group for group in self._groups.values() if group.versions[-1] <= newest]
        return sorted(known, key=lambda group: self.order.ask("key", group, versions))[:count]

    def first_by_id(self, count: int) -> list[BufferedGroup]:
        """The `count` groups with the smallest keys, for deterministic mode; they stay here."""
        return sorted(self._groups.values(), key=lambda group: group.key)[:count]
