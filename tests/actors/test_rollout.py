"""The rollout pool on a real server: what an environment returns, doubled deliveries, slots, hand-over."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.handover import start_work
from astraflow.actors.rollout import actor as rollout
from astraflow.actors.rollout.actor import RolloutPool
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.play import Player
from astraflow.bus import Delivery, EmbeddedServer, Limits, NatsBus, Topology
from astraflow.bus.counters import bus_gauges
from astraflow.bus.memory import MemoryServer
from astraflow.config import NodeSection
from astraflow.envs.base import Outcome, PolicyHandle
from astraflow.errors import BudgetError
from astraflow.messages import Episode, Event, GroupClosed, Reason, Task, VersionSpan
from astraflow.models.tokenizer import ToyTokenizer
from tests.actors.contexts import CONFIG, context
from tests.support import LIMIT_S, eventually, make_task

PROMPT = np.array([1, 2, 3], np.int32)


class Three:
    """A requester that always answers with three tokens."""

    async def generate(self, call: Call) -> Completion:
        span = VersionSpan(version=0, start=0, end=3)
        return Completion(
            tokens=np.array([4, 5, 6], np.int32),
            logprobs=np.zeros(3, np.float32),
            versions=(span,),
            finish_reason="stop",
            attempts=1,
        )


class Env:
    """Asks once, then does what the test says."""

    size = None

    def __init__(self, end: Callable[[], Any]) -> None:
        self.end = end
        self.played = 0
        self.going = asyncio.Event()
        self.going.set()

    def task(self, index: int) -> dict[str, Any]:
        return {}

    async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
        self.played += 1
        await policies["solver"].generate(PROMPT)
        await self.going.wait()
        outcome = self.end()
        assert isinstance(outcome, Outcome)
        return outcome

    async def close(self) -> None: ...


def raises(error: BaseException) -> Callable[[], Any]:
    def end() -> None:
        raise error

    return end


def outcome(**fields: Any) -> Callable[[], Any]:
    return lambda: Outcome(**{"rewards": {"solver": 1.0}, **fields})


def task(number: int = 0, **fields: Any) -> Task:
    return make_task(id=f"inc/game/0/{number}/0", env="game", **fields)


async def publish(ctx: ActorContext, *tasks: Task, evaluation: bool = False, prefix: str = "") -> None:
    topology = ctx.bus.topology
    subject = topology.eval_task("game") if evaluation else topology.task("game")
    for each in tasks:
        await ctx.bus.publish(subject, each, msg_id=f"{prefix}{each.id}")


@asynccontextmanager
async def pool_of(ctx: ActorContext, env: Env) -> AsyncIterator[RolloutPool]:
    """A pool that pulls training and evaluation tasks."""
    pool = RolloutPool(ctx, Player(ctx, {"game": env}, rollout.gate_of(ctx, Three()), {"solver": ToyTokenizer()}))
    async with asyncio.TaskGroup() as group, asyncio.TaskGroup() as playing:
        consumers = (ctx.bus.topology.task_consumer("game"), ctx.bus.topology.eval_consumer("game"))
        pulls = [
            group.create_task(rollout._pull(ctx, pool, consumer, playing, evaluation=evaluation))
            for consumer, evaluation in zip(consumers, (False, True), strict=True)
        ]
        yield pool
        for pull in pulls:
            pull.cancel()


async def episodes(ctx: ActorContext) -> list[Episode]:
    return [entry.message async for entry in ctx.bus.logs.read(ctx.bus.topology.episodes, follow=False)]


async def settled(ctx: ActorContext) -> bool:
    """Every task is acked. The stream knows at once; a consumer's depth may lag behind a publish."""
    tasks = await ctx.bus.logs.state(ctx.bus.topology.tasks)
    return tasks.messages == 0


