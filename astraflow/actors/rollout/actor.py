"""The rollout actor: a pool of concurrent episodes.

It pulls tasks when it has a free slot, plays each in its environment and publishes exactly one terminal Episode per
attempt before it acks the task. It does not choose tasks and does not judge what is worth training.
Shutdown order: stop pulling → cancel episodes and nak their tasks → close environments.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from astraflow import clock
from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.handover import start_work
from astraflow.actors.base.screening import MAX_DELIVERIES
from astraflow.actors.rollout.call import Generates
from astraflow.actors.rollout.cohort_gate import CohortGate
from astraflow.actors.rollout.gateway import RolloutGateway
from astraflow.actors.rollout.generation import GenerationClient
from astraflow.actors.rollout.needed import NeededTasks
from astraflow.actors.rollout.play import Player, failed_episode
from astraflow.actors.rollout.sharing import Sharing
from astraflow.actors.rollout.stats import CutReplies, RolloutStats
from astraflow.actors.rollout.suspects import Suspects
from astraflow.actors.rollout.tokenizers import fetch_tokenizers
from astraflow.actors.rollout.watchdog import Watchdog
from astraflow.bus import Delivery, WorkQueue
from astraflow.bus.counters import bus_gauges
from astraflow.concurrency import until_stopped
from astraflow.config import EXTERNAL
from astraflow.envs.agents import Agent, AgentEnv, check_agent
from astraflow.envs.base import Environment
from astraflow.envs.registry import build_env, find_agent
from astraflow.envs.usercode import LOST, contain_tasks, on_loop
from astraflow.errors import ConfigError, HungError, MessageError, NotNeededError, RaisedError
from astraflow.messages import Episode, MemberState, Metrics, Reason, Task
from astraflow.messages.metric_names import (
    ROLLOUT,
    ROLLOUT_CONTINUED,
    ROLLOUT_DIRECT,
    ROLLOUT_DIRECT_MISSED,
    ROLLOUT_RUNNING,
    ROLLOUT_SLOTS,
    ROLLOUT_WASTED_CHUNKS,
)

_MOST_LOST = 8  # calls of user code that never ended, in a process of at least four times as many slots
_CLOSE_S = 10.0  # for an environment to free what it holds
REPORT_EVERY_S = 2.0

_log = logging.getLogger(__name__)


@dataclass
class _InWork:
    """An attempt that is played. Its other deliveries wait for `ended`."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)
    published: bool = False


