"""A model's memory: which tensors it has, where they lie, and putting back what was replaced.

Not here: what a loader does with it (`interception.py`).
Storages are named by their address, since tied parameters and views of one buffer share it.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

Place = tuple[int, int, torch.dtype, tuple[int, ...], tuple[int, ...]]
Held = tuple[nn.Module, str, nn.Parameter | None, Tensor | None]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element


def address_of(tensor: Tensor) -> int:
    """Of the whole storage; 0 for one without memory."""
    return 0 if tensor.is_meta else tensor.untyped_storage().data_ptr()


def model_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers that have memory, tied ones under each of their names."""
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        if address_of(tensor):
            yield name, tensor


def places_of(model: nn.Module) -> dict[str, Place]:
    """Changes when anything about the model's tensors does, their values aside."""
    return {
        name: (address_of(each), int(each.storage_offset()), each.dtype, tuple(each.shape), each.stride())
        for name, each in model_tensors(model)
    }


def whole_storage(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """All of the memory that the tensor is a view of, flat, as elements of this dtype."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=dtype, device=tensor.device)
    with torch.no_grad():
        whole.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
    return whole


def fingerprint(model: nn.Module) -> dict[str, tuple[Place, int]]:
    """Each tensor's place and the sum of its storage's bits: shows whether something was written."""
    places, sums = places_of(model), {}
    for _, tensor in model_tensors(model):
        if (address := address_of(tensor)) not in sums:
            wide = tensor.untyped_storage().nbytes() % 4 == 0
            sums[address] = int(whole_storage(tensor, torch.int32 if wide else torch.uint8).sum(dtype=torch.int64))
    return {name: (place, sums[place[0]]) for name, place in places.items()}


def repacked_storages(model: nn.Module) -> dict[int, str]:
    """Parameters of layers that keep something else than the checkpoint's values, by address: how they are kept."""
    found = {}
    for module in model.modules():
        method = type(getattr(module, "quant_method", None)).__name__
        amx = getattr(module, "use_intel_amx_backend", False)
        if amx or not (method == "NoneType" or method.startswith("Unquantized")):
            for tensor in module.parameters(recurse=False):
                found[address_of(tensor)] = "packed for AMX" if amx else f"kept by {method}"
    return found


def held_parameters(model: nn.Module) -> list[Held]:
    """What `put_back` needs."""
    return [
        (module, key, parameter, None if parameter is None else parameter.data)
        for module in model.modules()
        for key, parameter in module._parameters.items()
    ]


def put_back(held: Sequence[Held]) -> str:
    """Undo what replaced a parameter, or its data, since; the name of one, or ""."""
    moved = ""
    for module, key, parameter, data in held:
        if module._parameters.get(key) is not parameter:
            module._parameters[key], moved = parameter, key
        if parameter is not None and data is not None and parameter.data_ptr() != data.data_ptr():
            parameter.data, moved = data, key
    return moved
