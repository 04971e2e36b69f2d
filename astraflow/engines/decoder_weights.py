"""The slot decoder's weights: fused where that saves products, addressed by the model's own names.

It computes nothing but linear maps. Invariant: every name of the checkpoint is a slice of exactly one tensor here, so
a swap of any subset of names is a plain copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.algos.tensors import HostTensor
from astraflow.engines.architecture import DecoderSpec
from astraflow.engines.linear import Linear
from astraflow.engines.weights import WeightSlots


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None  # None: the family has no query/key norms
    k_norm: Tensor | None
    out: Linear
    middle_norm: Tensor
    gate_up: Linear
    down: Linear


class DecoderWeights:
    """All weights of a model. Raises WeightsError if `tensors` isn't a complete, fitting set."""

    def __init__(self, spec: DecoderSpec, tensors: Mapping[str, HostTensor], dtype: torch.dtype) -> None:
        self._spec = spec
        self._dtype = dtype
        embedding_name, head_name = "model.embed_tokens.weight", "lm_head.weight"
        self._head = Linear(spec.vocab_size, spec.hidden, bias=False, dtype=dtype)
        self.embedding = self._head.weight if spec.tied else torch.zeros_like(self._head.weight)
        self.final_norm = torch.zeros(spec.hidden, dtype=dtype)
        places = {embedding_name: self.embedding, "model.norm.weight": self.final_norm}
        if not spec.tied:
            places[head_name] = self._head.weight
        self._linears = [(self._head, frozenset({embedding_name if spec.tied else head_name}))]
        self.layers = [self._layer(f"model.layers.{index}", places) for index in range(spec.layers)]
        ignored = {head_name: tuple(self._head.weight.shape)} if spec.tied else {}
        self._slots = WeightSlots(places, ignored=ignored)
        self._slots.check(tensors, complete=True)
        self.write(tensors)

    def head(self, x: Tensor) -> Tensor:
        """Logits. Args: x: float[S, hidden]. Returns: float[S, V]."""
        return self._head(x)

    def check(self, tensors: Mapping[str, HostTensor]) -> None:
        """Raise WeightsError for what `write` can't take."""
        self._slots.check(tensors)

    def write(self, tensors: Mapping[str, HostTensor]) -> None:
        """Copy checked tensors in place."""
        stored = self._slots.write(tensors)
        for linear, names in self._linears:
            if not names.isdisjoint(stored):
                linear.refresh()

    def _layer(self, prefix: str, places: dict[str, Tensor]) -> LayerWeights:
        spec, dtype = self._spec, self._dtype
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        layer = LayerWeights(
            input_norm=torch.zeros(spec.hidden, dtype=dtype),
            qkv=Linear(q + 2 * kv, spec.hidden, bias=spec.qkv_bias, dtype=dtype),
            q_norm=torch.zeros(spec.head_dim, dtype=dtype) if spec.qk_norm else None,
            k_norm=torch.zeros(spec.head_dim, dtype=dtype) if spec.qk_norm else None,
            out=Linear(spec.hidden, q, bias=spec.out_bias, dtype=dtype),
            middle_norm=torch.zeros(spec.hidden, dtype=dtype),
            gate_up=Linear(2 * spec.feed_forward, spec.hidden, bias=spec.mlp_bias, dtype=dtype),
            down=Linear(spec.hidden, spec.feed_forward, bias=spec.mlp_bias, dtype=dtype),
        )
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        named = {
            layer.qkv: {
                **layer.qkv.places(0, q, f"{attention}.q_proj"),
                **layer.qkv.places(q, q + kv, f"{attention}.k_proj"),
                **layer.qkv.places(q + kv, q + 2 * kv, f"{attention}.v_proj"),
            },
            layer.out: layer.out.places(0, spec.hidden, f"{attention}.o_proj"),
            layer.gate_up: {
                **layer.gate_up.places(0, spec.feed_forward, f"{mlp}.gate_proj"),
                **layer.gate_up.places(spec.feed_forward, 2 * spec.feed_forward, f"{mlp}.up_proj"),
            },
            layer.down: layer.down.places(0, spec.hidden, f"{mlp}.down_proj"),
        }
        for linear, found in named.items():
            self._linears.append((linear, frozenset(found)))
            places |= found
        places |= {
            f"{prefix}.input_layernorm.weight": layer.input_norm,
            f"{prefix}.post_attention_layernorm.weight": layer.middle_norm,
        }
        if layer.q_norm is not None and layer.k_norm is not None:
            places |= {f"{attention}.q_norm.weight": layer.q_norm, f"{attention}.k_norm.weight": layer.k_norm}
        return layer
