"""A run's status as a page of text, without colours. Pure.

What is stuck comes first. A healthy run fits a terminal of LINES by COLUMNS; `everything` shows each actor, wait, event
and group too.
"""

from collections import Counter
from collections.abc import Iterator

from astraflow.messages import Member, MemberState
from astraflow.view.status import PolicyStatus, Status
from astraflow.view.wording import amount, change, clock, counts, duration, failures, weights_sentence

LINES, COLUMNS = 25, 100
WAITS_SHOWN = 4
EVENTS_SHOWN = 3
_WHOLE_POLICIES = 3  # of more policies only a line each
_POLICIES_SHOWN = 10


def render(status: Status, *, everything: bool = False) -> str:
    """The page. Problems are never shortened."""
    state = status.stop_requested or "running"
    head = f"run {status.run} · {state} · {duration(status.at - status.created_at)} since it was created"
    problems = [f"  !  {problem}" for problem in status.problems]
    if everything:
        return "\n".join([head, *problems, *_everything(status)])
    shown = _brief(status)  # as it is, when something is wrong: an end that is cut off may be what tells
    return "\n".join([head, *problems, *(shown if problems else map(_shortened, shown))])


def _brief(status: Status) -> Iterator[str]:
    yield from _first(_waits(status), WAITS_SHOWN)
    yield ""
    if len(status.policies) <= _WHOLE_POLICIES:
        for name, policy in status.policies.items():
            yield _policy_head(name, policy)
            yield from _policy_brief(name, policy)
    else:
        yield from _first([_policy_head(*item) for item in status.policies.items()], _POLICIES_SHOWN)
    yield ""
    yield f"queues  {_queues(status)}"
    yield from _members(status)
    troubles = [line for event, line in zip(status.events, _events(status), strict=True) if event.level != "info"]
    yield from ([] if not troubles else ["", *troubles[-EVENTS_SHOWN:]])


def _everything(status: Status) -> Iterator[str]:
    for name, policy in status.policies.items():
        yield ""
        yield _policy_head(name, policy)
        yield from _policy_details(name, policy)
    yield from ["", "queues", f"  {_queues(status)}"]
    yield from ["", "actors", *(_member_line(member, status.at) for member in status.members)]
    yield from (f"  {actor:<24} gone" for actor in status.gone)
    for title, lines in (("who waits for whom", _waits(status)), ("last events", _events(status))):
        yield from ["", title, *lines] if lines else []


def _shortened(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"


def _first(lines: list[str], most: int) -> list[str]:
    rest = len(lines) - most
    return lines if rest <= 0 else [*lines[:most], f"  … {rest} more, see --all"]


def _waits(status: Status) -> list[str]:
    return [f"  {w.who} waits for {w.waits_for} ({duration(status.at - w.since)})" for w in status.waits]


def _queues(status: Status) -> str:
    return counts(status.queues) if any(status.queues.values()) else "empty"


def _events(status: Status) -> list[str]:
    return [f"  {clock(e.at)} {e.level:<7} {e.actor + ': ' if e.actor else ''}{e.text}" for e in status.events]


def _policy_head(name: str, policy: PolicyStatus) -> str:
    head = f"{name}: version {policy.version}" if policy.version or policy.trainable else f"{name}: frozen"
    if policy.trainable:
        head = f"{name}: step {policy.step} of {policy.steps_planned} · version {policy.version}"
    replicas = f"{policy.replicas} replica{'' if policy.replicas == 1 else 's'}"
    if policy.serving:
        oldest, newest = policy.serving
        replicas += f" serving {oldest}" if oldest == newest else f" serving {oldest} to {newest}"
    return f"{head} · {replicas} · {amount(round(policy.tokens_per_s))} tokens/s"


def _policy_brief(name: str, policy: PolicyStatus) -> Iterator[str]:
    figures = list(_figures(policy))
    if figures:
        yield f"  {' · '.join(figures)}"
    yield from _first([f"  {line}" for line in _evaluations(policy)], 2)
    if policy.ledger:
        yield f"  tasks: {counts(policy.ledger)}"
    if policy.untrained:
        more = len(policy.untrained) - 1
        yield f"  {_note(name, policy.untrained[-1])}{f' (and {more} more, see --all)' if more else ''}"


def _policy_details(name: str, policy: PolicyStatus) -> Iterator[str]:
    yield from (f"  {line}" for line in (*_figures(policy), *_evaluations(policy)))
    if sentence := weights_sentence(policy.weights):
        yield f"  weights {sentence}"
    if policy.ledger:
        yield f"  tasks: {counts(policy.ledger)}"
    yield from (f"  {_note(name, note)}" for note in policy.untrained)


def _figures(policy: PolicyStatus) -> Iterator[str]:
    if policy.reward is not None:
        yield f"reward {policy.reward:.2f}{failures(policy.failed)}"
    if policy.staleness_mean is not None and policy.staleness_max is not None:
        yield f"staleness mean {policy.staleness_mean:.2f}, max {policy.staleness_max:.0f}"
    if policy.untrained_share is not None:
        yield f"{policy.untrained_share:.0%} not trained"
    if policy.left_s is not None and not policy.finished:
        yield f"{duration(policy.left_s)} left"


def _evaluations(policy: PolicyStatus) -> list[str]:
    return [
        f"{name}: correct {change(first.correct, last.correct, once=first == last)}{failures(last.failed)} "
        f"(step {last.step if first == last else f'{first.step} → {last.step}'})"
        for name, (first, last) in policy.eval.items()
    ]


def _note(name: str, note: str) -> str:
    return note.removeprefix(f"{name}: ")


def _members(status: Status) -> Iterator[str]:
    """Who is ready, by role; by name only who isn't."""
    ready = Counter(member.role for member in status.members if member.state is MemberState.READY)
    roles = ", ".join(f"{count} {role}" for role, count in sorted(ready.items()))
    yield f"actors  ready: {roles or 'nobody'}"
    others = [_member_line(member, status.at) for member in status.members if member.state is not MemberState.READY]
    yield from _first(others, WAITS_SHOWN)
    if status.gone:
        yield f"  gone: {', '.join(status.gone)}"


def _member_line(member: Member, at: float) -> str:
    state = member.state.value.replace("_", " ")
    line = f"  {member.actor:<24} {state:<12} since {duration(at - member.since)}, pid {member.pid} on {member.node}"
    line += f", {member.about}" if member.about else ""
    return f"{line}, stuck in {member.stuck_frame}" if member.stuck_frame else line
