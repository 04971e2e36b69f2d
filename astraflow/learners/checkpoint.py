"""A learner's state on disk: one safetensors file and a small JSON that vouches for it.

Not here: temporary folders, renames, cursors; the trainer actor writes those around it. No pickle anywhere.
Invariant: what `read_state` returns is bit for bit what `write_state` was given, or it raises.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from astraflow.errors import WeightsError
from astraflow.learners.durable import sync, write_durably

_TENSORS_FILE = "learner.safetensors"
_RECORD_FILE = "learner.json"
FORMAT = 1


class _StateRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tensors are. There is no random state: a step draws nothing, and dithering is over once it is saved."""

    format: int
    steps: int  # optimizer steps behind the state
    digest: str  # of the tensors' names, shapes and bytes


def write_state(folder: Path, tensors: Mapping[str, Tensor], *, steps: int) -> None:
    """Write and fsync both files, the record last. The folder exists; raises OSError if it can't be written."""
    path = folder / _TENSORS_FILE
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    safetensors.torch.save_file(tensors, path)
    sync(path)
    state = _StateRecord(format=FORMAT, steps=steps, digest=_digest(tensors))
    write_durably(folder / _RECORD_FILE, msgspec.json.format(msgspec.json.encode(state)))


def read_state(folder: Path) -> tuple[dict[str, Tensor], int]:
    """The tensors and the step count. Raises WeightsError for files that are missing, damaged or too new."""
    try:
        record = msgspec.json.decode((folder / _RECORD_FILE).read_bytes(), type=_StateRecord)
        tensors = safetensors.torch.load_file(folder / _TENSORS_FILE)
    except (OSError, msgspec.MsgspecError, safetensors.SafetensorError) as exc:
        raise WeightsError(f"learner state in {folder} can't be read: {exc}; use an older checkpoint") from exc
    if record.format > FORMAT:
        raise WeightsError(f"learner state in {folder} has format {record.format}, this version reads up to {FORMAT}")
    if _digest(tensors) != record.digest:
        raise WeightsError(f"learner state in {folder} doesn't match its digest; use an older checkpoint")
    return tensors, record.steps


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
