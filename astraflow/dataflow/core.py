"""Dataflow's state machine: issues tasks by credit, closes groups, emits numbered batches, runs evaluations.

It does no I/O, reads no clock and owns no task: an actor appends what it decides to logs and feeds it what they hold.
Invariants: state changes by `apply_*` and `on_*` (and stale groups fall out in `next_batch`), so that the logs, read
again in another interleaving, never train a task twice; every issued task ends in one reason per policy that it feeds.

    ISSUE ─▶ open group ─(every seat has its record or was given up)─▶ closed ─▶ for each policy that it feeds:
    small-group | filtered | surplus | buffered ─▶ emitted | stale | unused
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from astraflow.config import RunConfig
from astraflow.dataflow import ledger
from astraflow.dataflow.deadlines import Deadlines
from astraflow.dataflow.evals import EvalScore
from astraflow.dataflow.groups import Arrival, OpenGroup
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.plan import plan
from astraflow.dataflow.problems import Problem, UntakenTasks, refusing_selector
from astraflow.dataflow.snapshot import Snapshot, decode_snapshot, encode_snapshot
from astraflow.dataflow.state import DataflowState
from astraflow.dataflow.tasks import Payload, tasks_of
from astraflow.dataflow.user_orders import UserOrders
from astraflow.messages import (
    Decision,
    DecisionKind,
    Episode,
    Progress,
    SampleBatch,
    Task,
)
from astraflow.messages.ids import GroupKey, group_id, parse_task_id

REPORT_S = 10.0  # a rollout ends an episode at its deadline; its record then needs a moment


@dataclass(frozen=True, kw_only=True)
class _EpisodeTaken:
    """What `on_episode` made of a record."""

    arrival: Arrival
    fates: Mapping[str, Fate] = field(default_factory=dict)  # per policy, if its group closed: what became of it


class DataflowCore:
    """All of dataflow but its logs. Not thread-safe: one task calls it."""

    def __init__(self, config: RunConfig, *, incarnation: str, sizes: Mapping[str, int | None]) -> None:
        """A run that begins.

        Args:
            sizes: tasks per environment; None = unlimited.
        Raises: ConfigError for sources that the environments can't serve.
        """
        self._begin(config, Snapshot(incarnation=incarnation), sizes)

    def _begin(self, config: RunConfig, snapshot: Snapshot, sizes: Mapping[str, int | None]) -> None:
        self._state = DataflowState(config, sizes=sizes, snapshot=snapshot)
        self._deadlines = Deadlines(config.dataflow.task_deadline_s + REPORT_S)
        self._unresolved = bool(self.references())  # episodes that the snapshot refers to aren't here yet
        self._untaken = UntakenTasks(config)
        self.users = UserOrders(self._state)

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
        core._begin(config, decode_snapshot(data), sizes)
        return core

    def references(self) -> list[int]:
        """EPISODES sequences that are still needed, sorted."""
        return self._state.held.references()

    def resolve(self, episodes: Mapping[int, Episode]) -> None:
        """Hand in the episodes at `references()`; until then only batches and decisions may be applied.

        Raises: CursorError if one is missing.
        """
        self._state.held.fill(episodes)
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

    def apply_decision(self, decision: Decision) -> Mapping[str, Fate]:
        """A decision is in the log. One that was applied before changes nothing.

        Returns: if it closed its group, what became of it, per policy.
        Raises: ConfigError if the sources have another group in its place.
        """
        group = self._state.groups.get(decision.group_id)
        if decision.kind is DecisionKind.ISSUE:
            if group is None and not self._state.is_closed(decision.key) and self._state.known_set(decision):
                self._state.open_group(decision)
        elif group is not None and decision.kind is DecisionKind.REISSUE:
            group.reissue(decision.member, decision.attempt)
            self._state.note(group)
        elif group is not None:
            group.give_up(decision.member, Fate(decision.reason))
            self._state.note(group)
            return self._close_if_complete(group)
        return {}

    def giving_up(self, decision: Decision, member: int, now: float) -> Decision | None:
        """What closes a member (-1: all) of an applied decision whose task can't be made; None if it has ended."""
        group = self._state.groups.get(decision.group_id)
        return None if group is None else group.closing(member, now=now, fate=Fate.ENV)

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
        if (submissions := self._state.submissions.get(decision.source)) is not None:
            payload = submissions.payload_of
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
        waiting = sum(seat.open and not seat.retry for group in groups for seat in group.seats)
        self._untaken.see_queue(env, evaluation=evaluation, pending=pending, open_tasks=waiting, now=now)

    # --- episodes ---

    def on_episode(self, episode: Episode, sequence: int) -> _EpisodeTaken:
        """A record from EPISODES, in order of the log; `sequence` counts from 1. Never raises, whatever it says."""
        if sequence <= self._state.cursor:
            return _EpisodeTaken(arrival=Arrival.SEEN)
        assert not self._unresolved, "resolve() comes first"
        self._state.cursor = sequence
        parsed = parse_task_id(episode.task_id)
        group = self._state.groups.get(episode.group_id)
        if parsed is None or not self._fits(episode, *parsed, group):
            self._state.unknown += 1
            return _EpisodeTaken(arrival=Arrival.UNKNOWN)
        if group is None:
            self._count(self._state.trained_by.get(parsed[1].source, ()), ledger.LATE)
            return _EpisodeTaken(arrival=Arrival.LATE)
        arrival = group.seat_record(episode, sequence, max_attempts=self._state.config.dataflow.max_attempts)
        self._state.note(group)
        if arrival is not Arrival.TERMINAL:
            self._count(group.trained_by, ledger.LATE if arrival is Arrival.LATE else ledger.RETRIED)
            return _EpisodeTaken(arrival=arrival)
        if group.seats[episode.member].sequence:
            self._state.held.put(sequence, episode)
        return _EpisodeTaken(arrival=Arrival.TERMINAL, fates=self._close_if_complete(group))

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

    def _close_if_complete(self, group: OpenGroup) -> dict[str, Fate]:
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

    def emitted(self, policy: str) -> int:
        """Number of the policy's last batch in the log."""
        return self._state.flows[policy].emitted

    def apply_batch(self, batch: SampleBatch) -> None:
        """A batch is in the log, published now or read again: its groups are spent, whatever else is known of them."""
        self._state.flows[batch.policy].apply_batch(batch, settled=self._settled)

    def _settled(self, group: str) -> bool:
        parsed = parse_task_id(f"{group}/0")
        return parsed is not None and self._state.is_closed(parsed[1])

    def batch_metrics(self, policy: str) -> dict[str, float]:
        """Metric values (kind dataflow) of the policy's last batch; names are those of messages/metric_names.py."""
        return self._state.flows[policy].batch_values() | self._state.select_metrics(policy)

    # --- evaluations, the end, and what people want to know ---

    def eval_results(self) -> list[EvalScore]:
        """Scores of the rounds that closed since the last call, per set and policy: fields of a `Metrics`."""
        return [score for eval_set in self._state.evals.values() for score in eval_set.take_scores()]

    @property
    def finished(self) -> bool:
        """All trainers are finished, every last evaluation is in, and no group is open."""
        return (
            all(flow.trainer.finished for flow in self._state.flows.values())
            and not self._state.groups
            and not any(
                eval_set.open or eval_set.due(self._state.trainers) is not None
                for eval_set in self._state.evals.values()
            )
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

    def problems(self, now: float) -> list[Problem]:
        """What keeps the run from getting anywhere, worst first; [] = nothing that is known."""
        untrained = [flow.untrained.problem() for flow in self._state.flows.values() if not flow.over]
        refusing = [
            refusing_selector(name, self._state.mixer.sources[name].select.kind, refused)
            for name, refused in self._state.refused.items()
            if refused
        ]
        of_policies = [problem for problem in [*untrained, self._state.rewritten.problem()] if problem]
        return of_policies + self._untaken.problems(now) + refusing

    def waits_for(self) -> str:
        """A sentence per policy that isn't finished and per open evaluation on what holds it up."""
        if self._state.paused:
            return f"a user, who paused the run: {len(self._state.groups)} groups are still open"
        flows = self._state.flows.values()
        waits = [flow.waits_for() for flow in [f for f in flows if not f.trainer.finished] or flows]
        waits += [sentence for eval_set in self._state.evals.values() if (sentence := eval_set.waits_for())]
        return "; ".join(waits)
