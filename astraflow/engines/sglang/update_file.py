"""Changes of a model as one file (or as bytes) that the server's custom weight loader maps and applies.

Not here: who reads it (`serverside/astraflow_sglang`, which has the format's other half), and when it is applied.
Layout: magic (8 bytes), format version u32, 0 u32, header length u64, all little-endian; the header in JSON; then the
arrays, each at a multiple of 64 bytes from the file's start. Offsets in the header count from the first such multiple
after the header. Positions are uint32 where the tensor has less than 2^32 elements, else uint64.
Invariant: a file under its final name is complete, and the same changes give the same bytes.
"""

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from astraflow.weights.codec.changes import Change, ChangedElements

MAGIC = b"AFUPDATE"
FORMAT = 1
ALIGNMENT_BYTES = 64


def write_update(path: Path, changes: Mapping[str, Change]) -> int:
    """The size in bytes of the file, which appears complete or not at all. Blocking: for a thread.

    Raises: OSError, with nothing left behind, where the disk is full or the folder missing.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            size = sum(file.write(piece) for piece in _pieces(changes))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return size


def update_bytes(changes: Mapping[str, Change]) -> bytes:
    """The file's content, for a server that can't see our files. Blocking."""
    return b"".join(_pieces(changes))


def _pieces(changes: Mapping[str, Change]) -> Iterator[bytes | memoryview]:
    entries, arrays, offset = [], [], 0
    for name in sorted(changes):
        change = changes[name]
        entry: dict[str, Any] = {"name": name, "dtype": change.dtype, "shape": list(change.shape)}
        for key, array in _arrays(change).items():
            entry[key] = offset
            arrays.append(array)
            offset = _aligned(offset + array.nbytes)
        if isinstance(change, ChangedElements):
            entry["count"] = len(change.positions)
        entries.append(entry)
    header = json.dumps({"tensors": entries, "bytes": offset}).encode()
    yield MAGIC + struct.pack("<IIQ", FORMAT, 0, len(header)) + header
    yield _padding(len(MAGIC) + struct.calcsize("<IIQ") + len(header))
    for array in arrays:
        yield array
        yield _padding(array.nbytes)


def _arrays(change: Change) -> dict[str, memoryview]:
    if not isinstance(change, ChangedElements):
        return {"values": change.data}
    positions, values = change.positions, change.values
    if len(positions) > 1 and not bool((positions[1:] > positions[:-1]).all()):
        order = np.argsort(positions)
        positions, values = positions[order], values[order]
    wide = math.prod(change.shape) >= 1 << 32
    return {"positions": _raw(positions.astype("<u8" if wide else "<u4")), "values": _raw(values)}


def _raw(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).view(np.uint8).data


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _padding(size: int) -> bytes:
    return bytes(_aligned(size) - size)
