"""A replica whose weights are missing or damaged, and one that is stopped before it has any."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.policy import actor as policy
from astraflow.actors.rollout import actor as rollout
from astraflow.bus import Bus, wiring
from astraflow.bus.memory import MemoryServer
from astraflow.errors import WeightsError
from astraflow.messages import Event, Head, MemberState
from astraflow.weights.codec.differences import as_integers
from astraflow.weights.transfer.follower import WeightFollower
from astraflow.weights.transfer.publisher import WeightPublisher
from tests.actors.contexts import context
from tests.actors.test_policy import Asker, publish, replica
from tests.support import LIMIT_S, eventually
from tests.weights import test_publish_and_follow as weights


async def events(bus: Bus, name: str) -> list[Event]:
    entries = [entry.message async for entry in bus.logs.read(bus.topology.events, follow=False)]
    return [event for event in entries if isinstance(event, Event) and event.name == name]


async def put_unreadable_head(bus: Bus, version: int) -> None:
    """The head of a version whose manifest was purged."""
    entry = await bus.kv.get(wiring.HEAD.key("solver"))
    head = Head(
        policy="solver", version=version, step=version, epoch=0, manifest_sequence=10**6, full_manifest_sequence=10**6
    )
    await bus.kv.put(wiring.HEAD.key("solver"), head, expected_revision=entry.revision if entry else 0)


@pytest.mark.parametrize("role", [policy, rollout])
async def test_an_actor_is_stopped_while_it_waits_for_the_first_weights(
    memory_server: MemoryServer, tmp_path: Path, role: object
) -> None:
    async with context(memory_server, tmp_path, role="any") as ctx, asyncio.TaskGroup() as group:
        actor = group.create_task(role.run(ctx))  # type: ignore[attr-defined]
        await eventually(lambda: ctx.member().waits_for)
        ctx.stop("drain")
        async with asyncio.timeout(LIMIT_S):
            await actor


async def test_first_weights_that_cannot_be_read_are_told_once_and_the_next_are_served(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with (
        context(memory_server, tmp_path, role="trainer") as trainer,
        context(memory_server, tmp_path, role="policy") as ctx,
        asyncio.TaskGroup() as group,
    ):
        await put_unreadable_head(trainer.bus, 0)
        actor = group.create_task(policy.run(ctx))
        await eventually(lambda: "can't be read" in ctx.member().waits_for)
        publisher = WeightPublisher(trainer)
        await publisher.open()
        await publish(publisher, 1)
        await eventually(lambda: ctx.state is MemberState.READY)
        assert len(await events(ctx.bus, "version-refused")) == 1
        ctx.stop("drain")
        await actor


async def test_a_refused_version_is_tried_twice_and_the_next_full_is_served(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with replica(memory_server, tmp_path) as (ctx, _), Asker.open(ctx.bus) as asker:

        async def refused_twice() -> bool:
            return len(await events(ctx.bus, "version-refused")) == 2

        await put_unreadable_head(ctx.bus, 1)
        await eventually(refused_twice)
        publisher = WeightPublisher(ctx)
        await publisher.open()
        await publish(publisher, 2)
        await asker.ask("a", min_version=2)
        await eventually(lambda: asker.finished("a"))
        assert {span.version for chunk in asker.chunks for span in chunk.versions} == {2}


async def test_a_damaged_copy_in_memory_is_replaced_by_a_full(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, follower = WeightPublisher(ctx, full_every=50), WeightFollower(ctx.bus, "solver")
        await weights.publish(publisher, 0, 1)
        await follower.advance(await weights.head_of(ctx.bus))
        assert follower.shadow is not None
        follower.shadow.tensors["moving"].data[0] ^= 1  # a bit flips
        await weights.publish(publisher, 2, 2)
        head = await weights.head_of(ctx.bus)
        with pytest.raises(WeightsError):
            await follower.advance(head)
        follower.behind.clear()
        await follower.advance(head, afresh=True)
        changes = follower.behind.changes(follower.shadow)
        assert {name: len(as_integers(tensor)) for name, tensor in changes.items()} == {"moving": 65536, "still": 100}
        assert weights.same(follower.shadow.tensors, weights.version(2))


async def test_a_full_whose_delta_is_damaged_leaves_the_old_version(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, follower = WeightPublisher(ctx, full_every=3), WeightFollower(ctx.bus, "solver")
        await weights.publish(publisher, 0, 0)
        await follower.advance(await weights.head_of(ctx.bus))
        await weights.publish(publisher, 1, 4)  # 3 is a full, 4 a delta
        stream, head = ctx.bus.topology.weights("solver"), await weights.head_of(ctx.bus)
        subject = ctx.bus.topology.manifest("solver")
        manifests = {
            entry.message.version: entry.message
            async for entry in ctx.bus.logs.read(stream, subject=subject, follow=False)
        }
        manifest = msgspec.structs.replace(manifests[4], parts=manifests[2].parts)  # a delta of another base
        ack = await ctx.bus.publish(subject, manifest, msg_id="damaged")
        damaged = msgspec.structs.replace(head, manifest_sequence=ack.sequence)
        await ctx.bus.kv.put(wiring.HEAD.key("solver"), damaged)
        with pytest.raises(WeightsError, match="delta of version 4 leads to version 2"):
            await follower.advance(damaged)
        assert follower.shadow is not None
        assert weights.same(follower.shadow.tensors, weights.version(0))
