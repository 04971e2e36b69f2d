"""The dataflow actor: feeds the pure core (dataflow/core.py) from logs and does what it decides.

It decides nothing itself. One task, the driver, mutates the core; readers only hand it inputs through a bounded queue.
Order of every action: append the decision → apply it → act on it; a batch is published before it is applied. On a
restart the logs are replayed behind the snapshot's cursors, so what was decided or emitted is never decided again.
It acts only while it holds the lease (lease.py); a standby waits for that. Shutdown order: stop reading → snapshot →
release the lease.
"""

import asyncio
import logging
from typing import TypeAlias

import msgspec

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.lease import HeldLease, lease
from astraflow.actors.base.owned_key import OwnedKey, is_forged
from astraflow.actors.dataflow.issuing import Issuing
from astraflow.actors.dataflow.restore import Restored, restore
from astraflow.actors.dataflow.snapshot_copy import SnapshotCopy
from astraflow.actors.dataflow.standstill import FailureStreak, ToldProblems
from astraflow.actors.dataflow.store import StoredState, recorded_floor
from astraflow.actors.dataflow.users import Users
from astraflow.bus import LogEntry, wiring
from astraflow.concurrency import Background
from astraflow.dataflow.core import DataflowCore
from astraflow.dataflow.stop_rule import stop_rule
from astraflow.envs.registry import build_env
from astraflow.errors import CursorError, FencedError, LostStateError, UnreadableValueError
from astraflow.messages import (
    CONTROL_EVENT,
    FINISHED,
    STOPPED,
    TRAINABLE_REASONS,
    Decision,
    DecisionKind,
    Episode,
    Ledger,
    MemberState,
    Metrics,
    Progress,
    RunRecord,
    SampleBatch,
    goal,
)
from astraflow.messages.metric_names import DATAFLOW, DATAFLOW_READY_GROUPS, EVAL
from astraflow.models.tokenizer import utf8

_INBOX_SIZE = 1024  # inputs that wait for the driver; readers block beyond it
_INPUTS_AT_ONCE = 64  # taken before the event loop gets its turn
QUEUES_EVERY_S = 5.0
_IDLE_S = 0.5  # the driver looks at deadlines at least this often

_log = logging.getLogger(__name__)

_Depths: TypeAlias = dict[str, int]  # messages that wait, per queue
_Input: TypeAlias = LogEntry | Progress | _Depths


