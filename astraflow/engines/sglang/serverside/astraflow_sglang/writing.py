"""Puts the values of an update into a model's parameters.

Not here: whether the file is sound (`reading.py`), where elements go (`tracing.py`).
On a GPU positions and values pass through one pinned buffer, and only tensors of which a rank has a part by columns
make the host wait.
Axes: N changed elements.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from astraflow_sglang.interception import Trace
from astraflow_sglang.memory import BITS, address_of, model_tensors, whole_storage
from astraflow_sglang.reading import ALIGNMENT_BYTES, Entry, UpdateError
from astraflow_sglang.windows import CopyWindow, targets_of

PIECE = 1 << 22  # elements at a time: index arithmetic takes some 40 bytes for each
STAGE_BYTES = 64 << 20


def check(entries: Sequence[Entry], traces: Mapping[str, Trace]) -> None:
    """Raises UpdateError for the first entry that the model can't take as it is."""
    for entry in entries:
        trace = traces[entry.name]
        if trace.refused:
            raise UpdateError(
                f"the model doesn't take tensor {entry.name}, {entry.dtype}{list(entry.shape)}: {trace.why}"
            )
        if entry.positions is not None and trace.why:
            raise UpdateError(f"tensor {entry.name} can't be updated by elements, send it whole: {trace.why}")


def write(model: nn.Module, entries: Sequence[Entry], traces: Mapping[str, Trace]) -> int:
    """Whole tensors by the model's loader, then elements. The number of elements written on this rank."""
    _synchronise(model)
    whole = [entry for entry in entries if entry.positions is None]
    if whole:
        model.load_weights((entry.name, _tensor(entry)) for entry in whole)  # type: ignore[operator]
    targets = {address_of(tensor): tensor for _, tensor in model_tensors(model)}
    stages: dict[torch.device, _Stage] = {}
    written = sum(len(entry.values) // entry.dtype.itemsize for entry in whole)
    for entry in entries:
        for window in traces[entry.name].windows if entry.positions is not None else []:
            target = targets[window.storage]
            stage = stages.get(target.device) or stages.setdefault(target.device, _Stage(target.device))
            written += _write_window(entry, window, target, stage)
    _synchronise(model)
    return written


def _write_window(entry: Entry, window: CopyWindow, target: Tensor, stage: "_Stage") -> int:
    same = window.dtype == entry.dtype  # then bits are moved, whatever they mean
    flat = whole_storage(target, BITS[window.dtype.itemsize] if same else window.dtype)
    width = 0 if entry.positions is None else entry.positions.itemsize
    written = 0
    for positions, values in _pieces(entry, window):
        targets_N, inside_N = targets_of(window, _wide(stage.bring(positions), width))
        values_N = stage.bring(values).view(flat.dtype if same else entry.dtype)
        if inside_N is not None:
            targets_N, values_N = targets_N[inside_N], values_N[inside_N]
        flat.scatter_(0, targets_N, values_N.to(flat.dtype))  # on the CPU half the time of index_put_
        written += len(targets_N)
    return written


def _pieces(entry: Entry, window: CopyWindow) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Bytes of the positions (all within the window's span) and of their values."""
    positions, width = entry.positions, entry.dtype.itemsize
    assert positions is not None
    span = np.asarray([window.source_start, window.source_end], positions.dtype)
    first, end = (int(each) for each in np.searchsorted(positions, span))
    for start in range(first, end, PIECE):
        stop = min(start + PIECE, end)
        yield positions[start:stop].view(np.uint8), entry.values[start * width : stop * width]


def _wide(positions: Tensor, width: int) -> Tensor:
    """int64[N] of the bytes of unsigned integers of this width."""
    return (
        positions.view(torch.int32).to(torch.int64).bitwise_and_(0xFFFFFFFF)
        if width == 4
        else positions.view(torch.int64)
    )


class _Stage:
    """Brings bytes from the host to a device; to a GPU through a pinned buffer, without waiting for each."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=True) if device.type == "cuda" else None
        self._used = 0

    def bring(self, array: NDArray[np.uint8]) -> Tensor:
        """The same bytes on the device; on the CPU the same memory."""
        host = torch.from_numpy(array)
        if self._pinned is None:
            return host.to(self._device)
        if self._used + len(array) > STAGE_BYTES:
            torch.cuda.current_stream(self._device).synchronize()  # what was staged has arrived
            self._used = 0
        piece = self._pinned[self._used : self._used + len(array)]
        piece.copy_(host)
        self._used += -(-len(array) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return piece.to(self._device, non_blocking=True)


def _tensor(entry: Entry) -> Tensor:
    return torch.from_numpy(entry.values).view(entry.dtype).reshape(entry.shape)


def _synchronise(model: nn.Module) -> None:
    """Nobody reads the parameters on another stream meanwhile."""
    if any(tensor.is_cuda for tensor in model.parameters()):
        torch.cuda.synchronize()
