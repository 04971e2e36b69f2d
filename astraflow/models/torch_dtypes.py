"""torch's view of the dtypes that travel (weights/codec/tensors.py): both ways between name and `torch.dtype`."""

import torch

from astraflow.weights.codec.tensors import LONG_NAMES

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, long_name) for name, long_name in LONG_NAMES.items()}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
