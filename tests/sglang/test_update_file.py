"""The update file: what goes in comes out, whatever the dtype; and a bad file is refused with a sentence."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.engines.sglang.update_file import update_bytes, write_update
from astraflow.weights.codec.changes import Change, ChangedElements
from astraflow.weights.codec.tensors import ITEM_SIZES, HostTensor
from tests.sglang import support  # puts the server's side on the path

from astraflow_sglang.reading import DTYPES, Entry, UpdateError, read_update  # isort: skip

del support


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Change]:
    """Whole tensors and elements of any dtype: also 0-d, empty, unsorted, names of all kinds."""
    found: dict[str, Change] = {}
    for name in draw(st.sets(st.text(min_size=1, max_size=12), max_size=5)):
        dtype = draw(st.sampled_from(sorted(ITEM_SIZES)))
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        size, width = int(np.prod(shape)), ITEM_SIZES[dtype]
        if draw(st.booleans()):
            data = draw(st.binary(min_size=size * width, max_size=size * width))
            found[name] = HostTensor(dtype, shape, memoryview(data))
        else:
            where = draw(st.lists(st.integers(0, max(size - 1, 0)), unique=True, max_size=size))
            values = draw(st.binary(min_size=len(where) * width, max_size=len(where) * width))
            found[name] = ChangedElements(
                dtype, shape, np.asarray(where, np.int64), np.frombuffer(values, f"<u{width}")
            )
    return found


def raw(change: Change) -> tuple[Any, ...]:
    """What must arrive: sorted by position."""
    if isinstance(change, HostTensor):
        return DTYPES[change.dtype], change.shape, None, bytes(change.data)
    order = np.argsort(change.positions)
    return DTYPES[change.dtype], change.shape, change.positions[order].tolist(), change.values[order].tobytes()


def unraw(entry: Entry) -> tuple[Any, ...]:
    positions = None if entry.positions is None else entry.positions.tolist()
    return entry.dtype, entry.shape, positions, entry.values.tobytes()


@settings(max_examples=50)
@given(changes())
def test_what_is_written_is_read(changed: dict[str, Change]) -> None:
    expected = {name: raw(change) for name, change in changed.items()}
    with read_update(memoryview(bytearray(update_bytes(changed)))) as entries:
        assert {entry.name: unraw(entry) for entry in entries} == expected


def example() -> dict[str, Change]:
    positions = np.asarray([1, 5, 6], np.int64)
    return {
        "a": HostTensor("F32", (3,), memoryview(bytes(12))),
        "b": ChangedElements("BF16", (2, 4), positions, np.asarray([7, 8, 9], "<u2")),
    }


def test_the_file_holds_the_same_bytes_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    assert write_update(tmp_path / "update", example()) == (tmp_path / "update").stat().st_size
    assert (tmp_path / "update").read_bytes() == update_bytes(example())
    assert [each.name for each in tmp_path.iterdir()] == ["update"]
    with read_update(str(tmp_path / "update")) as entries:
        assert {entry.name: unraw(entry) for entry in entries} == {k: raw(v) for k, v in example().items()}


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "update").mkdir()
    with pytest.raises(OSError, match="update"):
        write_update(tmp_path / "update", example())
    assert [each.name for each in tmp_path.iterdir()] == ["update"]


@pytest.mark.parametrize("length", [0, 7, 23, 24, 60, 200, -1])
def test_a_file_that_ends_early_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "update").write_bytes(update_bytes(example())[:length])
    with pytest.raises(UpdateError, match="update file"), read_update(str(tmp_path / "update")):
        pass


HOSTILE: dict[str, dict[str, Any] | list[Any] | int | None] = {
    "outside": {"values": 1 << 40},
    "negative": {"values": -64},
    "crooked": {"values": 1},
    "fraction": {"values": 0.5},
    "text": {"values": "0"},
    "dtype": {"dtype": "F7"},
    "no-dtype": {"dtype": None},
    "unhashable": {"dtype": []},
    "shape": {"shape": [-1, 4]},
    "shape-text": {"shape": "many"},
    "smaller": {"shape": [2, 3]},
    "huge": {"shape": [1 << 62, 1 << 62]},
    "count": {"count": 1 << 50},
    "count-negative": {"count": -1},
    "twice": {"name": "a"},
    "list": [],
    "null": None,
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_hostile_header_is_refused(kind: str) -> None:
    content = update_bytes(example())
    (length,) = struct.unpack_from("<Q", content, 16)
    header = json.loads(content[24 : 24 + length])
    change = HOSTILE[kind]
    header["tensors"][1] = header["tensors"][1] | change if isinstance(change, dict) else change
    text = json.dumps(header).encode()
    start = -(-(24 + length) // 64) * 64
    broken = b"AFUPDATE" + struct.pack("<IIQ", 1, 0, len(text)) + text
    broken += bytes(-len(broken) % 64) + content[start:]
    with pytest.raises(UpdateError, match=r"update file"), read_update(memoryview(bytearray(broken))):
        pass


def test_positions_must_increase() -> None:
    content = bytearray(update_bytes(example()))
    at = content.index(struct.pack("<III", 1, 5, 6))
    content[at : at + 12] = struct.pack("<III", 5, 5, 6)
    with pytest.raises(UpdateError, match="not increasing"), read_update(memoryview(content)):
        pass


def test_dtypes_are_those_of_our_tensors() -> None:
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == ITEM_SIZES
    assert all(isinstance(dtype, torch.dtype) for dtype in DTYPES.values())
