"""One policy's closed groups: what waits for a batch, what may be trained again, and what became of the rest.

It knows no credit and no trainer. Invariant: every task of a group that closed is counted under one reason, and the
episodes of a group are held on the shelf exactly as long as it waits here.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from astraflow.config import RunConfig
from astraflow.dataflow import ledger
from astraflow.dataflow.advantages import AdvantageFunction
from astraflow.dataflow.buffer import ORDERS, Buffer, BufferedGroup, Order
from astraflow.dataflow.groups import OpenGroup
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.judge import buffered
from astraflow.dataflow.replay import Replay, ReplayGroup
from astraflow.dataflow.role_groups import strongest
from astraflow.dataflow.samples import Judged
from astraflow.dataflow.stages import Stage, StageState
from astraflow.dataflow.staleness import VersionMap


class Spent(msgspec.Struct):
    """A group that the log has in a batch before it is closed here. In snapshots; append fields only."""

    members: list[int]
    batch: int = 0  # the first one that it was in
    uses: int = 1  # batches that it was in


class StockState(msgspec.Struct):
    """What snapshots keep; append fields only."""

    spent: dict[str, Spent] = {}
    replay: list[ReplayGroup] = []
    order: StageState | None = None
    rank: StageState | None = None  # of the replay


class ClosedGroups:
    """The groups of one policy."""

    def __init__(
        self, config: RunConfig, policy: str, *, shelf: HeldEpisodes, notes: deque[str], advantages: AdvantageFunction,
        max_staleness: int, waiting: list[BufferedGroup], counts: Mapping[str, int], state: StockState,
    ) -> None:  # fmt: skip
        """`waiting` and `counts`: where the snapshot left them."""
        section = config.policies[policy].trainer
        assert section is not None, policy
        self._policy = policy
        self._shelf, self._notes = shelf, notes
        self._advantages = advantages
        self._max_staleness = max_staleness
        self.counts = Counter(counts)
        self._spent = {name: msgspec.structs.replace(each) for name, each in state.spent.items()}
        order: Stage[Order] = Stage("dataflow.order", config.dataflow.order, {}, ORDERS, state.order)
        self.buffer = Buffer(order, waiting)
        self.replay = Replay(
            policy, section.replay, batch_groups=section.batch_groups, max_staleness=max_staleness,
            seed=config.run.seed, groups=state.replay, saved=state.rank,
        )  # fmt: skip

    def state(self) -> StockState:
        """A copy for the snapshot, without what waits and the counts."""
        spent = {name: msgspec.structs.replace(each) for name, each in self._spent.items()}
        return StockState(spent, self.replay.groups(), self.buffer.order.state(), self.replay.state())

    def hold(self) -> None:
        """After a restore: keep the episodes of all groups."""
        for group in [*self.buffer.groups(), *(each.group for each in self.replay.groups())]:
            self._shelf.hold(group.sequences)

    # --- closed groups come in ---

    def is_spent(self, group_id: str) -> bool:
        """The log has the group in a batch already."""
        return group_id in self._spent

    def settle_spent(self, group: OpenGroup, judged: list[Judged]) -> None:
        """Such a group is closed."""
        spent = self._spent.pop(group.id)
        for member, each in enumerate(judged):
            self.counts[ledger.EMITTED if member in spent.members else each.fate or ledger.UNUSED] += 1
        valid = {member: judged[member] for member in spent.members if not judged[member].fate}
        if valid:
            kept = buffered(group, valid)
            self._shelf.hold(kept.sequences)
            self._remember(kept, spent.batch, spent.uses)

    def keep(self, group: OpenGroup, valid: Mapping[int, Judged]) -> None:
        """The group waits for a batch with these members."""
        kept = buffered(group, valid)
        self._shelf.hold(kept.sequences)
        self.buffer.add(kept)

    def turn_down(self, group: OpenGroup, judged: Sequence[Judged], reason: str) -> None:
        """The group isn't trained."""
        scores = [each.score for each in judged if not each.fate]
        self.counts[reason] += len(scores)
        fates = Counter(each.fate for each in judged if each.fate)
        why = f" ({', '.join(f'{count} {fate}' for fate, count in fates.most_common())})" if fates else ""
        some = ", ".join(f"{score:g}" for score in scores[:8]) or "none"
        self._note(group.id, reason, f"{len(scores)} of {len(judged)} members valid{why}, rewards {some}")

    def _note(self, group_id: str, reason: str, detail: str) -> None:
        self._notes.append(f"{self._policy}: group {group_id.split('/', 1)[-1]} isn't trained: {reason} ({detail})")

    # --- and leave ---

    def drop_stale(self, versions: VersionMap, train_step: int) -> None:
        """Count and forget what would be too old at `train_step`."""
        stale = self.buffer.stale(versions, train_step, self._max_staleness)
        self._drop(stale, ledger.STALE, f"; it would be trained at step {train_step}")
        self._release(self.replay.stale(versions, train_step))

    def drop_all(self) -> None:
        """Nothing more is trained."""
        self._drop(self.buffer.groups(), ledger.UNUSED, "")
        self._release(self.replay.clear())

    def _drop(self, groups: Iterable[BufferedGroup], reason: str, detail: str) -> None:
        for group in groups:
            self.buffer.remove(group.id)
            self._release([group])
            self.counts[reason] += len(group.members)
            self._note(group.id, reason, f"oldest version {group.versions[0]}{detail}")

    def trained(self, group_id: str, members: list[int], number: int, *, settled: Callable[[str], bool]) -> bool:
        """Batch `number` in the log holds the group; see `Flow.apply_batch`. Returns whether one before held it too."""
        if group := self.buffer.remove(group_id):
            self.counts[ledger.EMITTED] += len(group.members)
            self._remember(group, number)
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
            self._spent[group_id] = Spent(members, number)
        return False

    def _remember(self, group: BufferedGroup, batch: int, uses: int = 1) -> None:
        """The group was in a batch; it may be replayed, and needs its episodes until then."""
        advantages_G = strongest(group.scores, self._advantages)
        self._release(self.replay.trained(group, batch, worth=float(np.abs(advantages_G).mean()), uses=uses))

    def _release(self, groups: Iterable[BufferedGroup]) -> None:
        for group in groups:
            self._shelf.release(group.sequences)