class Dataflow:
    """The driver: the only one that touches the core."""

    def __init__(self, ctx: ActorContext, held: HeldLease, restored: Restored) -> None:
        self._ctx = ctx
        self._lease = held
        self._bus = ctx.bus
        self._core: DataflowCore = restored.core
        self._store = restored.store
        self._envs = restored.envs
        self._decisions = restored.decisions
        self._samples = restored.samples
        self._episodes = restored.episodes
        self._users = Users(ctx.bus, self._core, submissions=restored.submissions, controls=restored.controls)
        self._ledgers = {policy: OwnedKey(ctx.bus, wiring.LEDGER.key(policy)) for policy in restored.samples}
        self._decided = 0
        self._durable_samples: dict[str, int] = {}
        self._inbox: asyncio.Queue[_Input] = asyncio.Queue(_INBOX_SIZE)
        self._saved_at = clock.monotonic()
        self._dirty = False
        deadline_s = ctx.config.dataflow.task_deadline_s
        self._issuing = Issuing(ctx.bus, self._core, self._envs, deadline_s=deadline_s)
        self._failures = FailureStreak(ctx.config.dataflow.max_failed_groups)
        self._clock_offset_s = clock.wall() - clock.monotonic()
        self._told = ToldProblems()
        self._refused: list[tuple[Progress, str]] = []
        self._stop_rule = stop_rule(ctx.config)
        self._goal = ""

    def _now(self) -> float:
        """Unix seconds that never go back, so that a set clock expires nothing."""
        return clock.monotonic() + self._clock_offset_s

    async def read_episodes(self) -> None:
        """Hand every new episode to the driver."""
        stream = self._bus.topology.episodes
        async for entry in self._bus.logs.read(stream, cursor=self._episodes):
            await self._inbox.put(entry)

    async def read_users(self) -> None:
        """Hand every submission and order of a user to the driver."""
        await self._users.read(self._inbox.put)

    async def watch_progress(self) -> None:
        """Hand every trainer's progress to the driver."""
        known: dict[str, int] = {}  # epochs that were looked at
        async for update in self._bus.kv.watch(wiring.PROGRESS.prefix):
            if isinstance(update.message, Progress) and update.message.policy in self._samples:
                if update.message.epoch != known.get(update.key) and await is_forged(
                    self._bus, update.key, update.message.epoch
                ):
                    await self._refuse(update.message, "its epoch is above its lease's")
                    continue
                known[update.key] = update.message.epoch
                await self._inbox.put(update.message)

    async def _refuse(self, progress: Progress, why: str) -> None:
        text = f"progress of {progress.policy} is refused: {why}; its trainer tells it again"
        await self._bus.event("error", "impossible-value", text, policy=progress.policy)

    async def watch_queues(self) -> None:
        """Hand the queues' depths to the driver: a task that nobody has taken yet is not overdue."""
        while not await self._ctx.stopped_within(QUEUES_EVERY_S):
            await self._inbox.put(await self._bus.queues.undelivered())

    async def drive(self) -> None:
        """Take inputs, act on what follows from them, until the run is over or the actor is stopped."""
        await self._republish()
        while not self._ctx.stopping.is_set():
            await self._lease.held()
            await self._act()
            if why := self._why_end():
                await self.save()
                await self._end_run(why)
                return
            await self._save_when_due()
            self._ctx.waits_for(self._core.waits_for())
            for policy, groups in self._core.groups_ready().items():
                self._ctx.gauge(DATAFLOW_READY_GROUPS.of(policy), groups)
            item = await self._ctx.unless_stopped(self._next_input())
            if item is not None:
                self._take_input(item)
            for _ in range(min(_INPUTS_AT_ONCE, self._inbox.qsize())):
                self._take_input(self._inbox.get_nowait())

    def _why_end(self) -> str:
        """What the run's record is to say; "" = go on."""
        if self._core.finished:
            return FINISHED
        return self._goal or (STOPPED if self._core.users.stop_wanted else "")

    async def _next_input(self) -> _Input | None:
        try:
            async with asyncio.timeout(_IDLE_S):
                return await self._inbox.get()
        except TimeoutError:
            return None

    def _take_input(self, item: _Input) -> None:
        self._dirty = True
        if isinstance(item, Progress):
            if why := self._why_impossible(item):
                self._refused.append((item, why))
                return
            self._durable_samples[item.policy] = item.durable_sequence
            self._core.on_progress(item)
        elif isinstance(item, dict):
            self._take_depths(item)
        elif isinstance(item.message, Episode):
            taken = self._core.on_episode(item.message, item.sequence)
            self._episodes = item.cursor
            self._failures.see_group(taken.fates, self._last_episode(item.message))
        else:
            self._users.take_entry(item)

    def _why_impossible(self, progress: Progress) -> str:
        """Why no trainer can be there; "" if one can. What it has consumed was emitted first, and emitted by us."""
        cursor = self._samples[progress.policy].cursor
        stored, emitted = cursor.sequence if cursor is not None else 0, self._core.emitted(progress.policy)
        if not 0 <= progress.consumed <= emitted:
            return f"it says {progress.consumed} batches, and {emitted} were emitted"
        if not 0 <= progress.step <= progress.consumed:
            return f"it says {progress.step} steps of {progress.consumed} batches"
        if not 0 <= progress.durable_sequence <= stored:
            return f"it says that {progress.durable_sequence} is durable, and the last batch is at {stored}"
        return ""

    def _last_episode(self, episode: Episode) -> str:
        """What is to be said of a group that this episode closed: why it isn't trained, and what went wrong in it."""
        why = "; ".join(self._core.notes()[-1:])
        failed = episode.reason not in TRAINABLE_REASONS or episode.error
        error = f"{episode.reason}: {episode.error or 'no detail'}" if failed else "it ended as it should"
        return f"episode of env {episode.env}: {error} ({why})" if why else f"episode of env {episode.env}: {error}"

    def _take_depths(self, depths: _Depths) -> None:
        now = self._now()
        for env in self._envs:
            self._core.on_queue(env, depths.get(f"task.{env}", 0), now)
            self._core.on_queue(env, depths.get(f"task.{env}.eval", 0), now, evaluation=True)

    async def _act(self) -> None:
        """What is due now. Tasks and metrics are on their way while the next decision is being stored."""
        async with asyncio.TaskGroup() as publishing:
            for decision in self._core.plan(self._now()):
                await self._decide(decision)
                await self._issuing.publish(decision, publishing)
                if decision.kind is DecisionKind.CLOSE and decision.member < 0:
                    publishing.create_task(self._issuing.tell_closed(decision))
            for policy in self._samples:
                while (batch := self._core.next_batch(policy)) is not None:
                    await self._emit(batch)
                    await self._report(self._batch_metrics(batch), publishing)
            await self._give_up_unmade()
            while self._refused:
                publishing.create_task(self._refuse(*self._refused.pop()))
            self._users.answer(publishing)
            self._tell_problems(publishing)
            for result in self._core.eval_results():
                await self._report(Metrics(kind=EVAL, at=clock.wall(), **result), publishing)

    async def _report(self, metrics: Metrics, publishing: asyncio.TaskGroup) -> None:
        """Publish; and see whether they reach the run's goal."""
        publishing.create_task(self._bus.metrics(metrics))
        if self._stop_rule is None or self._goal:
            return
        if reached := self._stop_rule.reached(metrics.kind, metrics.policy, metrics.values, metrics.labels):
            self._goal = goal(reached)
            await self._bus.event("info", CONTROL_EVENT, f"the run ends: {self._goal}")

    def _tell_problems(self, publishing: asyncio.TaskGroup) -> None:
        """Of what keeps the run from getting anywhere: the member record has all of it, events what is new."""
        problems = self._core.problems(self._now())
        self._ctx.problems = tuple(problem.text for problem in problems)
        for problem in self._told.due(problems):
            fields = {"about": problem.subject, "times": problem.times}
            publishing.create_task(self._bus.event("warning", problem.kind, problem.text, **fields))

    async def _decide(self, decision: Decision) -> None:
        """Append, then apply. Raises FencedError if another dataflow decided meanwhile."""
        self._decided += 1
        await self._decisions.append(decision, msg_id=f"{self._ctx.incarnation}/decision-{self._decided}")
        fates = self._core.apply_decision(decision)
        self._failures.see_group(
            fates, f"one was given up ({decision.reason}): {self._ctx.last_error or decision.group_id}"
        )
        self._dirty = True

    async def _give_up_unmade(self) -> None:
        """Close the members whose tasks the environment could not make; the next ones may be better."""
        for decision, member, error in self._issuing.unmade():
            if closing := self._core.giving_up(decision, member, self._now()):
                text = f"task {decision.index} of source {decision.source} can't be made: {utf8(error)[:1000]}"
                await self._bus.event("error", "task-not-made", text, group=decision.group_id)
                self._ctx.last_error = text
                await self._decide(closing)

    async def _republish(self) -> None:
        """After a restart: every task that has no terminal record yet, under its old id."""
        async with asyncio.TaskGroup() as publishing:
            for decision in self._core.unfinished():
                await self._issuing.publish(decision, publishing)
        await self._give_up_unmade()

    async def _emit(self, batch: SampleBatch) -> None:
        """Publish a numbered batch, then apply it. Raises FencedError if another dataflow emitted meanwhile."""
        await self._samples[batch.policy].append(batch, msg_id=f"{self._ctx.incarnation}/batch-{batch.number}")
        self._core.apply_batch(batch)
        self._dirty = True

    def _batch_metrics(self, batch: SampleBatch) -> Metrics:
        return Metrics(
            kind=DATAFLOW,
            at=clock.wall(),
            values=self._core.batch_metrics(batch.policy),
            policy=batch.policy,
            step=batch.train_step,
            batch=batch.number,
        )

    async def _save_when_due(self) -> None:
        if clock.monotonic() - self._saved_at >= self._ctx.config.dataflow.snapshot_every_s:
            if self._dirty or await self._store.is_lost():
                await self.save()
            self._saved_at = clock.monotonic()

    async def save(self) -> None:
        """Snapshot, ledgers, then purge what nobody needs any more. Raises FencedError if another dataflow leads."""
        await self._lease.held()
        state = StoredState(
            core=self._core.snapshot(),
            episodes=self._episodes,
            decisions=self._decisions.cursor,
            samples={policy: log.cursor for policy, log in self._samples.items()},
            submissions=self._users.submissions,
            controls=self._users.controls,
        )
        await self._store.save(state)
        for policy, key in self._ledgers.items():
            counts, notes = self._core.ledger(policy), tuple(self._core.notes(policy))
            await key.put(Ledger(policy=policy, counts=counts, epoch=self._lease.epoch, notes=notes))
        recorded = await recorded_floor(self._bus)
        await self._store.purge(
            state,
            floor=self._core.floor() if recorded is None else min(self._core.floor(), recorded),
            durable_samples=self._durable_samples,
            keep_episodes=self._ctx.config.record.keep_episodes,
        )
        self._saved_at, self._dirty = clock.monotonic(), False

    async def _end_run(self, why: str) -> None:
        """Say on the bus why the run is over; every actor ends by itself. A stop that came first stays."""
        while True:
            try:
                entry = await self._bus.kv.get(wiring.RUN.key())
                assert entry is not None
                record, revision = entry.message, entry.revision
            except UnreadableValueError as exc:
                record, revision = self._ctx.record, exc.revision
            assert isinstance(record, RunRecord)
            if record.stop_requested:
                return
            ended = msgspec.structs.replace(record, stop_requested=why)
            try:
                await self._bus.kv.put(wiring.RUN.key(), ended, expected_revision=revision, deadline_s=None)
            except FencedError:  # somebody stopped it, or `up` has just entered it again: look
                continue
            return


async def run(ctx: ActorContext) -> None:
    """Wait for the lease, restore, then drive until the run is over or the actor is stopped.

    Raises: FencedError if the lease was lost; LostStateError if a log does not fit the snapshot.
    """
    envs = {name: await asyncio.to_thread(build_env, section) for name, section in ctx.config.envs.items()}
    copied = await asyncio.to_thread(SnapshotCopy(ctx.folder, incarnation=ctx.record.incarnation).read)
    async with lease(ctx, "dataflow", above=copied.epoch if copied is not None else 0) as held:
        if held is not None:
            try:
                restored = await restore(ctx, envs, epoch=held.epoch)
            except CursorError as exc:  # another start would find the same
                raise LostStateError(str(exc)) from exc
            await _lead(ctx, Dataflow(ctx, held, restored))


async def _lead(ctx: ActorContext, dataflow: Dataflow) -> None:
    ctx.set_state(MemberState.READY)
    async with Background() as background:
        background.start(dataflow.read_episodes())
        background.start(dataflow.read_users())
        background.start(dataflow.watch_progress())
        background.start(dataflow.watch_queues())
        await dataflow.drive()
    await dataflow.save()
    _log.info("dataflow drained", extra={"actor": ctx.name})
