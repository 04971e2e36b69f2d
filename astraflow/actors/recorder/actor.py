"""The recorder actor: the METRICS, EVENTS and EPISODES logs into the run folder, then summary.json and the picture.

It decides nothing and nobody waits for it. Invariants: every log entry is one line of its file, however often the
recorder dies (jsonl.py); one recorder writes to a folder, another one waits for its end.
Shutdown order: when the run has finished, wait until the other actors are gone → read the logs to their end → commit →
summary.json → reward-curve.png. A drain skips the wait and says "finished": false.
"""

import asyncio
import contextlib
import fcntl
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.diskfull import ROOM_EVERY_S
from astraflow.actors.base.members import left
from astraflow.actors.recorder.curves import draw_curves
from astraflow.actors.recorder.jsonl import JsonLines, replace_durably
from astraflow.actors.recorder.summary import BusFacts, Summary, build_summary, encode_summary
from astraflow.actors.recorder.tensorboard import TensorBoardFiles
from astraflow.bus import Bus, Cursor, LogState, wiring
from astraflow.concurrency import innermost
from astraflow.errors import DiskFullError
from astraflow.extras import install_hint
from astraflow.messages import PROCESS_FAILED, Episode, Event, Head, Ledger, MemberState, Metrics, Progress
from astraflow.messages.metric_names import RECORDER_EPISODES, RECORDER_EVENTS, RECORDER_METRICS
from astraflow.messages.roles import Role
from astraflow.view.history import EpisodeTotals, History
from astraflow.view.jsonl_lines import encode_line, read_episodes, read_metrics

_METRICS_FILE, _EVENTS_FILE, _EPISODES_FILE = "metrics.jsonl", "events.jsonl", "episodes.jsonl"
SUMMARY_FILE, _CURVES_FILE = "summary.json", "reward-curve.png"
_LOCK_FILE = ".recorder.lock"
_LOCK_EVERY_S = 0.5  # a file lock can't be watched
_QUEUE_LINES = 1024  # read from a log and not written yet, per file
_COMMIT_LINES = 1024
LAST = (Role.RECORDER, Role.NODE, Role.REGION)  # they leave after the others, or stay
_COMMIT_EVERY_S = 0.5  # a commit is two fsyncs: more often would only wear the disk

T = TypeVar("T")

_log = logging.getLogger(__name__)


