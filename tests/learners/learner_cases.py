"""Tiny models and batches for the learner tests."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from astraflow.config import TrainerSection
from astraflow.learners.torch_learner import TorchLearner
from astraflow.messages import Sample, array_of
from astraflow.weights.codec.tensors import HostTensor

VOCABULARY = 64
DTYPES = [("fp32", torch.float32), ("bf16", torch.bfloat16)]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,  # large enough that attention matters to the logits
}


def config_of(family: str, **changes: Any) -> transformers.PreTrainedConfig:
    if family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, **changes
        )
    classes = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "granite": transformers.GraniteConfig,
    }
    head = {"head_dim": 8} if family == "qwen3" else {}
    return classes[family](**(SIZES | head | changes))


def model_folder(
    folder: Path, family: str = "llama", *, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any
) -> Path:
    """A random model, saved as transformers saves it."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(family, **changes)).to(dtype)
    model.save_pretrained(folder)
    return folder


def sample(
    prompt: list[int],
    completion: list[int],
    *,
    advantage: float = 1.0,
    group: str = "g",
    member: int = 0,
    behaviour: list[float] | None = None,
) -> Sample:
    mask = [0] * len(prompt) + [1] * len(completion)
    logprobs = [0.0] * len(prompt) + (behaviour or [-4.0] * len(completion))
    return Sample(
        id=f"{group}/{member}#0",
        task_id=f"{group}/{member}",
        group_id=group,
        tokens=array_of(prompt + completion, "i4"),
        loss_mask=array_of(mask, "u1"),
        logprobs=array_of(logprobs, "f4"),
        versions=(),
        advantage=advantage,
        reward=0.0,
    )


def batch(seed: int = 0, *, groups: int = 3, members: int = 4) -> list[Sample]:
    """Groups with one prompt each, completions of 0 to 9 tokens, some advantages 0, behaviour near a random model's."""
    rng = np.random.default_rng(seed)
    samples = []
    for g in range(groups):
        prompt = rng.integers(0, VOCABULARY, rng.integers(3, 12)).tolist()
        for m in range(members):
            length = int(rng.integers(1, 10)) if (g, m) != (1, 1) else 0
            samples.append(
                sample(
                    prompt,
                    rng.integers(0, VOCABULARY, length).tolist(),
                    advantage=0.0 if (g, m) == (0, 2) else float(rng.normal()),
                    group=f"g{g}",
                    member=m,
                    behaviour=(-4.2 + 0.5 * rng.normal(size=length)).tolist(),
                )
            )
    return samples


def section(**changes: Any) -> TrainerSection:
    return TrainerSection(**({"steps": 1, "learning_rate": 1e-3, "dtype": "fp32", "micro_batch_tokens": 64} | changes))


def digest(tensors: Mapping[str, HostTensor]) -> str:
    """Of all names and bytes."""
    lines = [f"{name} {tensor.dtype} {tensor.shape} {tensor.digest()}" for name, tensor in sorted(tensors.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def as_torch(tensor: HostTensor) -> torch.Tensor:
    dtype = {"F32": torch.float32, "BF16": torch.bfloat16}[tensor.dtype]
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).view(tensor.shape)


def learner(folder: Path, settings: TrainerSection | None = None, *, seed: int = 0, share: bool = True) -> TorchLearner:
    return TorchLearner(folder, settings or section(), seed=seed, threads=1, share_prefixes=share)


def state(one: TorchLearner, folder: Path) -> tuple[str, bytes]:
    """Everything that `save` stores, and what is exported."""
    folder.mkdir(exist_ok=True)
    one.save(folder)
    return digest(one.export()), (folder / "learner.json").read_bytes() + (folder / "learner.safetensors").read_bytes()
