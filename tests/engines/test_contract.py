"""All engines pass the contract: toy, slot decoder by family, transformers fallback."""

from collections.abc import AsyncIterator, Mapping

import numpy as np
import pytest
import torch

from astraflow.config import EngineSection
from astraflow.engines import linear
from astraflow.engines.base import PolicyEngine
from astraflow.engines.factory import build_engine
from astraflow.models.toy import TOY_TENSOR, TOY_VOCAB, toy_model
from astraflow.weights.codec.tensors import HostTensor
from tests.engines.contract import (
    CONTRACT,
    Check,
    a_swap_after_one_that_was_cancelled_leaves_no_mix,
    sparse_swaps_leave_what_a_fresh_engine_would_have,
)
from tests.engines.engine_case import EngineCase, OnUpdate
from tests.engines.engine_models import VOCAB, tiny_model

ENGINES = ("toy", "llama", "qwen2", "qwen3", "gpt2")
PACKED = ("llama-packed", "llama-untied-packed")
PACKED_CONTRACT = (sparse_swaps_leave_what_a_fresh_engine_would_have, a_swap_after_one_that_was_cancelled_leaves_no_mix)


def toy_case() -> EngineCase:
    tensors, files = toy_model()

    def load(slots: int, weights: Mapping[str, HostTensor], *, on_update: OnUpdate = "continue") -> PolicyEngine:
        section = EngineSection(kind="toy", slots=slots, toy_step_s=0.0002, on_update=on_update)
        return build_engine(section, files, weights, 0, 1)

    changed = np.arange(TOY_VOCAB, dtype="<f4").tobytes()
    other = {TOY_TENSOR: HostTensor("F32", (TOY_VOCAB,), memoryview(changed))}
    return EngineCase(load, tensors, other, TOY_VOCAB, weights_matter=False)


def torch_case(family: str) -> EngineCase:
    model = tiny_model(family)

    def load(slots: int, weights: Mapping[str, HostTensor], *, on_update: OnUpdate = "continue") -> PolicyEngine:
        section = EngineSection(slots=slots, dtype="fp32", kv_cache_mib=64, on_update=on_update)
        return build_engine(section, model.files, weights, 0, 1)

    return EngineCase(load, model.tensors, tiny_model(family, seed=1).tensors, VOCAB)


@pytest.fixture
def case(engine_name: str, monkeypatch: pytest.MonkeyPatch) -> EngineCase:
    if engine_name == "toy":
        return toy_case()
    if "packed" in engine_name:  # reordered weights, on machines too that would only reorder bf16, or nothing
        monkeypatch.setattr(linear, "PACKED_DTYPES", frozenset({torch.float32}))
    return torch_case(engine_name.removesuffix("-packed"))


@pytest.fixture
async def engine(case: EngineCase) -> AsyncIterator[PolicyEngine]:
    built = case.build(16)
    await built.start()
    yield built
    await built.stop()


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_contract(check: Check, case: EngineCase, engine: PolicyEngine) -> None:
    await check(case, engine)


@pytest.mark.parametrize("engine_name", PACKED)
@pytest.mark.parametrize("check", PACKED_CONTRACT, ids=lambda it: it.__name__)
async def test_reordered_weights_follow_too(check: Check, case: EngineCase, engine: PolicyEngine) -> None:
    assert linear.packing_works(torch.float32), "torch can't reorder fp32 weights here: nothing would be tested"
    await check(case, engine)
