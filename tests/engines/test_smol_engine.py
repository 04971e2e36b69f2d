"""The real SmolLM2-135M-Instruct through the engine."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from astraflow.config import EngineSection
from astraflow.engines.base import EngineRequest
from astraflow.engines.cpu import CpuEngine
from astraflow.envs.base import ChatMessage
from astraflow.messages import Sampling
from astraflow.models.folder import read_model
from astraflow.models.smollm2 import prepare_smollm2
from astraflow.models.tokenizer import load_tokenizer
from tests.engines.engine_case import read
from tests.support import prompt_tokens

pytestmark = [pytest.mark.smol, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare_smollm2()


async def greedy(folder: Path, prompt: list[int], count: int, dtype: str) -> list[int]:
    engine = CpuEngine(*read_model(folder), section=EngineSection(dtype=dtype))  # type: ignore[arg-type]
    await engine.start()
    request = EngineRequest(
        id="r",
        prompt_tokens=np.array(prompt, dtype=np.int32),
        sampling=Sampling(max_new_tokens=count, temperature=0.0),
        seed=0,
    )
    try:
        return list((await read(engine.generate(request))).tokens)
    finally:
        await engine.stop()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
async def test_greedy_text_is_sane(folder: Path, dtype: str) -> None:
    tokenizer = load_tokenizer(folder)
    prompt = prompt_tokens(
        tokenizer, [ChatMessage("system", "Be short."), ChatMessage("user", "What is the capital of France?")]
    )
    text = tokenizer.decode(await greedy(folder, prompt, 20, dtype))
    assert text == "The capital of France is Paris."


async def test_greedy_tokens_equal_transformers_in_fp32(folder: Path) -> None:
    messages = [ChatMessage("system", "Be short."), ChatMessage("user", "Write a sentence about the sea.")]
    prompt = prompt_tokens(load_tokenizer(folder), messages)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    with torch.inference_mode():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0]
    assert await greedy(folder, prompt, 24, "fp32") == out[len(prompt) :].tolist()
