import io

import numpy as np
import pytest
from flwr.app import Array
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from fedclust.support.array_bytes import from_bytes, from_numpy, is_npy, same_layout, to_numpy

VALUES = arrays.arrays(
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(VALUES)
def test_reads_what_flower_writes_and_writes_what_flower_reads(values) -> None:
    for read in (to_numpy(Array(values)), from_numpy(values).numpy()):
        assert read.dtype == values.dtype
        np.testing.assert_array_equal(read, values)
    written, flowers = from_numpy(values), Array(values)
    assert (written.dtype, written.shape, written.stype) == (flowers.dtype, flowers.shape, flowers.stype)


def test_both_memory_orders() -> None:
    values = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(to_numpy(Array(values)), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(from_numpy(values.T).numpy(), [[0, 3], [1, 4], [2, 5]])


def test_values_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        to_numpy(from_numpy(np.zeros(2)))[0] = 1


def _npy(values: np.ndarray, keep: int | None = None) -> Array:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return Array(str(values.dtype), tuple(values.shape), "numpy.ndarray", file.getvalue()[:keep])


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (_npy(np.zeros(4), keep=-8), "must have 32 bytes of values, got 24"),
        (_npy(np.array([{}], dtype=object)), "must hold numbers, got dtype object"),
        (Array("float64", (1,), "numpy.ndarray", b"not an array"), "must be in NumPy's format, version 1.0"),
    ],
)
def test_bytes_that_are_no_array(array, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        to_numpy(array)


def test_one_layout_is_that_of_the_bytes_and_the_declared() -> None:
    known = from_numpy(np.zeros((2, 3), dtype=np.float32))
    assert same_layout(from_numpy(np.ones((2, 3), dtype=np.float32)), known)
    others = [np.zeros((3, 2), np.float32), np.zeros(6, np.float32), np.zeros((2, 3), np.int32), np.zeros(3)]
    lying = Array("float32", (2, 3), "numpy.ndarray", from_numpy(others[2]).data)
    for other in (*map(from_numpy, others), lying, Array("float32", (2, 3), "other", known.data)):
        assert not same_layout(other, known)
    assert not same_layout(Array("float32", (3, 2), "numpy.ndarray", known.data), known)


def test_bytes_of_a_file_declare_what_they_are() -> None:
    whole = from_numpy(np.arange(3.0))
    assert from_bytes(whole.data) == whole
    assert is_npy(whole)
    for data in (b"", b"nothing", whole.data[:20]):
        made = from_bytes(data)
        assert (made.dtype, made.shape, is_npy(made)) == ("", (), bool(data))
        with pytest.raises(ValueError, match="must be in NumPy's format|cannot be read"):
            to_numpy(made)
