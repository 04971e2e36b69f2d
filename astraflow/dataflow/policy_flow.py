"""One trainable policy's side of dataflow: credit, what becomes of closed groups, and its batches.

It doesn't issue tasks and knows no other policy. Invariant: a group is emitted once (and again only by the replay's
rules), in batches numbered 1, 2, 3…, and only if it is within `max_staleness` at the step that will train it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from astraflow.config import RunConfig
from astraflow.dataflow import ledger
from astraflow.dataflow.advantages import ADVANTAGES
from astraflow.dataflow.batches import build_batch, members_of
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.closed_groups import ClosedGroups, Spent, StockState
from astraflow.dataflow.groups import OpenGroup
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.judge import Judge
from astraflow.dataflow.metering import bound, credit, next_yield
from astraflow.dataflow.samples import Judged
from astraflow.dataflow.since_last_batch import SinceLastBatch
from astraflow.dataflow.stages import StageState
from astraflow.dataflow.trainer_progress import TrainerProgress, TrainerView
from astraflow.messages import Progress, SampleBatch
from astraflow.messages.metric_names import DATAFLOW_BUFFERED_GROUPS, DATAFLOW_CREDIT, DATAFLOW_OPEN_GROUPS


class FlowState(msgspec.Struct):
    """What a policy's flow puts into snapshots; append fields only."""

    trainer: TrainerProgress
    number: int = 0  # of the last batch in the SAMPLES log
    ended: bool = False  # the last batch is out
    observed_yield: float = 1.0
    in_flight: int = 0  # open groups that feed this policy
    buffer: list[BufferedGroup] = []
    counts: dict[str, int] = {}  # tasks by terminal reason, and the counts of records
    spent: dict[str, list[int]] = {}  # as `stock.spent` was kept before there was a stock; read, not written
    filters: dict[str, StageState] = {}
    stock: StockState | None = None  # None: written before there was one


def _old_stock(state: FlowState) -> StockState:
    """From a snapshot of before there was a stock."""
    return StockState({name: Spent(members, state.number) for name, members in state.spent.items()})


class Settled(NamedTuple):
    """What became of a closed group."""

    fate: str  # `buffered`, or the reason against it
    rewards: tuple[float, ...]  # of its valid members


class PolicyFlow:
    """The state machine of one policy."""

    def __init__(
        self, config: RunConfig, policy: str, *, shelf: HeldEpisodes, notes: deque[str], state: FlowState | None = None
    ) -> None:
        """`notes`: sentences on groups that don't train, shared with the other flows. `state` None = the run begins."""
        section = config.policies[policy].trainer
        assert section is not None, policy
        self.policy = policy
        self._section = section
        self._deterministic = config.run.deterministic
        self._max_staleness = 0 if config.run.deterministic else section.max_staleness
        self._prefetch = 0 if self._max_staleness == 0 else section.prefetch
        self._advantages = ADVANTAGES[section.advantage]
        self._shelf = shelf
        self.trainer = TrainerView(steps=section.steps, state=state.trainer if state else None)
        self._state = state or FlowState(trainer=TrainerProgress())
        self.trainer.last_is_out = self._state.ended
        self.closing = Judge(config, policy, section, self._advantages, self._state.filters)
        self.stock = ClosedGroups(
            config, policy, shelf=shelf, notes=notes, advantages=self._advantages, max_staleness=self._max_staleness,
            waiting=self._state.buffer, counts=self._state.counts, state=self._state.stock or _old_stock(self._state),
        )  # fmt: skip
        self._window = SinceLastBatch()
        self._batch_values: dict[str, float] = {}

    def state(self) -> FlowState:
        """A copy for the snapshot."""
        return msgspec.structs.replace(
            self._state, trainer=self.trainer.state(), buffer=self.stock.buffer.groups(), spent={},
            counts=dict(self.stock.counts), stock=self.stock.state(),
            filters={name: each.state() for name, each in self.closing.filters.items()},
        )  # fmt: skip

    # --- the trainer and its credit ---

    @property
    def over(self) -> bool:
        """Nothing more will be trained."""
        return self.trainer.finished or self._state.ended

    @property
    def idle(self) -> bool:
        """The trainer has finished every batch that it was given."""
        return self.trainer.consumed >= self._state.number

    @property
    def in_flight(self) -> int:
        return self._state.in_flight

    def on_progress(self, progress: Progress) -> None:
        """What the trainer tells."""
        self.trainer.learn(progress)
        if self.trainer.finished:
            self.stock.drop_all()

    def credit(self, more: int = 0) -> float:
        """Groups that may be issued now, if `more` were in flight already; ≤ 0 means none."""
        if self.over:
            return 0.0
        return credit(
            self._bound(), accepted=self._accepted(), in_flight=self._state.in_flight + more,
            observed_yield=self._state.observed_yield,
        )  # fmt: skip

    def oldest_useful(self, more: int = 0) -> int:
        """The oldest version that isn't stale when a group issued now is trained; 0 = any.

        The group lands in the batch that all groups before it leave open, `more` of them not issued yet.
        """
        ahead = len(self.stock.buffer) + (self._state.in_flight + more) * self._state.observed_yield
        number = self._state.number + int(ahead // (self._section.batch_groups - self._replayed())) + 1
        return self.trainer.versions.oldest_allowed(self.trainer.train_step(number), self._max_staleness)

    def missing(self) -> int:
        """Groups that the next batch lacks; 0 if none is wanted now. For deterministic mode."""
        return max(0, self._section.batch_groups - len(self.stock.buffer)) if self._wants_next() else 0

    def _accepted(self) -> int:
        return self._state.number * self._section.batch_groups + len(self.stock.buffer)

    def _bound(self) -> int:
        """Groups that may have been accepted so far, less what the batches that are still to come will replay."""
        batch = self._section.batch_groups
        allowed = bound(
            max_staleness=self._max_staleness, consumed=self.trainer.consumed,
            remaining_steps=self.trainer.remaining_steps, batch_groups=batch,
        )  # fmt: skip
        to_come = max(0, allowed // batch - self._state.number)
        return allowed - to_come * self._replayed()

    def _replayed(self) -> int:
        """Groups of the next batches that will be replayed, as far as is known."""
        return min(self.stock.replay.per_batch, len(self.stock.replay))

    def _wants_next(self) -> bool:
        return not self.over and self.trainer.wants(self._state.number + 1, prefetch=self._prefetch)

    # --- groups ---

    def opened(self, group: OpenGroup) -> None:
        """A group that feeds this policy was issued."""
        self._state.in_flight += 1
        self.stock.counts[ledger.ISSUED] += len(group.seats)

    def skipped(self, tasks: int) -> None:
        """A selector passed over so many tasks that would have fed this policy."""
        self._window.skipped += tasks

    def count(self, reason: str) -> None:
        """Count a record that ended no task: late or retried."""
        self.stock.counts[reason] += 1

    def settle(self, group: OpenGroup) -> Settled:
        """The group is closed: it waits for a batch, or is counted by the reason against it."""
        self._state.in_flight -= 1
        judged = self.closing.judged(group, self._shelf)
        valid = {member: each for member, each in enumerate(judged) if not each.fate}
        rewards = tuple(each.reward for each in valid.values())
        if self.stock.is_spent(group.id):
            self.stock.settle_spent(group, judged)
            return Settled(ledger.EMITTED, rewards)
        self.stock.counts.update(each.fate for each in judged if each.fate)
        for member, each in valid.items():
            self._window.see(self._shelf[group.seats[member].sequence], each)
        if reason := self._reason_against(group, valid):
            self.stock.turn_down(group, judged, reason)
            return Settled(reason, rewards)
        self.stock.keep(group, valid)
        return Settled(ledger.BUFFERED, rewards)

    def _reason_against(self, group: OpenGroup, valid: Mapping[int, Judged]) -> str:
        """Why a group with these valid members isn't trained; "" = it is. Moves the yield."""
        if self.over:
            return ledger.UNUSED
        reason = self.closing.reason_against(group, valid, self._shelf)
        self._state.observed_yield = next_yield(self._state.observed_yield, not reason)
        self._window.closed(passed=not reason)
        # A group that feeds this policy alone was issued on its credit: it waits, also if the yield was underestimated
        # or the trainer went back to a checkpoint. What is known of a trainer right after a restart is old.
        shared = len(group.feeds) > 1 and self.trainer.current and not self._deterministic
        full = shared and self._accepted() >= self._bound()
        return reason or (ledger.SURPLUS if full else "")

    # --- batches ---

    def next_batch(self, *, exhausted: bool) -> SampleBatch | None:
        """The next batch if it can be bound now, else None. Drops what would be stale in it.

        Args:
            exhausted: no group that feeds this policy is open or will be issued: what is left is the last batch.
        """
        if not self._wants_next() or (self._deterministic and self._state.in_flight):
            return None
        number, size, versions = self._state.number + 1, self._section.batch_groups, self.trainer.versions
        train_step = self.trainer.train_step(number)
        self.stock.drop_stale(versions, train_step)
        groups, last = self._chosen(number, exhausted=exhausted)
        if len(groups) < size and not last:
            return None
        return build_batch(
            self.policy, number, groups, shelf=self._shelf, advantages=self._advantages, versions=versions,
            train_step=train_step, last=last,
        )  # fmt: skip

    def _chosen(self, number: int, *, exhausted: bool) -> tuple[list[BufferedGroup], bool]:
        """The groups of batch `number` as far as they are there, and whether it is the last one."""
        size, versions, buffer = self._section.batch_groups, self.trainer.versions, self.stock.buffer
        if self._deterministic:
            groups = buffer.first_by_id(size)
        else:
            groups = buffer.first(size, versions, newest=self.trainer.version)
        if exhausted and len(groups) == len(buffer):
            return groups, True
        if len(groups) + self.stock.replay.per_batch < size:
            return groups, False
        again = self.stock.replay.pick(number, versions, self.trainer.train_step(number))
        return groups[: size - len(again)] + again, False

    def apply_batch(self, batch: SampleBatch, *, settled: Callable[[str], bool]) -> None:
        """The batch is in the log: its groups are spent. One that was applied before changes nothing.

        Args:
            settled: whether the group of an id is closed here; one that isn't will be when its episodes are read again.
        """
        if batch.number <= self._state.number:
            return
        assert batch.number == self._state.number + 1, (self.policy, batch.number, self._state.number)
        self._state.number, self._state.ended = batch.number, batch.last
        self.trainer.last_is_out = batch.last
        again = [
            self.stock.trained(group_id, members, batch.number, settled=settled)
            for group_id, members in members_of(batch).items()
        ]
        if batch.last:
            self.stock.drop_all()
        self._batch_values, self._window = self._window.values(batch, replayed=sum(again)), SinceLastBatch()

    # --- for people ---

    def ledger(self, *, open_tasks: int) -> dict[str, int]:
        """Counts by reason, with what is open and buffered."""
        return dict(self.stock.counts) | {ledger.OPEN: open_tasks, ledger.BUFFERED: self.stock.buffer.tasks()}

    def batch_values(self) -> dict[str, float]:
        """Metric values of the last batch, and where the flow stands after it."""
        return self._batch_values | {
            DATAFLOW_CREDIT: max(0.0, self.credit()),
            DATAFLOW_OPEN_GROUPS: float(self._state.in_flight),
            DATAFLOW_BUFFERED_GROUPS: float(len(self.stock.buffer)),
        }

    @property
    def groups_ready(self) -> int:
        """Groups that wait for the next batch."""
        return len(self.stock.buffer)

    def waits_for(self) -> str:
        """A sentence on what holds up the next batch."""
        number, consumed = self._state.number, self.trainer.consumed
        if self.trainer.finished:
            return f"nothing: trainer {self.policy} has finished"
        if self._state.ended or self.trainer.train_step(number + 1) >= self._section.steps:
            return f"trainer {self.policy}: has its last batch {number}, consumed {consumed}"
        if not self._wants_next():
            given = number - consumed
            return f"trainer {self.policy}: has its {given} batch{'es' * (given != 1)}, consumed {consumed}"
        return (
            f"episodes: {len(self.stock.buffer)} of {self._section.batch_groups} groups for batch {number + 1} of "
            f"{self.policy}, {self._state.in_flight} in flight"
        )
