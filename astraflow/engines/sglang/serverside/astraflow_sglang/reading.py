"""The reader's half of the update file, all of it checked before anything is used.

Not here: whether the model has such tensors (`tracing.py`, `writing.check`).
Invariant: entries that are handed out lie inside the file, have distinct names, and positions that are strictly
increasing and inside their tensors.
Axes: N changed elements of one tensor.
"""

import json
import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

MAGIC = b"AFUPDATE"
FORMAT = 1
ALIGNMENT_BYTES = 64
_FIXED = struct.Struct("<8sIIQ")
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class UpdateError(Exception):
    """An update that can't be applied: what, where, and what to do instead."""


@dataclass(frozen=True)
class Entry:
    """A whole tensor, or some elements of one; arrays are views of the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    positions: NDArray[Any] | None  # unsigned[N], flat, C order; None: whole
    values: NDArray[np.uint8]  # bytes of N elements, or of all


@contextmanager
def read_update(source: str | memoryview) -> Iterator[list[Entry]]:
    """The entries of a file (by path) or of its content. Tensors made of them must not outlive the context.

    Raises: UpdateError if it is no complete update file, OSError if it can't be opened.
    """
    if isinstance(source, memoryview):
        yield _entries(source)
        return
    with open(source, "rb") as file:
        try:
            # A private writable copy: torch wants writable memory. Nothing writes, so no page is copied.
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        except ValueError as error:
            raise UpdateError(f"update file {source} is empty") from error
    yield _entries(content)  # unmapped with the last array that looks at it


def _entries(content: memoryview) -> list[Entry]:
    if len(content) < _FIXED.size:
        raise UpdateError(f"an update file of {len(content)} bytes is too short")
    magic, version, _, length = _FIXED.unpack_from(content)
    if magic != MAGIC or version != FORMAT:
        raise UpdateError(f"not an update file of format {FORMAT}: it begins with {magic!r}, format {version}")
    start = -(-(_FIXED.size + length) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    if start > len(content):
        raise UpdateError(f"an update file of {len(content)} bytes ends inside its header of {length} bytes")
    try:
        header = json.loads(bytes(content[_FIXED.size : _FIXED.size + length]))
        size, described = int(header["bytes"]), list(header["tensors"])
        if start + size != len(content):
            raise UpdateError(f"an update file has {len(content)} bytes, its header says {start + size}")
        entries = [_entry(each, content[start:]) for each in described]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UpdateError(f"the header of an update file makes no sense: {error!r}") from error
    if len({entry.name for entry in entries}) != len(entries):
        raise UpdateError("an update file has a tensor twice")
    return entries


def _entry(described: dict[str, Any], arrays: memoryview) -> Entry:
    name, shape = str(described["name"]), tuple(int(size) for size in described["shape"])
    if described["dtype"] not in DTYPES or any(size < 0 for size in shape):
        raise UpdateError(f"tensor {name} of an update file is {described['dtype']}{list(shape)}")
    dtype, elements = DTYPES[described["dtype"]], math.prod(shape)
    if "positions" not in described:
        return Entry(name, dtype, shape, None, _array(arrays, described["values"], elements * dtype.itemsize, name))
    count, width = int(described["count"]), 4 if elements < 1 << 32 else 8
    positions = _array(arrays, described["positions"], count * width, name).view(f"<u{width}")
    if count and not (int(positions[-1]) < elements and bool((positions[1:] > positions[:-1]).all())):
        raise UpdateError(f"positions in tensor {name} of an update file are not increasing or beyond {list(shape)}")
    return Entry(name, dtype, shape, positions, _array(arrays, described["values"], count * dtype.itemsize, name))


def _array(arrays: memoryview, offset: int, size: int, name: str) -> NDArray[np.uint8]:
    if not (offset >= 0 and size >= 0 and offset % ALIGNMENT_BYTES == 0 and offset + size <= len(arrays)):
        raise UpdateError(f"an array of tensor {name} lies outside the update file: {size} bytes at {offset}")
    return np.frombuffer(arrays, np.uint8, size, offset)
