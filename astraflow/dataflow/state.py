"""The parts that dataflow's state machine is made of, built for a run that begins or from a snapshot.

It decides nothing. Invariant: `DataflowState(config, snapshot=state.snapshot())` equals `state`, episodes aside.
"""

import math
from collections import deque
from collections.abc import Mapping

import msgspec

from astraflow.config import RunConfig
from astraflow.dataflow.evals import SOURCE_PREFIX, EvalSet
from astraflow.dataflow.feedback import Feedback, mean_correct
from astraflow.dataflow.groups import OpenGroup, Seat
from astraflow.dataflow.held_episodes import HeldEpisodes
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.policy_flow import PolicyFlow
from astraflow.dataflow.problems import RewrittenHistories
from astraflow.dataflow.snapshot import Cohort, Snapshot
from astraflow.dataflow.sources import Mixer, Source
from astraflow.dataflow.submissions import PREFIX, Submissions, submissions_of
from astraflow.dataflow.tasks import players_of, trained_by
from astraflow.errors import ConfigError
from astraflow.messages import Decision
from astraflow.messages.ids import GroupKey, RangeSet
from astraflow.messages.metric_names import DATAFLOW_SELECT

_NOTES_KEPT = 10


class DataflowState:
    """Everything that a dataflow knows. One task mutates it."""

    def __init__(self, config: RunConfig, *, sizes: Mapping[str, int | None], snapshot: Snapshot) -> None:
        """`sizes`: tasks per environment, None = unlimited. Raises ConfigError for sources that can't be served."""
        self.config = config
        self.incarnation = snapshot.incarnation
        self.cursor = snapshot.cursor
        self.unknown = snapshot.unknown
        self.cohort = snapshot.cohort
        self.held = HeldEpisodes()
        self.notes: deque[str] = deque(snapshot.notes, maxlen=_NOTES_KEPT)
        self.submissions = submissions_of(config, snapshot.waiting, snapshot.submitted)
        self.paused = snapshot.paused
        self.orders = dict(snapshot.orders)
        self.rewritten = RewrittenHistories()
        self.refused: dict[str, int] = {}  # by source, tasks in a row before the newest one
        self.submitted_to, self.controlled_to = snapshot.submitted_to, snapshot.controlled_to
        self.mixer = _mixer(config, sizes, snapshot, self.submissions)
        self.trained_by = {name: trained_by(config, source.section.env) for name, source in self.mixer.sources.items()}
        self.feedback = Feedback(
            self.mixer.sources,
            batch_groups=_batch_groups(config, self.trained_by),
            ordered=self.deterministic,
            pending=snapshot.results,
        )
        self.flows = {
            name: PolicyFlow(config, name, held=self.held, notes=self.notes, state=snapshot.flows.get(name))
            for name, policy in config.policies.items()
            if policy.trainer is not None
        }
        self.trainers = {name: flow.trainer for name, flow in self.flows.items()}
        self.evals = {
            name: EvalSet(
                name,
                section,
                policies=players_of(config, section.env),
                trained=trained_by(config, section.env),
                state=snapshot.evals.get(name),
            )
            for name, section in config.eval.items()
        }
        # An evaluation may have been taken out of the run file; its open groups go with it.
        self.groups = {group.id: group for group in snapshot.groups if self.known_set(group.decision)}
        self.retrying = {group.id: group for group in self.groups.values() if group.retrying}
        self.satisfied = {group.id: group for group in self.groups.values() if group.enough}
        self._closed = {(source, epoch): RangeSet(ranges) for source, epoch, ranges in snapshot.closed}
        self._ordinal = snapshot.ordinal
        for flow in self.flows.values():
            flow.closed_groups.hold_episodes()
        for group in self.groups.values():
            group.trained_by = tuple(policy for policy in group.trained_by if policy in self.flows)
            self.held.hold(group.sequences())

    def snapshot(self) -> Snapshot:
        """The state, episodes by their place in the log."""
        return Snapshot(
            incarnation=self.incarnation,
            cursor=self.cursor,
            ordinal=self._ordinal,
            issued=self.mixer.issued,
            clocks=self.mixer.clocks,
            groups=list(self.groups.values()),
            closed=[(source, epoch, indices.ranges()) for (source, epoch), indices in self._closed.items()],
            flows={name: flow.state() for name, flow in self.flows.items()},
            evals={name: eval_set.state for name, eval_set in self.evals.items()},
            notes=list(self.notes),
            unknown=self.unknown,
            cohort=msgspec.structs.replace(self.cohort),
            results=list(self.feedback.pending),
            selects={name: source.select.state() for name, source in self.mixer.sources.items()},
            paused=self.paused,
            waiting={source.section.env: source.waiting() for source in self.submissions.values()},
            submitted_to=self.submitted_to,
            controlled_to=self.controlled_to,
            submitted={source.section.env: source.remembered() for source in self.submissions.values()},
            orders=dict(self.orders),
        )

    @property
    def deterministic(self) -> bool:
        return self.config.run.deterministic

    def known_set(self, decision: Decision) -> bool:
        """A training decision, or one of an evaluation that the run has."""
        return not decision.eval_set or decision.eval_set in self.evals

    def is_closed(self, key: GroupKey) -> bool:
        """The group was issued and closed."""
        if key.source in self.submissions:
            return self.submissions[key.source].is_closed(key.index)
        return key.index in self._closed.get((key.source, key.epoch), ())

    def place_of(self, source: str, eval_set: str) -> tuple[str, tuple[str, ...]]:
        """The environment of a source's or an evaluation's groups, and the policies that learn from them."""
        if eval_set:
            return self.config.eval[eval_set].env, ()
        return self.mixer.sources[source].section.env, self.trained_by[source]

    def open_group(self, decision: Decision) -> None:
        """Put a new group in. Raises ConfigError if the sources have another one in its place."""
        if decision.eval_set:
            self.evals[decision.eval_set].group_opened(decision)
        else:
            self._advance(decision)
        env, learners = self.place_of(decision.source, decision.eval_set)
        if decision.cohort_id != self.cohort.id:
            self.cohort = Cohort(decision.cohort_id, decision.cohort_size, first=self._ordinal)
        self.cohort.issued += decision.group_size
        seats = [Seat() for _ in range(decision.group_size)]
        group = OpenGroup(decision, env, learners, self._ordinal, seats)
        self._ordinal += 1
        self.groups[group.id] = group
        for policy in learners:
            self.flows[policy].group_opened(group)

    def note(self, group: OpenGroup) -> None:
        """The group's members may have changed: what waits for another attempt, what isn't needed any more."""
        for groups, belongs in ((self.retrying, group.retrying), (self.satisfied, group.enough)):
            if belongs:
                groups[group.id] = group
            else:
                groups.pop(group.id, None)

    def close_group(self, group: OpenGroup) -> dict[str, Fate]:
        """Take a complete group out and settle it with every policy that learns from it; what each made of it."""
        del self.groups[group.id]
        self.retrying.pop(group.id, None)
        self.satisfied.pop(group.id, None)
        key = group.key
        if key.source in self.submissions:
            self.submissions[key.source].group_closed(key.index)
        else:
            self._closed.setdefault((key.source, key.epoch), RangeSet()).add(key.index)
        judged = {policy: self.flows[policy].settle(group) for policy in group.trained_by}
        rewards = {policy: judged_group.rewards for policy, judged_group in judged.items()}
        correct = mean_correct(self.held[sequence] for sequence in group.sequences())
        self.feedback.group_closed(key, group.ordinal, rewards, correct)
        self._deliver_results()
        for sequence in group.sequences() if group.trained_by else ():
            self.rewritten.see_episode(self.held[sequence])
        if group.decision.eval_set:
            eval_set = self.evals[group.decision.eval_set]
            episodes = [self.held[sequence] for sequence in group.sequences()]
            failed = len(group.seats) - len(episodes)
            eval_set.group_closed(group.decision.eval_round, episodes, failed=failed, trainers=self.trainers)
        self.held.release(group.sequences())
        return {policy: judged_group.fate for policy, judged_group in judged.items()}

    def _deliver_results(self) -> None:
        half = self.cohort.issued < self.cohort.size
        self.feedback.deliver(
            open_from=next(iter(self.groups.values())).ordinal if self.groups else math.inf,
            cohort_from=self.cohort.first if half else math.inf,
        )

    def open_tasks(self, policy: str) -> int:
        """Tasks of open groups that the policy learns from."""
        return sum(len(group.seats) for group in self.groups.values() if policy in group.trained_by)

    def exhausted(self, policy: str) -> bool:
        """No group that the policy learns from is open or will be issued."""
        sources = [name for name, learners in self.trained_by.items() if policy in learners]
        return self.flows[policy].in_flight == 0 and all(self.mixer.exhausted(name) for name in sources)

    def _advance(self, decision: Decision) -> None:
        source, key = decision.source, decision.key
        known = self.mixer.sources.get(source)
        at = self.mixer.issued.get(source, 0)
        position = at if decision.position < 0 else decision.position
        if known is None or position < at or not known.has(key, position):
            raise ConfigError(
                f"the log of decisions has group {decision.group_id} where [sources] and [run].seed now put "
                f"{known and known.key_at(position)}; restore them, or start afresh with `astraflow up --fresh`"
            )
        for policy in self.trained_by[source]:
            self.flows[policy].skipped(position - at + decision.refused)
        self.mixer.advance(source, position)
        self.refused[source] = decision.refused

    def select_metrics(self, policy: str) -> dict[str, float]:
        """What the selectors of the policy's sources tell of themselves, as metric values."""
        return {
            DATAFLOW_SELECT.of(name, quantity): value
            for name, source in self.mixer.sources.items()
            if policy in self.trained_by[name]
            for quantity, value in source.select.metrics().items()
        }


