"""What dataflow should decide now: tasks to issue again, groups to give up, evaluations, training tasks.

It looks and proposes, it changes nothing. Invariant: in deterministic mode at most one thing runs at a time, a round
of an evaluation or a training cohort, and what is proposed doesn't depend on the order in which episodes came.
"""

from collections.abc import Mapping

import msgspec

from astraflow.dataflow import admission
from astraflow.dataflow.deadlines import Deadlines
from astraflow.dataflow.evals import EvalSet
from astraflow.dataflow.groups import OpenGroup
from astraflow.dataflow.ledger import Fate
from astraflow.dataflow.snapshot import Cohort
from astraflow.dataflow.sources import Choice
from astraflow.dataflow.state import DataflowState
from astraflow.messages import Decision, DecisionKind
from astraflow.messages.ids import GroupKey, group_id


def plan(state: DataflowState, deadlines: Deadlines, now: float) -> list[Decision]:
    """All decisions that are due, in order."""
    decisions = _open_groups(state, deadlines, now)
    if state.paused:
        return decisions
    if not state.deterministic:
        for eval_set in state.evals.values():
            decisions += _eval_round(state, eval_set, now)
        return decisions + _training(state, now)
    if decisions or any(not flow.idle for flow in state.flows.values() if not flow.over):
        return decisions
    for eval_set in state.evals.values():
        if eval_set.open or not state.groups:
            decisions = decisions or _eval_round(state, eval_set, now)
    return decisions or _training(state, now)


def _open_groups(state: DataflowState, deadlines: Deadlines, now: float) -> list[Decision]:
    """Attempts that failed or are overdue are issued again or given up; so is what nobody can train on."""
    over = {policy for policy, flow in state.flows.items() if flow.over}
    unused = [
        group
        for group in state.groups.values()
        if over and not group.decision.eval_set and over.issuperset(group.trained_by)
    ]
    decisions = [group.closing(-1, now=now, fate=Fate.UNUSED) for group in unused]
    if unused:
        return decisions
    satisfied, retrying = (sorted(groups.values(), key=_by_issue) for groups in (state.satisfied, state.retrying))
    decisions = [group.closing(-1, now=now, fate=Fate.REDUNDANT) for group in satisfied]
    for group in retrying:
        if group.id in state.satisfied:
            continue
        for member, seat in enumerate(group.seats):
            if seat.retry:
                decisions.append(group.again(member, attempt=seat.attempt + 1, now=now, reason="failed"))
    for group, member in deadlines.overdue(state.groups.values(), now):
        if group.id in state.satisfied:
            continue
        attempt = group.seats[member].attempt + 1
        if attempt < state.config.dataflow.max_attempts:
            decisions.append(group.again(member, attempt=attempt, now=now, reason="deadline"))
        else:
            decisions.append(group.closing(member, now=now, fate=Fate.EXPIRED))
    return decisions


def _by_issue(group: OpenGroup) -> int:
    return group.ordinal


def _eval_round(state: DataflowState, eval_set: EvalSet, now: float) -> list[Decision]:
    """The tasks of the set's round that is due, or of its open one as far as they weren't issued."""
    if eval_set.open:
        number, current = next(reversed(eval_set.state.rounds.items()))
        versions = current.versions
    else:
        due = eval_set.due(state.trainers)
        if due is None:
            return []
        number, versions = due, {policy: state.trainers[policy].version for policy in eval_set.trained}
    cohort = f"{state.incarnation}/{eval_set.source}-{number}" if state.deterministic else ""
    tasks = eval_set.section.size * eval_set.section.repeats if state.deterministic else 0
    return [
        _issue(state, key, eval_set.section.repeats, versions, now, cohort, tasks, eval_set.name)
        for key in eval_set.keys(number)
    ]


def _training(state: DataflowState, now: float) -> list[Decision]:
    """Training groups: by credit, or the whole next cohort."""
    sources = state.config.sources
    if not state.deterministic:
        return [
            _issue_choice(state, choice, versions, now)
            for choice, versions in admission.by_credit(
                state.mixer, state.flows, state.trained_by, tightest=state.config.dataflow.meter == "tightest"
            )
        ]
    proposals = admission.cohort(state.mixer, state.flows, state.trained_by)
    cohort = state.cohort
    if cohort.issued >= cohort.size:  # else a crash came in between, and the rest of it is due
        if state.groups:
            return []
        tasks = sum(sources[choice.key.source].group_size for choice, _ in proposals)
        cohort = Cohort(f"{state.incarnation}/train-{sum(state.mixer.issued.values())}", tasks)
    decisions, issued = [], cohort.issued
    for choice, versions in proposals:
        if issued < cohort.size:
            decisions.append(_issue_choice(state, choice, versions, now, cohort))
            issued += decisions[-1].group_size
    return decisions


def _issue_choice(
    state: DataflowState, choice: Choice, min_versions: Mapping[str, int], now: float, cohort: Cohort | None = None
) -> Decision:
    """The decision that issues a source's next group, with its redundant members."""
    size, extra = state.mixer.sources[choice.key.source].members_of(choice.key)
    issue = _issue(
        state,
        choice.key,
        size + extra,
        min_versions,
        now,
        cohort.id if cohort else "",
        cohort.size if cohort else 0,
    )
    return msgspec.structs.replace(issue, position=choice.position, extra=extra, refused=choice.refused)


def _issue(
    state: DataflowState,
    key: GroupKey,
    size: int,
    min_versions: Mapping[str, int],
    now: float,
    cohort_id: str = "",
    cohort_size: int = 0,
    eval_set: str = "",
) -> Decision:
    """The decision that issues a group of `size` tasks."""
    env, trained_by = state.place_of(key.source, eval_set)
    return Decision(
        kind=DecisionKind.ISSUE,
        source=key.source,
        epoch=key.epoch,
        index=key.index,
        env=env,
        feeds=trained_by,
        group_id=group_id(state.incarnation, key),
        group_size=size,
        decided_at=now,
        min_versions=dict(min_versions),
        cohort_id=cohort_id,
        cohort_size=cohort_size,
        eval_set=eval_set,
        eval_round=key.epoch if eval_set else 0,
    )
