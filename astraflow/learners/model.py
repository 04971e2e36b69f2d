"""What a causal language model lets us do with it.

Not here: how a folder becomes a model (`models/loading.py`), masters, optimizer, files of a version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from astraflow.errors import ConfigError
from astraflow.learners.attention import register_attention
from astraflow.models.layout import Piece, checkpoint_layout
from astraflow.models.loading import load_causal

# Families whose attention takes a 4D mask and explicit positions and has nothing else that looks along a row.
# tests/learners/test_gradients.py holds each of them to equal gradients.
SHARED_PREFIX_FAMILIES = frozenset({"llama", "qwen2", "qwen3"})


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in its checkpoint's dtype, in eval mode: dropout would make logprobs differ from the engine's."""

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
    def device(self) -> torch.device:
        """Of its weights; every tensor that meets them has to be there."""
        return self.head_VD.device


def load_model(folder: Path) -> LoadedModel:
    """Raises ConfigError for a folder that is missing, incomplete, or holds a model that can't be trained here."""
    module = load_causal(folder)
    config, head = module.config.get_text_config(), module.get_output_embeddings()
    if not _has_plain_head(module, head):
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


def load_frozen(folder: Path, dtype: torch.dtype) -> LoadedModel:
    """A model that is only looked at, its weights in `dtype`. Raises as `load_model`."""
    model = load_model(folder)
    for parameter in model.module.parameters():  # not the buffers: rotary frequencies stay in fp32
        parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(False)
    return model


def _has_plain_head(module: nn.Module, head: nn.Module | None) -> bool:
    """Whether logits are exactly head(hidden states): no bias, scale or soft cap."""
    if not isinstance(head, nn.Linear) or getattr(head, "bias", None) is not None:
        return False
    tokens_BL = torch.arange(4, device=head.weight.device)[None] % head.weight.shape[0]
    with torch.no_grad():
        backbone: Any = module.base_model
        hidden = backbone(input_ids=tokens_BL, use_cache=False).last_hidden_state
        logits: Tensor = module(input_ids=tokens_BL, use_cache=False).logits
        return torch.equal(nn.functional.linear(hidden, head.weight), logits)
