"""Where the tensors of a checkpoint lie in a model's memory: names on disk, which travel, against names of parameters.

transformers keeps the experts of a layer in one tensor, and other families' maps fused or renamed, while checkpoints
(and SGLang) have them one by one; it converts when it reads and writes. Engine and learner need the same without a
folder between them, and single elements of it.
It copies nothing. Invariant: every tensor of a checkpoint is a contiguous piece of exactly one tensor in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, apply_converters, revert_weight_conversion

from astraflow.errors import ConfigError


@dataclass(frozen=True)
class Piece:
    """One tensor of a checkpoint: elements [start, start + size) of a tensor in memory."""

    name: str  # in memory
    start: int
    shape: tuple[int, ...]

    def of(self, state: Mapping[str, Tensor]) -> Tensor:
        """The view; contiguous."""
        size = int(torch.Size(self.shape).numel())
        return state[self.name].detach().view(-1)[self.start : self.start + size].view(self.shape)


def checkpoint_layout(model: Any) -> dict[str, Piece]:
    """Every tensor of the model's checkpoint by its name on disk; tied tensors once, under the first of their names.

    The names are those of a model made from its config, however the folder that it came from spelled them.

    Raises: ConfigError for a family whose tensors on disk are no pieces of those in memory.
    """
    model._weight_conversions = None  # the family's, not those of the folder that was loaded
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), name)
    state = model.state_dict()
    names = [name for name in first.values() if state[name].numel()]
    conversions = get_model_conversion_mapping(model, add_legacy=False)
    converters = [it.reverse_transform() for it in conversions if isinstance(it, WeightConverter)]
    moved = {name for name in names if apply_converters(name, converters)[1] is not None}
    found = _renamed(model, {name: state[name] for name in names if name not in moved})
    for _, members in groupby((name for name in names if name in moved), key=_block):
        found |= _pieces_of(model, {name: state[name] for name in members})
    return found


def tied_names(model: Any) -> dict[str, str]:
    """Pairs of names on disk, the second the one that the first is tied to by the model's config."""
    state = model.state_dict()
    pairs = (getattr(model, "all_tied_weights_keys", None) or {}).items()
    on_disk = {name: next(iter(_renamed(model, {name: state[name]}))) for pair in pairs for name in pair}
    return {on_disk[one]: on_disk[other] for one, other in pairs}


def _renamed(model: Any, plain: Mapping[str, Tensor]) -> dict[str, Piece]:
    """Tensors that are the same on disk and in memory, but for their names."""
    names = {id(tensor): name for name, tensor in plain.items()}
    return {
        name: Piece(names[id(tensor)], 0, tuple(tensor.shape))
        for name, tensor in revert_weight_conversion(model, dict(plain)).items()
    }


def _block(name: str) -> str:
    """What a tensor is converted together with: its layer."""
    before, number, _ = _cut(name.split("."))
    return f"{before}.{number}"


def _cut(parts: list[str]) -> tuple[str, str, list[str]]:
    for index, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:index]), part, parts[index + 1 :]
    return "", "", parts


def _pieces_of(model: Any, block: Mapping[str, Tensor]) -> dict[str, Piece]:
    """Converted are numbers of elements instead of elements: they tell where each came from."""
    starts: dict[str, int] = {}
    numbered: dict[str, Tensor] = {}
    total = 0
    for name, tensor in block.items():
        starts[name] = total
        numbered[name] = torch.arange(total, total + tensor.numel()).view(tensor.shape)
        total += tensor.numel()
    found: dict[str, Piece] = {}
    for name, numbers in revert_weight_conversion(model, numbered).items():
        flat = numbers.reshape(-1)
        start = int(flat[0])
        source = next(name for name in reversed(starts) if starts[name] <= start)
        whole = torch.equal(flat, torch.arange(start, start + flat.numel()))
        if not whole or start + flat.numel() > starts[source] + block[source].numel():
            raise ConfigError(
                f"{model.config.model_type} models keep {name} on disk in another order than in memory, so that it "
                "can't be trained or served by the embedded engine"
            )
        found[name] = Piece(source, start - starts[source], tuple(numbers.shape))
    covered = sum(int(torch.Size(piece.shape).numel()) for piece in found.values())
    assert covered == total, (covered, total)  # pieces of a block don't overlap, so nothing is left out
    return found
