"""Whether the slot decoder computes a model, and which shapes it has then.

No weights but for the question whether the output layer is the embedding; absent keys and dialects of config.json are
settled by transformers (`models/derived.py`). Invariant: a `DecoderSpec` exists only for models that the slot decoder
computes exactly as transformers does; everything else is left to the transformers fallback.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraflow.errors import ConfigError
from astraflow.weights.codec.tensors import HostTensor

_SLOT_DECODER_TYPES = frozenset({"llama", "qwen2", "qwen3"})
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


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


def decoder_spec(config: Any, tensors: Mapping[str, HostTensor]) -> DecoderSpec | None:
    """The slot decoder's view of a model; None if it can't compute this one exactly.

    Args:
        config: transformers' config object.
        tensors: the checkpoint's; only the two that may be tied are looked at.

    Raises: ConfigError for a config of one of the slot decoder's families that makes no sense.
    """
    if config.model_type not in _SLOT_DECODER_TYPES or config.hidden_act not in ("silu", "swish"):
        return None
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return None
    rope = config.rope_parameters or {}
    if rope.get("rope_type") not in ("default", "llama3") or (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        return None
    llama, qwen2 = config.model_type == "llama", config.model_type == "qwen2"
    bias = bool(getattr(config, "attention_bias", False))
    try:
        return DecoderSpec(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            feed_forward=config.intermediate_size,
            vocab_size=config.vocab_size,
            norm_eps=float(config.rms_norm_eps),
            rope_theta=float(rope["rope_theta"]),
            rope_scaling=_scaling(rope) if rope["rope_type"] == "llama3" else None,
            qkv_bias=qwen2 or bias,
            out_bias=bias and not qwen2,
            mlp_bias=llama and bool(config.mlp_bias),
            qk_norm=config.model_type == "qwen3",
            tied=bool(config.tie_word_embeddings) and not differs(tensors, EMBEDDING, HEAD),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise ConfigError(f"the model's config.json can't be used: {exc!r}") from exc


def differs(tensors: Mapping[str, HostTensor], one: str, other: str) -> bool:
    """Whether a checkpoint holds two tensors that config.json ties, and they aren't equal: then transformers keeps
    both. An absent one is no difference."""
    if one not in tensors or other not in tensors:
        return False
    first, second = tensors[one], tensors[other]
    return (first.dtype, first.shape) != (second.dtype, second.shape) or first.data != second.data


def _scaling(rope: Mapping[str, Any]) -> Llama3Scaling:
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )
