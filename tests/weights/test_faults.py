"""Weights that can't be published, stored or used: the old version serves, it is told, and the way out is taken."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.base.heartbeat import Heartbeat
from astraflow.actors.policy import actor as policy
from astraflow.actors.trainer.publishing import Job, VersionsUnderWay
from astraflow.bus import Bus, BusOptions, EmbeddedServer, NatsBus, topology_of, wiring
from astraflow.bus.memory import MemoryServer
from astraflow.errors import BusError, FencedError, WeightsError
from astraflow.messages import Event, MemberState, Metrics, PartRef, RunRecord, VersionKind
from astraflow.messages.metric_names import POLICY_WANTS_FULL, WEIGHTS, WEIGHTS_LAG_S, WEIGHTS_PAUSE_S
from astraflow.messages.roles import Role
from astraflow.models.toy import TOY_TENSOR, toy_model
from astraflow.weights.codec.tensors import HostTensor
from astraflow.weights.transfer import publisher as publishing_limits
from astraflow.weights.transfer import rank_share as rank_limits
from astraflow.weights.transfer.follower import WeightFollower
from astraflow.weights.transfer.publisher import WeightPublisher
from astraflow.weights.transfer.rank_share import Contribution, LocalRank, StoreOrder
from tests.actors.contexts import CONFIG, context
from tests.actors.test_policy import Asker, publish, replica
from tests.bus.raw import store_raw
from tests.bus.secured import Secured, secured_server
from tests.support import eventually
from tests.weights import test_publish_and_follow as weights


class Faulty(LocalRank):
    """Says the first time that it has stored version 1, and its parts are missing, or other bytes are on the bus."""

    how = ""  # nothing is wrong

    async def store(self, order: StoreOrder) -> Contribution:
        how, self.how = (self.how, "") if order.version else ("", self.how)
        if how == "missing":
            return Contribution(parts=(PartRef(digest="ab" * 32, size_bytes=7),), size_bytes=7)
        stored = await super().store(order)
        if how == "damaged":
            await damage(self._bus, stored.parts[0], epoch=order.epoch)
        return stored


async def damage(bus: Bus, part: PartRef, *, epoch: int) -> None:
    """From now on the bus has other bytes for a part, as many as before."""
    subject = f"{bus.topology.weight_part('solver', epoch)}.{part.digest}"
    await store_raw(bus, subject, b"\xff" * part.size_bytes, msg_id=f"damage-{part.digest}")


async def texts(bus: Bus, name: str) -> list[str]:
    entries = [entry.message async for entry in bus.logs.read(bus.topology.events, follow=False)]
    return [event.text for event in entries if isinstance(event, Event) and event.name == name]


def job(number: int) -> Job:
    tensors, files = toy_model()
    data = bytearray(tensors[TOY_TENSOR].data)
    data[0] = number
    changed = HostTensor("F32", tensors[TOY_TENSOR].shape, memoryview(data))
    return Job(
        tensors={TOY_TENSOR: changed},
        files=files,
        version=number,
        step=number,
        batch=number,
        finished=False,
        probe=None,
    )


@asynccontextmanager
async def actor(options: BusOptions, folder: Path, role: str) -> AsyncIterator[ActorContext]:
    """A context whose member record is alive, on a bus whose streams are there."""
    topology = topology_of(CONFIG)
    async with NatsBus.connect(options, topology, producer=f"{role}-0") as bus:
        record = RunRecord(name="test", incarnation="inc", config_json=b"", created_at=0.0)
        ctx = ActorContext(
            bus=bus, config=CONFIG, record=record, folder=folder, name=f"{role}-0", role=role, policy="solver"
        )
        async with Heartbeat(ctx, options):
            yield ctx
            ctx.stop("drain")


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    async with secured_server(tmp_path / "bus", topology_of(CONFIG)) as running:
        yield running


@pytest.mark.parametrize(("how", "sentence"), [("missing", "purged or never sent"), ("damaged", "is damaged")])
async def test_a_replica_that_cannot_use_a_version_gets_one_full_also_with_a_role_s_rights(
    secured: Secured, tmp_path: Path, how: str, sentence: str
) -> None:
    """The version is refused twice while the old one serves, a full is asked for, published, and served; and so on."""
    async with (
        actor(secured.options(Role.TRAINER), tmp_path, "trainer") as trainer,
        actor(secured.options(Role.POLICY), tmp_path, "policy") as ctx,
        asyncio.TaskGroup() as group,
    ):
        rank = Faulty(trainer.bus, "solver", prefix="faulty")
        rank.how = how
        publisher = WeightPublisher(trainer, full_every=50, ranks=[rank])
        await publisher.open()

        async def publish_as(number: int) -> None:
            rank.give(job(number).tensors.items())
            await publisher.publish_ranks(job(number).files, version=number, step=number, batch=number)

        await publish_as(0)
        serving = group.create_task(policy.run(ctx))
        await eventually(lambda: ctx.state is MemberState.READY)
        await publish_as(1)

        async def refused_twice() -> bool:
            return len(await texts(trainer.bus, "version-refused")) == 2

        await eventually(refused_twice)
        assert ctx.gauges.get("policy.version", 0) == 0
        requests = group.create_task(VersionsUnderWay(trainer, publisher).answer_requests())
        await eventually(lambda: ctx.member().gauges.get("policy.version") == 1)
        assert POLICY_WANTS_FULL not in ctx.member().gauges
        first, second = await texts(trainer.bus, "version-refused")
        assert sentence in first
        assert second.endswith("the old version serves; another full is asked for")
        assert len(await texts(trainer.bus, "full-again")) == 1
        await publish_as(2)
        await eventually(lambda: ctx.member().gauges.get("policy.version") == 2)
        kinds = await weights.kinds(trainer.bus)
        assert [number for number, _ in kinds][-1] == 2
        assert (1, VersionKind.FULL) in kinds
        assert len(await texts(trainer.bus, "version-refused")) == 2
        ctx.stop("drain")
        await serving
        requests.cancel()


async def test_a_newcomer_whose_full_is_gone_gets_another_one(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    async with (
        context(nats_server, tmp_path, role="any"),
        actor(nats_server.options, tmp_path, "trainer") as trainer,
        actor(nats_server.options, tmp_path, "policy") as ctx,
        asyncio.TaskGroup() as group,
    ):
        publisher = WeightPublisher(trainer, full_every=50)
        await publish(publisher, 0)
        subject = f"{ctx.bus.topology.weight_part('solver', 0)}.*"
        await ctx.bus.logs.purge(ctx.bus.topology.weights("solver"), below_sequence=10**6, subject=subject)
        requests = group.create_task(VersionsUnderWay(trainer, publisher).answer_requests())
        serving = group.create_task(policy.run(ctx))
        await eventually(lambda: ctx.state is MemberState.READY)
        ctx.stop("drain")
        await serving
        requests.cancel()


def other_models() -> dict[str, dict[str, HostTensor]]:
    tensors, _ = toy_model()
    tensor = tensors[TOY_TENSOR]
    half = HostTensor("F32", (tensor.shape[0] // 2,), tensor.data[: tensor.data.nbytes // 2])
    return {
        "unknown": {**tensors, "no.such": tensor},
        "missing": {},
        "mis-shaped": {TOY_TENSOR: half},
        "dtype": {TOY_TENSOR: HostTensor("I32", tensor.shape, tensor.data)},
    }


@pytest.mark.parametrize("what", ["unknown", "missing", "mis-shaped", "dtype"])
async def test_a_version_of_another_model_is_refused_and_the_old_one_serves_until_the_next(
    memory_server: MemoryServer, tmp_path: Path, what: str
) -> None:
    async with replica(memory_server, tmp_path) as (ctx, publisher), Asker.open(ctx.bus) as asker:
        _, files = toy_model()
        await publisher.publish(other_models()[what], files, version=1, step=1, batch=1)

        async def refused_twice() -> bool:
            return len(await texts(ctx.bus, "version-refused")) == 2

        await eventually(refused_twice)
        await asker.ask("old")
        await eventually(lambda: asker.finished("old"))
        await publish(publisher, 2)
        await asker.ask("new", min_version=2)
        await eventually(lambda: asker.finished("new"))
        spans = {(chunk.request_id, span.version) for chunk in asker.chunks for span in chunk.versions}
        assert spans == {("old", 0), ("new", 2)}


async def test_what_is_told_twice_or_late_changes_nothing(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, follower = WeightPublisher(ctx, full_every=50), WeightFollower(ctx.bus, "solver")
        await weights.publish(publisher, 0, 0)
        late = await weights.head_of(ctx.bus)
        await weights.publish(publisher, 1, 3)
        head = await weights.head_of(ctx.bus)
        await follower.advance(head)
        for again in (head, late):
            assert (await follower.advance(again)).fetched_bytes == 0
        assert follower.shadow is not None
        assert weights.same(follower.shadow.tensors, weights.version(3))


async def test_a_reader_whose_versions_were_purged_meanwhile_plans_again(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, follower = WeightPublisher(ctx, full_every=2), WeightFollower(ctx.bus, "solver")
        await weights.publish(publisher, 0, 1)
        stale = await weights.head_of(ctx.bus)
        await weights.publish(publisher, 2, 9)
        assert (await follower.advance(stale)).head.version == 9
        assert follower.shadow is not None
        assert weights.same(follower.shadow.tensors, weights.version(9))


async def test_a_manifest_of_another_policy_is_refused(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        await weights.publish(WeightPublisher(ctx), 0, 0)
        head, stream = await weights.head_of(ctx.bus), ctx.bus.topology.weights("solver")
        entry = await ctx.bus.logs.entry(stream, head.manifest_sequence)
        assert entry is not None
        foreign = msgspec.structs.replace(entry.message, policy="judge")
        ack = await ctx.bus.publish(ctx.bus.topology.manifest("solver"), foreign, msg_id="foreign")
        damaged = msgspec.structs.replace(head, full_manifest_sequence=ack.sequence)
        await ctx.bus.kv.put(wiring.HEAD.key("solver"), damaged)
        with pytest.raises(WeightsError, match="is of policy 'judge'"):
            await WeightFollower(ctx.bus, "solver").advance(damaged)


async def test_a_publish_that_finds_no_room_is_told_and_training_and_the_head_go_on(
    memory_server: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_limits, "STORE_WITHIN_S", 0.3)
    monkeypatch.setattr(publishing_limits, "STORE_WITHIN_S", 0.3)
    bus = msgspec.structs.replace(CONFIG.bus, max_weights_bytes=8_000)  # five toy fulls
    config = msgspec.structs.replace(CONFIG, bus=bus)
    async with context(memory_server, tmp_path, role="trainer", config=config) as ctx, asyncio.TaskGroup() as group:
        publishing = VersionsUnderWay(ctx, WeightPublisher(ctx))
        await publishing.start(job(0), group)
        await publishing.done()
        stream = ctx.bus.topology.weights("solver")
        filler = ctx.bus.topology.weight_part("solver", 7)

        async def fill() -> None:
            while True:
                await ctx.bus.parts.put(stream, filler, random.randbytes(300), msg_prefix="filler", deadline_s=0.5)

        with pytest.raises(BusError, match="is full"):
            await fill()
        await publishing.start(job(1), group)
        await publishing.start(job(2), group)  # not held up by version 1, which can't be stored
        await eventually(lambda: "version 2 of solver is not published" in ctx.last_error)
        head = await weights.head_of(ctx.bus)
        assert head.version == 0
        assert await texts(ctx.bus, "publish-failed")
        follower = WeightFollower(ctx.bus, "solver")
        await follower.advance(head)
        await ctx.bus.logs.purge(stream, below_sequence=10**6, subject=f"{filler}.*")
        await publishing.done()
        await follower.advance(await weights.head_of(ctx.bus))
        assert follower.shadow is not None
        assert weights.same(follower.shadow.tensors, dict(job(2).tensors))


async def test_a_publish_that_is_cancelled_anywhere_can_be_made_again(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        publisher, follower = WeightPublisher(ctx, full_every=3), WeightFollower(ctx.bus, "solver")
        await weights.publish(publisher, 0, 0)
        for number in range(1, 12):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(weights.publish(publisher, number, number))
                for _ in range(number * 3):
                    await asyncio.sleep(0)
                await asyncio.sleep(number * 0.004)
                task.cancel()
            if publisher.version < number:
                await weights.publish(publisher, number, number)
            await follower.advance(await weights.head_of(ctx.bus))
            assert follower.shadow is not None
            assert weights.same(follower.shadow.tensors, weights.version(number))


async def test_a_replaced_trainer_s_manifest_is_refused_by_the_log_itself(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="trainer") as ctx:
        old, new = WeightPublisher(ctx, epoch=1), WeightPublisher(ctx, epoch=2)
        await weights.publish(old, 0, 0)
        await new.open()
        with pytest.raises(FencedError):  # its manifest is in the log, and it can't move the head
            await weights.publish(old, 1, 1)
        await weights.publish(new, 2, 2)  # passes over what the old one has still written
        with pytest.raises(FencedError):
            await weights.publish(old, 3, 3)
        head = await weights.head_of(ctx.bus)
        assert (head.version, head.epoch) == (2, 2)


async def test_status_and_metrics_say_how_far_a_replica_is_behind(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path) as (ctx, publisher):
        await publish(publisher, 3)
        await eventually(lambda: ctx.gauges.get("policy.version") == 3)
        found = [entry.message async for entry in ctx.bus.logs.read(ctx.bus.topology.metrics, follow=False)]
        swaps = [it.values for it in found if isinstance(it, Metrics) and it.kind == WEIGHTS and it.labels]
        assert swaps[-1][WEIGHTS_PAUSE_S] >= 0
        assert 0 <= swaps[-1][WEIGHTS_LAG_S] < 600
        await eventually(lambda: ctx.gauges["policy.lag_versions"] == 0)
        assert ctx.gauges["policy.lag_s"] == 0
