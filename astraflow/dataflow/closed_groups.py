"""One policy's closed groups: what waits for a batch, what may be trained again, and what became of the rest.

It knows no credit and no trainer. Invariant: every task of a group that closed is counted under one reason, and the
episodes of a group are held exactly as long as it waits here.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np

from astraflow.config import RunConfig
from astraflow.dataflow import ledger
from astraflow.dataflow.advantages import AdvantageFunction
from astraflow.dataflow.buffer import ORDERS, Buffer, BufferedGroup, Order
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.judge import JudgedGroup
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.replay import Replay, ReplayGroup
from astraflow.dataflow.stages import Stage, StageState
from astraflow.dataflow.staleness import VersionMap


class _Spent(msgspec.Struct):
    """A group that the log has in a batch before it is closed here. In snapshots; append fields only."""

    members: list[int]
    batch: int = 0  # the first one that it was in
    uses: int = 1  # batches that it was in


class ClosedGroupsState(msgspec.Struct):
    """What snapshots keep; append fields only."""

    spent: dict[str, _Spent] = {}
    replay: list[ReplayGroup] = []
    order: StageState | None = None
    rank: StageState | None = None  # of the replay


class ClosedGroups:
    """The groups of one policy."""

    def __init__(
        self,
        config: RunConfig,
        policy: str,
        *,
        held: HeldEpisodes,
        notes: deque[str],
        advantages: AdvantageFunction,
        max_staleness: int,
        waiting: list[BufferedGroup],
        counts: Mapping[str, int],
        state: ClosedGroupsState,
    ) -> None:
        """`waiting` and `counts`: where the snapshot left them."""
        section = config.policies[policy].trainer
        assert section is not None, policy
        self._policy = policy
        self._held, self._notes = held, notes
        self._max_staleness = max_staleness
        self.counts = Counter(counts)
        self._spent = {name: msgspec.structs.replace(spent) for name, spent in state.spent.items()}
        order: Stage[Order] = Stage("dataflow.order", config.dataflow.order, {}, ORDERS, state.order)
        self.buffer = Buffer(order, [group.with_advantages(advantages) for group in waiting])
        trained_before = [
            msgspec.structs.replace(before, group=before.group.with_advantages(advantages)) for before in state.replay
        ]
        self.replay = Replay(
            policy,
            section.replay,
            batch_groups=section.batch_groups,
            max_staleness=max_staleness,
            seed=config.run.seed,
            groups=trained_before,
            saved=state.rank,
        )

    def state(self) -> ClosedGroupsState:
        """A copy for the snapshot, without what waits and the counts."""
        spent = {name: msgspec.structs.replace(spent) for name, spent in self._spent.items()}
        replay = [msgspec.structs.replace(before, group=before.group.stored()) for before in self.replay.groups()]
        return ClosedGroupsState(spent, replay, self.buffer.order.state(), self.replay.state())

    def hold_episodes(self) -> None:
        """After a restore: keep the episodes of all groups."""
        for group in [*self.buffer.groups(), *(before.group for before in self.replay.groups())]:
            self._held.hold(group.sequences)

    # --- closed groups come in ---

    def is_spent(self, group_id: str) -> bool:
        """The log has the group in a batch already."""
        return group_id in self._spent

    def settle_spent(self, group: JudgedGroup) -> None:
        """A group that the log has in a batch already is closed."""
        spent = self._spent.pop(group.id)
        for at, member in enumerate(group.members):
            self.counts[Fate.EMITTED if at in spent.members else member.fate or Fate.STALE] += 1
        if group.counted is not None and set(spent.members) & set(group.counted.members):
            self._held.hold(group.counted.sequences)
            trained = group.counted.withhold(set(group.counted.members) - set(spent.members))
            self._remember(trained, spent.batch, spent.uses)

    def settle(self, group: JudgedGroup) -> None:
        """Any other group is closed: it waits for a batch, or its members are counted by what they met."""
        self.counts.update(member.fate for member in group.members if member.fate is not None)
        if group.fate is Fate.BUFFERED and group.counted is not None:
            self._held.hold(group.counted.sequences)
            self.buffer.add_group(group.counted)
        else:
            self._turn_down(group)

    def _turn_down(self, group: JudgedGroup) -> None:
        scores = [member.score for member in group.valid]
        self.counts[group.reason] += len(scores)
        fates = Counter(member.fate for member in group.members if member.fate is not None)
        why = f" ({', '.join(f'{count} {fate}' for fate, count in fates.most_common())})" if fates else ""
        some = ", ".join(f"{score:g}" for score in scores[:8]) or "none"
        detail = f"{len(scores)} of {len(group.members)} members valid{why}, rewards {some}"
        self._note(group.id, group.reason, detail)

    def _note(self, group_id: str, reason: str, detail: str) -> None:
        self._notes.append(f"{self._policy}: group {group_id.split('/', 1)[-1]} isn't trained: {reason} ({detail})")

    # --- and leave ---

    def drop_stale(self, versions: VersionMap, train_step: int) -> None:
        """Count and forget groups that would be too old at `train_step`, every member of them."""
        stale = self.buffer.stale(versions, train_step, self._max_staleness)
        self._drop(stale, Fate.STALE, f"; it would be trained at step {train_step}")
        self._release(self.replay.stale(versions, train_step))

    def drop_all(self) -> None:
        """Drop every group: nothing more is trained."""
        self._drop(self.buffer.groups(), Fate.UNUSED, "")
        self._release(self.replay.clear())

    def _drop(self, groups: Iterable[BufferedGroup], fate: Fate, detail: str) -> None:
        for group in groups:
            self.buffer.remove(group.id)
            self._release([group])
            self.counts[fate] += len(group.members)
            self._note(group.id, fate, f"oldest version {group.versions[0]}{detail}")

    def trained(self, group_id: str, members: list[int], number: int, *, settled: Callable[[str], bool]) -> bool:
        """Batch `number` in the log holds the group. Returns whether one before held it too."""
        if group := self.buffer.remove(group_id):
            withheld = set(group.members) - set(members)
            self.counts[Fate.EMITTED] += len(group.members) - len(withheld)
            if withheld:
                self.counts[Fate.STALE] += len(withheld)
            self._remember(group.withhold(withheld) if withheld else group, number)
            return False
        if group_id in self.replay:
            self.counts[ledger.REPLAYED] += len(members)
            self._release(self.replay.trained_again(group_id))
            return True
        if group_id in self._spent:
            self.counts[ledger.REPLAYED] += len(members)
            self._spent[group_id].uses += 1
            return True
        if not settled(group_id):
            self._spent[group_id] = _Spent(members, number)
        return False

    def _remember(self, group: BufferedGroup, batch: int, uses: int = 1) -> None:
        """The group was in a batch; it may be replayed, and needs its episodes until then."""
        trained_G = np.isin(group.members, group.withheld, invert=True)
        worth = float(np.abs(group.strongest_G[trained_G]).mean())
        self._release(self.replay.trained(group, batch, worth=worth, uses=uses))

    def _release(self, groups: Iterable[BufferedGroup]) -> None:
        for group in groups:
            self._held.release(group.sequences)