@pytest.mark.parametrize(
    ("end", "reason", "error"),
    [
        (outcome(metrics={"a": np.float64(2), "b": np.bool_(True)}), Reason.OK, ""),
        (outcome(correct=np.bool_(True), parts={"a": np.float32(1)}), Reason.OK, ""),
        (outcome(rewards={"solver": np.float32(0.5)}, prompt="\ud800", answer="\udfff"), Reason.OK, ""),
        (outcome(metrics={"a": "many"}), Reason.ENV, "ValueError"),
        (outcome(rewards={"solver": float("nan")}), Reason.GRADER, "not finite"),
        (outcome(rewards={}, reason=Reason.GRADER, error="\ud800"), Reason.GRADER, "\ufffd"),
        (raises(RuntimeError("half a pair \ud800")), Reason.ENV, "half a pair \ufffd"),
        (raises(TimeoutError("the sandbox is slow")), Reason.ENV, "the sandbox is slow"),
        (raises(BudgetError("9 calls are spent")), Reason.TRUNCATED, "9 calls are spent"),
    ],
    ids=[
        "numpy-metrics",
        "numpy-parts",
        "half-pairs",
        "words",
        "nan",
        "half-pair-graded",
        "half-pair-raised",
        "slow",
        "overspent",
    ],
)
async def test_whatever_an_environment_does_is_one_episode(
    memory_server: MemoryServer, tmp_path: Path, end: Callable[[], Any], reason: Reason, error: str
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, pool_of(ctx, Env(end)):
        await publish(ctx, task())
        await eventually(lambda: settled(ctx))
        (episode,) = await episodes(ctx)
        assert episode.reason is reason
        assert error in episode.error
        (trajectory,) = episode.trajectories
        assert reason is Reason.OK or trajectory.reward == 0


async def test_an_episode_that_is_too_big_for_the_bus_is_a_failed_one(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    limits = Limits(max_message_bytes=1024)  # a message has at most 999 parts
    topology = Topology(run="test", region="local", envs=["game"], policies=["solver"], limits=limits)
    async with (
        context(nats_server, tmp_path, role="rollout") as plain,
        NatsBus.connect(nats_server.options, topology, producer="small") as bus,
    ):
        ctx = dataclasses.replace(plain, bus=bus)
        async with pool_of(ctx, Env(outcome(prompt="x" * 2_000_000))):
            await publish(ctx, task())
            await eventually(lambda: settled(ctx))
            (episode,) = await episodes(ctx)
            assert episode.reason is Reason.ENV
            assert "can't be sent" in episode.error


async def test_only_the_tasks_own_deadline_is_a_timeout(memory_server: MemoryServer, tmp_path: Path) -> None:
    env = Env(outcome())
    env.going.clear()
    async with context(memory_server, tmp_path, role="rollout") as ctx, pool_of(ctx, env):
        await publish(ctx, task(deadline_s=0.2))
        await eventually(lambda: settled(ctx))
        (episode,) = await episodes(ctx)
        assert (episode.reason, episode.error) == (
            Reason.TIMEOUT,
            f"not done within 0.2 s: it was in test_rollout.py line {Env.run.__code__.co_firstlineno + 3}, run",
        )
        assert [len(item.turns) for item in episode.trajectories] == [1]


async def test_an_attempt_that_is_in_work_is_not_played_again(memory_server: MemoryServer, tmp_path: Path) -> None:
    env = Env(outcome())
    env.going.clear()
    async with context(memory_server, tmp_path, role="rollout") as ctx, pool_of(ctx, env) as pool:
        await publish(ctx, task())
        await eventually(lambda: env.played)
        await publish(ctx, task(), prefix="again/")
        await publish(ctx, task(1), evaluation=True)
        await eventually(lambda: env.played == 2)
        await eventually(lambda: pool.folded == 1)
        env.going.set()
        await eventually(lambda: settled(ctx))
        assert env.played == 2
        assert sorted(episode.task_id for episode in await episodes(ctx)) == [task(0).id, task(1).id]


async def test_a_pool_takes_no_more_than_its_slots_and_one_per_queue(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(CONFIG, node=NodeSection(episodes_per_rollout=8))
    env = Env(outcome())
    env.going.clear()
    async with context(memory_server, tmp_path, role="rollout", config=config) as ctx:
        for number in range(20):
            await publish(ctx, task(number))
            await publish(ctx, task(100 + number), evaluation=True)
        async with pool_of(ctx, env):
            await eventually(lambda: env.played == 8)
            await publish(ctx, task(200))
            await eventually(lambda: _depths(ctx, 41))
            assert ctx.gauges["rollout.running"] <= 9
            env.going.set()
            await eventually(lambda: settled(ctx))
        assert len(await episodes(ctx)) == 41


async def test_a_task_that_was_redelivered_a_thousand_times_ends_as_poison_beside_others(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx:
        topology, env = ctx.bus.topology, Env(outcome())
        await publish(ctx, task())
        async with ctx.bus.queues.open(topology.tasks, topology.task_consumer("game")) as queue:
            for _ in range(1000):
                (delivery,) = await queue.fetch(1)
                await delivery.nak()
        async with pool_of(ctx, env):
            await publish(ctx, task(1))
            await publish(ctx, task(2), evaluation=True)
            await eventually(lambda: settled(ctx))
        found = {each.task_id: each for each in await episodes(ctx)}
        assert {name: each.reason for name, each in found.items()} == {
            task(0).id: Reason.INFRA,
            task(1).id: Reason.OK,
            task(2).id: Reason.OK,
        }
        assert found[task(0).id].error == "poison: delivered 1001 times without a record"
        assert env.played == 2


async def test_evaluation_has_its_share_of_a_busy_pool_and_all_of_an_idle_one(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(CONFIG, node=NodeSection(episodes_per_rollout=8, eval_share=0.25))
    leave = asyncio.Semaphore(0)

    class Held(Env):
        async def run(self, task: Task, policies: Mapping[str, PolicyHandle]) -> Outcome:
            self.played += 1
            await leave.acquire()
            return Outcome(rewards={})

    env = Held(outcome())
    async with context(memory_server, tmp_path, role="rollout", config=config) as ctx, pool_of(ctx, env) as pool:
        await publish(ctx, *[task(number, eval_set="held") for number in range(3)], evaluation=True)
        await eventually(lambda: env.played == 3)  # above its share: no training task waits
        await publish(ctx, *[task(100 + number) for number in range(40)])
        await eventually(lambda: env.played == 8)
        await publish(ctx, *[task(200 + number, eval_set="held") for number in range(40)], evaluation=True)
        seen = []
        for ended in range(1, 25):
            leave.release()
            await eventually(lambda: env.played == 8 + ended)  # noqa: B023
            seen.append(pool.sharing.evaluating)
        assert max(seen) <= 3, "its two slots, and one that it had asked for while the pool was idle"
        assert min(seen[-8:]) >= 1, "evaluation stands still"
        for _ in range(80):
            leave.release()
        await eventually(lambda: settled(ctx))


async def _depths(ctx: ActorContext, total: int) -> bool:
    depths = await ctx.bus.queues.depths()
    return depths["task.game"] + depths["task.game.eval"] == total


class _Stop(Exception):
    """Ends a task group."""


async def test_what_is_taken_and_not_begun_at_the_end_is_redelivered_at_once(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(CONFIG, bus=msgspec.structs.replace(CONFIG.bus, ack_wait_s=60.0))
    begun: list[Task] = []
    taken = asyncio.Event()

    async def work(delivery: Delivery) -> None:
        begun.append(delivery.message)

    async with context(memory_server, tmp_path, role="rollout", config=config) as ctx:
        tasks, consumer = ctx.bus.topology.tasks, ctx.bus.topology.task_consumer("game")
        await publish(ctx, *(task(number) for number in range(3)))
        async with ctx.bus.queues.open(tasks, consumer) as queue:

            async def pull(group: asyncio.TaskGroup) -> None:
                deliveries = await queue.fetch(3)
                taken.set()  # the group ends before the new tasks have had their first step
                await start_work(group, deliveries, work)

            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(pull(group))
                    await taken.wait()
                    raise _Stop
            except* _Stop:
                assert begun == []
        async with ctx.bus.queues.open(tasks, consumer) as queue, asyncio.timeout(LIMIT_S):
            again: list[Delivery] = []
            while len(again) < 3:
                again += await queue.fetch(3)
            assert {delivery.attempts for delivery in again} == {2}


async def test_a_message_of_another_type_in_the_queue_is_a_dead_letter(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, pool_of(ctx, Env(outcome())):
        stray = Event(level="info", name="stray", text="")
        await ctx.bus.publish(ctx.bus.topology.task("game"), stray, msg_id="stray")
        await publish(ctx, task())
        await eventually(lambda: settled(ctx))
        assert [letter.reason for letter in await ctx.bus.dead_letters.read()] == [
            "Event 'stray' is in AF_test_local_TASKS, expected Task"
        ]


def test_what_a_bus_counted_is_in_the_gauges() -> None:
    counters = {"core.unsent": 2, "core.dropped": 3, "dead_letters.undecodable": 1, "publish.waits.full": 9}
    assert bus_gauges(counters) == {"bus.dropped": 5, "bus.malformed": 1}


def group_task(number: int, member: int, **fields: Any) -> Task:
    return make_task(
        id=f"inc/game/0/{number}/{member}",
        env="game",
        group_id=f"inc/game/0/{number}",
        group_size=2,
        member=member,
        **fields,
    )


async def test_tasks_of_a_closed_group_end_as_cancelled_played_or_not(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx:
        env = Env(outcome())
        env.going.clear()
        async with pool_of(ctx, env) as pool, asyncio.TaskGroup() as group:
            watching = group.create_task(pool.needed.watch(ctx.bus))
            await publish(ctx, group_task(0, 0), group_task(1, 0))
            await eventually(lambda: env.played == 2)
            await ctx.bus.kv.put("closed.game.0.0", GroupClosed(group_id="inc/game/0/0", reason="redundant"), ttl_s=60)
            await eventually(lambda: episodes_by_id(ctx))
            await publish(ctx, group_task(0, 1))  # it was still in the queue
            await eventually(lambda: has(ctx, 2))
            assert env.played == 2, "nothing of a closed group is begun"
            env.going.set()
            await eventually(lambda: settled(ctx))
            watching.cancel()
        found = await episodes_by_id(ctx)
        assert {name: each.reason for name, each in found.items()} == {
            "inc/game/0/0/0": Reason.CANCELLED,
            "inc/game/0/0/1": Reason.CANCELLED,
            "inc/game/0/1/0": Reason.OK,
        }
        assert pool.stats.failures == 0


async def episodes_by_id(ctx: ActorContext) -> dict[str, Episode]:
    return {each.task_id: each for each in await episodes(ctx)}


async def has(ctx: ActorContext, count: int) -> bool:
    return len(await episodes(ctx)) == count
