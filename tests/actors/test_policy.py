"""A policy replica on a real server with the toy engine: admission by version, swaps in flight, drain, refusal."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.policy import actor as policy
from astraflow.bus import Bus, wiring
from astraflow.bus.memory import MemoryServer
from astraflow.config import EngineSection, RunConfig
from astraflow.messages import ChunkKind, GenChunk, GenRequest, MemberState, RequestFault, Sampling, array_of
from astraflow.models.toy import toy_model
from astraflow.weights.transfer.publisher import WeightPublisher
from tests.actors.contexts import CONFIG, Server, context
from tests.support import eventually

REPLY = "af.test.reply.tester.0"


def slow(step_s: float, slots: int = 4):
    """CONFIG with a toy engine that takes `step_s` per token."""
    engine = EngineSection(kind="toy", slots=slots, toy_step_s=step_s)
    solver = msgspec.structs.replace(CONFIG.policies["solver"], engine=engine)
    return msgspec.structs.replace(CONFIG, policies={"solver": solver})


async def publish(publisher: WeightPublisher, version: int) -> None:
    tensors, files = toy_model()
    await publisher.publish(tensors, files, version=version, step=version, batch=version)


@asynccontextmanager
async def replica(server: Server, folder: Path, config=CONFIG) -> AsyncIterator[tuple[ActorContext, WeightPublisher]]:
    """A replica that serves version 0."""
    async with (
        context(server, folder, role="trainer", config=config) as trainer,
        context(server, folder, role="policy", config=config) as ctx,
        asyncio.TaskGroup() as group,
    ):
        publisher = WeightPublisher(trainer)
        await publish(publisher, 0)
        actor = group.create_task(policy.run(ctx))
        await eventually(lambda: ctx.state is MemberState.READY)
        yield ctx, publisher
        ctx.stop("drain")
        await actor


class Asker:
    """Sends requests and collects chunks."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.chunks: list[GenChunk] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, bus: Bus) -> AsyncIterator["Asker"]:
        asker = cls(bus)
        async with bus.core.subscribe(REPLY) as messages, asyncio.TaskGroup() as group:

            async def collect() -> None:
                async for decoded in messages:
                    assert isinstance(decoded.message, GenChunk)
                    asker.chunks.append(decoded.message)

            task = group.create_task(collect())
            yield asker
            task.cancel()

    async def ask(self, id: str, *, msg_id: str = "", ttl_s: float | None = None, **fields: object) -> None:
        request = self.request(id, **fields)
        await self.bus.publish(self.bus.topology.gen("solver"), request, msg_id=msg_id or f"{id}@0", ttl_s=ttl_s)

    async def ask_directly(self, id: str, replica: str, **fields: object) -> None:
        """As a follow-up of what that replica served."""
        await self.bus.core.publish(self.bus.topology.gen_replica("solver", replica), self.request(id, **fields))

    def request(self, id: str, **fields: object) -> GenRequest:
        request = GenRequest(
            id=id,
            attempt=0,
            policy="solver",
            prompt_tokens=array_of([1, 2, 3], "i4"),
            sampling=Sampling(max_new_tokens=20, ignore_eos=True),
            seed=1,
            reply_subject=REPLY,
        )
        return msgspec.structs.replace(request, **fields)

    def kinds(self, id: str) -> list[ChunkKind]:
        return [chunk.kind for chunk in self.chunks if chunk.request_id == id]

    def tokens(self, id: str) -> list[int]:
        arrays = [chunk.tokens.numpy() for chunk in self.chunks if chunk.request_id == id and chunk.tokens is not None]
        return np.concatenate(arrays).tolist() if arrays else []

    def finished(self, id: str) -> str:
        return next(
            (chunk.finish_reason for chunk in self.chunks if chunk.request_id == id and chunk.finish_reason), ""
        )


async def test_a_request_is_accepted_and_streamed_without_gaps(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("a")
        await eventually(lambda: asker.finished("a"))
        assert asker.kinds("a")[0] is ChunkKind.ACCEPTED
        positions = [(c.position, c.tokens.shape[0]) for c in asker.chunks if c.tokens is not None]
        assert positions[0][0] == 0
        assert all(after[0] == sum(before) for before, after in itertools.pairwise(positions))
        assert len(asker.tokens("a")) == 20
        assert asker.finished("a") == "length"


async def test_a_request_for_a_newer_version_waits_for_it(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path) as (ctx, publisher), Asker.open(ctx.bus) as asker:
        await asker.ask("new", min_version=1)
        await asker.ask("old")
        await eventually(lambda: asker.finished("old"))
        assert asker.kinds("new") == []
        await publish(publisher, 1)
        await eventually(lambda: asker.finished("new"))
        assert {span.version for c in asker.chunks if c.request_id == "new" for span in c.versions} == {1}


async def test_weights_change_under_a_running_request(memory_server: MemoryServer, tmp_path: Path) -> None:
    config = slow(0.05)
    async with replica(memory_server, tmp_path, config) as (ctx, publisher), Asker.open(ctx.bus) as asker:
        await asker.ask("a")
        await eventually(lambda: asker.tokens("a"))
        await publish(publisher, 1)
        await eventually(lambda: asker.finished("a"))
        spans = [span for chunk in asker.chunks for span in chunk.versions]
        assert [span.version for span in spans] == sorted(span.version for span in spans)
        assert {span.version for span in spans} == {0, 1}
        assert spans[0].start == 0
        assert spans[-1].end == 20


async def test_a_draining_replica_hands_over_at_once(memory_server: MemoryServer, tmp_path: Path) -> None:
    config = slow(0.2, slots=1)
    async with replica(memory_server, tmp_path, config) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("running")
        await eventually(lambda: asker.kinds("running"))
        await asker.ask("queued")
        ctx.stop("drain")
        await eventually(lambda: ChunkKind.GOODBYE in asker.kinds("running"))
        assert asker.kinds("queued") == []
        assert (await ctx.bus.queues.depths())["gen.solver"] == 1


async def test_what_an_engine_refuses_is_refused_with_a_reason(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("foreign", prompt_tokens=array_of([1, 100_000], "i4"))
        await eventually(lambda: ChunkKind.REFUSED in asker.kinds("foreign"))
        refusal = next(chunk for chunk in asker.chunks if chunk.kind is ChunkKind.REFUSED)
        assert "100000" in refusal.error
        assert refusal.fault is RequestFault.REQUEST
        await asker.ask("next")
        await eventually(lambda: asker.finished("next"))


def short(length: int) -> RunConfig:
    """CONFIG with a context of so many tokens."""
    engine = EngineSection(kind="toy", context_length=length)
    solver = msgspec.structs.replace(CONFIG.policies["solver"], engine=engine)
    return msgspec.structs.replace(CONFIG, policies={"solver": solver})


@pytest.mark.parametrize(("prompt", "wanted", "sampled"), [(3, 20, 7), (9, 20, 1), (3, 7, 7), (3, 100_000, 7)])
async def test_a_completion_gets_what_the_context_has_left(
    memory_server: MemoryServer, tmp_path: Path, prompt: int, wanted: int, sampled: int
) -> None:
    async with replica(memory_server, tmp_path, short(10)) as (ctx, _), Asker.open(ctx.bus) as asker:
        sampling = Sampling(max_new_tokens=wanted, ignore_eos=True)
        await asker.ask("a", prompt_tokens=array_of([1] * prompt, "i4"), sampling=sampling)
        await eventually(lambda: asker.finished("a"))
        assert (len(asker.tokens("a")), asker.finished("a")) == (sampled, "length")


async def test_a_prompt_that_leaves_no_room_is_refused_and_what_had_filled_the_context_ends(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with replica(memory_server, tmp_path, short(10)) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("full", prompt_tokens=array_of([1] * 10, "i4"))
        await eventually(lambda: ChunkKind.REFUSED in asker.kinds("full"))
        refusal = next(chunk for chunk in asker.chunks if chunk.kind is ChunkKind.REFUSED)
        assert refusal.fault is RequestFault.CONTEXT
        await asker.ask("end lost", prompt_tokens=array_of([1] * 10, "i4"), position=4)
        await eventually(lambda: asker.finished("end lost"))
        assert (asker.tokens("end lost"), asker.finished("end lost")) == ([], "length")


async def test_an_expired_request_is_not_worked_on(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path, slow(0.1, slots=1)) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("running")
        await eventually(lambda: asker.kinds("running"))
        await asker.ask("expired", ttl_s=1)
        await asker.ask("fresh")
        await eventually(lambda: asker.finished("fresh"))
        assert asker.kinds("expired") == []


async def test_a_replica_that_is_too_far_behind_takes_no_requests_until_it_has_caught_up(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with replica(memory_server, tmp_path) as (ctx, _), Asker.open(ctx.bus) as asker:
        entry = await ctx.bus.kv.get(wiring.HEAD.key("solver"))
        assert entry is not None
        far = msgspec.structs.replace(entry.message, version=2, manifest_sequence=10_000)  # a version that can't be had
        await ctx.bus.kv.put(wiring.HEAD.key("solver"), far)
        await eventually(lambda: ctx.last_error)
        await eventually(lambda: ctx.member().waits_for == "newer weights than version 0")
        await asker.ask("a")
        await eventually(lambda: queued(ctx))
        assert asker.kinds("a") == []
        await ctx.bus.kv.put(
            wiring.HEAD.key("solver"), msgspec.structs.replace(entry.message, version=1)
        )  # one behind is allowed
        await eventually(lambda: asker.finished("a"))


async def queued(ctx: ActorContext) -> int:
    return (await ctx.bus.queues.depths())["gen.solver"]


async def test_a_follow_up_is_taken_directly_while_there_is_room(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path, slow(0.05, slots=1)) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask_directly("first", ctx.incarnation)
        await asker.ask_directly("first", ctx.incarnation)  # it came twice
        await asker.ask_directly("second", ctx.incarnation)  # there is no slot
        await asker.ask_directly("newer", ctx.incarnation, min_version=7)
        await asker.ask_directly("other", ctx.incarnation, policy="verifier")
        await eventually(lambda: asker.finished("first"))
        assert asker.kinds("first").count(ChunkKind.ACCEPTED) == 1
        assert asker.kinds("second") == asker.kinds("newer") == [ChunkKind.GOODBYE]
        assert asker.kinds("other") == []
        await asker.ask("queued")
        await eventually(lambda: asker.finished("queued"))


async def test_a_replica_that_drains_hands_a_follow_up_over(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with replica(memory_server, tmp_path, slow(0.05)) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask_directly("long", ctx.incarnation)
        await eventually(lambda: asker.kinds("long"))
        ctx.stop("drain")
        await eventually(lambda: ChunkKind.GOODBYE in asker.kinds("long"))
