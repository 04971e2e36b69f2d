"""Requests and chunks that get lost, doubled or mixed up, on a real server."""

import asyncio
import itertools
import time
from pathlib import Path

import msgspec
import pytest

from astraflow.actors.rollout.generation import GenerationClient
from astraflow.bus import Bus, EmbeddedServer
from astraflow.bus.memory import MemoryServer
from astraflow.errors import EngineError
from astraflow.messages import ChunkKind, GenCancel, GenRequest, Sampling, array_of
from tests.actors.contexts import context
from tests.actors.test_generation import CALL, Peer, asked
from tests.actors.test_policy import Asker, replica, slow
from tests.support import AT_ONCE_S, LIMIT_S, eventually, kill


async def test_two_calls_with_the_same_id_are_two_requests(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with (
        context(memory_server, tmp_path, role="rollout") as ctx,
        GenerationClient.open(ctx) as client,
        asyncio.TaskGroup() as group,
    ):
        answers = [group.create_task(client.generate(CALL)) for _ in range(2)]
        peer = Peer(ctx.bus, "a")
        for request in [await peer.next_request(), await peer.next_request()]:
            await peer.say(request, ChunkKind.ACCEPTED)
            await peer.tokens(request, 0, 10, 11, end="stop")
        async with asyncio.timeout(LIMIT_S):
            assert [(await answer).tokens.tolist() for answer in answers] == [[10, 11], [10, 11]]


async def test_a_lost_accepted_loses_nothing(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        await peer.tokens(request, 0, 10)
        await peer.tokens(request, 1, 11, end="stop")
        async with asyncio.timeout(LIMIT_S):
            done = await answer
        assert (done.tokens.tolist(), done.attempts) == ([10, 11], 1)


async def test_a_request_that_was_taken_without_a_word_is_sent_again(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        await peer.next_request()  # all that it says of it is lost
        async with asyncio.timeout(AT_ONCE_S):  # the TTL is 20 s
            again = await peer.next_request()
            assert again.attempt == 1
            await peer.tokens(again, 0, 10, end="stop")
            assert (await answer).tokens.tolist() == [10]


async def test_a_chunk_that_comes_twice_changes_nothing(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        for position in (0, 0, 1, 0, 1):
            await peer.tokens(request, position, 10 + position)
        await peer.tokens(request, 2, 12, end="stop")
        async with asyncio.timeout(LIMIT_S):
            done = await answer
        assert (done.tokens.tolist(), done.attempts) == ([10, 11, 12], 1)


async def test_an_end_without_tokens_is_an_end(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        await peer.tokens(request, 0, 10)
        await peer.tokens(request, 1, end="stop")
        async with asyncio.timeout(LIMIT_S):
            done = await answer
        assert (done.tokens.tolist(), done.finish_reason, done.attempts) == ([10], "stop", 1)


async def test_a_replica_that_goes_on_with_a_forgotten_request_is_told_once(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with (
        context(memory_server, tmp_path, role="rollout") as ctx,
        ctx.bus.core.subscribe(ctx.bus.topology.gen_cancel("solver")) as cancels,
        GenerationClient.open(ctx) as client,
        asyncio.TaskGroup() as group,
    ):
        heard: list[GenCancel] = []

        async def listen() -> None:
            async for decoded in cancels:
                heard.append(decoded.message)

        listener = group.create_task(listen())
        task = group.create_task(client.generate(CALL))
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        task.cancel()
        await eventually(lambda: GenCancel(request_id=request.id, attempt=0) in heard)
        for position in range(5):
            await peer.tokens(request, position, 1)
        await eventually(lambda: GenCancel(request_id=request.id, attempt=0, replica="a") in heard)
        other = GenRequest(
            id="last|x|solver",
            attempt=0,
            policy="solver",
            prompt_tokens=array_of([1], "i4"),
            sampling=Sampling(),
            seed=1,
            reply_subject=request.reply_subject,
        )
        await peer.say(other, ChunkKind.HEARTBEAT)
        await eventually(lambda: any(cancel.request_id == other.id for cancel in heard))
        assert [cancel.replica for cancel in heard if cancel.request_id == request.id] == ["", "a"]
        listener.cancel()


async def test_requests_that_a_restarted_server_forgot_are_sent_again_at_once(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    again = EmbeddedServer(tmp_path / "nats", port=server.port)
    async with context(server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        await eventually(lambda: _queued(ctx.bus))
        await kill(server)
        await again.start()
        async with asyncio.timeout(AT_ONCE_S):  # the TTL is 20 s
            peer = Peer(ctx.bus, "a")
            request = await peer.next_request()
            assert request.attempt == 1
            await peer.tokens(request, 0, 10, end="stop")
            assert (await answer).tokens.tolist() == [10]
    await again.stop()


async def test_a_loop_of_our_own_that_was_blocked_is_no_replicas_silence(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        context(nats_server, tmp_path, role="rollout") as ctx,
        GenerationClient.open(ctx) as client,
        asyncio.TaskGroup() as group,
    ):
        answer = group.create_task(client.generate(CALL))
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        await peer.tokens(request, 0, 10)
        await eventually(lambda: [stream.count for stream in client._streams.values()] == [1])
        await peer.tokens(request, 1, 11)
        time.sleep(4 * ctx.config.bus.silence_s)  # noqa: ASYNC251 - what is tested
        await peer.tokens(request, 2, 12, end="stop")
        async with asyncio.timeout(LIMIT_S):
            done = await answer
        assert (done.tokens.tolist(), done.attempts) == ([10, 11, 12], 1)


async def test_a_request_that_silences_one_replica_after_the_other_is_given_up(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, GenerationClient.open(ctx) as client:
        async with asyncio.TaskGroup() as group:

            async def die() -> None:
                for number in itertools.count():
                    peer = Peer(ctx.bus, f"replica-{number}")
                    request = await peer.next_request()
                    assert request.attempt == number
                    await peer.say(request, ChunkKind.ACCEPTED)
                    if number == 1:  # a token is progress: it is not the request's fault
                        await peer.tokens(request, 0, 10)

            dying = group.create_task(die())
            with pytest.raises(EngineError, match=r"5 replicas of solver in a row went silent at .* without a token"):
                await client.generate(CALL)
            dying.cancel()
        assert client.continued == 7


async def _queued(bus: Bus) -> bool:
    return (await bus.queues.depths())["gen.solver"] == 1


async def test_a_second_delivery_of_a_running_request_changes_nothing(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with replica(memory_server, tmp_path, slow(0.05)) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("a")
        await eventually(lambda: asker.tokens("a"))
        await asker.ask("a", msg_id="redelivered")
        await eventually(lambda: asker.finished("a"))
        await asker.ask("b")
        await eventually(lambda: asker.finished("b"))
        assert asker.kinds("a").count(ChunkKind.ACCEPTED) == 1
        assert ChunkKind.REFUSED not in asker.kinds("a")
        assert len(asker.tokens("a")) == 20
        await eventually(lambda: _empty(ctx.bus))


async def _empty(bus: Bus) -> bool:
    return (await bus.queues.depths())["gen.solver"] == 0


async def test_a_request_that_comes_again_and_again_is_a_dead_letter_beside_others(
    memory_server: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.actors.policy.actor.VERSION_WITHIN_S", 0.1)
    async with context(memory_server, tmp_path, role="rollout") as ctx, Asker.open(ctx.bus) as asker:
        topology = ctx.bus.topology
        await asker.ask("poison", min_version=99)
        async with ctx.bus.queues.open(topology.gen_requests, topology.gen_consumer("solver")) as queue:
            for _ in range(1000):
                (delivery,) = await queue.fetch(1)
                await delivery.nak()
        async with replica(memory_server, tmp_path, slow(0.01, slots=1)):
            await asker.ask("good")
            await eventually(lambda: asker.finished("good"), within_s=20)
            await eventually(lambda: _empty(ctx.bus), within_s=20)
        (letter,) = await ctx.bus.dead_letters.read()
        assert letter.reason == "request 'poison' wants version 99, which never came"


async def test_a_request_that_is_cancelled_before_it_starts_frees_its_slot(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with replica(memory_server, tmp_path, slow(0.01, slots=1)) as (ctx, _), Asker.open(ctx.bus) as asker:
        await asker.ask("early", min_version=1)
        await eventually(lambda: not ctx.member().waits_for)
        await ctx.bus.core.publish(ctx.bus.topology.gen_cancel("solver"), GenCancel(request_id="early"))
        await asker.ask("next")
        await eventually(lambda: asker.finished("next"))
        assert asker.kinds("early") == []


async def test_what_the_bus_of_a_replica_counted_is_in_its_member_record(
    memory_server: MemoryServer, tmp_path: Path
) -> None:
    async with replica(memory_server, tmp_path) as (ctx, _), Asker.open(ctx.bus) as asker:
        for _ in range(2):
            await asker.ask("a", msg_id="the same")
        await eventually(lambda: ctx.member().gauges.get("bus.duplicates") == 1)


async def test_chunks_of_requests_that_cannot_be_ours_are_ignored(memory_server: MemoryServer, tmp_path: Path) -> None:
    async with context(memory_server, tmp_path, role="rollout") as ctx, asked(ctx) as answer:
        peer = Peer(ctx.bus, "a")
        request = await peer.next_request()
        for id in ("", "x", "x|", "x|*", "x|a b", "x|>", "x|solver.x", "\x1b|\n", "|" * 999):
            await peer.say(msgspec.structs.replace(request, id=id), ChunkKind.ACCEPTED)
        await peer.tokens(request, 0, 10, end="stop")
        async with asyncio.timeout(LIMIT_S):
            assert (await answer).tokens.tolist() == [10]
