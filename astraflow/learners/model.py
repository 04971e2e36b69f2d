"""What a causal language model lets us do with it.

Not here: how a folder becomes a model (`models/loading.py`), masters, optimizer, files of a version.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from astraflow.errors import ConfigError
from astraflow.learners.attention import register_attention
from astraflow.models.layout import Piece, checkpoint_layout
from astraflow.models.loading import Sharding, load_causal

T = TypeVar("T")

# Families whose attention takes a 4D mask and explicit positions and has nothing else that looks along a row.
# tests/learners/test_gradients.py holds each of them to equal gradients.
SHARED_PREFIX_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in its checkpoint's dtype, in eval mode: dropout would make logprobs differ from the engine's.

    One that is sharded has fp32 parameters, of which each rank holds a piece. Whole ones, in the compute dtype, are
    there inside `run` only, which all ranks call together.
    """

    module: nn.Module
    backbone: nn.Module  # tokens → hidden states
    head_name: str  # parameter that maps hidden states to logits; of tied weights the embedding's name
    vocabulary: int
    layout: Mapping[str, Piece]  # where the tensors of its checkpoint are
    shares_prefixes: bool
    attention_cost: float  # of one attended position, relative to all matrix products of a token

    @property
    def head_VD(self) -> Tensor:
        return self.module.get_parameter(self.head_name)

    @property
    def sharded(self) -> bool:
        return isinstance(self.module, FSDPModule)

    @property
    def device(self) -> torch.device:
        """Of its weights; every tensor that meets them has to be there."""
        return self.head_VD.device

    def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, tensors or a tuple of tensors; while it runs, backbone and head can be used."""
        if not self.sharded:
            return work()
        found: T = self.module(work)
        return found

    def let_go(self) -> None:
        """After passes without gradient, which leave weights gathered: a pass after the next step would take them."""
        for each in self.module.modules():
            if isinstance(each, FSDPModule):
                each.reshard()


def load_model(
    folder: Path, sharding: Sharding | None = None, *, activation_checkpointing: bool = False
) -> LoadedModel:
    """Raises ConfigError for a folder that is missing, incomplete, or holds a model that can't be trained here.

    Args:
        sharding: the ranks that load it together; None: this process alone.
        activation_checkpointing: keep of each layer only its inputs for the backward pass, which computes it anew.
    """
    module = load_causal(folder, sharding)
    config, head = module.config.get_text_config(), module.get_output_embeddings()
    forward = module.forward
    if sharding is not None:
        _open_forward(module)
    if not _has_plain_head(module, head, forward):
        raise ConfigError(
            f"{folder} is a {config.model_type} model, which changes its logits after the output layer; "
            "the torch learner trains models whose logits are hidden states times a matrix"
        )
    names = {parameter: name for name, parameter in module.named_parameters()}
    layers, width = config.num_hidden_layers, config.hidden_size
    shares_prefixes = (
        config.model_type in SHARED_PREFIX_FAMILIES
        and config._attn_implementation == "sdpa"
        and all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ())
    )
    if shares_prefixes:
        module.set_attn_implementation(register_attention())
    if activation_checkpointing:
        _recompute_layers(module)
    inner = sum(p.numel() for p in module.parameters()) - module.get_input_embeddings().weight.numel()
    return LoadedModel(
        module=module,
        backbone=module.base_model,
        head_name=names[head.weight],
        vocabulary=head.weight.shape[0],
        layout=checkpoint_layout(module),
        shares_prefixes=shares_prefixes,
        attention_cost=2.0 * layers * width / max(1, inner),
    )


def load_frozen(folder: Path, dtype: torch.dtype, sharding: Sharding | None = None) -> LoadedModel:
    """A model that is only looked at, its weights in `dtype`. Raises as `load_model`."""
    model = load_model(folder, sharding)
    for parameter in model.module.parameters():  # not the buffers: rotary frequencies stay in fp32
        if not model.sharded:  # pieces are cast as they are gathered
            parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(False)
    return model


def _recompute_layers(module: nn.Module) -> None:
    """Same gradients to the last bit. Not by transformers' own switch, which works in training mode, with dropout."""
    layers = [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"{type(module).__name__} has no layers that can be computed anew; "
            "set trainer.activation_checkpointing = false"
        )
    for layer in layers:
        again = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        layer.forward = again


def _open_forward(module: Any) -> None:
    """Let a sharded model's `forward` run any work: its hooks gather what isn't gathered layer by layer.

    And let its gradients be sums over ranks: the loss has the denominators of the whole update. Both calls are needed
    on every part: neither reaches the children, and a factor alone is a collective that gloo lacks, and that NCCL gets
    wrong in bf16 (github.com/pytorch/pytorch/issues/190745).
    """
    width = module.config.get_text_config().hidden_size

    def forward(work: Callable[[], T]) -> T:
        found = work()
        head = module.get_output_embeddings()
        # The group that the output layer is in counts its modules' calls; its weights alone were used so far.
        head(torch.zeros(0, width, dtype=head.weight.dtype, device=head.weight.device))
        return found

    module.forward = forward
    for each in module.modules():
        if isinstance(each, FSDPModule):
            each.set_gradient_divide_factor(1.0)
            each.set_force_sum_reduction_for_comms(True)
            each.reshard()  # loading has tried a pass


def _has_plain_head(module: nn.Module, head: nn.Module | None, forward: Callable[..., Any]) -> bool:
    """Whether logits are exactly head(hidden states): no bias, scale or soft cap."""
    if not isinstance(head, nn.Linear) or getattr(head, "bias", None) is not None:
        return False
    tokens_BL = torch.arange(4, device=head.weight.device)[None] % head.weight.shape[0]

    def work() -> tuple[Tensor, Tensor]:
        backbone: Any = module.base_model
        hidden = backbone(input_ids=tokens_BL, use_cache=False).last_hidden_state
        logits: Tensor = forward(input_ids=tokens_BL, use_cache=False).logits
        return nn.functional.linear(hidden, head.weight), logits

    with torch.no_grad():
        products, logits = module(work) if isinstance(module, FSDPModule) else work()
    return torch.equal(products, logits)
