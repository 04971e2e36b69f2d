"""The slot decoder's weights: fused where that saves products, addressed by the model's own names.

It computes nothing but linear maps. Invariants: every name of the checkpoint is a slice of exactly one tensor here, so
a swap of any subset of names, or of single elements, is a plain copy; between two swaps everything that is read while
decoding is of one version.
A linear map that packs doesn't read its plain weight, so that is where the next version is put together, in any thread;
the swap itself is then one assignment. Only the tied embedding is read in both forms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.engines.architecture import EMBEDDING, HEAD, DecoderSpec
from astraflow.engines.linear import Linear
from astraflow.engines.weights import WeightSlots, Write
from astraflow.weights.codec.changes import Change
from astraflow.weights.codec.tensors import HostTensor


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
        self._head = Linear(spec.vocab_size, spec.hidden, bias=False, dtype=dtype)
        self.embedding = self._head.weight if spec.tied else torch.zeros_like(self._head.weight)
        self.final_norm = torch.zeros(spec.hidden, dtype=dtype)
        places = {EMBEDDING: self.embedding, "model.norm.weight": self.final_norm}
        if not spec.tied:
            places[HEAD] = self._head.weight
        self._linears = {EMBEDDING if spec.tied else HEAD: self._head}  # by the names that it is made of
        self.layers = [self._layer(f"model.layers.{index}", places) for index in range(spec.layers)]
        ignored = {HEAD: tuple(self._head.weight.shape)} if spec.tied else {}
        self._slots = WeightSlots(places, ignored=ignored)
        self._slots.check(tensors, complete=True)
        self.prepare(tensors)()

    def head(self, x: Tensor) -> Tensor:
        """Logits. Args: x: float[S, hidden]. Returns: float[S, V]."""
        return self._head(x)

    def check(self, changes: Mapping[str, Change]) -> None:
        """Raise WeightsError for what `prepare` can't take."""
        self._slots.check(changes)

    def prepare(self, changes: Mapping[str, Change]) -> Callable[[], None]:
        """What puts checked changes in place, to be called between two steps. Takes a second copy of the weights that
        pack and change. One at a time, see `BatchModel.prepare`."""
        writes: list[Write] = []
        packing: dict[Linear, list[Write]] = {}
        for write in self._slots.prepare(changes):
            linear = self._linears.get(write.name)
            if linear is None or not linear.packs:
                writes.append(write)
            else:
                packing.setdefault(linear, []).append(write)
        packed: list[tuple[Linear, Tensor]] = []
        for linear, found in packing.items():
            weight = linear.weight
            if weight is self.embedding:
                writes += found
                weight = weight.clone()
                found = [write.into(weight) for write in found]
            for write in found:
                write.run()
            packed.append((linear, linear.packed(weight)))

        def put() -> None:
            for write in writes:
                write.run()
            for linear, weight in packed:
                linear.use(weight)

        return put

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
            self._linears |= {name: linear for name in found if name.endswith(".weight")}
            places |= found
        places |= {
            f"{prefix}.input_layernorm.weight": layer.input_norm,
            f"{prefix}.post_attention_layernorm.weight": layer.middle_norm,
        }
        if layer.q_norm is not None and layer.k_norm is not None:
            places |= {f"{attention}.q_norm.weight": layer.q_norm, f"{attention}.k_norm.weight": layer.k_norm}
        return layer
