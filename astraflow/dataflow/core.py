"""Dataflow's state machine: issues tasks by credit, closes groups, emits numbered batches, runs evaluations.

It does no I/O, reads no clock and owns no task: an actor appends what it decides to logs and feeds it what they hold.
Invariants: state changes by `apply_*` and `on_*` (and stale groups fall out in `next_batch`), so that the logs, read
again in another interleaving, never train a task twice; every issued task ends in one reason per policy that it feeds.

    ISSUE ─▶ open group ─(every seat has its record or was given up)─▶ closed ─▶ for each policy that it feeds:
    small-group | filtered | surplus | buffered ─▶ emitted | stale | unused
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from astraflow.config import RunConfig
from astraflow.dataflow import ledger
from astraflow.dataflow.deadlines import Deadlines
from astraflow.dataflow.evals import EvalScore
from astraflow.dataflow.groups import OpenGroup, Taken
from astraflow.dataflow.knobs import knobs_of
from astraflow.dataflow.plan import plan
from astraflow.dataflow.snapshot import Snapshot, decode_snapshot, encode_snapshot
from astraflow.dataflow.state import DataflowState
from astraflow.dataflow.submissions import MOST_MEMBERS, PREFIX
from astraflow.dataflow.tasks import Payload, tasks_of
from astraflow.errors import ConfigError
from astraflow.messages import (
    Control,
    ControlKind,
    Decision,
    DecisionKind,
    Episode,
    Progress,
    Reason,
    SampleBatch,
    Submission,
    Task,
)
from astraflow.messages.ids import GroupKey, group_id, parse_task_id
from astraflow.named import nearest

REPORT_S = 10.0  # a rollout ends an episode at its deadline; its record then needs a moment


class VerdictKind(StrEnum):
    """What a record was good for."""

    TERMINAL = "terminal"  # it ended its task
    RETRY = "retry"  # an attempt failed and will be issued again
    LATE = "late"  # its task had ended, or a newer attempt replaced it
    UNKNOWN = "unknown"  # no task of this run
    SEEN = "seen"  # this place in the log was read before


@dataclass(frozen=True, kw_only=True)
class EpisodeVerdict:
    """What `on_episode` made of a record."""

    kind: VerdictKind
    fates: Mapping[str, str] = field(default_factory=dict)  # per policy, if its group closed: buffered or why not


class DataflowCore:
    """All of dataflow but its logs. Not thread-safe: one task calls it."""

    def __init__(self, config: RunConfig, *, incarnation: str, sizes: Mapping[str, int | None]) -> None:
        """A run that begins.

        Args:
            sizes: tasks per environment; None = unlimited.
        Raises: ConfigError for sources that the environments can't serve.
        """
        self._state = DataflowState(config, sizes=sizes, snapshot=Snapshot(incarnation=incarnation))
        self._deadlines = Deadlines(config.dataflow.task_deadline_s + REPORT_S)
        self._unresolved = False  # episodes that the snapshot refers to aren't here yet

    # --- snapshots ---

    def snapshot(self) -> bytes:
        """Everything but the logs; it refers to episodes by their sequence."""
        return encode_snapshot(self._state.snapshot())

    @classmethod
    def restore(cls, config: RunConfig, data: bytes, *, sizes: Mapping[str, int | None]) -> "DataflowCore":
        """What `snapshot` saw. To be level with the logs: batches behind it, decisions, `resolve`, then episodes.

        Raises: MessageError if it is damaged or too new, ConfigError as at the beginning.
        """
        core = cls.__new__(cls)
        core._state = DataflowState(config, sizes=sizes, snapshot=decode_snapshot(data))
        core._deadlines = Deadlines(config.dataflow.task_deadline_s + REPORT_S)
        core._unresolved = bool(core.references())
        return core

    def references(self) -> list[int]:
        """EPISODES sequences that are still needed, sorted."""
        return self._state.shelf.references()

    def resolve(self, episodes: Mapping[int, Episode]) -> None:
        """Hand in the episodes at `references()`; until then only batches and decisions may be applied.

        Raises: CursorError if one is missing.
        """
        self._state.shelf.fill(episodes)
        self._unresolved = False
        for group in list(self._state.groups.values()):
            self._close_if_complete(group)  # what a decision completed meanwhile

    def floor(self) -> int:
        """The lowest EPISODES sequence that must stay: the oldest that is referred to, else the last that was read."""
        return min(self.references(), default=self._state.cursor)

    # --- decisions ---

    def plan(self, now: float) -> list[Decision]:
        """What should be decided now, in order; applies nothing. `now` in seconds of any clock that never goes back.

        The deadline of a task runs from the first `plan` that sees it.
        """
        return plan(self._state, self._deadlines, now)

    def apply_decision(self, decision: Decision) -> Mapping[str, str]:
        """A decision is in the log. One that was applied before changes nothing.

        Returns: if it closed its group, what that is now, per policy: buffered or why not.
        Raises: ConfigError if the sources have another group in its place.
        """
        group = self._state.groups.get(decision.group_id)
        key = GroupKey(decision.source, decision.epoch, decision.index)
        if decision.kind is DecisionKind.ISSUE:
            if group is None and not self._state.is_closed(key) and self._state.known_set(decision):
                self._state.open_group(decision)
        elif group is not None and decision.kind is DecisionKind.REISSUE:
            group.reissue(decision.member, decision.attempt)
            self._state.note(group)
        elif group is not None:
            group.give_up(decision.member, decision.reason)
            self._state.note(group)
            return self._close_if_complete(group)
        return {}

    def giving_up(self, decision: Decision, member: int, now: float) -> Decision | None:
        """What closes a member (-1: all) of an applied decision whose task can't be made; None if it has ended."""
        group = self._state.groups.get(decision.group_id)
        return None if group is None else group.closing(member, now=now, reason=str(Reason.ENV))

    def tasks_of(self, decision: Decision, payload: Payload) -> list[Task]:
        """The tasks to publish for an applied decision: none for a close, none that ended meanwhile.

        Args:
            payload: (env, index) → what the environment needs.
        """
        group = self._state.groups.get(decision.group_id)
        if group is None or decision.kind is DecisionKind.CLOSE:
            return []
        wanted = range(decision.group_size) if decision.kind is DecisionKind.ISSUE else [decision.member]
        members = [m for m in wanted if group.seats[m].open and group.seats[m].attempt == decision.attempt]
        if (inbox := self._state.inboxes.get(decision.source)) is not None:
            payload = inbox.payload_of
        return tasks_of(self._state.config, decision, group.env, members, payload) if members else []

    def unfinished(self) -> list[Decision]:
        """After a restore: every open member at its attempt, for `tasks_of`; they give the old ids. Not for the log."""
        return [
            group.again(member, attempt=group.seats[member].attempt, now=group.decision.decided_at, reason="restore")
            for group in self._state.groups.values()
            for member in group.open_members()
            if not group.seats[member].retry
        ]

    def on_queue(self, env: str, pending: int, now: float, *, evaluation: bool = False) -> None:
        """So many tasks still wait in an environment's (evaluation) queue: their deadlines start again.

        Optional: without it, a task that nobody pulls for `task_deadline_s` counts as lost and costs an attempt.
        """
        groups = [g for g in self._state.groups.values() if g.env == env and bool(g.decision.eval_set) is evaluation]
        self._deadlines.still_queued(groups, pending, now)

    # --- episodes ---

    def on_episode(self, episode: Episode, sequence: int) -> EpisodeVerdict:
        """A record from EPISODES, in order of the log; `sequence` counts from 1. Never raises, whatever it says."""
        if sequence <= self._state.cursor:
            return EpisodeVerdict(kind=VerdictKind.SEEN)
        assert not self._unresolved, "resolve() comes first"
        self._state.cursor = sequence
        parsed = parse_task_id(episode.task_id)
        group = self._state.groups.get(episode.group_id)
        if parsed is None or not self._fits(episode, *parsed, group):
            self._state.unknown += 1
            return EpisodeVerdict(kind=VerdictKind.UNKNOWN)
        if group is None:
            self._count(self._state.feeds.get(parsed[1].source, ()), ledger.LATE)
            return EpisodeVerdict(kind=VerdictKind.LATE)
        taken = group.take(episode, sequence, max_attempts=self._state.config.dataflow.max_attempts)
        self._state.note(group)
        if taken is not Taken.TERMINAL:
            self._count(group.feeds, ledger.LATE if taken is Taken.LATE else ledger.RETRIED)
            return EpisodeVerdict(kind=VerdictKind(taken.value))
        if group.seats[episode.member].sequence:
            self._state.shelf.put(sequence, episode)
        return EpisodeVerdict(kind=VerdictKind.TERMINAL, fates=self._close_if_complete(group))

    def _fits(self, episode: Episode, incarnation: str, key: GroupKey, member: int, group: OpenGroup | None) -> bool:
        """The record names a task that was issued, and its fields agree on which one."""
        if incarnation != self._state.incarnation or episode.group_id != group_id(incarnation, key):
            return False
        if member != episode.member:
            return False
        return member < len(group.seats) if group is not None else self._state.is_closed(key)

    def _count(self, policies: tuple[str, ...], reason: str) -> None:
        for policy in policies:
            self._state.flows[policy].count(reason)

    def _close_if_complete(self, group: OpenGroup) -> dict[str, str]:
        return self._state.close_group(group) if group.complete and not self._unresolved else {}

    # --- batches ---

    def on_progress(self, progress: Progress) -> None:
        """What a trainer tells. Of a policy that isn't trained in this run, it changes nothing."""
        if progress.policy in self._state.flows:
            self._state.flows[progress.policy].on_progress(progress)

    def next_batch(self, policy: str) -> SampleBatch | None:
        """The policy's next batch if its trainer is near enough to it and it is full, else None.

        It stays the next one until `apply_batch`. Groups that would be stale in it are dropped and counted.
        """
        return self._state.flows[policy].next_batch(exhausted=self._state.exhausted(policy))

    def apply_batch(self, batch: SampleBatch) -> None:
        """A batch is in the log, published now or read again: its groups are spent, whatever else is known of them."""
        self._state.flows[batch.policy].apply_batch(batch, settled=self._settled)

    def _settled(self, group: str) -> bool:
        parsed = parse_task_id(f"{group}/0")
        return parsed is not None and self._state.is_closed(parsed[1])

    def batch_metrics(self, policy: str) -> dict[str, float]:
        """Metric values (kind dataflow) of the policy's last batch; names are those of messages/metric_names.py."""
        return self._state.flows[policy].batch_values() | self._state.select_metrics(policy)

    # --- knobs of data algorithms, changed while the run goes on ---

    def knobs(self) -> dict[str, Any]:
        """Every knob by its key in the run file, and its value now."""
        return {key: getattr(stage.algorithm, name, None) for key, (stage, name) in knobs_of(self._state).items()}

    def set_knob(self, key: str, value: Any) -> None:
        """Change one from now on; it stays changed after a restart. Raises ConfigError for a wrong key or value."""
        known = knobs_of(self._state)
        if key not in known:
            raise ConfigError(f"there is no knob {key!r}{nearest(key, known)}")
        stage, name = known[key]
        stage.set_knob(name, value)
        for source in self._state.mixer.sources.values():
            source.forget()

    # --- what users want ---

    def on_submission(self, submission: Submission, sequence: int) -> str:
        """A task from SUBMIT, in order of the log. Returns why it isn't done; "" = it will be."""
        if sequence <= self._state.submitted_to:
            return ""
        self._state.submitted_to = sequence
        inbox = self._state.inboxes.get(f"{PREFIX}{submission.env}")
        if inbox is None:
            return f"submission {sequence} is for environment {submission.env[:80]!r}, which takes none"
        if not 0 <= submission.group_size <= MOST_MEMBERS:
            return f"submission {sequence} has group_size {submission.group_size}, expected at most {MOST_MEMBERS}"
        if not self._state.feeds[inbox.name]:
            return f"submission {sequence}: environment {submission.env} trains no policy of this run"
        inbox.add(sequence, submission)
        return ""

    def on_control(self, control: Control, sequence: int) -> str:
        """An order from CONTROL, in order of the log. Returns why it isn't carried out; "" = it is."""
        if sequence <= self._state.controlled_to:
            return ""
        self._state.controlled_to = sequence
        try:
            self._carry_out(control)
        except ConfigError as exc:
            return str(exc)
        return ""

    def _carry_out(self, control: Control) -> None:
        match control.kind:
            case ControlKind.PAUSE | ControlKind.RESUME:
                self._state.paused = control.kind is ControlKind.PAUSE
            case ControlKind.SET:
                self.set_knob(control.name, control.value)
            case ControlKind.EVALUATE:
                if control.name not in self._state.evals:
                    raise ConfigError(f"there is no [eval.{control.name}]{nearest(control.name, self._state.evals)}")
                self._state.evals[control.name].state.requested = True

    # --- evaluations, the end, and what people want to know ---

    def eval_results(self) -> list[EvalScore]:
        """Scores of the rounds that closed since the last call, per set and policy: fields of a `Metrics`."""
        return [score for each in self._state.evals.values() for score in each.take_scores()]

    @property
    def finished(self) -> bool:
        """All trainers are finished, every last evaluation is in, and no group is open."""
        return (
            all(flow.trainer.finished for flow in self._state.flows.values())
            and not self._state.groups
            and not any(each.open or each.due(self._state.trainers) is not None for each in self._state.evals.values())
        )

    def ledger(self, policy: str) -> dict[str, int]:
        """Tasks by what became of them; see ledger.py."""
        counts = self._state.flows[policy].ledger(open_tasks=self._state.open_tasks(policy))
        return counts | {ledger.UNKNOWN: self._state.unknown}

    def notes(self, policy: str = "") -> list[str]:
        """The last ten sentences on groups that didn't train, oldest first; or those of them on one policy."""
        return [note for note in self._state.notes if not policy or note.startswith(f"{policy}: ")]

    def groups_ready(self) -> dict[str, int]:
        """By policy: groups that wait for the next batch."""
        return {policy: flow.groups_ready for policy, flow in self._state.flows.items()}

    def waits_for(self) -> str:
        """A sentence per policy and open evaluation on what holds it up."""
        if self._state.paused:
            return f"a user, who paused the run: {len(self._state.groups)} groups are still open"
        waits = [flow.waits_for() for flow in self._state.flows.values()]
        waits += [sentence for each in self._state.evals.values() if (sentence := each.waits_for())]
        return "; ".join(waits)
