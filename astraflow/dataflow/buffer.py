"""Closed groups that wait for a batch, in the order in which they will be trained.

It holds references to episodes, not episodes. Invariant: a group is in it at most once.
Axes: G member of a group that counts.
"""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from astraflow.dataflow.advantages import AdvantageFunction, by_role
from astraflow.dataflow.stages import Stage
from astraflow.dataflow.staleness import VersionMap, oldest_step, staleness
from astraflow.errors import ConfigError
from astraflow.messages.ids import GroupKey

ORDERS = {"edf": "astraflow.dataflow.buffer:Edf", "fifo": "astraflow.dataflow.buffer:Fifo"}


class BufferedGroup(msgspec.Struct, frozen=True):
    """A group that one policy may train on. In snapshots; append fields only."""

    id: str
    key: GroupKey
    ordinal: int  # issue order
    members: tuple[int, ...]  # the valid ones: they make up the baseline
    sequences: tuple[int, ...]  # of their episodes in EPISODES, same order
    rewards: tuple[float, ...]  # the policy's, same order
    versions: tuple[int, ...]  # that sampled what is trained of it, sorted
    roles: tuple[dict[str, float], ...] = ()  # the rewards by role, same order; () = all in the role ""
    advantages: tuple[dict[str, float], ...] = ()  # by role, same order; () in snapshots: a restore makes them again
    sampled_by: tuple[tuple[int, ...], ...] = ()  # each member's versions, same order; () = `versions`, all of them
    withheld: tuple[int, ...] = ()  # members that count in the baseline only: they were too old to be trained

    @property
    def scores(self) -> tuple[dict[str, float], ...]:
        """What advantages are made of, by member and role."""
        return self.roles or tuple({"": reward} for reward in self.rewards)

    @property
    def strongest_G(self) -> NDArray[np.float64]:
        """Per member, its advantage of largest size over its roles: 0 only where no role has any. float64[G]."""
        return np.array([max(of_roles.values(), key=abs) for of_roles in self.advantages], dtype=np.float64)

    @property
    def trained_members(self) -> tuple[int, ...]:
        """The members that are trained."""
        return tuple(member for member in self.members if member not in self.withheld)

    def ages(self, versions: VersionMap, train_step: int) -> dict[int, int]:
        """By trained member: its staleness at `train_step`."""
        sampled_by = self.sampled_by or (self.versions,) * len(self.members)
        return {
            member: staleness(versions, sampled, train_step)
            for member, sampled in zip(self.members, sampled_by, strict=True)
            if member not in self.withheld
        }

    def fresh(self, versions: VersionMap, train_step: int, max_staleness: int) -> "BufferedGroup | None":
        """The group as it can be trained at `train_step`, members past `max_staleness` withheld; None: all are."""
        ages = self.ages(versions, train_step)
        stale = [member for member, age in ages.items() if age > max_staleness]
        if not stale:
            return self
        return self.withhold(stale) if len(stale) < len(ages) else None

    def withhold(self, members: Iterable[int]) -> "BufferedGroup":
        """The group without these among the trained; their rewards stay in the others' baseline."""
        withheld = {*self.withheld, *members}
        sampled_by = self.sampled_by or (self.versions,) * len(self.members)
        kept = {
            version
            for member, sampled in zip(self.members, sampled_by, strict=True)
            if member not in withheld
            for version in sampled
        }
        return msgspec.structs.replace(self, withheld=tuple(sorted(withheld)), versions=tuple(sorted(kept)))

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
    """Groups are trained as they closed."""

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
        """Groups without a member that is within `max_staleness` at `train_step`, so at no later step; they stay."""
        return [g for g in self._groups.values() if g.fresh(versions, train_step, max_staleness) is None]

    def first(
        self, count: int, versions: VersionMap, *, train_step: int, max_staleness: int, newest: int
    ) -> list[BufferedGroup]:
        """The next `count` groups as they can be trained at `train_step`, or fewer; they stay here.

        Args:
            newest: version that the trainer told of last. What a newer one sampled waits: its step isn't known.
        """
        known = [group for group in self._groups.values() if group.versions[-1] <= newest]
        fresh = [group for each in known if (group := each.fresh(versions, train_step, max_staleness)) is not None]
        keys = {group.id: self.order.ask("key", group, versions) for group in fresh}
        try:
            return sorted(fresh, key=lambda group: keys[group.id])[:count]
        except (TypeError, ValueError) as exc:
            raise ConfigError(f"{self.order.place}: keys of {self.order.kind} can't be compared: {exc}") from exc

    def first_by_id(self, count: int, versions: VersionMap, *, train_step: int) -> list[BufferedGroup]:
        """The `count` groups with the smallest keys, on-policy as ever in deterministic mode; they stay here."""
        fresh = [group for each in self._groups.values() if (group := each.fresh(versions, train_step, 0)) is not None]
        return sorted(fresh, key=lambda group: group.key)[:count]