def _batch_groups(config: RunConfig, trained_by: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Groups in the smallest batch of the policies that learn from each source."""
    trainers = {source: [config.policies[name].trainer for name in fed] for source, fed in trained_by.items()}
    return {
        source: min((section.batch_groups for section in sections if section), default=1)
        for source, sections in trainers.items()
    }


def _mixer(
    config: RunConfig, sizes: Mapping[str, int | None], snapshot: Snapshot, submitted: Mapping[str, Submissions]
) -> Mixer:
    """All sources, where the snapshot left them. Raises ConfigError."""
    for name in config.sources:
        for prefix, whose in ((SOURCE_PREFIX, "evaluations"), (PREFIX, "tasks that users submit")):
            if name.startswith(prefix):
                raise ConfigError(f"[sources.{name}]: names that begin with {prefix!r} belong to {whose}")
    sources: dict[str, Source] = {
        name: Source(
            name,
            section,
            env_size=sizes.get(section.env),
            seed=config.run.seed,
            by_size=config.dataflow.shares == "size",
            saved=snapshot.selects.get(name),
        )
        for name, section in config.sources.items()
    }
    sources |= submitted
    if snapshot.clocks is None:
        return Mixer.fresh(sources, seed=config.run.seed)
    return Mixer(sources, issued=snapshot.issued, clocks=snapshot.clocks)
