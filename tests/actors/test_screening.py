"""Tasks, requests and chunks that decode and yet must not reach an environment, an engine or a record."""

import math

import numpy as np
import pytest

from astraflow.actors.base.screening import verdict_on_request, verdict_on_task
from astraflow.actors.rollout.call_stream import well_formed
from astraflow.messages import ChunkKind, GenChunk, VersionSpan, array_of
from tests.e2e import hostile

REPLIES = "af.hostile.reply."


def test_absurd_tasks_are_faults_and_a_good_one_is_not() -> None:
    given = {"incarnation": "mine", "envs": {"game"}}
    assert verdict_on_task(hostile.task(), **given).ok
    assert verdict_on_task(hostile.task(id="mine/game/0/1/0"), **given).ok
    for task in [*hostile.absurd_tasks(), hostile.task(deadline_s=math.inf)]:
        assert not verdict_on_task(task, **given).ok


def test_absurd_requests_are_faults_and_a_good_one_is_not() -> None:
    assert verdict_on_request(hostile.request(), policy="solver", replies=REPLIES).ok
    for request in hostile.refused_requests():
        assert verdict_on_request(request, policy="solver", replies=REPLIES).ok  # the engine's business
    for request in hostile.absurd_requests():
        assert not verdict_on_request(request, policy="solver", replies=REPLIES).ok


@pytest.mark.parametrize(
    ("tokens", "logprobs", "spans", "good"),
    [
        ([1, 2], [-1, -1], [(5, 7)], True),
        ([1, 2], [-1, -1], [(5, 6), (6, 7)], True),
        ([], [], [], True),
        ([1, 2], [-1], [(5, 7)], False),
        ([1, 2], [-1, -1], [(0, 2)], False),
        ([1, 2], [-1, -1], [(5, 6)], False),
        ([1, 2], [-1, math.nan], [(5, 7)], False),
        ([1, -2], [-1, -1], [(5, 7)], False),
    ],
)
def test_a_chunk_s_spans_must_cover_its_tokens(
    tokens: list[int], logprobs: list[float], spans: list[tuple[int, int]], good: bool
) -> None:
    chunk = GenChunk(
        request_id="r",
        attempt=0,
        kind=ChunkKind.TOKENS,
        replica="x",
        position=5,
        tokens=array_of(np.array(tokens, np.int32), "i4"),
        logprobs=array_of(np.array(logprobs, np.float32), "f4"),
        versions=tuple(VersionSpan(version=1, start=start, end=end) for start, end in spans),
    )
    assert well_formed(chunk) is good
