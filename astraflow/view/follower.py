"""Keeps a `RunView` current from a run's KV, metrics, events and queue depths, for as long as its jobs run.

It draws nothing. With `print_line` it also says, once each, what happened since it began: steps, evaluations, troubles
and changes of state; what was recorded before is taken in silently.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Self

from astraflow import clock
from astraflow.bus import Bus, LogState
from astraflow.errors import BusError
from astraflow.messages import PROCESS_FAILED, Event, Member, MemberState, Metrics
from astraflow.messages.metric_names import EVAL, TRAIN
from astraflow.view.live_text import eval_line, event_line, member_line, step_line
from astraflow.view.run_view import RunView

QUEUES_EVERY_S = 1.0  # depths can't be watched, only asked for
_QUEUES_DEADLINE_S = 5.0
_EVENTS_BEFORE = 50  # events from before the view that it knows of


class Follower:
    """`open` it, run every one of `jobs()` in a task group, and cancel them to end."""

    def __init__(
        self,
        bus: Bus,
        metrics: LogState,
        events: LogState,
        print_line: Callable[[str], None] | None,
        on_metrics: Callable[[Metrics, str], None] | None,
    ) -> None:
        self.view = RunView()
        self._on_metrics = on_metrics
        self.changed = asyncio.Event()  # set by every change, cleared by who looks
        self._bus = bus
        self._metrics_before = metrics  # what is up to there is no news
        self._events_before = events
        self._print_line = print_line
        self._states: dict[str, MemberState] = {}  # as last printed

    @classmethod
    async def open(
        cls,
        bus: Bus,
        *,
        print_line: Callable[[str], None] | None = None,
        on_metrics: Callable[[Metrics, str], None] | None = None,
    ) -> Self:
        """Note where the logs end: from there on there is news. Raises BusError.

        `on_metrics`: called with every message of METRICS, from the first that is there on, and who sent it.
        """
        metrics, events = await bus.logs.state(bus.topology.metrics), await bus.logs.state(bus.topology.events)
        return cls(bus, metrics, events, print_line, on_metrics)

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """What to run, side by side."""
        return [self._follow_kv(), self._follow_metrics(), self._follow_events(), self._follow_queues()]

    async def _follow_kv(self) -> None:
        async for update in self._bus.kv.watch(""):
            self.view.apply(update.key, update.message, written_at=clock.wall() - update.age_s)
            self.changed.set()
            if isinstance(update.message, Member):
                self._say_state(update.message)

    def _say_state(self, member: Member) -> None:
        news = self._states.get(member.actor) != member.state
        self._states[member.actor] = member.state
        if news:
            self._say(member_line(self.view, member, at=clock.wall()))

    async def _follow_metrics(self) -> None:
        before = self._metrics_before.last_sequence
        async for entry in self._bus.logs.read(self._bus.topology.metrics, start="first"):
            if isinstance(entry.message, Metrics):
                if self._on_metrics is not None:
                    self._on_metrics(entry.message, entry.envelope.producer)
                previous = self._previous_step_at(entry.message)
                taken = self.view.history.add(entry.message)
                self.changed.set()
                config = self.view.config
                if taken and entry.sequence > before and (config is None or entry.message.policy in config.policies):
                    self._say_metrics(entry.message, previous)

    def _previous_step_at(self, metrics: Metrics) -> float | None:
        if metrics.kind != TRAIN:
            return None
        return max((known.at for known in self.view.history.of(metrics.policy).train.values()), default=None)

    def _say_metrics(self, metrics: Metrics, previous: float | None) -> None:
        if metrics.kind == TRAIN:
            seconds = None if previous is None else metrics.at - previous
            self._say(step_line(self.view, metrics, seconds=seconds))
        elif metrics.kind == EVAL:
            self._say(eval_line(self.view, metrics))

    async def _follow_events(self) -> None:
        state = self._events_before
        start = max(1, state.first_sequence, state.last_sequence - _EVENTS_BEFORE + 1)
        async for entry in self._bus.logs.read(self._bus.topology.events, start=start):
            if isinstance(entry.message, Event):
                self.view.events.append(entry.message)
                self.changed.set()
                told = entry.message.name == PROCESS_FAILED and entry.message.actor == self._bus.producer  # as its end
                if entry.sequence > state.last_sequence and entry.message.level != "info" and not told:
                    self._say(event_line(self.view, entry.message))

    async def _follow_queues(self) -> None:
        """Ask again and again; while the server is away the last answer stays."""
        while True:
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(_QUEUES_DEADLINE_S):
                    self.view.queues = await self._bus.queues.depths()
                self.changed.set()
            await asyncio.sleep(QUEUES_EVERY_S)

    def _say(self, line: str) -> None:
        if self._print_line is not None:
            self._print_line(line)
