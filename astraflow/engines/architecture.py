"""What a model's config.json says, as far as engines need it.

Reads JSON only; no weights, no transformers. Invariant: a `DecoderSpec` exists only for configs that the slot decoder
computes exactly as transformers does; everything else is left to the transformers fallback.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.errors import EngineError

SLOT_DECODER_TYPES = frozenset({"llama", "qwen2", "qwen3"})


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What any causal language model has."""

    model_type: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Frequency scaling of Llama 3.1 and later."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A Llama-shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None  # None: plain rotary positions
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool


def read_facts(files: Mapping[str, bytes]) -> ModelFacts:
    """Facts from config.json (and generation_config.json for end tokens). Raises EngineError if one is missing."""
    config = _json(files, "config.json")
    generation = _json(files, "generation_config.json") if "generation_config.json" in files else {}
    try:
        return ModelFacts(
            model_type=str(config["model_type"]),
            vocab_size=int(config["vocab_size"]),
            context_length=int(config.get("max_position_embeddings") or config["n_positions"]),
            eos_token_ids=_token_ids(generation.get("eos_token_id"), config.get("eos_token_id")),
            config=config,
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise EngineError(f"the model's config.json can't be used: {exc!r}") from exc


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        value = json.loads(files[name])
    except KeyError as exc:
        raise EngineError(f"the model has no {name}, only {sorted(files)}") from exc
    except ValueError as exc:
        raise EngineError(f"the model's {name} is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise EngineError(f"the model's {name} holds a {type(value).__name__}, expected an object")
    return value


def _token_ids(*candidates: Any) -> tuple[int, ...]:
    for value in candidates:
        if isinstance(value, int):
            return (value,)
        if value:
            return tuple(int(item) for item in value)
    return ()


def decoder_spec(facts: ModelFacts) -> DecoderSpec | None:
    """The slot decoder's view of a model; None if it can't compute this one exactly."""
    config = facts.config
    rope = config.get("rope_parameters") or {
        **(config.get("rope_scaling") or {}),
        "rope_theta": config.get("rope_theta"),
    }
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    sliding = config.get("use_sliding_window") or any(t != "full_attention" for t in config.get("layer_types") or ())
    if (
        facts.model_type not in SLOT_DECODER_TYPES
        or config.get("hidden_act", "silu") != "silu"
        or sliding
        or rope_type not in ("default", "llama3")
        or float(rope.get("partial_rotary_factor") or 1.0) != 1.0
        or config.get("quantization_config")
    ):
        return None
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    qwen2 = facts.model_type == "qwen2"
    bias = bool(config.get("attention_bias", False))
    return DecoderSpec(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        feed_forward=int(config["intermediate_size"]),
        vocab_size=facts.vocab_size,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or 10000.0),
        rope_scaling=_scaling(rope) if rope_type == "llama3" else None,
        qkv_bias=qwen2 or bias,
        out_bias=bias and not qwen2,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=facts.model_type == "qwen3",
        tied=bool(config.get("tie_word_embeddings", False)),
    )


def _scaling(rope: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )
