"""The requester's side against scripted replicas on a real server: silence, goodbye, gaps, foreign chunks, refusal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astraflow.actors.base.context import ActorContext
from astraflow.actors.rollout.call import Call, Completion
from astraflow.actors.rollout.generation import GenerationClient
from astraflow.bus import Bus
from astraflow.bus.memory import MemoryServer
from astraflow.errors import EngineError, RequestError
from astraflow.messages import ChunkKind, GenCancel, GenChunk, GenRequest, RequestFault, Sampling, VersionSpan, array_of
from tests.actors.contexts import context, with_bus
from tests.support import LIMIT_S, eventually


class Peer:
    """A replica under the test's control."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.name = name

    async def next_request(self) -> GenRequest:
        topology = self.bus.topology
        async with self.bus.queues.open(topology.gen_requests, topology.gen_consumer("solver")) as queue:
            (delivery,) = await queue.fetch(1)
            await delivery.ack()
            assert isinstance(delivery.message, GenRequest)
            return delivery.message

    async def say(self, request: GenRequest, kind: ChunkKind, **fields: object) -> None:
        chunk = GenChunk(request_id=request.id, attempt=request.attempt, kind=kind, replica=self.name, **fields)
        await self.bus.core.publish(request.reply_subject, chunk)

    async def tokens(self, request: GenRequest, position: int, *tokens: int, version: int = 1, end: str = "") -> None:
        await self.say(
            request,
            ChunkKind.TOKENS,
            position=position,
            tokens=array_of(tokens, "i4"),
            logprobs=array_of([-0.5] * len(tokens), "f4"),
            versions=(VersionSpan(version=version, start=position, end=position + len(tokens)),),
            finish_reason=end,
        )


CALL = Call(
    id="i/s/0/0/0@0#0",
    policy="solver",
    prompt_tokens=np.array([7, 8], np.int32),
    sampling=Sampling(max_new_tokens=6),
    seed=1,
)


@asynccontextmanager
async def asked(ctx: ActorContext, call: Call = CALL) -> AsyncIterator["asyncio.Task[Completion]"]:
    """A generation in flight."""
    async with GenerationClient.open(ctx) as client, asyncio.TaskGroup() as group:
        task = group.create_task(client.generate(call))
        yield task
        task.cancel()


