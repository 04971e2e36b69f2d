"""The live view's picture: a `RunView` as something that rich can draw. Pure; it keeps no state and draws nothing."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from astraflow.messages import Event, MemberState
from astraflow.view.run_view import RunView
from astraflow.view.status import PolicyStatus, policy_status
from astraflow.view.wording import amount, change, clock, counts, duration, failures, sparkline, weights_sentence

WAITS_SHOWN = 5
EVENTS_SHOWN = 3
_BAR_WIDTH = 24
_QUIET = "grey58"


def picture(view: RunView, *, at: float) -> RenderableType:
    """The whole view as of `at` (unix seconds)."""
    if view.record is None or view.config is None:
        return Text("waiting for the run's record …", style=_QUIET)
    title = Text.assemble((f" {view.record.name} ", "bold"))
    subtitle = Text(f" {duration(at - view.record.created_at)} ", style=_QUIET)
    parts: list[RenderableType] = [_policy(view, name) for name in view.config.policies]
    parts.append(_surroundings(view, at))
    if problems := view.problems(with_coming=False):
        parts.append(_problems(problems))
    if troubles := [event for event in view.events if event.level != "info"]:
        parts.append(_events(troubles[-EVENTS_SHOWN:]))
    body = Group(*(Padding(part, (0, 0, 1 if part is not parts[-1] else 0, 0)) for part in parts))
    return Panel(body, title=title, title_align="left", subtitle=subtitle, subtitle_align="right", border_style=_QUIET)


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(width=10, no_wrap=True)
    grid.add_column(ratio=1)
    return grid


def _policy(view: RunView, name: str) -> RenderableType:
    status = policy_status(view, name)
    grid = _grid()
    grid.add_row(Text(name, style="bold cyan", overflow="ellipsis"), _steps(status))
    rewards = view.rewards(name)
    if rewards:
        grid.add_row(
            "",
            _labelled(
                "reward",
                f"{rewards[-1][1]:.2f}{failures(view.failed(name))}",
                sparkline([value for _, value in rewards]),
            ),
        )
    for set_name, (first, last) in status.eval.items():
        if first.correct is not None or last.correct is not None:
            label, values = "correct", change(first.correct, last.correct, once=first == last)
        else:
            label, values = "reward", change(first.reward, last.reward, once=first == last)
        grid.add_row("", _labelled(label, values, f"{set_name}, step {last.step}{failures(last.failed)}"))
    grid.add_row("", _engine(status))
    if sentence := weights_sentence(status.weights):
        grid.add_row("", Text(f"weights {sentence}", style=_QUIET))
    return grid


def _steps(status: PolicyStatus) -> RenderableType:
    if not status.trainable:
        return Text("frozen", style=_QUIET)
    row = Table.grid(padding=(0, 2))
    done = "green" if status.finished else "cyan"
    bar = ProgressBar(status.steps_planned, status.step, width=_BAR_WIDTH, complete_style=done, finished_style="green")
    row.add_row(Text(f"step {status.step:>3} / {status.steps_planned}"), bar, Text(f"version {status.version}"))
    return row


def _engine(status: PolicyStatus) -> Text:
    parts = [f"{amount(round(status.tokens_per_s))} tokens/s"]
    if status.staleness_mean is not None and status.staleness_max is not None:
        parts.append(f"staleness {status.staleness_mean:.1f} mean, {status.staleness_max:.0f} max")
    if status.untrained_share is not None:
        parts.append(f"{status.untrained_share:.0%} not trained")
    if status.left_s is not None and not status.finished:
        parts.append(f"{duration(status.left_s)} left")
    parts.append(f"{status.replicas} replica{'' if status.replicas == 1 else 's'}")
    return Text("   ".join(parts), style=_QUIET)


def _labelled(label: str, value: str, detail: str) -> Text:
    return Text.assemble((f"{label:<8}", _QUIET), (value, "bold"), ("   " + detail, _QUIET))


def _surroundings(view: RunView, at: float) -> RenderableType:
    grid = _grid()
    busy = {name: depth for name, depth in view.queues.items() if depth}
    grid.add_row(Text("queues", style=_QUIET), counts(busy) if busy else Text("empty", style=_QUIET))
    coming = [m for m in view.members.values() if m.state in (MemberState.JOINING, MemberState.CATCHING_UP)]
    for number, member in enumerate(sorted(coming, key=lambda m: m.actor)):
        label = Text("starting" if number == 0 else "", style=_QUIET)
        grid.add_row(label, f"{member.actor}, {duration(at - member.since)}")
    for number, wait in enumerate(view.waits()[:WAITS_SHOWN]):
        sentence = Text.assemble(wait.who, (" waits for ", _QUIET), wait.waits_for)
        sentence.append(f"   {duration(at - wait.since)}", style=_QUIET)
        grid.add_row(Text("waiting" if number == 0 else "", style=_QUIET), sentence)
    return grid


def _problems(problems: list[str]) -> RenderableType:
    grid = _grid()
    for number, problem in enumerate(problems):
        grid.add_row(Text("problems" if number == 0 else "", style="yellow"), Text(problem, style="yellow"))
    return grid


def _events(events: list[Event]) -> RenderableType:
    grid = _grid()
    for number, event in enumerate(events):
        style = "red" if event.level == "error" else "yellow"
        actor = f"{event.actor}  " if event.actor else ""
        sentence = Text.assemble((f"{clock(event.at)}  ", _QUIET), (actor, style), event.text)
        grid.add_row(Text("events" if number == 0 else "", style=_QUIET), sentence)
    return grid
