"""After new weights, running sequences are computed anew: beside others, within the budget, in the memory they have.

The batcher is driven by hand, so that each test decides in which step the weights change.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from astraflow.engines.base import EngineRequest
from astraflow.engines.batching import Batcher
from astraflow.engines.decoder import SlotDecoder
from astraflow.messages import Sampling
from astraflow.weights.codec.tensors import HostTensor
from tests.engines.engine_case import request
from tests.engines.engine_models import tiny_model
from tests.engines.test_cpu_engine import batcher
from tests.engines.test_decoder import decoder

OLD, NEW = tiny_model("llama"), tiny_model("llama", seed=1)
BYTES_PER_TOKEN = 2 * 3 * 2 * 12 * 4


def change(model: SlotDecoder, batch: Batcher, tensors: Mapping[str, HostTensor] = NEW.tensors) -> None:
    model.prepare(tensors)()
    batch.recompute()


def steps(batch: Batcher, count: int, tokens: dict[str, list[int]]) -> list[set[str]]:
    """Whom each of the next steps gives a token; all tokens are added to `tokens`."""
    served = []
    for _ in range(count):
        found = batch.step()
        for item in found:
            tokens.setdefault(item.request_id, []).append(item.token)
        served.append({item.request_id for item in found})
    return served


def finish(batch: Batcher, tokens: dict[str, list[int]]) -> None:
    while not batch.idle:
        steps(batch, 1, tokens)


def goes_on(item: EngineRequest, tokens: list[int], kept: int) -> bool:
    """Whether what follows the first `kept` tokens is what an engine gives that always had the new weights."""
    batch = batcher(decoder(NEW))
    prompt_tokens = np.concatenate([item.prompt_tokens, np.array(tokens[:kept], dtype=np.int32)])
    sampling = Sampling(max_new_tokens=item.sampling.max_new_tokens - kept, ignore_eos=True)
    batch.submit(replace(item, prompt_tokens=prompt_tokens, sampling=sampling, position=kept))
    found: dict[str, list[int]] = {}
    finish(batch, found)
    return found[item.id] == tokens[kept:]


def test_others_get_tokens_while_a_long_request_is_computed_anew() -> None:
    model = decoder(OLD)
    batch = batcher(model, prefill_tokens=10)
    short, long = request("short", length=4, count=40), request("long", length=90, seed=9, count=20)
    tokens: dict[str, list[int]] = {}
    batch.submit(short)
    batch.submit(long)
    while len(tokens.get("long", ())) < 3:
        steps(batch, 1, tokens)
    kept = {id: len(found) for id, found in tokens.items()}
    change(model, batch)
    served = steps(batch, 12, tokens)
    assert served[0] == set(), "both are computed anew, and ten tokens a step don't complete either"
    first = next(index for index, ids in enumerate(served) if "short" in ids)
    assert all("short" in ids for ids in served[first:])
    assert sum("long" in ids for ids in served[first:]) <= 3, "it waits for nearly 93 + 15 tokens"
    finish(batch, tokens)
    assert goes_on(short, tokens["short"], kept["short"])
    assert goes_on(long, tokens["long"], kept["long"])


def test_a_group_computes_its_prompt_anew_once() -> None:
    model = decoder(OLD)
    batch = batcher(model)
    group = [replace(request(f"{i}", seed=4, length=60, count=10), seed=i) for i in range(8)]
    for item in group:
        batch.submit(item)
    tokens: dict[str, list[int]] = {}
    steps(batch, 4, tokens)
    before = model.reused_tokens
    change(model, batch)
    finish(batch, tokens)
    assert model.reused_tokens - before == 7 * 60
    assert all(goes_on(item, tokens[item.id], 4) for item in group)


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("after", [0, 1])
def test_a_request_can_be_cancelled_while_its_group_is_computed_anew(gone: int, after: int) -> None:
    model = decoder(OLD)
    batch = batcher(model, prefill_tokens=16)
    group = [replace(request(f"{i}", seed=4, length=60, count=9), seed=i) for i in range(3)]
    for item in group:
        batch.submit(item)
    tokens: dict[str, list[int]] = {}
    while not tokens:
        steps(batch, 1, tokens)
    change(model, batch)
    assert steps(batch, after, tokens) == [set()] * after
    assert batch.cancel(str(gone))
    finish(batch, tokens)
    for item in group:
        assert len(tokens[item.id]) == (1 if item.id == str(gone) else 9)
        assert item.id == str(gone) or goes_on(item, tokens[item.id], 1)


def test_weights_that_change_again_meanwhile_count_from_the_start() -> None:
    model = decoder(OLD)
    batch = batcher(model, prefill_tokens=16)
    group = [replace(request(f"{i}", seed=i // 2, length=50 + i // 2, count=9), seed=i) for i in range(4)]
    for item in group:
        batch.submit(item)
    tokens: dict[str, list[int]] = {}
    while len(tokens) < 4:
        steps(batch, 1, tokens)
    change(model, batch, tiny_model("llama", seed=2).tensors)
    steps(batch, 2, tokens)
    kept = {id: len(found) for id, found in tokens.items()}
    change(model, batch)
    finish(batch, tokens)
    assert all(goes_on(item, tokens[item.id], kept[item.id]) for item in group)


def test_it_takes_no_memory_but_what_the_requests_have() -> None:
    model = decoder(OLD, budget_bytes=128 * BYTES_PER_TOKEN)
    batch = batcher(model)
    requests = [request(f"{i}", seed=i, count=30) for i in range(3)]
    for item in requests:
        batch.submit(item)
    tokens: dict[str, list[int]] = {}
    steps(batch, 5, tokens)
    assert set(tokens) == {"0", "1"}, "two rows of 64 tokens fit"
    change(model, batch)
    assert steps(batch, 2, tokens) == [{"0", "1"}] * 2
    finish(batch, tokens)
    assert goes_on(requests[0], tokens["0"], 5)
    assert goes_on(requests[2], tokens["2"], 0)


def test_nothing_of_broken_weights_stays() -> None:
    """Token by token, a sequence attends over the whole row from some length on, and 0 · NaN is NaN."""
    model = decoder(OLD)
    batch = batcher(model, prefill_tokens=1)
    item = request("r", length=60, count=3)
    name = "model.layers.0.self_attn.v_proj.weight"
    shape = NEW.tensors[name].shape
    nan = HostTensor("F32", shape, memoryview(np.full(shape, np.nan, dtype="<f4").tobytes()))
    batch.submit(item)
    change(model, batch, {name: nan})
    tokens: dict[str, list[int]] = {}
    assert steps(batch, 55, tokens) == [set()] * 55
    change(model, batch)
    finish(batch, tokens)
    assert goes_on(item, tokens["r"], 0)


def test_only_what_was_computed_anew_serves_new_requests() -> None:
    model = decoder(OLD)
    batch = batcher(model)
    tokens: dict[str, list[int]] = {}
    batch.submit(request("old", length=60, count=30))
    steps(batch, 3, tokens)
    change(model, batch)
    later = request("later", length=60, count=2)
    batch.submit(replace(later, id="at once", prompt_tokens=later.prompt_tokens[:30]))
    steps(batch, 1, tokens)
    assert model.reused_tokens == 0
    batch.submit(later)
    finish(batch, tokens)
    assert model.reused_tokens == 59
    assert goes_on(later, tokens["later"], 0)
