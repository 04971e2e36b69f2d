"""Arrays on the wire."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from astraflow.errors import MessageError
from astraflow.messages import Array, array_of


@given(st.lists(st.integers(-(2**70), 2**70) | st.integers(0, 3), max_size=70), st.binary(max_size=16))
def test_whatever_a_shape_is_it_is_an_array_or_a_message_error(shape: list[int], data: bytes) -> None:
    with contextlib.suppress(MessageError):
        assert Array("u1", tuple(shape), data).numpy().size == len(data)


@given(st.sampled_from(["u1", "i4", "i8", "f4"]), st.data())
def test_arrays_of_every_dtype_and_shape_come_back(dtype: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    values = data.draw(hnp.arrays(np.dtype(dtype), shape))
    back = array_of(values, dtype).numpy()
    assert back.shape == shape
    assert back.dtype == np.dtype(dtype)
    assert back.tobytes() == values.tobytes()


def test_data_is_little_endian_and_c_ordered() -> None:
    big_endian_columns = np.asfortranarray(np.array([[1, 2], [3, 4]], dtype=">i4"))
    array = array_of(big_endian_columns, "i4")
    assert array.data == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])


def test_the_view_is_read_only() -> None:
    view = array_of([1, 2], "i4").numpy()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 3


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (Array("f8", (1,), bytes(8)), "dtype 'f8'"),
        (Array("O", (1,), bytes(8)), "dtype 'O'"),
        (Array("i4", (2,), bytes(7)), "has 7 bytes"),
        (Array("i4", (2,), bytes(12)), "has 12 bytes"),
        (Array("i4", (-1,), bytes(4)), "has 4 bytes"),
        (Array("i4", (-2, -1), bytes(8)), "has 8 bytes"),
        (Array("i4", (1 << 40, 1 << 40), b""), "has 0 bytes"),
        (Array("i4", (), b""), "has 0 bytes"),
        (Array("i4", (0, 2**63 - 1), b""), "has 0 bytes"),
        (Array("i4", (0, 2**62, 2**62), b""), "has 0 bytes"),
        (Array("i4", (0, 2**200), b""), "has 0 bytes"),
        (Array("i4", (0, 1 << 40, 1 << 40), b""), "can't be read"),
        (Array("i4", (0,) * 65, b""), "65 dimensions"),
        (Array("u1", (1,) * 9, b"x"), "9 dimensions"),
    ],
)
def test_sizes_and_dtypes_that_disagree_are_refused(array: Array, why: str) -> None:
    with pytest.raises(MessageError, match=why):
        array.numpy()


@pytest.mark.parametrize("values", [[], np.zeros((0, 3)), 5])
def test_empty_and_scalar_arrays_are_fine(values: Any) -> None:
    assert array_of(values, "i4").numpy().shape == np.asarray(values).shape
