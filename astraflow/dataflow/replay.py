"""Groups that were trained before and may be trained again: which ones, and how often.

It is one policy's memory of its own batches. Invariant: a member is trained again only while it is within
`max_staleness` at the step that will train it, and its group at most `max_uses` times in all, its first batch included.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from astraflow.config import ReplaySection
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.stages import Stage, StageState
from astraflow.dataflow.staleness import VersionMap, staleness
from astraflow.messages.ids import uniform

RANKS = {
    "latest": "astraflow.dataflow.replay_ranks:Latest",
    "prioritized": "astraflow.dataflow.replay_ranks:Prioritized",
    "uniform": "astraflow.dataflow.replay_ranks:Uniform",
}


class ReplayGroup(msgspec.Struct):
    """A group that was in a batch. In snapshots; append fields only."""

    group: BufferedGroup
    batch: int  # the first one that it was in
    uses: int  # batches that it was in
    worth: float  # mean |advantage| of its members


class _ReplayRank(Protocol):
    """A stage (see stages.py) that says what is replayed first."""

    def rank(self, group: ReplayGroup, *, age_steps: int, draw: float) -> float:
        """The highest are picked. `age_steps`: its staleness when trained. `draw`: uniform in (0, 1), new per batch."""
        ...


class Replay:
    """The groups that one policy trained before."""

    def __init__(
        self,
        policy: str,
        section: ReplaySection,
        *,
        batch_groups: int,
        max_staleness: int,
        seed: int,
        groups: Iterable[ReplayGroup] = (),
        saved: StageState | None = None,
    ) -> None:
        """`max_staleness`: the trainer's own, for where the section gives none. Raises ConfigError."""
        self._policy, self._seed = policy, seed
        self._section = section
        self.max_staleness = section.max_staleness or max_staleness
        self.per_batch = int(section.share * batch_groups) if section.kind != "none" else 0
        path = f"policies.{policy}.trainer.replay"
        self.rank: Stage[_ReplayRank] | None = None
        if section.kind != "none":
            self.rank = Stage(path, section.kind, section.args, RANKS, saved)
        self._groups = {trained.group.id: trained for trained in groups} if self.rank else {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> list[ReplayGroup]:
        """All of them, for the snapshot."""
        return [msgspec.structs.replace(trained) for trained in self._groups.values()]

    def pick(self, number: int, versions: VersionMap, train_step: int) -> list[BufferedGroup]:
        """What batch `number` trains again, at `train_step`; it stays here."""
        if self.rank is None:
            return []
        ranked: list[tuple[float, str]] = []
        fresh: dict[str, BufferedGroup] = {}
        for name, trained in self._groups.items():
            group = trained.group.fresh(versions, train_step, self.max_staleness)
            if group is not None:
                fresh[name] = group
                age_steps = staleness(versions, group.versions, train_step)
                draw = uniform(self._seed, "replay", self._policy, number, *group.key.parts)
                ranked.append((self.rank.ask_number("rank", trained, age_steps=age_steps, draw=draw), name))
        ranked.sort(reverse=True)
        return [fresh[name] for _, name in ranked[: self.per_batch]]

    def trained(self, group: BufferedGroup, number: int, *, worth: float, uses: int = 1) -> list[BufferedGroup]:
        """A group was in batch `number` for the first time; what has to go for it, itself perhaps."""
        if self.rank is None:
            return [group]
        self._groups[group.id] = ReplayGroup(group, number, uses, worth)
        gone = self._worn([self._groups[group.id]])
        while len(self._groups) > self._section.capacity:
            gone.append(self._groups.pop(next(iter(self._groups))).group)
        return gone

    def trained_again(self, group_id: str) -> list[BufferedGroup]:
        """A group that is here was in another batch; what has to go now."""
        trained = self._groups[group_id]
        trained.uses += 1
        return self._worn([trained])

    def stale(self, versions: VersionMap, train_step: int) -> list[BufferedGroup]:
        """Take out what would be too old at `train_step`, so at every later step too."""
        old = [
            name
            for name, trained in self._groups.items()
            if trained.group.fresh(versions, train_step, self.max_staleness) is None
        ]
        return [self._groups.pop(name).group for name in old]

    def clear(self) -> list[BufferedGroup]:
        """Take everything out."""
        gone, self._groups = [trained.group for trained in self._groups.values()], {}
        return gone

    def _worn(self, groups: Iterable[ReplayGroup]) -> list[BufferedGroup]:
        worn = [trained.group for trained in groups if trained.uses >= self._section.max_uses]
        for group in worn:
            del self._groups[group.id]
        return worn

    def state(self) -> Any:
        """The rank's, for the snapshot."""
        return self.rank.state() if self.rank else None
