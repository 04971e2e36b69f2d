"""A SGLang server passes the contract of all engines, over HTTP. Run by `make test-sglang`."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from astraflow.engines.base import PolicyEngine
from astraflow.weights.codec.tensors import HostTensor
from tests.engines.contract import CONTRACT, Check
from tests.engines.engine_case import EngineCase
from tests.engines.engine_models import VOCAB, tiny_model
from tests.sglang.live import Pool, PooledEngine, servers

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    model = tiny_model("llama")
    folder: Path = tmp_path_factory.mktemp("model")
    async with servers(3, folder, model.files, model.tensors) as made:
        yield made


@pytest.fixture
def case(pool: Pool) -> EngineCase:
    model = tiny_model("llama")

    def load(slots: int, weights: Mapping[str, HostTensor], *, on_update: str = "continue") -> PolicyEngine:
        return PooledEngine(pool, model.files, weights, slots=slots, on_update=on_update)

    return EngineCase(load, model.tensors, tiny_model("llama", seed=1).tensors, VOCAB, seeded=False)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_contract(check: Check, case: EngineCase) -> None:
    engine = case.build(16)
    try:
        await engine.start()
        await check(case, engine)
    finally:
        await engine.stop()
