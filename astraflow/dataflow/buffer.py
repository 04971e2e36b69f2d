"""Closed groups that wait for a batch, in the order in which they will be trained.

It holds references to episodes, not episodes. Invariant: a group is in it at most once.
Axes: G member of a group that counts.
"""

from collections.abc import Collection
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from astraflow.dataflow.advantages import AdvantageFunction, by_role
from astraflow.dataflow.stages import Stage
from astraflow.dataflow.staleness import VersionMap, oldest_step, staleness
from astraflow.messages.ids import GroupKey

ORDERS = {"edf": "astraflow.dataflow.buffer:Edf", "fifo": "astraflow.dataflow.buffer:Fifo"}


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
    advantages: tuple[dict[str, float], ...] = ()  # by role, same order; () in snapshots: a restore makes them again

    @property
    def scores(self) -> tuple[dict[str, float], ...]:
        """What advantages are made of, by member and role."""
        return self.roles or tuple({"": reward} for reward in self.rewards)

    @property
    def strongest_G(self) -> NDArray[np.float64]:
        """Per member, its advantage of largest size over its roles: 0 only where no role has any. float64[G]."""
        return np.array([max(of_roles.values(), key=abs) for of_roles in self.advantages], dtype=np.float64)

    def with_advantages(self, function: AdvantageFunction) -> "BufferedGroup":
        """The same group, with the advantages that `function` makes of its members' scores."""
        return msgspec.structs.replace(self, advantages=tuple(by_role(self.scores, function)))

    def stored(self) -> "BufferedGroup":
        """As it stands in snapshots: what follows from the scores is left out."""
        return msgspec.structs.replace(self, advantages=())


class Order(Protocol):
    """A stage (see stages.py) that says which group is trained first."""

    def key(self, group: BufferedGroup, versions: VersionMap) -> Any:
        """What groups are sorted by, the smallest first; equal ones go as they closed."""
        ...


class Fifo:
    """As they closed."""

    def key(self, group: BufferedGroup, versions: VersionMap) -> Any:
        return 0


class Edf:
    """Earliest deadline first: what goes stale first is trained first, then as issued.

    A group's deadline is the step of its oldest version plus `max_staleness`, which is the same for all.
    """

    def key(self, group: BufferedGroup, versions: VersionMap) -> Any:
        return oldest_step(versions, group.versions), group.ordinal


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

    def add_group(self, group: BufferedGroup) -> None:
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
