"""What every engine must do, as functions of a case; `test_contract.py` runs them all on all engines."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pytest

from astraflow.engines.base import PolicyEngine, TokenChunk, TokenStream
from astraflow.errors import EngineError, WeightsError
from astraflow.messages import Sampling, VersionSpan
from astraflow.weights.codec.tensors import HostTensor
from tests.engines.engine_case import EngineCase, Replica, merge, read, read_all, request
from tests.engines.engine_models import prompt


async def streams_run_to_their_length_with_valid_logprobs(case: EngineCase, engine: PolicyEngine) -> None:
    for item in await read_all(engine, [request(str(i), count=1 + 7 * i, seed=i) for i in range(6)]):
        assert item.finish_reason == "length"
        assert all(logprob <= 0 for logprob in item.logprobs)
        assert all(0 <= token < case.vocab_size for token in item.tokens)
    counts = [len(item.tokens) for item in await read_all(engine, [request(str(i), count=1 + 7 * i) for i in range(6)])]
    assert counts == [1, 8, 15, 22, 29, 36]


async def stop_tokens_end_a_completion_and_are_part_of_it(case: EngineCase, engine: PolicyEngine) -> None:
    temperature = case.repeatable()
    free = await read(engine.generate(request("free", temperature=temperature)))
    stop = free.tokens[5]
    first = free.tokens.index(stop)
    stopped = await read(engine.generate(request("stopped", stop_token_ids=(stop,), temperature=temperature)))
    assert stopped.finish_reason == "stop"
    assert stopped.tokens == free.tokens[: first + 1]


async def the_models_end_token_ends_a_completion(case: EngineCase, engine: PolicyEngine) -> None:
    found = await read_all(engine, [request(str(i), count=100, seed=i, ignore_eos=False) for i in range(8)])
    ended = [item for item in found if item.finish_reason == "stop"]
    assert ended
    for item in ended:
        assert item.tokens[-1] in engine.eos_token_ids
        assert not set(item.tokens[:-1]) & set(engine.eos_token_ids)


async def a_seed_gives_the_same_tokens_alone_and_in_company(case: EngineCase, engine: PolicyEngine) -> None:
    requests = [request(f"r{i}", seed=100 + i, length=5 + i, temperature=case.repeatable()) for i in range(10)]
    alone = [await read(engine.generate(item)) for item in requests]
    together = await read_all(engine, requests)
    assert [item.tokens for item in alone] == [item.tokens for item in together]
    assert len({item.tokens for item in alone}) == len(alone)


async def a_continuation_equals_the_undisturbed_completion(case: EngineCase, engine: PolicyEngine) -> None:
    for temperature in {case.repeatable(), 0.0}:
        whole = request("whole", temperature=temperature)
        undisturbed = await read(engine.generate(whole))
        for cut in (1, 9, 23):
            rest = replace(
                whole,
                id=f"rest-{cut}",
                prompt_tokens=np.concatenate([whole.prompt_tokens, np.array(undisturbed.tokens[:cut], dtype=np.int32)]),
                sampling=Sampling(max_new_tokens=24 - cut, ignore_eos=True, temperature=temperature),
                position=cut,
            )
            continued = await read(engine.generate(rest), position=cut)
            assert continued.tokens == undisturbed.tokens[cut:]
            assert continued.versions == (VersionSpan(version=0, start=cut, end=24),)
            np.testing.assert_allclose(continued.logprobs, undisturbed.logprobs[cut:], atol=1e-4)


async def cancel_ends_a_stream_with_abort_and_frees_its_slot(case: EngineCase, engine: PolicyEngine) -> None:
    stream = engine.generate(request("long", count=200))
    other = engine.generate(request("other"))
    await anext(stream)
    await engine.cancel("long")
    await engine.cancel("unknown")
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].finish_reason == "abort"
    assert (await read(other)).finish_reason == "length"
    assert engine.load().running == 0
    assert (await read(engine.generate(request("long")))).finish_reason == "length"


async def a_waiting_request_can_be_cancelled(case: EngineCase, engine: PolicyEngine) -> None:
    small = case.build(1)
    await small.start()
    try:
        running, waiting = small.generate(request("running", count=150)), small.generate(request("waiting"))
        assert (small.load().running, small.load().queued) in ((1, 1), (0, 2))
        await small.cancel("waiting")
        assert (await read(waiting)).finish_reason == "abort"
        assert len((await read(running)).tokens) == 150
    finally:
        await small.stop()


async def closing_a_stream_cancels_its_request(case: EngineCase, engine: PolicyEngine) -> None:
    stream = engine.generate(request("closed", count=200))
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await read(engine.generate(request("after")))
    assert engine.load().running == 0


async def more_requests_than_slots_are_all_served(case: EngineCase, engine: PolicyEngine) -> None:
    small = case.build(3)
    await small.start()
    try:
        requests = [request(str(i), seed=i, count=10, temperature=case.repeatable()) for i in range(11)]
        few = await read_all(small, requests)
    finally:
        await small.stop()
    assert [item.tokens for item in few] == [item.tokens for item in await read_all(engine, requests)]


async def a_swap_takes_effect_between_two_tokens_of_running_requests(case: EngineCase, engine: PolicyEngine) -> None:
    stream = engine.generate(request("swapped", count=200))
    first = await anext(stream)
    pause_s = await engine.swap(7, case.tensors)
    assert 0 <= pause_s < 5
    assert engine.load().version == 7
    rest = await read(stream, position=len(first.tokens))
    old, new = merge([*first.versions, *rest.versions])
    assert (old.version, old.start, new.version, new.end) == (0, 0, 7, 200)
    assert old.end == new.start >= len(first.tokens)
    after = await read(engine.generate(request("after")))
    assert after.versions == (VersionSpan(version=7, start=0, end=24),)


async def a_swap_that_changes_nothing_names_the_version(case: EngineCase, engine: PolicyEngine) -> None:
    before = await read(engine.generate(request("before", temperature=case.repeatable())))
    await engine.swap(3, {})
    assert engine.load().version == 3
    after = await read(engine.generate(request("after", temperature=case.repeatable())))
    assert after.tokens == before.tokens
    assert after.versions == (VersionSpan(version=3, start=0, end=24),)


async def after_a_swap_recomputed_requests_go_on_as_on_a_fresh_engine(case: EngineCase, engine: PolicyEngine) -> None:
    recomputing = case.load(16, case.first, on_update="recompute")
    fresh = case.load(16, case.tensors)
    try:
        await recomputing.start()
        await fresh.start()
        for built, same in ((recomputing, True), (engine, not case.weights_matter)):
            assert await goes_on_as(fresh, built, case) == same
    finally:
        await recomputing.stop()
        await fresh.stop()


async def goes_on_as(fresh: PolicyEngine, engine: PolicyEngine, case: EngineCase) -> bool:
    """Whether the tokens after a swap, and their logprobs, are what an engine gives that always had these weights.

    Two of the requests share their prompt, as a group's members do.
    """
    temperature = case.repeatable()
    requests = [
        replace(request(f"r{i}", count=200, seed=i, temperature=temperature), prompt_tokens=prompt(length, 0))
        for i, length in enumerate((40, 40, 9))
    ]
    streams = engine.generate_together(requests)
    firsts = [await anext(stream) for stream in streams]
    await engine.swap(7, case.tensors)
    found, again = [], []
    for item, stream, first in zip(requests, streams, firsts, strict=True):
        tokens, logprobs, seam = await read_beyond(stream, first, version=7, count=24)
        found.append((tokens[seam:], logprobs[seam:]))
        prompt_tokens = np.concatenate([item.prompt_tokens, np.array(tokens[:seam], dtype=np.int32)])
        sampling = Sampling(max_new_tokens=len(tokens) - seam, ignore_eos=True, temperature=temperature)
        again.append(replace(item, prompt_tokens=prompt_tokens, sampling=sampling, position=seam))
    wanted = await read_all(fresh, again)
    return all(
        list(want.tokens) == tokens and np.allclose(want.logprobs, logprobs, rtol=0, atol=1e-4)
        for want, (tokens, logprobs) in zip(wanted, found, strict=True)
    )


async def read_beyond(
    stream: TokenStream, first: TokenChunk, *, version: int, count: int
) -> tuple[list[int], list[float], int]:
    """Read until there are `count` tokens of a version, then cancel. Returns: tokens, logprobs, where it starts."""
    chunks = [first]
    while sum(span.end - span.start for chunk in chunks for span in chunk.versions if span.version == version) < count:
        chunks.append(await anext(stream))
    await stream.aclose()
    last = merge([span for chunk in chunks for span in chunk.versions])[-1]
    assert last.version == version
    tokens = [int(token) for chunk in chunks for token in chunk.tokens]
    return tokens, [float(logprob) for chunk in chunks for logprob in chunk.logprobs], last.start


async def a_swap_that_does_not_fit_changes_nothing(case: EngineCase, engine: PolicyEngine) -> None:
    before = await read(engine.generate(request("before", temperature=case.repeatable())))
    name, good = next(iter(case.tensors.items()))
    item = good.data.nbytes // int(np.prod(good.shape))
    grown = (good.shape[0] + 1, *good.shape[1:])
    longer = HostTensor(good.dtype, grown, memoryview(bytes(item * int(np.prod(grown)))))
    integers = HostTensor("I32" if item == 4 else "I16", good.shape, good.data)
    for bad in ({"no.such.weight": good}, {name: longer}, {name: integers}):
        with pytest.raises(WeightsError, match=next(iter(bad)).replace(".", r"\.")):
            await engine.swap(9, {**case.tensors, **bad})
    assert engine.load().version == 0
    after = await read(engine.generate(request("after", temperature=case.repeatable())))
    assert (after.tokens, after.versions) == (before.tokens, before.versions)


async def sparse_swaps_leave_what_a_fresh_engine_would_have(case: EngineCase, engine: PolicyEngine) -> None:
    replica = Replica(case)
    running = engine.generate(request("running", count=200))
    for seed in range(1, 6):
        replica.step(seed)
        if seed != 2:  # then the engine is two versions behind
            await engine.swap(seed, replica.behind.changes(replica.shadow, engine.takes_elements))
            replica.behind.clear()
    assert len((await read(running)).tokens) == 200
    await equals_a_fresh_engine(case, engine, replica, version=5)


async def a_swap_after_one_that_was_cancelled_leaves_no_mix(case: EngineCase, engine: PolicyEngine) -> None:
    replica = Replica(case)
    running = engine.generate(request("running", count=200))
    for seed in range(1, 4):
        replica.step(seed)
        async with asyncio.TaskGroup() as group:
            swap = group.create_task(engine.swap(seed, replica.behind.changes(replica.shadow, engine.takes_elements)))
            await asyncio.sleep(0)
            swap.cancel()
    replica.step(4)
    await engine.swap(4, replica.behind.changes(replica.shadow, engine.takes_elements))
    assert len((await read(running)).tokens) == 200
    await equals_a_fresh_engine(case, engine, replica, version=4)


async def equals_a_fresh_engine(case: EngineCase, engine: PolicyEngine, replica: Replica, *, version: int) -> None:
    """Tokens and logprobs to the last bit."""
    fresh = case.load(16, replica.shadow.tensors)
    await fresh.start()
    requests = [request(f"{i}", seed=i, temperature=case.repeatable(float(i % 3)), length=5 + 4 * i) for i in range(6)]
    try:
        for item in requests:
            want, got = await read(fresh.generate(item)), await read(engine.generate(item))
            assert (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
            assert {span.version for span in got.versions} == {version}
    finally:
        await fresh.stop()


async def bad_requests_are_refused_at_once(case: EngineCase, engine: PolicyEngine) -> None:
    good = request("good")
    bad = {
        "context": replace(good, sampling=Sampling(max_new_tokens=engine.context_length)),
        "at least one": replace(good, prompt_tokens=np.empty(0, dtype=np.int32)),
        str(case.vocab_size): replace(good, prompt_tokens=np.array([1, case.vocab_size], dtype=np.int32)),
        "-1": replace(good, prompt_tokens=np.array([-1], dtype=np.int32)),
        "new tokens": replace(good, sampling=Sampling(max_new_tokens=0)),
        "temperature": replace(good, sampling=Sampling(max_new_tokens=9, temperature=float("nan"))),
        "top_p": replace(good, sampling=Sampling(max_new_tokens=9, top_p=0.0)),
        "top_k": replace(good, sampling=Sampling(max_new_tokens=9, top_k=-1)),
        "position": replace(good, position=12),
    }
    for words, item in bad.items():
        with pytest.raises(EngineError, match=words):
            engine.generate(item)
    with pytest.raises(EngineError, match="top_k"):
        engine.generate_together([good, replace(bad["top_k"], id="bad")])
    stream = engine.generate(good)
    with pytest.raises(EngineError, match="already running"):
        engine.generate(good)
    assert (await read(stream)).finish_reason == "length"


async def stop_aborts_what_runs_and_can_be_repeated(case: EngineCase, engine: PolicyEngine) -> None:
    stream = engine.generate(request("running", count=200))
    await anext(stream)
    await engine.stop()
    await engine.stop()
    assert [chunk async for chunk in stream][-1].finish_reason == "abort"
    with pytest.raises(EngineError):
        engine.generate(request("late"))


async def load_counts_requests_and_tokens(case: EngineCase, engine: PolicyEngine) -> None:
    assert (engine.load().running, engine.load().queued, engine.load().tokens_per_s) == (0, 0, 0)
    stream = engine.generate(request("one", count=200))
    await anext(stream)
    load = engine.load()
    assert (load.running, load.queued, load.version, load.error) == (1, 0, 0, "")
    assert load.tokens_per_s > 0
    await stream.aclose()


Check = Callable[[EngineCase, PolicyEngine], Awaitable[None]]
CONTRACT: tuple[Check, ...] = (
    streams_run_to_their_length_with_valid_logprobs,
    stop_tokens_end_a_completion_and_are_part_of_it,
    the_models_end_token_ends_a_completion,
    a_seed_gives_the_same_tokens_alone_and_in_company,
    a_continuation_equals_the_undisturbed_completion,
    cancel_ends_a_stream_with_abort_and_frees_its_slot,
    a_waiting_request_can_be_cancelled,
    closing_a_stream_cancels_its_request,
    more_requests_than_slots_are_all_served,
    a_swap_takes_effect_between_two_tokens_of_running_requests,
    a_swap_that_changes_nothing_names_the_version,
    after_a_swap_recomputed_requests_go_on_as_on_a_fresh_engine,
    a_swap_that_does_not_fit_changes_nothing,
    sparse_swaps_leave_what_a_fresh_engine_would_have,
    a_swap_after_one_that_was_cancelled_leaves_no_mix,
    bad_requests_are_refused_at_once,
    stop_aborts_what_runs_and_can_be_repeated,
    load_counts_requests_and_tokens,
)
