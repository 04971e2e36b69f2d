"""How a replica's chunks become messages."""

import asyncio

import numpy as np
import pytest

from astraflow.actors.policy import reply_stream
from astraflow.actors.policy.reply_stream import FLUSH_TOKENS, ReplyStream
from astraflow.bus import Bus
from astraflow.engines.base import TokenChunk
from astraflow.messages import ChunkKind, GenChunk, GenRequest, Sampling, VersionSpan, array_of
from tests.support import LIMIT_S


def request_of(bus: Bus) -> GenRequest:
    return GenRequest(
        id="r",
        attempt=0,
        policy="solver",
        prompt_tokens=array_of([1], "i4"),
        sampling=Sampling(max_new_tokens=100_000),
        seed=0,
        reply_subject=bus.topology.reply("here"),
    )


def chunk_of(first: int, count: int, finish_reason: str = "") -> TokenChunk:
    """Tokens that count up, so that a lost, repeated or swapped one shows."""
    return TokenChunk(
        tokens=np.arange(first, first + count, dtype=np.int32),
        logprobs=-np.arange(first, first + count, dtype=np.float32),
        versions=(VersionSpan(version=3, start=first, end=first + count),),
        finish_reason=finish_reason,
    )


async def sent(bus: Bus, chunks: list[TokenChunk]) -> list[GenChunk]:
    """What a requester gets for an engine's chunks, up to the one with the finish_reason."""
    request, messages = request_of(bus), []
    async with bus.core.subscribe(request.reply_subject) as replies, asyncio.timeout(LIMIT_S):
        stream = ReplyStream(bus, request, "replica")
        for chunk in chunks:
            await stream.add(chunk)
        async for decoded in replies:
            assert isinstance(decoded.message, GenChunk)
            messages.append(decoded.message)
            if decoded.message.finish_reason:
                break
    return messages


def joined(messages: list[GenChunk]) -> list[int]:
    return [int(token) for each in messages if each.tokens is not None for token in each.tokens.numpy()]


async def test_chunks_that_come_quickly_travel_together(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_stream, "FLUSH_S", 3600.0)

    (message,) = await sent(bus, [chunk_of(0, 16), chunk_of(16, 1), chunk_of(17, 40, "stop")])

    assert (message.kind, message.position, message.finish_reason) == (ChunkKind.TOKENS, 0, "stop")
    assert joined([message]) == list(range(57))
    assert message.logprobs is not None
    assert message.logprobs.numpy().tolist() == [-float(token) for token in range(57)]
    assert [(span.start, span.end) for span in message.versions] == [(0, 16), (16, 17), (17, 57)]


async def test_a_message_is_sent_when_it_is_large_or_old(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_stream, "FLUSH_S", 3600.0)
    large = await sent(bus, [chunk_of(0, FLUSH_TOKENS), chunk_of(FLUSH_TOKENS, 5, "length")])
    monkeypatch.setattr(reply_stream, "FLUSH_S", 0.0)
    old = await sent(bus, [chunk_of(0, 2), chunk_of(2, 2), chunk_of(4, 2, "stop")])

    assert [message.position for message in large] == [0, FLUSH_TOKENS]
    assert joined(large) == list(range(FLUSH_TOKENS + 5))
    assert [message.position for message in old] == [0, 2, 4]
    assert joined(old) == list(range(6))
