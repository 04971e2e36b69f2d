"""One trainable policy's side of dataflow: credit, what becomes of closed groups, and its batches.

It doesn't issue tasks and knows no other policy. Invariant: a group is emitted once (and again only by the replay's
rules), in batches numbered 1, 2, 3…, and only if it is within `max_staleness` at the step that will train it.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from astraflow.config import RunConfig
from astraflow.dataflow import ledger
from astraflow.dataflow.advantages import ADVANTAGES
from astraflow.dataflow.batches import build_batch, members_of
from astraflow.dataflow.buffer import BufferedGroup
from astraflow.dataflow.closed_groups import ClosedGroups, ClosedGroupsState
from astraflow.dataflow.groups import OpenGroup
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.judge import Judge, JudgedGroup
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.metering import bound, credit, next_yield
from astraflow.dataflow.problems import UntrainedInARow
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
    filters: dict[str, StageState] = {}
    closed_groups: ClosedGroupsState = msgspec.field(name="stock", default_factory=ClosedGroupsState)


class PolicyFlow:
    """The state machine of one policy."""

    def __init__(
        self, config: RunConfig, policy: str, *, held: HeldEpisodes, notes: deque[str], state: FlowState | None = None
    ) -> None:
        """`notes`: sentences on groups that don't train, shared with the other flows. `state` None = the run begins."""
        section = config.policies[policy].trainer
        assert section is not None, policy
        self.policy = policy
        self._section = section
        self._deterministic = config.run.deterministic
        self._max_staleness = 0 if config.run.deterministic else section.max_staleness
        self._prefetch = 0 if self._max_staleness == 0 else section.prefetch
        self._held = held
        self.trainer = TrainerView(steps=section.steps, state=state.trainer if state else None)
        self._state = state or FlowState(trainer=TrainerProgress())
        self.trainer.last_is_out = self._state.ended
        advantages = ADVANTAGES[section.advantage]
        self.judge = Judge(config, policy, section, advantages, held, self._state.filters)
        self.closed_groups = ClosedGroups(
            config,
            policy,
            held=held,
            notes=notes,
            advantages=advantages,
            max_staleness=self._max_staleness,
            waiting=self._state.buffer,
            counts=self._state.counts,
            state=self._state.closed_groups,
        )
        self._since_last_batch = SinceLastBatch()
        self.untrained = UntrainedInARow(policy)
        self._batch_values: dict[str, float] = {}

    def state(self) -> FlowState:
        """A copy for the snapshot."""
        return msgspec.structs.replace(
            self._state,
            trainer=self.trainer.state(),
            buffer=[group.stored() for group in self.closed_groups.buffer.groups()],
            counts=dict(self.closed_groups.counts),
            closed_groups=self.closed_groups.state(),
            filters={name: stage.state() for name, stage in self.judge.filters.items()},
        )

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

    @property
    def emitted(self) -> int:
        """Number of the last batch in the log."""
        return self._state.number

    def on_progress(self, progress: Progress) -> None:
        """What the trainer tells."""
        self.trainer.learn(progress)
        if self.trainer.finished:
            self.closed_groups.drop_all()

    def credit(self, more: int = 0) -> float:
        """Groups that may be issued now, if `more` were in flight already; ≤ 0 means none."""
        if self.over:
            return 0.0
        return credit(
            self._bound(),
            accepted=self._accepted(),
            in_flight=self._state.in_flight + more,
            observed_yield=self._state.observed_yield,
        )

    def oldest_useful(self, more: int = 0) -> int:
        """The oldest version that isn't stale when a group issued now is trained; 0 = any.

        The group lands in the batch that all groups before it leave open, `more` of them not issued yet.
        """
        ahead = len(self.closed_groups.buffer) + (self._state.in_flight + more) * self._state.observed_yield
        number = self._state.number + int(ahead // (self._section.batch_groups - self._replayed())) + 1
        return self.trainer.versions.oldest_allowed(self.trainer.train_step(number), self._max_staleness)

    def missing(self) -> int:
        """Groups that the next batch lacks; 0 if none is wanted now. For deterministic mode."""
        return max(0, self._section.batch_groups - len(self.closed_groups.buffer)) if self._wants_next() else 0

    def _accepted(self) -> int:
        return self._state.number * self._section.batch_groups + len(self.closed_groups.buffer)

    def _bound(self) -> int:
        """Groups that may have been accepted so far, less what the batches that are still to come will replay."""
        batch = self._section.batch_groups
        allowed = bound(
            max_staleness=self._max_staleness,
            consumed=self.trainer.consumed,
            remaining_steps=self.trainer.remaining_steps,
            batch_groups=batch,
        )
        to_come = max(0, allowed // batch - self._state.number)
        return allowed - to_come * self._replayed()

    def _replayed(self) -> int:
        """Groups of the next batches that will be replayed, as far as is known."""
        return min(self.closed_groups.replay.per_batch, len(self.closed_groups.replay))

    def _wants_next(self) -> bool:
        return not self.over and self.trainer.wants(self._state.number + 1, prefetch=self._prefetch)

    # --- groups ---

    def group_opened(self, group: OpenGroup) -> None:
        """A group that feeds this policy was issued."""
        self._state.in_flight += 1
        self.closed_groups.counts[ledger.ISSUED] += len(group.seats)

    def skipped(self, tasks: int) -> None:
        """A selector passed over so many tasks that would have fed this policy."""
        self._since_last_batch.skipped += tasks

    def count(self, reason: str) -> None:
        """Count a record that ended no task: late or retried."""
        self.closed_groups.counts[reason] += 1

    def settle(self, group: OpenGroup) -> JudgedGroup:
        """The group is closed: it waits for a batch, or is counted by what it met."""
        self._state.in_flight -= 1
        if self.closed_groups.is_spent(group.id):
            judged = self.judge.judge_decided(group, Fate.EMITTED)
            self.closed_groups.settle_spent(judged)
            return judged
        judged = self._judged(group)
        for seat, member in zip(group.seats, judged.members, strict=True):
            if member.fate is None:
                self._since_last_batch.see_episode(self._held[seat.sequence], member)
        self.closed_groups.settle(judged)
        self.untrained.see_group(judged)
        return judged

    def _judged(self, group: OpenGroup) -> JudgedGroup:
        """What becomes of a group that no batch holds yet. Moves the yield."""
        if self.over:
            return self.judge.judge_decided(group, Fate.UNUSED)
        judged = self.judge.judge(group)
        passed = judged.fate is Fate.BUFFERED
        self._state.observed_yield = next_yield(self._state.observed_yield, passed)
        self._since_last_batch.group_closed(passed=passed)
        # A group that this policy alone learns from was issued on its credit: it waits, also if the yield was
        # underestimated or the trainer went back to a checkpoint. What is known of a trainer right after a restart is
        # old.
        shared = len(group.trained_by) > 1 and self.trainer.current and not self._deterministic
        return judged.met(Fate.SURPLUS) if passed and shared and self._accepted() >= self._bound() else judged

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
        self.closed_groups.drop_stale(versions, train_step)
        groups, last = self._chosen(number, train_step, exhausted=exhausted)
        if len(groups) < size and not last:
            return None
        return build_batch(
            self.policy,
            number,
            groups,
            held=self._held,
            versions=versions,
            train_step=train_step,
            last=last,
        )

    def _chosen(self, number: int, train_step: int, *, exhausted: bool) -> tuple[list[BufferedGroup], bool]:
        """The groups of batch `number` as far as they are there, and whether it is the last one."""
        size, versions, buffer = self._section.batch_groups, self.trainer.versions, self.closed_groups.buffer
        if self._deterministic:
            groups = buffer.first_by_id(size, versions, train_step=train_step)
        else:
            groups = buffer.first(
                size, versions, train_step=train_step, max_staleness=self._max_staleness, newest=self.trainer.version
            )
        if exhausted and len(groups) == len(buffer):
            return groups, True
        if len(groups) + self.closed_groups.replay.per_batch < size:
            return groups, False
        again = self.closed_groups.replay.pick(number, versions, train_step)
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
            self.closed_groups.trained(group_id, members, batch.number, settled=settled)
            for group_id, members in members_of(batch).items()
        ]
        if batch.last:
            self.closed_groups.drop_all()
        self._batch_values, self._since_last_batch = (
            self._since_last_batch.values(batch, replayed=sum(again)),
            SinceLastBatch(),
        )

    # --- for people ---

    def ledger(self, *, open_tasks: int) -> dict[str, int]:
        """Counts by reason, with what is open and buffered."""
        return dict(self.closed_groups.counts) | {
            Fate.OPEN: open_tasks,
            Fate.BUFFERED: self.closed_groups.buffer.tasks(),
        }

    def batch_values(self) -> dict[str, float]:
        """Metric values of the last batch, and where the flow stands after it."""
        return self._batch_values | {
            DATAFLOW_CREDIT: max(0.0, self.credit()),
            DATAFLOW_OPEN_GROUPS: float(self._state.in_flight),
            DATAFLOW_BUFFERED_GROUPS: float(len(self.closed_groups.buffer)),
        }

    @property
    def groups_ready(self) -> int:
        """Groups that wait for the next batch."""
        return len(self.closed_groups.buffer)

    def waits_for(self) -> str:
        """A sentence on what holds up the next batch."""
        number, consumed = self._state.number, self.trainer.consumed
        if self.trainer.finished:
            return f"nothing: trainer {self.policy} has finished"
        if self._state.ended or self.trainer.train_step(number + 1) >= self._section.steps:
            return f"trainer {self.policy}: has its last batch {number}, consumed {consumed}"
        if not self._wants_next():
            waiting = number - consumed
            return f"trainer {self.policy}: has its {waiting} batch{'es' * (waiting != 1)}, consumed {consumed}"
        return (
            f"episodes: {self.groups_ready} of {self._section.batch_groups} groups for batch {number + 1} of "
            f"{self.policy}, {self._state.in_flight} in flight"
        )