class _LogRecorder:
    """One log into one file. `open` first, then `copy` once."""

    def __init__(
        self,
        bus: Bus,
        stream: str,
        path: Path,
        *,
        episode_text: bool,
        recorded: Callable[[int], None],
        track: Callable[[], None],
        trouble: Callable[[str], None],
    ) -> None:
        """`recorded` is told the sequence of the newest entry that is durably in the file, 0 = none; `track` is called
        in a thread when there are new lines; `trouble` is told why nothing can be written, and "" when it can again."""
        self._track = track
        self._trouble = trouble
        self._ending = False  # nobody waits any more for the disk to get room
        self.file = JsonLines(path)
        self._recorded = recorded
        self._bus = bus
        self._stream = stream
        self._episode_text = episode_text
        self._cursor: Cursor | None = None  # of the last entry that is in the queue or in the file
        self._start: int | Literal["first"] = "first"  # where to begin without a cursor
        self._queue: asyncio.Queue[tuple[bytes, Cursor] | None] = asyncio.Queue(_QUEUE_LINES)  # None: no more

    async def open(self) -> None:
        """Open the file where it agrees with the log. A line that can't be had any more is an event, not a stop."""
        if not await asyncio.to_thread(self.file.open):
            await self._warn("the file was cut by someone else; it is written anew from the oldest entry on the bus")
        self._cursor = self.file.position.cursor
        self._recorded(self._cursor.sequence if self._cursor else 0)
        if self._cursor is not None:
            await self._agree(self._cursor, await self._bus.logs.state(self._stream))

    async def _agree(self, cursor: Cursor, state: LogState) -> None:
        """Where to go on, if the log doesn't bear the cursor out any more: nobody but the files needs what is gone."""
        missed = state.first_sequence - cursor.sequence - 1
        if cursor.incarnation != state.incarnation:
            await self._warn(f"{self._stream} was made anew; what wasn't recorded of the old one is lost")
            self._cursor = None
        elif cursor.sequence > state.last_sequence:
            await self._warn(f"{self._stream} lost its newest entries; it is followed from there")
            self._cursor, self._start = None, state.last_sequence + 1
        elif missed >= 0:  # nothing is left of the cursor's own entry to check it by
            if missed:
                await self._warn(f"{missed} entries were removed from {self._stream} before they were recorded")
            self._cursor, self._start = None, state.first_sequence
        elif (there := await self._bus.logs.entry(self._stream, cursor.sequence)) is None:  # removed from the middle
            self._cursor, self._start = None, cursor.sequence + 1
        elif there.cursor != cursor:  # the log was cut before, and has grown since
            await self._warn(f"{self._stream} has another entry where the last recorded one was")
            self._cursor, self._start = None, cursor.sequence

    async def _warn(self, text: str) -> None:
        await self._bus.event("warning", "recorder-gap", f"{self.file.path.name}: {text}")

    async def copy(self, until: asyncio.Event) -> None:
        """Copy the log until the event is set, and then what the log holds by then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            async with asyncio.TaskGroup() as following:
                reader = following.create_task(self._read(follow=True))
                await until.wait()
                self._ending = True
                reader.cancel()
            await self._read(follow=False)
            await self._queue.put(None)

    async def _read(self, *, follow: bool) -> None:
        log = self._bus.logs.read(self._stream, cursor=self._cursor, start=self._start, follow=follow)
        async with contextlib.aclosing(log) as entries:
            async for entry in entries:
                if not isinstance(entry.message, Episode | Event | Metrics):
                    continue
                try:
                    line = encode_line(entry.message, episode_text=self._episode_text)
                except (TypeError, ValueError, RecursionError) as exc:
                    self._bus.counters["recorder.unwritable"] += 1
                    _log.warning("entry can't be written", extra={"sequence": entry.sequence, "why": str(exc)})
                    continue
                await self._queue.put((line, entry.cursor))
                self._cursor = entry.cursor

    async def _write(self) -> None:
        more = True
        while more:
            batch, more = await self._batch()
            if batch:
                lines, cursor = [line for line, _ in batch], batch[-1][1]
                await self._commit(lines, cursor)
                self._recorded(cursor.sequence)
                await asyncio.to_thread(self._track)
        await asyncio.to_thread(self.file.close)

    async def _commit(self, lines: list[bytes], cursor: Cursor) -> None:
        """Write; while the disk is full, say so, and try again: nobody waits for us but the log, which keeps it all."""
        told = False
        while True:
            try:
                await asyncio.to_thread(self.file.commit, lines, cursor)
            except DiskFullError as exc:
                if self._ending:
                    raise
                if not told:
                    self._trouble(str(exc))
                    await self._bus.event("error", "disk-full", str(exc))
                told = True
                await asyncio.sleep(ROOM_EVERY_S)
                continue
            if told:
                self._trouble("")
            return

    async def _batch(self) -> tuple[list[tuple[bytes, Cursor]], bool]:
        """At least one line, and what comes within _COMMIT_EVERY_S; False when no more will come."""
        batch: list[tuple[bytes, Cursor]] = []
        item = await self._queue.get()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COMMIT_EVERY_S):
                while item is not None:
                    batch.append(item)
                    if len(batch) == _COMMIT_LINES:
                        break
                    item = await self._queue.get()
        return batch, item is not None


async def run(ctx: ActorContext) -> None:
    """Record until told to stop, then write the results. While the run folder has no room, it waits, and says so.

    Raises: DiskFullError (a ConfigError: a restart won't help) if it can't begin or end for want of room.
    """
    try:
        await _record(ctx)
    except* DiskFullError as group:
        await ctx.bus.event("error", "disk-full", f"{ctx.name} stops: {innermost(group)}")
        raise


async def _record(ctx: ActorContext) -> None:
    await asyncio.to_thread(ctx.folder.mkdir, parents=True, exist_ok=True)
    with (ctx.folder / _LOCK_FILE).open("ab") as lock:
        if await _alone(ctx, lock.fileno()):
            await _record_alone(ctx)


async def _alone(ctx: ActorContext, lock: int) -> bool:
    """Wait until no other recorder writes to this folder; False if the actor was stopped first. The kernel frees it."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if ctx.state is not MemberState.STANDBY:
                ctx.set_state(MemberState.STANDBY)
            ctx.waits_for(f"{ctx.folder}: another recorder writes there")
            if await ctx.stopped_within(_LOCK_EVERY_S):
                return False
        else:
            ctx.waits_for("")
            return True


async def _record_alone(ctx: ActorContext) -> None:
    topology, done = ctx.bus.topology, asyncio.Event()
    tracks = {topology.metrics: await asyncio.to_thread(_tracking, ctx)}
    logs = [
        _LogRecorder(
            ctx.bus,
            stream,
            ctx.folder / name,
            episode_text=ctx.config.record.episode_text,
            recorded=partial(ctx.gauge, gauge),
            track=tracks.get(stream, _nothing),
            trouble=partial(setattr, ctx, "last_error"),
        )
        for stream, name, gauge in (
            (topology.metrics, _METRICS_FILE, RECORDER_METRICS),
            (topology.events, _EVENTS_FILE, RECORDER_EVENTS),
            (topology.episodes, _EPISODES_FILE, RECORDER_EPISODES),
        )
    ]
    for log in logs:
        await log.open()
    events_before = (await ctx.bus.logs.state(topology.events)).last_sequence
    ctx.set_state(MemberState.READY)
    async with asyncio.TaskGroup() as group:
        for log in logs:
            group.create_task(log.copy(done))
        await ctx.stopping.wait()
        ctx.set_state(MemberState.DRAINING)
        if ctx.stop_reason != "drain":  # the run ends everywhere at once; a node that drains ends its recorder last
            await _others_gone(ctx)
        done.set()
    failure = await _failure(ctx, after=events_before)
    facts = await read_facts(ctx.bus)
    up_s = logs[0].file.position.up_s
    damaged: list[str] = []
    await asyncio.to_thread(_write_results, ctx, facts, up_s=up_s, at=clock.wall(), failure=failure, damaged=damaged)
    if damaged:
        text = f"{len(damaged)} lines can't be read and are left out of summary.json: {', '.join(damaged[:5])}"
        await ctx.bus.event("warning", "damaged-lines", text)
    _log.info("results are written", extra={"folder": str(ctx.folder), "reason": ctx.stop_reason})


def _tracking(ctx: ActorContext) -> Callable[[], None]:
    """What copies new lines of metrics.jsonl to where else somebody wants them."""
    if not ctx.config.record.tensorboard:
        return _nothing
    try:
        return TensorBoardFiles(ctx.folder / _METRICS_FILE, created_at=ctx.record.created_at).catch_up
    except ImportError:
        _log.warning("no TensorBoard files: %s", install_hint("tensorboard"))
        return _nothing


def _nothing() -> None:
    """No copy is wanted."""


async def _others_gone(ctx: ActorContext) -> None:
    """Wait until the other actors are gone, at most the grace time: their last words belong in the files."""
    ctx.waits_for("the other actors' last words")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ctx.config.node.grace_s):
            await left(ctx.bus, lambda member: member.role not in LAST)
    ctx.waits_for("")


