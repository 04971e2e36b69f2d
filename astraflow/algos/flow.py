"""One trainable policy's side of dataflow: credit, what becomes of closed groups, and its batches.

It doesn't issue tasks and knows no other policy. Invariant: a group is emitted once (and again only by the replay's
rules), in batches numbered 1, 2, 3…, and only if it is within `max_staleness` at the step that will train it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from astraflow.algos import ledger
from astraflow.algos.advantages import ADVANTAGES
from astraflow.algos.batches import build_batch, members_of
from astraflow.algos.buffer import ORDERS, Buffer, BufferedGroup, Order
from astraflow.algos.closing import Closing, buffered
from astraflow.algos.groups import OpenGroup
from astraflow.algos.metering import bound, credit, next_yield
from astraflow.algos.progress import TrainerState, TrainerView
from astraflow.algos.replay import Replay, ReplayGroup
from astraflow.algos.samples import Judged
from astraflow.algos.shelf import Shelf
from astraflow.algos.stages import Stage, StageState
from astraflow.algos.window import Window
from astraflow.config import RunConfig
from astraflow.messages import Progress, SampleBatch


class FlowState(msgspec.Struct):
    """What a policy's flow puts into snapshots; append fields only."""

    trainer: TrainerState
    number: int = 0  # of the last batch in the SAMPLES log
    ended: bool = False  # the last batch is out
    observed_yield: float = 1.0
    in_flight: int = 0  # open groups that feed this policy
    buffer: list[BufferedGroup] = []
    counts: dict[str, int] = {}  # tasks by terminal reason, and the counts of records
    spent: dict[str, list[int]] = {}  # members that the log says were emitted, of groups that aren't closed here yet
    spent_in: dict[str, list[int]] = {}  # of the same groups: the first batch that they were in, and how many
    replay: list[ReplayGroup] = []
    filters: dict[str, StageState] = {}
    order: StageState | None = None
    rank: StageState | None = None  # of the replay


class Settled(NamedTuple):
    """What became of a closed group."""

    fate: str  # `buffered`, or the reason against it
    rewards: tuple[float, ...]  # of its valid members


