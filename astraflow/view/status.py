"""`astraflow status`: one look at a run, as a struct and as JSON (as text: `status_text.py`).

It changes nothing in the run. When no actor has been heard of for seconds it tries whether the server stores anything.
"""

import math
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from astraflow import clock
from astraflow.bus import Bus
from astraflow.dataflow.ledger import ISSUED, Fate
from astraflow.errors import ConfigError
from astraflow.messages import Event, Member, Metrics
from astraflow.messages.metric_names import TRAIN_STALENESS_MAX, TRAIN_STALENESS_MEAN
from astraflow.messages.roles import Role
from astraflow.view.history import EvalPoint, PolicyHistory
from astraflow.view.run_view import RunView, WaitsFor

_METRICS_TAIL = 1000  # messages looked at for the newest values
EVENTS_SHOWN = 10
SILENT_S = 3.0  # members write their records every second
PROBE_WITHIN_S = 1.5
_LATELY_S = 600.0  # an actor that spoke within this time and has no member record is shown as gone


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. Values are None while nobody has reported them."""

    trainable: bool
    step: int
    steps_planned: int
    consumed: int  # batches
    version: int  # newest loadable
    finished: bool
    replicas: int  # ready
    serving: tuple[int, int] | None  # oldest and newest version served
    tokens_per_s: float
    reward: float | None  # newest, see RunView.rewards
    staleness_mean: float | None  # steps
    staleness_max: float | None
    eval: dict[str, tuple[EvalPoint, EvalPoint]]  # by set: first and newest
    ledger: dict[str, int]
    untrained: tuple[str, ...]  # sentences on the last groups that weren't trained, newest last
    weights: dict[str, float]  # newest value of each metric of kind weights
    failed: float = 0  # episodes that `reward` leaves out
    left_s: float | None = None  # until the planned steps are done, as fast as lately
    untrained_share: float | None = None  # of the tasks whose fate is known


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The run as of `at`. Keys are stable: `status --json` prints them. Times are unix seconds."""

    run: str
    incarnation: str
    created_at: float
    at: float
    stop_requested: str
    members: tuple[Member, ...]
    gone: tuple[str, ...]  # actors that left or whose record expired
    policies: dict[str, PolicyStatus]
    queues: dict[str, int]
    waits: tuple[WaitsFor, ...]
    problems: tuple[str, ...]
    events: tuple[Event, ...]  # newest last


async def read_status(bus: Bus) -> Status:
    """Look once. Raises ConfigError if there is no such run on this server, BusError if it can't be read."""
    view = await read_view(bus)
    await _tail(bus, bus.topology.metrics, _METRICS_TAIL, view)
    await _tail(bus, bus.topology.events, EVENTS_SHOWN, view)
    return status_of(view, at=clock.wall())


async def read_view(bus: Bus) -> RunView:
    """The KV and the queues as they are now, without history. Raises as `read_status`."""
    view, silent_s = RunView(), math.inf
    async with aclosing(bus.kv.watch("")) as updates:
        async for update in updates:
            if not update.key:
                break
            view.apply(update.key, update.message, written_at=clock.wall() - update.age_s)
            if isinstance(update.message, Member):
                silent_s = min(silent_s, update.age_s)
    if view.record is None:
        raise ConfigError(f"no run {bus.run!r} on this server; start it with `astraflow up`, or check --run and --url")
    view.queues = await bus.queues.depths()
    if not view.finished and silent_s > SILENT_S:  # nobody is there, or nobody can say so
        view.unstored = await bus.why_not_stored(PROBE_WITHIN_S)
    return view


async def _tail(bus: Bus, stream: str, entries: int, view: RunView) -> None:
    state = await bus.logs.state(stream)
    start = max(1, state.first_sequence, state.last_sequence - entries + 1)
    async for entry in bus.logs.read(stream, start=start, follow=False):
        if entry.age_s < _LATELY_S:
            view.heard_of(entry.envelope.producer)
        if isinstance(entry.message, Metrics):
            view.history.add(entry.message)
        elif isinstance(entry.message, Event):
            view.events.append(entry.message)


def status_of(view: RunView, *, at: float) -> Status:
    """The view, frozen. It must have seen the run's record."""
    assert view.record is not None
    assert view.config is not None
    return Status(
        run=view.record.name,
        incarnation=view.record.incarnation,
        created_at=view.record.created_at,
        at=at,
        stop_requested=view.record.stop_requested,
        members=tuple(view.members[actor] for actor in sorted(view.members)),
        gone=tuple(sorted(view.gone)),
        policies={name: policy_status(view, name) for name in view.config.policies},
        queues=dict(sorted(view.queues.items())),
        waits=tuple(view.waits()),
        problems=tuple(view.problems()),
        events=tuple(view.events)[-EVENTS_SHOWN:],
    )


def policy_status(view: RunView, name: str) -> PolicyStatus:
    """One policy of the view."""
    assert view.config is not None
    trainer, progress, head = view.config.policies[name].trainer, view.progress.get(name), view.heads.get(name)
    history, rewards = view.history.of(name), view.rewards(name)
    newest = history.train[max(history.train)].values if history.train else {}
    ends = {set_name: history.first_and_last(set_name) for set_name in sorted(history.evals)}
    return PolicyStatus(
        trainable=trainer is not None,
        step=progress.step if progress else 0,
        steps_planned=trainer.steps if trainer else 0,
        consumed=progress.consumed if progress else 0,
        version=head.version if head else 0,
        finished=progress.finished if progress else False,
        replicas=len(view.ready(Role.POLICY, name)),
        serving=view.serving(name),
        tokens_per_s=view.tokens_per_s(name),
        reward=rewards[-1][1] if rewards else None,
        failed=view.failed(name),
        staleness_mean=newest.get(TRAIN_STALENESS_MEAN),
        staleness_max=newest.get(TRAIN_STALENESS_MAX),
        eval={set_name: points for set_name, points in ends.items() if points},
        ledger=dict(view.ledgers[name].counts) if name in view.ledgers else {},
        untrained=view.ledgers[name].notes if name in view.ledgers else (),
        weights=dict(history.weights),
        left_s=_left_s(trainer.steps - progress.step, history) if trainer and progress else None,
        untrained_share=_untrained_share(view.ledgers[name].counts) if name in view.ledgers else None,
    )


def _left_s(steps: int, history: PolicyHistory) -> float | None:
    step_s = history.seconds_per_step()
    return steps * step_s if step_s is not None and steps > 0 else None


def _untrained_share(ledger: Mapping[str, int]) -> float | None:
    """Of the tasks whose fate is known, those that weren't trained."""
    known = ledger.get(ISSUED, 0) - ledger.get(Fate.OPEN, 0) - ledger.get(Fate.BUFFERED, 0)
    return min(1.0, max(0.0, 1 - ledger.get(Fate.EMITTED, 0) / known)) if known > 0 else None


def to_json(status: Status) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers under the structs' field names."""
    plain: dict[str, Any] = msgspec.to_builtins(status)
    return plain