async def _failure(ctx: ActorContext, *, after: int) -> str:
    """Why this node ends, if a process of it failed; its node tells that before it stops us. "" = it didn't."""
    topology, told = ctx.bus.topology, ""
    log = ctx.bus.logs.read(topology.events, subject=topology.event("error"), start=after + 1, follow=False)
    async with contextlib.aclosing(log) as entries:
        async for entry in entries:
            event = entry.message
            if isinstance(event, Event) and (event.name, event.actor) == (PROCESS_FAILED, f"node-{ctx.node}"):
                told = told or (event.text if event.fields.get("ends") else "")
    return told


async def read_facts(bus: Bus) -> BusFacts:
    """Progress, heads and ledgers, as they are now."""
    progress = await _values(bus, wiring.PROGRESS.prefix, Progress)
    heads = await _values(bus, wiring.HEAD.prefix, Head)
    ledgers = await _values(bus, wiring.LEDGER.prefix, Ledger)
    return BusFacts(progress=progress, heads=heads, ledgers=ledgers)


async def _values(bus: Bus, prefix: str, kind: type[T]) -> dict[str, T]:
    entries = await bus.kv.entries(prefix)
    return {key.removeprefix(prefix): e.message for key, e in entries.items() if isinstance(e.message, kind)}


def _write_results(
    ctx: ActorContext, facts: BusFacts, *, up_s: float, at: float, failure: str, damaged: list[str]
) -> Summary:
    """summary.json and the picture, from the recorded files. Blocking. Raises DiskFullError, OSError.

    `damaged` gets the places of lines that can't be read, like "metrics.jsonl line 7"; they are left out.
    """

    def note(path: Path, line: int) -> None:
        damaged.append(f"{path.name} line {line}")

    history, totals = History(), EpisodeTotals()
    for metrics in read_metrics(ctx.folder / _METRICS_FILE, damaged=note):
        history.add(metrics)
    for line in read_episodes(ctx.folder / _EPISODES_FILE, damaged=note):
        totals.add(line)
    summary = build_summary(
        ctx.config,
        ctx.record,
        history=history,
        totals=totals,
        facts=facts,
        at=at,
        up_s=up_s,
        stop_reason=ctx.stop_reason,
        failure=failure,
    )
    replace_durably(ctx.folder / SUMMARY_FILE, encode_summary(summary))
    if ctx.config.record.curve:
        try:
            draw_curves(ctx.folder / _CURVES_FILE, run=ctx.record.name, history=history, totals=totals)
        except ImportError as exc:
            _log.warning("no picture: matplotlib is not installed", extra={"error": str(exc)})
    return summary
