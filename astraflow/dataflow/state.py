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
from astraflow.dataflow.policy_flow import PolicyFlow
from astraflow.dataflow.snapshot import Cohort, Snapshot
from astraflow.dataflow.sources import Mixer, Source
from astraflow.dataflow.submissions import PREFIX, Inbox, inboxes
from astraflow.dataflow.trained_by import feeds_of, players_of
from astraflow.errors import ConfigError
from astraflow.messages import Decision
from astraflow.messages.ids import GroupKey, RangeSet
from astraflow.messages.metric_names import DATAFLOW_SELECT

NOTES_KEPT = 10
_NOBODY: tuple[str, ...] = ()


class DataflowState:
    """Everything that a dataflow knows. One task mutates it."""

    def __init__(self, config: RunConfig, *, sizes: Mapping[str, int | None], snapshot: Snapshot) -> None:
        """`sizes`: tasks per environment, None = unlimited. Raises ConfigError for sources that can't be served."""
        self.config = config
        self.incarnation = snapshot.incarnation
        self.cursor = snapshot.cursor
        self.unknown = snapshot.unknown
        self.cohort = snapshot.cohort
        self.shelf = HeldEpisodes()
        self.notes: deque[str] = deque(snapshot.notes, maxlen=NOTES_KEPT)
        self.inboxes = inboxes(config, snapshot.waiting)
        self.paused = snapshot.paused
        self.submitted_to, self.controlled_to = snapshot.submitted_to, snapshot.controlled_to
        self.mixer = _mixer(config, sizes, snapshot, self.inboxes)
        self.feeds = {name: feeds_of(config, source.section.env) for name, source in self.mixer.sources.items()}
        self.feedback = Feedback(
            self.mixer.sources, batch_groups=_batch_groups(config, self.feeds), ordered=self.deterministic,
            pending=snapshot.results,
        )  # fmt: skip
        self.flows = {
            name: PolicyFlow(config, name, shelf=self.shelf, notes=self.notes, state=snapshot.flows.get(name))
            for name, policy in config.policies.items()
            if policy.trainer is not None
        }
        self.trainers = {name: flow.trainer for name, flow in self.flows.items()}
        self.evals = {
            name: EvalSet(
                name, section, policies=players_of(config, section.env), trained=feeds_of(config, section.env),
                state=snapshot.evals.get(name),
            )
            for name, section in config.eval.items()
        }  # fmt: skip
        # An evaluation may have been taken out of the run file; its open groups go with it.
        self.groups = {each.id: each for each in snapshot.groups if self.known_set(each.decision)}
        self.retrying = {group.id: group for group in self.groups.values() if group.retrying}
        self.satisfied = {group.id: group for group in self.groups.values() if group.enough}
        self._closed = {(source, epoch): RangeSet(ranges) for source, epoch, ranges in snapshot.closed}
        self._ordinal = snapshot.ordinal
        for flow in self.flows.values():
            flow.stock.hold()
        for group in self.groups.values():
            group.feeds = tuple(policy for policy in group.feeds if policy in self.flows)
            self.shelf.hold(group.sequences())

    def snapshot(self) -> Snapshot:
        """The state, episodes by their place in the log."""
        return Snapshot(
            incarnation=self.incarnation, cursor=self.cursor, ordinal=self._ordinal, issued=self.mixer.issued,
            clocks=self.mixer.clocks, groups=list(self.groups.values()),
            closed=[(source, epoch, found.ranges()) for (source, epoch), found in self._closed.items()],
            flows={name: flow.state() for name, flow in self.flows.items()},
            evals={name: each.state for name, each in self.evals.items()}, notes=list(self.notes),
            unknown=self.unknown, cohort=msgspec.structs.replace(self.cohort), results=list(self.feedback.pending),
            selects={name: source.select.state() for name, source in self.mixer.sources.items()}, paused=self.paused,
            waiting={each.section.env: each.waiting() for each in self.inboxes.values()},
            submitted_to=self.submitted_to, controlled_to=self.controlled_to,
        )  # fmt: skip

    @property
    def deterministic(self) -> bool:
        return self.config.run.deterministic

    def known_set(self, decision: Decision) -> bool:
        """A training decision, or one of an evaluation that the run has."""
        return not decision.eval_set or decision.eval_set in self.evals

    def is_closed(self, key: GroupKey) -> bool:
        """The group was issued and closed."""
        return key.index in self._closed.get((key.source, key.epoch), ())

    def open_group(self, decision: Decision) -> None:
        """Put a new group in. Raises ConfigError if the sources have another one in its place."""
        if decision.eval_set:
            self.evals[decision.eval_set].opened(decision)
            env, feeds = self.config.eval[decision.eval_set].env, _NOBODY
        else:
            self._advance(decision)
            env, feeds = self.mixer.sources[decision.source].section.env, self.feeds[decision.source]
        if decision.cohort_id != self.cohort.id:
            self.cohort = Cohort(decision.cohort_id, decision.cohort_size, first=self._ordinal)
        self.cohort.issued += decision.group_size
        seats = [Seat() for _ in range(decision.group_size)]
        group = OpenGroup(decision, env, feeds, self._ordinal, seats)
        self._ordinal += 1
        self.groups[group.id] = group
        for policy in feeds:
            self.flows[policy].opened(group)

    def note(self, group: OpenGroup) -> None:
        """The group's members may have changed: what waits for another attempt, what isn't needed any more."""
        for noted, holds in ((self.retrying, group.retrying), (self.satisfied, group.enough)):
            if holds:
                noted[group.id] = group
            else:
                noted.pop(group.id, None)

    def close_group(self, group: OpenGroup) -> dict[str, str]:
        """Take a complete group out and settle it with every policy that it feeds; their verdicts."""
        del self.groups[group.id]
        self.retrying.pop(group.id, None)
        self.satisfied.pop(group.id, None)
        key = group.key
        self._closed.setdefault((key.source, key.epoch), RangeSet()).add(key.index)
        if key.source in self.inboxes:
            self.inboxes[key.source].closed(key.index)
        settled = {policy: self.flows[policy].settle(group) for policy in group.feeds}
        rewards = {policy: each.rewards for policy, each in settled.items()}
        correct = mean_correct(self.shelf[sequence] for sequence in group.sequences())
        self.feedback.closed(key, group.ordinal, rewards, correct)
        self._deliver_results()
        if group.decision.eval_set:
            each = self.evals[group.decision.eval_set]
            episodes = [self.shelf[sequence] for sequence in group.sequences()]
            failed = len(group.seats) - len(episodes)
            each.closed(group.decision.eval_round, episodes, failed=failed, trainers=self.trainers)
        self.shelf.release(group.sequences())
        return {policy: each.fate for policy, each in settled.items()}

    def _deliver_results(self) -> None:
        half = self.cohort.issued < self.cohort.size
        self.feedback.deliver(
            open_from=next(iter(self.groups.values())).ordinal if self.groups else math.inf,
            cohort_from=self.cohort.first if half else math.inf,
        )

    def open_tasks(self, policy: str) -> int:
        """Tasks of open groups that feed the policy."""
        return sum(len(group.seats) for group in self.groups.values() if policy in group.feeds)

    def exhausted(self, policy: str) -> bool:
        """No group that feeds the policy is open or will be issued."""
        sources = [name for name, feeds in self.feeds.items() if policy in feeds]
        return self.flows[policy].in_flight == 0 and all(self.mixer.exhausted(name) for name in sources)

    def _advance(self, decision: Decision) -> None:
        source, key = decision.source, GroupKey(decision.source, decision.epoch, decision.index)
        known = self.mixer.sources.get(source)
        at = self.mixer.issued.get(source, 0)
        position = at if decision.position < 0 else decision.position
        if known is None or position < at or not known.has(key, position):
            raise ConfigError(
                f"the log of decisions has group {decision.group_id} where [sources] and [run].seed now put "
                f"{known and known.key_at(position)}; restore them, or start afresh with `astraflow up --fresh`"
            )
        for policy in self.feeds[source]:
            self.flows[policy].skipped(position - at)
        self.mixer.advance(source, position)

    def select_metrics(self, policy: str) -> dict[str, float]:
        """What the selectors of the policy's sources tell of themselves, as metric values."""
        return {
            DATAFLOW_SELECT.of(name, what): value
            for name, source in self.mixer.sources.items()
            if policy in self.feeds[name]
            for what, value in source.select.metrics().items()
        }


def _batch_groups(config: RunConfig, feeds: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Groups in the smallest batch of the policies that each source feeds."""
    trainers = {source: [config.policies[name].trainer for name in fed] for source, fed in feeds.items()}
    return {source: min((t.batch_groups for t in each if t), default=1) for source, each in trainers.items()}


def _mixer(
    config: RunConfig, sizes: Mapping[str, int | None], snapshot: Snapshot, submitted: Mapping[str, Inbox]
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
