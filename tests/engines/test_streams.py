"""Streams coalesce for slow consumers and lose nothing; the rate meter forgets."""

import pytest

from astraflow.engines.streams import EngineReply, EngineStream, RateMeter
from astraflow.errors import EngineError
from astraflow.messages import VersionSpan


def stream(reply: EngineReply) -> tuple[EngineStream, list[str]]:
    cancelled: list[str] = []
    return EngineStream(reply, cancelled.append), cancelled


async def test_what_a_slow_consumer_missed_comes_as_one_chunk_with_merged_spans() -> None:
    reply = EngineReply("r", position=10)
    chunks, cancelled = stream(reply)
    for token, version in ((1, 0), (2, 0), (3, 4), (4, 4)):
        reply.put((token,), (-float(token),), version)
    first = await anext(chunks)
    assert first.tokens.tolist() == [1, 2, 3, 4]
    assert first.logprobs.tolist() == [-1, -2, -3, -4]
    assert first.versions == (VersionSpan(version=0, start=10, end=12), VersionSpan(version=4, start=12, end=14))
    assert not first.finish_reason
    reply.put((5,), (-5.0,), 4, "stop")
    last = await anext(chunks)
    assert last.versions == (VersionSpan(version=4, start=14, end=15),)
    assert last.finish_reason == "stop"
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)
    await chunks.aclose()
    assert cancelled == []


async def test_an_error_comes_after_the_tokens_that_were_sampled_before_it() -> None:
    reply = EngineReply("r", position=0)
    chunks, _ = stream(reply)
    reply.put((1,), (-1.0,), 0)
    reply.fail("engine failed")
    assert (await anext(chunks)).tokens.tolist() == [1]
    for _ in range(2):
        with pytest.raises(EngineError, match="engine failed"):
            await anext(chunks)


async def test_nothing_is_put_into_an_ended_reply() -> None:
    reply = EngineReply("r", position=0)
    reply.put((), (), 0, "abort")
    reply.put((1,), (-1.0,), 0, "stop")
    reply.fail("late")
    chunks, _ = stream(reply)
    assert [(chunk.tokens.size, chunk.finish_reason) async for chunk in chunks] == [(0, "abort")]


async def test_closing_or_dropping_a_running_stream_cancels_once() -> None:
    chunks, cancelled = stream(EngineReply("closed", position=0))
    await chunks.aclose()
    await chunks.aclose()
    del chunks
    assert cancelled == ["closed"]
    dropped, cancelled = stream(EngineReply("dropped", position=0))
    del dropped
    assert cancelled == ["dropped"]


def test_the_rate_is_of_the_last_seconds() -> None:
    now = [100.0]
    meter = RateMeter(window_s=5.0, clock=lambda: now[0])
    assert meter.per_second() == 0
    now[0] = 102.0
    meter.add(40)
    assert meter.per_second() == pytest.approx(20)
    now[0] = 106.0
    meter.add(10)
    assert meter.per_second() == pytest.approx(10)
    now[0] = 108.0
    assert meter.per_second() == pytest.approx(2)
    now[0] = 200.0
    assert meter.per_second() == 0
