"""All engines pass the contract: toy, slot decoder by family, transformers fallback."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

from astraflow.algos.tensors import HostTensor
from astraflow.config import EngineSection
from astraflow.engines.base import PolicyEngine
from astraflow.engines.factory import build_engine
from astraflow.models.toy import TOY_TENSOR, TOY_VOCAB, toy_model
from tests.engines.contract import CONTRACT, Check, EngineCase
from tests.engines.engine_models import VOCAB, tiny_model

ENGINES = ("toy", "llama", "qwen2", "qwen3", "gpt2")


def toy_case() -> EngineCase:
    tensors, files = toy_model()

    def build(slots: int) -> PolicyEngine:
        section = EngineSection(kind="toy", slots=slots, toy_step_s=0.0002)
        return build_engine(section, files, tensors, 0, 1)

    changed = np.arange(TOY_VOCAB, dtype="<f4").tobytes()
    return EngineCase(build, {TOY_TENSOR: HostTensor("F32", (TOY_VOCAB,), memoryview(changed))}, TOY_VOCAB)


def torch_case(family: str) -> EngineCase:
    model = tiny_model(family)

    def build(slots: int) -> PolicyEngine:
        section = EngineSection(slots=slots, dtype="fp32", kv_cache_mib=64)
        return build_engine(section, model.files, model.tensors, 0, 1)

    return EngineCase(build, tiny_model(family, seed=1).tensors, VOCAB)


@pytest.fixture
def case(engine_name: str) -> EngineCase:
    return toy_case() if engine_name == "toy" else torch_case(engine_name)


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
