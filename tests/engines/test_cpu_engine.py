"""What is particular to the in-process engine: batching, shared prefills, swaps to the token, failure, memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from astraflow.config import EngineSection
from astraflow.engines.batching import Batcher
from astraflow.engines.cpu import CpuEngine
from astraflow.engines.decoder import SlotDecoder
from astraflow.errors import ConfigError, EngineError, RequestError, WeightsError
from astraflow.models.folder import read_model
from astraflow.weights.codec.changes import ChangedElements
from astraflow.weights.codec.tensors import HostTensor
from tests.engines.engine_case import read, read_all, request
from tests.engines.engine_models import TinyModel, prompt, tiny_model
from tests.engines.test_decoder import decoder
from tests.support import LIMIT_S

UNTIED = tiny_model("llama-untied")
SECTION = EngineSection(slots=16, dtype="fp32", kv_cache_mib=64)


@pytest.fixture
async def engine() -> AsyncIterator[CpuEngine]:
    built = CpuEngine(UNTIED.files, UNTIED.tensors, section=SECTION)
    await built.start()
    yield built
    await built.stop()


def batcher(model: SlotDecoder, *, slots: int = 16, prefill_tokens: int = 2048) -> Batcher:
    return Batcher(model, slots=slots, prefill_tokens=prefill_tokens, eos_token_ids=())


def run(batch: Batcher) -> dict[str, list[int]]:
    """Steps until nothing is left; tokens by request."""
    tokens: dict[str, list[int]] = {}
    while not batch.idle:
        for item in batch.step():
            tokens.setdefault(item.request_id, []).append(item.token)
    return tokens


@pytest.mark.parametrize("temperature", [0.7, 1.0, 0.0])
async def test_logprobs_are_what_transformers_computes(engine: CpuEngine, temperature: float) -> None:
    item = request("r", count=40, temperature=temperature)
    found = await read(engine.generate(item))
    want = UNTIED.logprobs(item.prompt_tokens.tolist(), found.tokens, temperature or 1.0)
    np.testing.assert_allclose(found.logprobs, want, atol=5e-5)
    if temperature == 0:
        assert list(found.tokens) == UNTIED.greedy(item.prompt_tokens.tolist(), 40)


async def test_after_a_swap_the_next_token_is_sampled_by_the_new_weights_and_no_earlier_one(engine: CpuEngine) -> None:
    """Only the head changes, so keys and values stay right and every logprob has one correct answer."""
    head = tiny_model("llama-untied", seed=1).tensors["lm_head.weight"]
    item = request("r", count=200)
    stream = engine.generate(item)
    first = await anext(stream)
    await engine.swap(1, {"lm_head.weight": head})
    found = await read(stream, position=len(first.tokens))
    tokens = [*first.tokens.tolist(), *found.tokens]
    seam = found.versions[-1].start
    assert 0 < seam < 200
    swapped = torch.frombuffer(bytearray(head.data), dtype=torch.float32).view(97, 48)
    with torch.inference_mode():
        hidden = UNTIED.reference.model(torch.tensor([item.prompt_tokens.tolist() + tokens])).last_hidden_state[0]
        logits = torch.cat([UNTIED.reference.lm_head(hidden[11 : 11 + seam]), hidden[11 + seam : -1] @ swapped.T])
    want = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    np.testing.assert_allclose([*first.logprobs, *found.logprobs], want, atol=1e-4)


async def test_a_cohort_on_an_idle_engine_repeats_itself_to_the_last_bit(engine: CpuEngine) -> None:
    requests = [request(f"{i}", seed=i // 3, length=8 + i // 3) for i in range(9)]
    found = []
    for _ in range(2):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(stream)) for stream in engine.generate_together(requests)]
        found.append([task.result() for task in tasks])
        await engine.swap(0, UNTIED.tensors)  # forgets prefixes, as every new version does
    assert found[0] == found[1]


def test_equal_prompts_are_prefilled_once_and_sampled_apart() -> None:
    model = decoder(tiny_model("llama"))
    batch = batcher(model)
    group = [replace(request(f"{i}", seed=4, length=60, count=10), seed=i) for i in range(8)]
    for item in group:
        batch.submit(item)
    together = run(batch)
    assert model.reused_tokens == 7 * 60
    assert len({tuple(tokens) for tokens in together.values()}) == 8
    for item in group:
        alone = batcher(decoder(tiny_model("llama")))
        alone.submit(item)
        assert run(alone)[item.id] == together[item.id]


@pytest.mark.parametrize("gone", [0, 1])
def test_twins_go_on_when_one_of_them_is_cancelled_during_the_prefill(gone: int) -> None:
    batch = batcher(decoder(tiny_model("llama")), prefill_tokens=16)
    group = [replace(request(f"{i}", seed=4, length=60, count=5), seed=i) for i in range(3)]
    for item in group:
        batch.submit(item)
    batch.step()
    assert batch.cancel(str(gone))
    tokens = run(batch)
    assert {id: len(found) for id, found in tokens.items()} == {str(i): 5 for i in range(3) if i != gone}
    alone = batcher(decoder(tiny_model("llama")))
    alone.submit(group[2])
    assert run(alone)["2"] == tokens["2"]


def test_decoding_goes_on_beside_a_long_prefill() -> None:
    batch = batcher(decoder(tiny_model("llama")), prefill_tokens=10)
    batch.submit(request("short", length=4, count=50))
    batch.step()
    batch.submit(request("long", length=95, seed=9, count=5))
    steps = [[item.request_id for item in batch.step()] for _ in range(10)]
    assert all("short" in step for step in steps)
    assert [("long" in step) for step in steps] == [False] * 9 + [True]


def test_requests_wait_for_kv_memory_and_then_run() -> None:
    model = tiny_model("llama")
    bytes_per_token = 2 * 3 * 2 * 12 * 4
    few = batcher(decoder(model, budget_bytes=128 * bytes_per_token))
    many = batcher(decoder(model))
    for batch in (few, many):
        for i in range(6):
            batch.submit(request(f"{i}", seed=i, count=30))
    assert len({item.request_id for item in few.step()}) == 2, "two rows of 64 tokens fit"
    found = run(few)
    assert {id: tokens[-29:] for id, tokens in found.items()} == {id: tokens[1:] for id, tokens in run(many).items()}


async def test_a_request_beyond_the_kv_memory_is_refused() -> None:
    files = dict(UNTIED.files)
    config = json.loads(files["config.json"]) | {"max_position_embeddings": 1 << 20}
    section = EngineSection(dtype="fp32", kv_cache_mib=1)
    engine = CpuEngine({"config.json": json.dumps(config).encode()}, UNTIED.tensors, section=section)
    await engine.start()
    try:
        assert engine.context_length == 1024
        with pytest.raises(EngineError, match="context has 1024"):
            engine.generate(request("r", count=1020))
    finally:
        await engine.stop()


async def test_the_configured_context_length_holds() -> None:
    engine = CpuEngine(UNTIED.files, UNTIED.tensors, section=EngineSection(dtype="fp32", context_length=40))
    await engine.start()
    try:
        assert len((await read(engine.generate(request("fits", count=28)))).tokens) == 28
        with pytest.raises(EngineError, match="context has 40"):
            engine.generate(request("long", count=29))
    finally:
        await engine.stop()


async def test_a_crash_of_the_engine_thread_ends_every_stream_with_an_error(
    engine: CpuEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [engine.generate(request(f"{i}", seed=i, count=200)) for i in range(3)]
    await anext(streams[0])

    def out_of_memory(self: SlotDecoder, segments: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(SlotDecoder, "forward", out_of_memory)
    for stream in streams:
        with pytest.raises(EngineError, match="can't allocate memory"):
            async for _ in stream:
                pass
    assert "can't allocate memory" in engine.load().error
    with pytest.raises(EngineError, match="can't allocate memory"):
        engine.generate(request("late"))
    with pytest.raises(EngineError, match="can't allocate memory"):
        await engine.swap(1, UNTIED.tensors)


async def test_broken_weights_fail_their_requests_and_leave_no_trace_after_the_next_swap(engine: CpuEngine) -> None:
    before = await read(engine.generate(request("before", count=60)))
    name = "model.layers.0.self_attn.v_proj.weight"
    good = UNTIED.tensors[name]
    broken = HostTensor("F32", good.shape, memoryview(np.full(good.shape, np.nan, dtype="<f4").tobytes()))
    running = engine.generate(request("running", count=200))
    await anext(running)
    await engine.swap(1, {name: broken})
    with pytest.raises(EngineError, match="version 1 gives logits that are not finite"):
        async for _ in running:
            pass
    streams = [engine.generate(request(f"{i}", seed=i, length=60 + i, count=20)) for i in range(8)]
    for stream in streams:
        with pytest.raises(EngineError, match="not finite"):
            await read(stream)
    assert (engine.load().running, engine.load().error) == (0, "")
    await engine.swap(2, {name: good})
    requests = [request(f"after-{i}", count=60) for i in range(8)]
    assert {item.tokens for item in await read_all(engine, requests)} == {before.tokens}


async def test_an_engine_whose_swap_fails_half_way_serves_nothing_any_more(engine: CpuEngine) -> None:
    running = engine.generate(request("running", count=200))
    position = len((await anext(running)).tokens)
    first, last = list(UNTIED.tensors)[:2]
    shape = UNTIED.tensors[last].shape
    outside = ChangedElements("F32", shape, np.array([10**9]), np.zeros(1, "<u4"))
    with pytest.raises(EngineError, match="out of bounds"):
        await engine.swap(1, {first: tiny_model("llama-untied", seed=1).tensors[first], last: outside})
    with pytest.raises(EngineError, match="out of bounds"):
        await read(running, position)
    assert "out of bounds" in engine.load().error
    with pytest.raises(EngineError, match="out of bounds"):
        engine.generate(request("late"))


async def test_weights_that_do_not_fit_are_refused_at_start() -> None:
    tensors: Mapping[str, HostTensor] = {
        name: tensor for name, tensor in UNTIED.tensors.items() if name != "model.norm.weight"
    }
    engine = CpuEngine(UNTIED.files, tensors, section=SECTION)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
        await engine.start()
    assert engine.load().error
    await engine.stop()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no config.json"),
        ({"config.json": b"{"}, "not JSON"),
        ({"config.json": b"[]"}, "expected an object"),
        ({"config.json": b'{"vocab_size": 5}'}, "names no model_type"),
        ({"config.json": b'{"model_type": "no-such-type"}'}, "no-such-type"),
        ({"config.json": b'{"model_type": "llama", "vocab_size": "many"}'}, "vocab_size"),
        ({"config.json": b'{"model_type": "llama", "eos_token_id": "</s>"}'}, "eos_token_id"),
        ({"config.json": b'{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}'}, "quantised .awq"),
    ],
)
def test_unusable_configs_are_refused(files: Mapping[str, bytes], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CpuEngine(files, {}, section=SECTION)


async def test_an_unknown_architecture_is_refused_at_start() -> None:
    config = {"model_type": "no-such-type", "vocab_size": 10, "max_position_embeddings": 10}
    engine = CpuEngine({"config.json": json.dumps(config).encode()}, {}, section=SECTION)
    with pytest.raises(ConfigError, match="no-such-type"):
        await engine.start()
    await engine.stop()


async def test_a_folder_is_served_with_the_end_tokens_of_all_its_files(tmp_path: Path) -> None:
    model = tiny_model("qwen2")
    model.reference.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    engine = CpuEngine(*read_model(tmp_path), section=SECTION)
    await engine.start()
    try:
        assert engine.eos_token_ids == (1, 5, 9)  # config.json says 1
        found = await read(engine.generate(request("r", temperature=0.0)))
        assert list(found.tokens) == model.greedy(prompt(12, 5).tolist(), 24)
    finally:
        await engine.stop()


async def test_stopping_while_requests_wait_and_weights_change_leaves_nobody_hanging() -> None:
    engine = CpuEngine(UNTIED.files, UNTIED.tensors, section=replace_slots(1))
    await engine.start()
    streams = [engine.generate(request(f"{i}", count=200)) for i in range(3)]

    async def swap() -> float | None:
        try:
            return await engine.swap(1, UNTIED.tensors)
        except EngineError:
            return None

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        group.create_task(swap())
        tasks = [group.create_task(read(stream)) for stream in streams]
        await asyncio.sleep(0)
        await engine.stop()
    assert [task.result().finish_reason for task in tasks] == ["abort"] * 3


def replace_slots(slots: int) -> EngineSection:
    return EngineSection(slots=slots, dtype="fp32", kv_cache_mib=64)


async def test_filters_are_applied_to_what_is_sampled_but_not_to_logprobs(engine: CpuEngine) -> None:
    item = request("r", count=60, top_k=1)
    found = await read(engine.generate(item))
    assert list(found.tokens) == UNTIED.greedy(item.prompt_tokens.tolist(), 60)
    assert max(found.logprobs) < 0
    want = UNTIED.logprobs(item.prompt_tokens.tolist(), found.tokens)
    np.testing.assert_allclose(found.logprobs, want, atol=5e-5)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
async def test_the_fallback_computes_what_transformers_computes(family: str) -> None:
    model: TinyModel = tiny_model(family)
    engine = CpuEngine(model.files, model.tensors, section=SECTION)
    await engine.start()
    try:
        requests = [request(f"{i}", seed=i // 2, count=15, temperature=float(i % 2)) for i in range(6)]
        for item, found in zip(requests, await read_all(engine, requests), strict=True):
            prompt_tokens = item.prompt_tokens.tolist()
            np.testing.assert_allclose(found.logprobs, model.logprobs(prompt_tokens, found.tokens), atol=5e-5)
            if item.sampling.temperature == 0:
                assert list(found.tokens) == model.greedy(prompt_tokens, 15)
        other = tiny_model(family, seed=1)
        await engine.swap(1, other.tensors)
        greedy = await read(engine.generate(request("after", count=10, temperature=0.0)))
        assert list(greedy.tokens) == other.greedy(prompt(12, 5).tolist(), 10)
    finally:
        await engine.stop()


async def test_an_abandoned_stream_frees_its_slot(engine: CpuEngine) -> None:
    async for _ in engine.generate(request("left", count=200)):
        break
    await read(engine.generate(request("after", count=30)))
    assert engine.load().running == 0


async def test_before_min_tokens_no_end_token_is_sampled(engine: CpuEngine) -> None:
    first = (await read(engine.generate(request("a", temperature=0)))).tokens[0]
    ends = {"stop_token_ids": (int(first),), "ignore_eos": False, "temperature": 0}
    assert len((await read(engine.generate(request("b", **ends)))).tokens) == 1
    found = await read(engine.generate(request("c", min_tokens=6, **ends)))
    assert len(found.tokens) >= 6
    assert first not in found.tokens[:6]


@pytest.mark.parametrize("setting", ["presence_penalty", "frequency_penalty"])
async def test_what_the_engine_lacks_is_refused_by_name(engine: CpuEngine, setting: str) -> None:
    with pytest.raises(RequestError, match=f"asks for {setting} = 0.5, which the cpu engine doesn't have"):
        engine.generate(request("r", **{setting: 0.5}))
    await read(engine.generate(request("r", seed=7, **{setting: 0.0})))
