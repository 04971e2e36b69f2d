"""A model in memory in the form in which it travels: tensors by their names on disk, and files that tell the truth.

Not here: deltas, parts and manifests. Invariant: exported bytes belong to the caller and never change.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astraflow.models.layout import Piece
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def described(files: Mapping[str, bytes], model: Any, dtype: torch.dtype) -> dict[str, bytes]:
    """The files, with what config.json says of `dtype` and of a tied output layer made true.

    Loaders that follow it would round fp32 weights of a bf16 checkpoint, and those that trust its word about tied
    embeddings (transformers does only where the checkpoint agrees) would drop an output layer of its own.
    """
    config = json.loads(files["config.json"])
    changes: dict[str, Any] = {}
    name = str(dtype).removeprefix("torch.")
    if config.get("dtype", config.get("torch_dtype")) != name:
        config.pop("torch_dtype", None)
        changes["dtype"] = name
    if model.config.get_text_config().tie_word_embeddings and not _has_tied_head(model):
        changes["tie_word_embeddings"] = False
        if isinstance(config.get("text_config"), dict):
            config["text_config"]["tie_word_embeddings"] = False
    if not changes:
        return dict(files)
    return {**files, "config.json": json.dumps(config | changes, indent=2).encode()}


def _has_tied_head(model: Any) -> bool:
    """Whether the output layer is the embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and head.weight is embedding.weight


def export_tensors(state: Mapping[str, Tensor], layout: Mapping[str, Piece]) -> dict[str, HostTensor]:
    """Copies of all tensors of a checkpoint under its names. Args: state: the model's, by its own names."""
    pieces = {name: piece.of(state) for name, piece in layout.items()}
    # One large allocation: numpy asks for huge pages, without them page faults cost more than the copy.
    sizes = {name: t.numel() * ITEM_SIZES[DTYPE_NAMES[t.dtype]] for name, t in pieces.items()}
    buffer = np.empty(sum(-(-size // 64) * 64 for size in sizes.values()), np.uint8)
    exported: dict[str, HostTensor] = {}
    start = 0
    for name, tensor in pieces.items():
        piece = buffer[start : start + sizes[name]]
        if tensor.numel():
            torch.from_numpy(piece).view(tensor.dtype).copy_(tensor.reshape(-1))
        exported[name] = HostTensor(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), piece.data)
        start += -(-sizes[name] // 64) * 64
    return exported
