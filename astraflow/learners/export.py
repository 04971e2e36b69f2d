"""A model's tensors and files in the form in which they travel.

Not here: deltas, parts and manifests. Invariant: exported bytes belong to the caller and never change.
"""

import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from astraflow.models.torch_dtypes import DTYPE_NAMES
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor


def with_dtype(files: Mapping[str, bytes], dtype: torch.dtype) -> dict[str, bytes]:
    """The files, with `dtype` in config.json: loaders that follow it would round fp32 weights of a bf16 checkpoint."""
    config = json.loads(files["config.json"])
    name = str(dtype).removeprefix("torch.")
    if config.get("dtype", config.get("torch_dtype")) == name:
        return dict(files)
    config.pop("torch_dtype", None)
    return {**files, "config.json": json.dumps(config | {"dtype": name}, indent=2).encode()}


def export_tensors(model: nn.Module) -> dict[str, HostTensor]:
    """Copies of all parameters and persistent buffers under the model's own names; tied tensors appear once."""
    unique: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size, torch.dtype]] = set()
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if key not in seen or tensor.numel() == 0:
            seen.add(key)
            unique[name] = tensor
    # One large allocation: numpy asks for huge pages, without them page faults cost more than the copy.
    sizes = {name: t.numel() * ITEM_SIZES[DTYPE_NAMES[t.dtype]] for name, t in unique.items()}
    buffer = np.empty(sum(-(-size // 64) * 64 for size in sizes.values()), np.uint8)
    exported: dict[str, HostTensor] = {}
    start = 0
    for name, tensor in unique.items():
        piece = buffer[start : start + sizes[name]]
        if tensor.numel():
            torch.from_numpy(piece).view(tensor.dtype).copy_(tensor.reshape(-1))
        exported[name] = HostTensor(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), piece.data)
        start += -(-sizes[name] // 64) * 64
    return exported