class RolloutPool:
    """Slots, queues and the episodes in flight. Invariant: one attempt is played once at a time."""

    def __init__(self, ctx: ActorContext, player: Player, suspects: Suspects | None = None) -> None:
        self._ctx = ctx
        self._player = player
        self._suspects = suspects or Suspects(ctx.folder / "in-work" / ctx.name)
        self._size = ctx.config.node.episodes_per_rollout
        self._slots = asyncio.Semaphore(self._size)
        self.sharing = Sharing(self._size, ctx.config.node.eval_share)
        self._room = asyncio.Event()
        self._in_work: dict[tuple[str, int], _InWork] = {}  # by task id and attempt
        self.folded = 0  # deliveries of an attempt that was in work
        self.stats = RolloutStats()
        self.cut = CutReplies()
        self._told: set[tuple[str, Reason]] = set()  # failures that people have heard of
        self._most_lost = min(_MOST_LOST, max(1, self._size // 4))
        self.needed = NeededTasks()
        ctx.gauge(ROLLOUT_SLOTS, self._size)

    async def serve(
        self,
        queue: WorkQueue,
        group: asyncio.TaskGroup,
        *,
        evaluation: bool = False,
        demanded: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Pull from one queue for ever, while it may have slots.

        Args: demanded: waits until somebody wants to play its tasks, and says how many; None = they play themselves.

        A pull that waits holds no slot, so that an empty queue does not starve the others; a delivery that comes when
        another queue has filled the pool waits for its slot, which is at most one per queue.
        """
        if not evaluation:
            self.sharing.add_training_queue()
        play = partial(self._play, evaluation=evaluation)
        while True:
            while not self.sharing.room(evaluation=evaluation):
                self._room.clear()
                await self._room.wait()
            most = await demanded() if demanded else self._size
            await start_work(group, await self._pull(queue, most, evaluation=evaluation), play)

    async def _pull(self, queue: WorkQueue, most: int, *, evaluation: bool) -> list[Delivery]:
        """One delivery, and more, up to `most`, if there are slots for them; each has taken one."""
        deliveries = await (queue.fetch(1) if evaluation else self._first(queue))
        free = max(0, min(most, self.sharing.room(evaluation=evaluation)) - 1)
        self._take(1 + free, evaluation=evaluation)  # before the next await: the other queues count too
        try:
            if free:
                deliveries += await queue.fetch(free, wait=False)
        except asyncio.CancelledError:
            await deliveries[0].nak()
            raise
        finally:
            self._take(len(deliveries) - 1 - free, evaluation=evaluation)
        return deliveries

    async def _first(self, queue: WorkQueue) -> list[Delivery]:
        """One training task; while there is none, evaluation may have the slots."""
        if deliveries := await queue.fetch(1, wait=False):
            return deliveries
        self.sharing.training_queue_is(empty=True)
        self._room.set()
        try:
            return await queue.fetch(1)
        finally:
            self.sharing.training_queue_is(empty=False)

    async def _play(self, delivery: Delivery, *, evaluation: bool) -> None:
        task = delivery.message
        assert isinstance(task, Task), task  # the queue holds no other type
        key = (task.id, task.attempt)
        try:
            if not (verdict := self._player.verdict_on(task)).ok:
                await delivery.reject(verdict.text)
                return
            async with delivery.keep_alive():
                if (other := self._in_work.get(key)) is not None:
                    published = await self._published_by(other, evaluation=evaluation)
                else:
                    self._in_work[key] = work = _InWork()
                    try:
                        async with self._slots:
                            await self._record(task, delivery.attempts)
                        work.published = published = True
                    finally:
                        del self._in_work[key]
                        work.ended.set()
            await (delivery.ack() if published else delivery.nak())
        except asyncio.CancelledError:
            await delivery.nak()
            raise
        finally:
            self._take(-1, evaluation=evaluation)

    async def _published_by(self, work: _InWork, *, evaluation: bool) -> bool:
        """Wait for the same attempt, without a slot; whether it has its record then."""
        self.folded += 1
        self._take(-1, evaluation=evaluation)
        try:
            await work.ended.wait()
        finally:
            self._take(1, evaluation=evaluation)
        return work.published

    async def _record(self, task: Task, deliveries: int) -> None:
        """Play and publish. What can't be sent, whatever the environment put into it, is a failure of it."""
        episode = await self._episode(task, deliveries)
        try:
            await self._publish(episode)
        except MessageError as exc:
            error = f"the episode can't be sent: {exc}"
            episode = failed_episode(task, Reason.ENV, error, started_at=episode.started_at)
            await self._publish(episode)
        self.stats.add(episode)
        if episode.reason in (Reason.ENV, Reason.GRADER):
            await self._tell_once(episode)
        for text in self.cut.add(episode):
            await self._ctx.bus.event("warning", "replies-cut-off", text)
        if LOST.count >= self._most_lost and not self._ctx.stopping.is_set():
            await self._give_way()

    async def _give_way(self) -> None:
        """Drain, so that the node starts another process: this one drags along what never ends."""
        where = f", the newest in {LOST.last}" if LOST.last else ""
        text = f"{self._ctx.name} is replaced: {LOST.count} calls of user code never ended{where}"
        self._ctx.stop("replaced")
        await self._ctx.bus.event("error", "user-code-hangs", text)

    async def _tell_once(self, episode: Episode) -> None:
        """The first failure of each kind is news: without this, a broken environment is silent for a hundred groups."""
        kind = (episode.env, episode.reason)
        if kind not in self._told:
            self._told.add(kind)
            text = f"an episode of environment {episode.env} failed: {episode.reason}: {episode.error[:500]}"
            await self._ctx.bus.event("warning", "episode-failed", f"{text}; more of it is in {self._ctx.name}'s log")

    async def _episode(self, task: Task, deliveries: int) -> Episode:
        if deliveries > MAX_DELIVERIES:
            error = f"poison: delivered {deliveries} times without a record"
            return failed_episode(task, Reason.INFRA, error, started_at=clock.wall())
        if verdict := self._suspects.verdict(task.id):
            await self._ctx.bus.event("error", "poison-task", f"{task.id} is given up: {verdict}", task=task.id)
            return failed_episode(task, Reason.ENV, verdict, started_at=clock.wall())
        started_at = clock.wall()
        try:
            async with self._suspects.playing(task.id), self.needed.while_needed(task.group_id):
                return await self._player.play(task)
        except NotNeededError:
            return failed_episode(task, Reason.CANCELLED, "its group was closed before", started_at=started_at)

    async def _publish(self, episode: Episode) -> None:
        bus = self._ctx.bus
        msg_id = f"{episode.task_id}@{episode.attempt}"
        await bus.publish(bus.topology.episode(episode.env), episode, msg_id=msg_id, deadline_s=None)

    def _take(self, slots: int, *, evaluation: bool) -> None:
        self.sharing.take(slots, evaluation=evaluation)
        self._room.set()
        self._ctx.gauge(ROLLOUT_RUNNING, self.sharing.taken)
        self._ctx.waits_for("" if self.sharing.taken else "tasks: none is queued")


async def run(ctx: ActorContext, agents: Sequence[Agent] = ()) -> None:
    """Play episodes until told to stop.

    Args:
        agents: play only the tasks of these agents' environments; none = of all environments.
    """
    contain_tasks(asyncio.get_running_loop())
    ctx.waits_for("the first weights of every policy, for their tokenizers")
    tokenizers = await ctx.unless_stopped(fetch_tokenizers(ctx))
    if tokenizers is None:
        return
    gateway = RolloutGateway(ctx.config.gateway)
    envs = build_envs(ctx, agents, gateway)
    try:
        async with GenerationClient.open(ctx) as client, gateway.open(ctx):
            player = Player(ctx, envs, gate_of(ctx, client), tokenizers)
            await _serve_all(ctx, client, player, envs, gateway)
    finally:
        for name, env in envs.items():
            await _close(name, env)


async def _close(name: str, env: Environment) -> None:
    """Its mistakes are logged: nothing else can be done about them any more."""
    try:
        await on_loop(env.close, within_s=_CLOSE_S, label=f"close of {name}")
    except (HungError, RaisedError) as exc:
        _log.error("environment %s can't be closed: %s", name, exc)


def gate_of(ctx: ActorContext, client: Generates) -> CohortGate:
    """The gate of this process. A task that is redelivered comes within the ack wait."""

    async def tell(text: str) -> None:
        await ctx.bus.event("warning", "not-repeatable", text)

    return CohortGate(client, name=ctx.incarnation, patience_s=2 * ctx.config.bus.ack_wait_s, tell=tell)


def build_envs(
    ctx: ActorContext, agents: Sequence[Agent] = (), gateway: RolloutGateway | None = None
) -> dict[str, Environment]:
    """The environments that can be built here; for the others `status` says why. Raises ConfigError if there is none.

    A node may lack a package or the user's code: it is given only the tasks that it can run.

    Args: gateway: plays those that are played over HTTP.
    """
    envs: dict[str, Environment] = {}
    for each in agents:
        check_agent(each, ctx.config.envs)
    given = {each.env: each for each in agents}
    sections = ctx.config.envs.items()
    wanted = [(name, section) for name, section in sections if (name in given if agents else section.agent != EXTERNAL)]
    for name, section in wanted:
        try:
            agent = given.get(name) or find_agent(name, section)
            env = build_env(section)
        except ConfigError as exc:
            ctx.unserved[name] = str(exc)
            _log.warning("environment not served", extra={"actor": ctx.name, "env": name, "why": str(exc)})
        else:
            played = env if agent is None else AgentEnv(env, agent)
            envs[name] = gateway.env(name, section, played) if gateway and agent is None else played
    if wanted and not envs:
        raise ConfigError(f"no environment of this run can be built here: {'; '.join(ctx.unserved.values())}")
    return envs


async def _serve_all(
    ctx: ActorContext,
    client: GenerationClient,
    player: Player,
    envs: Mapping[str, Environment],
    gateway: RolloutGateway,
) -> None:
    suspects, topology = Suspects(ctx.folder / "in-work" / ctx.name), ctx.bus.topology
    if not ctx.config.run.deterministic:  # a cohort is played together or not at all
        suspects.open()
    watchdog = Watchdog(suspects.blame, patience_s=ctx.config.node.blocked_s)
    pool = RolloutPool(ctx, player, suspects)
    ctx.set_state(MemberState.READY)
    ctx.waits_for("tasks: none is queued" if envs else "nothing: every environment is played by agents that join")
    async with until_stopped(ctx.stopping, partial(ctx.set_state, MemberState.DRAINING)) as group:  # tasks nak
        for env in envs:
            demanded = gateway.demanded(env)
            for consumer, evaluation in ((topology.task_consumer(env), False), (topology.eval_consumer(env), True)):
                group.create_task(_pull(ctx, pool, consumer, group, evaluation=evaluation, demanded=demanded))
        group.create_task(_report(ctx, pool, client))
        group.create_task(pool.needed.watch(ctx.bus))
    suspects.close()
    watchdog.close()
    _log.info("rollout drained", extra={"actor": ctx.name})


async def _report(ctx: ActorContext, pool: RolloutPool, client: GenerationClient) -> None:
    """Publish what the pool did, every few seconds in which it did something."""
    while not await ctx.stopped_within(REPORT_EVERY_S):
        ctx.gauge(ROLLOUT_CONTINUED, client.continued)
        ctx.gauge(ROLLOUT_DIRECT, client.direct)
        ctx.gauge(ROLLOUT_DIRECT_MISSED, client.direct_missed)
        ctx.gauge(ROLLOUT_WASTED_CHUNKS, client.wasted_chunks)
        ctx.gauges.update(bus_gauges(ctx.bus.counters))
        values = pool.stats.flush(continuations=client.continued)
        if values is not None:
            labels = {"actor": ctx.name}
            await ctx.bus.metrics(Metrics(kind=ROLLOUT, at=clock.wall(), values=values, labels=labels))


async def _pull(
    ctx: ActorContext,
    pool: RolloutPool,
    consumer: str,
    group: asyncio.TaskGroup,
    *,
    evaluation: bool = False,
    demanded: Callable[[], Awaitable[int]] | None = None,
) -> None:
    async with ctx.bus.queues.open(ctx.bus.topology.tasks, consumer) as queue:
        await pool.serve(queue, group, evaluation=evaluation, demanded=demanded)
