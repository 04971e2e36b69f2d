"""The toy engine's tokens, its speed-independent behaviour and that it needs no torch."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from astraflow.config import EngineSection
from astraflow.engines.toy import MAX_LENGTH, MIN_LENGTH, ToyEngine, toy_completion
from astraflow.errors import EngineError
from astraflow.models.toy import TOY_EOS, TOY_TENSOR, TOY_VOCAB, toy_model
from tests.engines.engine_case import read_all, request
from tests.engines.engine_models import prompt


def toy_engine(**section: object) -> ToyEngine:
    tensors, files = toy_model()
    return ToyEngine(files, tensors, section=EngineSection(kind="toy", **section))  # type: ignore[arg-type]


def completion(prompt_seed: int, seed: int, first: int = 0, count: int = 40) -> list[int]:
    tokens, _ = toy_completion(prompt(20, prompt_seed), seed, first, count, vocab_size=TOY_VOCAB, eos=TOY_EOS)
    return [int(token) for token in tokens]


def test_completions_are_finite_and_depend_on_prompt_and_seed() -> None:
    found = [completion(p, s) for p in range(20) for s in range(20)]
    lengths = {tokens.index(TOY_EOS) + 1 for tokens in found}
    assert lengths == set(range(MIN_LENGTH, MAX_LENGTH + 1))
    assert all(tokens.count(TOY_EOS) == 1 for tokens in found)
    assert len({tuple(tokens) for tokens in found}) == len(found)
    assert all(0 <= token < TOY_VOCAB for tokens in found for token in tokens)


def test_any_part_of_a_completion_is_computed_alone() -> None:
    whole = completion(1, 2)
    for first in range(0, 40, 3):
        assert completion(1, 2, first, 40 - first) == whole[first:]


@pytest.mark.parametrize("step_s", [0.0, 0.0001])
async def test_tokens_do_not_depend_on_step_time(step_s: float) -> None:
    engine = toy_engine(slots=4, toy_step_s=step_s)
    await engine.start()
    found = await read_all(engine, [replace(request(str(i), ignore_eos=False, count=40), seed=i) for i in range(12)])
    await engine.stop()
    for i, item in enumerate(found):
        tokens, _ = toy_completion(prompt(12, 5), i, 0, 40, vocab_size=TOY_VOCAB, eos=TOY_EOS)
        assert list(item.tokens) == tokens[: tokens.tolist().index(TOY_EOS) + 1].tolist()


async def test_weights_are_kept_as_given() -> None:
    engine = toy_engine()
    await engine.start()
    tensors, _ = toy_model()
    changed = np.linspace(0, 1, TOY_VOCAB, dtype="<f4")
    await engine.swap(3, {TOY_TENSOR: replace(tensors[TOY_TENSOR], data=memoryview(changed.tobytes()))})
    assert engine.weights.tolist() == changed.tolist()
    await engine.stop()


async def test_requests_before_start_are_refused() -> None:
    with pytest.raises(EngineError, match="start"):
        toy_engine().generate(request("early"))


def test_another_models_config_is_refused() -> None:
    tensors, _ = toy_model()
    with pytest.raises(EngineError, match="llama"):
        ToyEngine({"config.json": b'{"model_type": "llama"}'}, tensors, section=EngineSection(kind="toy"))


async def test_a_toy_completion_has_one_chunk_per_step() -> None:
    engine = toy_engine(toy_step_s=0.0005)
    await engine.start()
    chunks = [chunk async for chunk in engine.generate(request("r", count=10))]
    await engine.stop()
    assert [len(chunk.tokens) for chunk in chunks] == [1] * 10


def test_toy_and_factory_import_no_torch() -> None:
    code = "import sys, astraflow.engines.factory, astraflow.models.toy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