async def test_a_completion_arrives_in_pieces(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        assert request.prompt_tokens.numpy().tolist() == [7, 8]
        await peer.say(request, ChunkKind.ACCEPTED)
        await peer.tokens(request, 0, 10, 11)
        await peer.tokens(request, 2, 12, version=2, end="stop")
        done = await answer
        assert done.tokens.tolist() == [10, 11, 12]
        assert [(span.version, span.start, span.end) for span in done.versions] == [(1, 0, 2), (2, 2, 3)]
        assert (done.finish_reason, done.attempts) == ("stop", 1)


@pytest.mark.parametrize("cause", ["silence", "goodbye", "gap"])
async def test_an_attempt_that_breaks_is_continued_with_the_tokens_so_far(
    memory_server: MemoryServer, tmp_path: Path, cause: str
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        first, second = Peer(ctx.bus, "a"), Peer(ctx.bus, "b")
        request = await first.next_request()
        await first.say(request, ChunkKind.ACCEPTED)
        await first.tokens(request, 0, 10, 11)
        if cause == "goodbye":
            await first.say(request, ChunkKind.GOODBYE)
        if cause == "gap":
            await first.tokens(request, 3, 13)

        again = await second.next_request()
        assert again.prompt_tokens.numpy().tolist() == [7, 8, 10, 11]
        assert (again.position, again.attempt, again.sampling.max_new_tokens) == (2, 1, 4)
        await second.say(again, ChunkKind.ACCEPTED)
        await first.tokens(request, 2, 99, end="stop")  # the first replica wakes up too late
        await second.tokens(again, 2, 12, version=3, end="length")

        done = await answer
        assert done.tokens.tolist() == [10, 11, 12]
        assert [(span.version, span.start, span.end) for span in done.versions] == [(1, 0, 2), (3, 2, 3)]
        assert done.attempts == 2


async def test_the_first_replica_that_accepts_owns_the_attempt_and_the_other_is_cancelled(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx:
        owner, other = Peer(ctx.bus, "a"), Peer(ctx.bus, "b")
        async with ctx.bus.core.subscribe(ctx.bus.topology.gen_cancel("solver")) as cancels, asked(ctx) as answer:
            request = await owner.next_request()
            await owner.say(request, ChunkKind.ACCEPTED)
            await other.say(request, ChunkKind.ACCEPTED)
            await other.tokens(request, 0, 99, end="stop")
            async with asyncio.timeout(LIMIT_S):
                cancel = (await anext(aiter(cancels))).message
            assert cancel == GenCancel(request_id=request.id, attempt=0, replica="b")
            await owner.tokens(request, 0, 10, end="stop")
            assert (await answer).tokens.tolist() == [10]


async def test_a_heartbeat_keeps_a_slow_replica(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        await peer.say(request, ChunkKind.ACCEPTED)
        silence_s = ctx.config.bus.silence_s
        loop = asyncio.get_running_loop()
        until = loop.time() + 3 * silence_s
        async with aclosing(_ticks(silence_s / 4)) as ticks:
            async for _ in ticks:
                await peer.say(request, ChunkKind.HEARTBEAT)
                if loop.time() > until:
                    break
        await peer.tokens(request, 0, 10, end="stop")
        assert (await answer).attempts == 1


async def _ticks(period_s: float) -> AsyncIterator[None]:
    while True:
        await asyncio.sleep(period_s)
        yield


@pytest.mark.parametrize(
    ("fault", "kind", "fills"),
    [
        (RequestFault.NONE, EngineError, False),
        (RequestFault.REQUEST, RequestError, False),
        (RequestFault.CONTEXT, RequestError, True),
    ],
)
async def test_a_refusal_is_an_error_with_the_replicas_words(
    memory_server: MemoryServer, tmp_path: Path, fault: RequestFault, kind: type[EngineError], fills: bool
) -> None:
    async with (
        context(memory_server, tmp_path, role="rollout") as ctx,
        GenerationClient.open(ctx) as client,
        asyncio.TaskGroup() as group,
    ):
        peer = Peer(ctx.bus, "a")

        async def refuse() -> None:
            request = await peer.next_request()
            await peer.say(request, ChunkKind.ACCEPTED)
            await peer.say(request, ChunkKind.REFUSED, error="context of 8 tokens is too short", fault=fault)

        group.create_task(refuse())
        with pytest.raises(EngineError, match="context of 8 tokens is too short") as caught:
            await client.generate(CALL)
        assert type(caught.value) is kind
        assert getattr(caught.value, "fills_context", False) is fills


async def test_a_cancelled_call_is_cancelled_at_the_replica(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with (
        context(memory_server, tmp_path, role="rollout") as ctx,
        ctx.bus.core.subscribe(ctx.bus.topology.gen_cancel("solver")) as cancels,
    ):
        async with asked(ctx) as answer:
            request = await Peer(ctx.bus, "a").next_request()
            answer.cancel()
        async with asyncio.timeout(LIMIT_S):
            cancel = (await anext(aiter(cancels))).message
        assert cancel == GenCancel(request_id=request.id, attempt=0)


async def test_a_stop_string_ends_a_call_and_the_replica_is_told(memory_server: MemoryServer, tmp_path: Path) -> None:
    call = replace(CALL, sampling=Sampling(max_new_tokens=6, stop=("bc",)), decode=lambda ids: "".join(map(chr, ids)))
    async with context(memory_server, tmp_path, role="rollout") as ctx:
        cancelled = ctx.bus.core.subscribe(ctx.bus.topology.gen_cancel("solver"))
        async with cancelled as cancels, asked(ctx, call) as answer:
            peer = Peer(ctx.bus, "a")
            request = await peer.next_request()
            await peer.say(request, ChunkKind.ACCEPTED)
            await peer.tokens(request, 0, *b"ab")
            await peer.tokens(request, 2, *b"cd", version=2)
            done = await answer
            async with asyncio.timeout(LIMIT_S):
                cancel = (await anext(aiter(cancels))).message
        assert (done.tokens.tolist(), done.stop_letters, done.finish_reason) == (list(b"abc"), 2, "stop")
        assert [(span.version, span.start, span.end) for span in done.versions] == [(1, 0, 2), (2, 2, 3)]
        assert cancel == GenCancel(request_id=request.id, attempt=0)


async def test_a_request_that_nobody_accepts_is_sent_again_after_its_ttl(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    config = with_bus(request_ttl_s=1.0)
    async with context(memory_server, tmp_path, role="rollout", config=config) as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        lost = await peer.next_request()  # taken and dropped, as by a replica that dies before it accepts
        again = await peer.next_request()
        assert (lost.attempt, again.attempt) == (0, 1)
        await peer.say(again, ChunkKind.ACCEPTED)
        await peer.tokens(again, 0, 10, end="stop")
        assert (await answer).tokens.tolist() == [10]


async def test_a_budget_that_is_used_up_ends_the_completion(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        await peer.say(request, ChunkKind.ACCEPTED)
        await peer.tokens(request, 0, 1, 2, 3, 4, 5, 6)
        await peer.say(request, ChunkKind.GOODBYE)
        done = await eventually(lambda: answer.done() and answer.result())
        assert (done.tokens.tolist(), done.finish_reason) == ([1, 2, 3, 4, 5, 6], "length")


FOLLOW_UP = replace(CALL, prefers="a")


@asynccontextmanager
async def asked_directly(ctx: ActorContext) -> AsyncIterator[tuple[GenRequest, "asyncio.Task[Completion]"]]:
    """What the replica with the prefix, called "a", gets of a follow-up."""
    async with (
        ctx.bus.core.subscribe(ctx.bus.topology.gen_replica("solver", "a")) as messages,
        asked(ctx, FOLLOW_UP) as answer,
    ):
        request = (await anext(messages)).message
        assert isinstance(request, GenRequest)
        yield request, answer


async def test_a_follow_up_goes_to_the_replica_that_holds_its_prefix(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked_directly(ctx) as (request, answer):
        peer = Peer(ctx.bus, "a")
        await peer.say(request, ChunkKind.ACCEPTED)
        await peer.tokens(request, 0, 10, end="stop")
        done = await answer
        assert (done.tokens.tolist(), done.replica, done.attempts) == ([10], "a", 1)
        assert (await ctx.bus.logs.state(ctx.bus.topology.gen_requests)).last_sequence == 0


@pytest.mark.parametrize("cause", ["full", "gone", "dies"])
async def test_a_follow_up_whose_replica_cannot_take_it_is_queued(
    memory_server: MemoryServer, tmp_path: Path, cause: str
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked_directly(ctx) as (request, answer):
        holder, other = Peer(ctx.bus, "a"), Peer(ctx.bus, "b")
        so_far = []
        if cause == "full":
            await holder.say(request, ChunkKind.GOODBYE)
        if cause == "dies":
            so_far = [10]
            await holder.tokens(request, 0, 10)
        again = await other.next_request()
        assert (again.attempt, again.prompt_tokens.numpy().tolist()) == (1, [7, 8, *so_far])
        await other.tokens(again, len(so_far), 11, end="stop")
        done = await answer
        assert (done.tokens.tolist(), done.replica) == ([*so_far, 11], "b")


async def test_what_an_old_attempt_says_before_the_new_one_is_accepted_is_not_taken(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    call = replace(CALL, min_version=4)
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx, call) as answer:
        first, second = Peer(ctx.bus, "a"), Peer(ctx.bus, "b")
        request = await first.next_request()
        assert request.min_version == 4
        await first.tokens(request, 0, 10, 11)
        await first.say(request, ChunkKind.GOODBYE)
        again = await second.next_request()
        assert again.min_version == 4
        await first.tokens(request, 2, 99, end="stop")
        await second.tokens(again, 2, 12, end="length")
        assert (await answer).tokens.tolist() == [10, 11, 12]