class Flow:
    """The state machine of one policy."""

    def __init__(
        self, config: RunConfig, policy: str, *, shelf: Shelf, notes: deque[str], state: FlowState | None = None
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
        self._notes = notes
        saved = state or FlowState(trainer=TrainerState())
        self.closing = Closing(config, policy, section, self._advantages, saved.filters)
        self.trainer = TrainerView(steps=section.steps, state=state.trainer if state else None)
        self._state = msgspec.structs.replace(saved, spent_in=dict(saved.spent_in))
        self.trainer.last_is_out = self._state.ended
        self._counts = Counter(self._state.counts)
        self._spent = dict(self._state.spent)
        order: Stage[Order] = Stage("dataflow.order", config.dataflow.order, {}, ORDERS, saved.order)
        self._buffer = Buffer(order, saved.buffer)
        self._replay = Replay(
            policy, section.replay, batch_groups=section.batch_groups, max_staleness=self._max_staleness,
            seed=config.run.seed, groups=saved.replay, saved=saved.rank,
        )  # fmt: skip
        self._window = Window()
        self._batch_values: dict[str, float] = {}

    def hold_buffered(self) -> None:
        """After a restore: keep the episodes of buffered and remembered groups."""
        for group in [*self._buffer.groups(), *(each.group for each in self._replay.groups())]:
            self._shelf.hold(group.sequences)

    def state(self) -> FlowState:
        """A copy for the snapshot."""
        return msgspec.structs.replace(
            self._state, trainer=self.trainer.state(), buffer=self._buffer.groups(), counts=dict(self._counts),
            spent=dict(self._spent), spent_in=dict(self._state.spent_in), replay=self._replay.groups(),
            filters={name: each.state() for name, each in self.closing.filters.items()},
            order=self._buffer.order.state(), rank=self._replay.state(),
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
            self._drop(self._buffer.groups(), ledger.UNUSED)
            self._forget(self._replay.clear())

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
        ahead = self._accepted() + (self._state.in_flight + more) * self._state.observed_yield
        number = int(ahead // self._section.batch_groups) + 1
        return self.trainer.versions.oldest_allowed(self.trainer.train_step(number), self._max_staleness)

    def missing(self) -> int:
        """Groups that the next batch lacks; 0 if none is wanted now. For deterministic mode."""
        return max(0, self._section.batch_groups - len(self._buffer)) if self._wants_next() else 0

    def _accepted(self) -> int:
        return self._state.number * self._section.batch_groups + len(self._buffer)

    def _bound(self) -> int:
        """Groups that may have been accepted so far, less what the batches that are still to come will replay."""
        batch = self._section.batch_groups
        allowed = bound(
            max_staleness=self._max_staleness, consumed=self.trainer.consumed,
            remaining_steps=self.trainer.remaining_steps, batch_groups=batch,
        )  # fmt: skip
        to_come = max(0, allowed // batch - self._state.number)
        return allowed - to_come * min(self._replay.per_batch, len(self._replay))

    def _wants_next(self) -> bool:
        return not self.over and self.trainer.wants(self._state.number + 1, prefetch=self._prefetch)

    # --- groups ---

    def opened(self, group: OpenGroup) -> None:
        """A group that feeds this policy was issued."""
        self._state.in_flight += 1
        self._counts[ledger.ISSUED] += len(group.seats)

    def count(self, reason: str) -> None:
        """Count a record that ended no task: late or retried."""
        self._counts[reason] += 1

    def settle(self, group: OpenGroup) -> Settled:
        """The group is closed: buffer it, or count why not."""
        self._state.in_flight -= 1
        judged = self.closing.judged(group, self._shelf)
        valid = {member: each for member, each in enumerate(judged) if not each.fate}
        rewards = tuple(each.reward for each in valid.values())
        if group.id in self._spent:
            self._settle_spent(group, judged)
            return Settled(ledger.EMITTED, rewards)
        self._counts.update(each.fate for each in judged if each.fate)
        for member, each in valid.items():
            self._window.see(self._shelf[group.seats[member].sequence], each)
        if reason := self._reason_against(group, valid):
            self._counts[reason] += len(valid)
            some = ", ".join(f"{reward:g}" for reward in rewards[:8]) or "none"
            self._note(group.id, reason, f"{len(valid)} of {len(judged)} members valid, rewards {some}")
            return Settled(reason, rewards)
        kept = buffered(group, valid)
        self._shelf.hold(kept.sequences)
        self._buffer.add(kept)
        return Settled(ledger.BUFFERED, rewards)

    def _settle_spent(self, group: OpenGroup, judged: list[Judged]) -> None:
        """The log already has it in a batch."""
        members = self._spent.pop(group.id)
        batch, uses = self._state.spent_in.pop(group.id, [self._state.number, 1])
        for member, each in enumerate(judged):
            self._counts[ledger.EMITTED if member in members else each.fate or ledger.UNUSED] += 1
        valid = {member: judged[member] for member in members if not judged[member].fate}
        if valid:
            kept = buffered(group, valid)
            self._shelf.hold(kept.sequences)
            self._remember(kept, batch, uses)

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

    def _remember(self, group: BufferedGroup, batch: int, uses: int = 1) -> None:
        """A group was in a batch; it may be replayed, and needs its episodes until then."""
        advantages_G = self._advantages(np.array(group.rewards, dtype=np.float64))
        self._forget(self._replay.trained(group, batch, worth=float(np.abs(advantages_G).mean()), uses=uses))

    def _forget(self, groups: Iterable[BufferedGroup]) -> None:
        for group in groups:
            self._shelf.release(group.sequences)

    def _drop(self, groups: Iterable[BufferedGroup], reason: str) -> None:
        """Groups that were buffered won't be emitted."""
        for group in groups:
            self._buffer.remove(group.id)
            self._shelf.release(group.sequences)
            self._counts[reason] += len(group.members)
            self._note(group.id, reason, f"oldest version {group.versions[0]}, trainer at step {self.trainer.step}")

    def _note(self, group_id: str, reason: str, detail: str) -> None:
        self._notes.append(f"{self.policy}: group {group_id.split('/', 1)[-1]} isn't trained: {reason} ({detail})")

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
        self._drop(self._buffer.stale(versions, train_step, self._max_staleness), ledger.STALE)
        self._forget(self._replay.stale(versions, train_step))
        again = self._replay.pick(number, versions, train_step)
        if self._deterministic:
            groups = self._buffer.first_by_id(size)
        else:
            groups = self._buffer.first(size - len(again), versions, newest=self.trainer.version)
        last = exhausted and len(groups) == len(self._buffer)
        if len(groups) + len(again) < size and not last:
            return None
        groups = groups if last else groups + again
        return build_batch(
            self.policy, number, groups, shelf=self._shelf, advantages=self._advantages, versions=versions,
            train_step=train_step, last=last,
        )  # fmt: skip

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
        for group_id, members in members_of(batch).items():
            if group := self._buffer.remove(group_id):
                self._counts[ledger.EMITTED] += len(group.members)
                self._remember(group, batch.number)
            elif group_id in self._replay:
                self._counts[ledger.REPLAYED] += len(members)
                self._forget(self._replay.trained_again(group_id))
            elif group_id in self._spent:
                self._counts[ledger.REPLAYED] += len(members)
                self._state.spent_in[group_id][1] += 1
            elif not settled(group_id):
                self._spent[group_id] = members
                self._state.spent_in[group_id] = [batch.number, 1]
        if batch.last:
            self._drop(self._buffer.groups(), ledger.UNUSED)
            self._forget(self._replay.clear())
        self._batch_values, self._window = self._window.values(batch), Window()

    # --- for people ---

    def ledger(self, *, open_tasks: int) -> dict[str, int]:
        """Counts by reason, with what is open and buffered."""
        return dict(self._counts) | {ledger.OPEN: open_tasks, ledger.BUFFERED: self._buffer.tasks()}

    def batch_values(self) -> dict[str, float]:
        """Metric values of the last batch, and where the flow stands after it."""
        return self._batch_values | {
            "dataflow.credit": max(0.0, self.credit()),
            "dataflow.open_groups": float(self._state.in_flight),
            "dataflow.buffered_groups": float(len(self._buffer)),
        }

    @property
    def groups_ready(self) -> int:
        """Groups that wait for the next batch."""
        return len(self._buffer)

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
            f"episodes: {len(self._buffer)} of {self._section.batch_groups} groups for batch {number + 1} of "
            f"{self.policy}, {self._state.in_flight} in flight"
        )
