"""A region's keeper between two real servers: weights stay exact and bounded, tasks come, records go."""

from pathlib import Path

import pytest

from astraflow.bus import Bus, wiring
from astraflow.bus.runs import find_homes
from astraflow.errors import BusError
from astraflow.messages import Member, MemberState, Progress
from astraflow.messages.metric_names import ROLLOUT_SLOTS
from astraflow.weights.transfer.follower import WeightFollower, follow_heads
from astraflow.weights.transfer.publisher import WeightPublisher
from benchmarks.regions import FarRegion, far_region, versions
from tests.support import eventually, kill, make_episode, make_task

SLOTS = 3
SPLIT = "p" * (1 << 20)  # over max_message_bytes


async def arrive(here: Bus) -> None:
    """A replica and a rollout of the region say that they are there."""
    for role, policy, gauges in (("policy", "solver", {}), ("rollout", "", {ROLLOUT_SLOTS: SLOTS})):
        member = Member(
            actor=f"{role}-far-0",
            role=role,
            policy=policy,
            node="far",
            incarnation="i",
            pid=1,
            state=MemberState.READY,
            gauges=gauges,
        )
        await here.kv.put(wiring.MEMBER.key(member.actor), member)


async def test_weights_are_exact_and_the_mirror_keeps_what_the_hub_keeps(tmp_path: Path) -> None:
    async with far_region(tmp_path) as far:
        publisher, follower = WeightPublisher(far.hub, full_every=10), WeightFollower(far.here, "solver")
        heads = follow_heads(far.here, "solver")
        for number, tensors in enumerate(versions(2000, 50)):
            await publisher.publish(tensors, {"config.json": b"{}"}, version=number, step=number, batch=number)
            while (head := await anext(heads)).version < number:
                pass
            await follower.advance(head)
            assert follower.shadow is not None
            assert bytes(follower.shadow.tensors["weight"].data) == bytes(tensors["weight"].data)
        await heads.aclose()

        await eventually(lambda: _as_long(far))
        assert (await far.here.logs.state(far.here.topology.weights("solver"))).first_sequence > 1


async def _as_long(far: FarRegion) -> bool:
    mirror = await far.here.logs.state(far.here.topology.weights("solver"))
    origin = await far.hub.bus.logs.state(far.hub.bus.topology.weights("solver"))
    return (mirror.first_sequence, mirror.messages) == (origin.first_sequence, origin.messages)


async def test_tasks_come_as_there_are_slots_and_records_settle_them(tmp_path: Path) -> None:
    async with far_region(tmp_path) as far:
        home, there, here = far.hub.bus, far.hub.bus.topology, far.here.topology
        for number in range(20):
            await home.publish(there.task("game"), make_task(f"t{number}", "game"), msg_id=f"t{number}")
        await arrive(far.here)
        await eventually(lambda: _depth(far.here, 2 * SLOTS))
        assert (await home.queues.undelivered())["task.game"] == 20 - 2 * SLOTS

        async with far.here.queues.open(here.tasks, here.task_consumer("game")) as queue:
            (task,) = await queue.fetch(1)
            episode = make_episode(task.message.id, "game", prompt=SPLIT)
            await far.here.publish(here.episode("game"), episode, msg_id=f"{task.message.id}@0")
            await task.ack()
        await eventually(lambda: _waiting(home, 19))  # acked there: 20 were queued
        entries = [entry async for entry in home.logs.read(there.episodes, follow=False)]
        assert [(entry.message, entry.envelope.producer) for entry in entries] == [(episode, "far")]
        assert (await far.here.logs.state(here.episodes)).messages == 0


async def _depth(bus: Bus, tasks: int) -> bool:
    return (await bus.queues.depths())["task.game"] == tasks


async def _waiting(bus: Bus, tasks: int) -> bool:
    return (await bus.logs.state(bus.topology.tasks)).messages == tasks


async def test_tasks_of_a_region_that_was_left_are_others_again(tmp_path: Path) -> None:
    async with far_region(tmp_path) as far:
        home, there = far.hub.bus, far.hub.bus.topology
        await home.publish(there.task("game"), make_task("t", "game"), msg_id="t")
        await arrive(far.here)
        await eventually(lambda: _depth(far.here, 1))
        async with home.queues.open(there.tasks, there.task_consumer("game")) as queue:
            (task,) = await queue.fetch(1)  # nobody renews those members' records
            assert task.message.id == "t"
            assert task.attempts > 1
            await task.ack()
        assert await _depth(far.here, 0)


async def test_what_is_the_hub_s_to_write_is_refused_in_a_region_at_once(tmp_path: Path) -> None:
    async with far_region(tmp_path) as far:
        progress = Progress(policy="solver", consumed=1, step=1, version=1, epoch=1)
        with pytest.raises(BusError, match="can't be written in region eu, only at the run's hub"):
            await far.here.kv.put(wiring.PROGRESS.key("solver"), progress)


async def test_a_leaf_server_that_is_killed_and_started_again_goes_on(tmp_path: Path) -> None:
    async with far_region(tmp_path) as far:
        await far.here.publish(far.here.topology.episode("game"), make_episode("before", "game"), msg_id="before@0")
        await kill(far.leaf)
        assert await find_homes(far.leaf.options) == {}
        await far.leaf.start()
        await far.here.publish(far.here.topology.episode("game"), make_episode("after", "game"), msg_id="after@0")
        await eventually(lambda: _recorded(far.hub.bus, {"before", "after"}))


async def _recorded(home: Bus, tasks: set[str]) -> bool:
    return {e.message.task_id async for e in home.logs.read(home.topology.episodes, follow=False)} == tasks
