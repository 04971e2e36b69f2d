"""Tiny random models of several families, as files and host tensors, and their reference in transformers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from astraflow.models.export import export_tensors
from astraflow.models.layout import checkpoint_layout
from astraflow.weights.codec.tensors import HostTensor

VOCAB = 97
EOS = 1
CONTEXT = 256
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-untied": {"model_type": "llama", "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "llama3-rope": {
        "model_type": "llama",
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": False},
}
FALLBACK_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "gpt_neox": {"model_type": "gpt_neox"},
}
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": EOS,
    "bos_token_id": 0,
    "initializer_range": 0.3,
}


@dataclass(frozen=True)
class TinyModel:
    """A reference model and what a replica would get of it."""

    reference: Any
    files: Mapping[str, bytes]
    tensors: Mapping[str, HostTensor]

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """float32[T, V] of transformers."""
        with torch.inference_mode():
            logits: Tensor = self.reference(input_ids=torch.tensor([list(tokens)])).logits[0]
        return logits

    def logprobs(self, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Of each completion token, by transformers."""
        scaled = self.logits([*prompt, *completion])[len(prompt) - 1 : -1] / temperature
        chosen = torch.log_softmax(scaled, -1).gather(1, torch.tensor(list(completion)).unsqueeze(1))
        found: list[float] = chosen.squeeze(1).tolist()
        return found

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The most likely continuation, end tokens ignored."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]


def host_tensor(tensor: Tensor) -> HostTensor:
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return HostTensor(names[tensor.dtype], tuple(tensor.shape), memoryview(data))


@cache
def tiny_model(family: str, seed: int = 0) -> TinyModel:
    """The model of a family; another seed gives other weights under the same names."""
    settings = FAMILIES.get(family) or FALLBACK_FAMILIES[family]
    merged = {**_SHAPE, **settings}
    config = AutoConfig.for_model(merged.pop("model_type"), **merged)
    torch.manual_seed(seed)
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():  # norms and biases start at 1 and 0, which would hide that they are applied
        for parameter in reference.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape)
    config.architectures = [type(reference).__name__]  # as a saved model says
    tensors = export_tensors(reference.state_dict(), checkpoint_layout(reference))
    return TinyModel(reference, {"config.json": json.dumps(config.to_dict()).encode()}, tensors)


def prompt(length: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32[length] without end tokens."""
    return np.random.default_rng(seed).integers(2, 60, length).astype(np.int32)
