"""Convert Flower's serialised arrays to NumPy and back, with a cache of parsed headers.

``Array.numpy()`` evaluates the text of the ``.npy`` header with Python's own parser and copies the values,
which takes at least 60 µs. A round reads every parameter several times, and headers repeat.
"""

import io
import math
import tokenize
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

_NPY = "numpy.ndarray"  # Flower's name for arrays in .npy format
_MAGIC = np.lib.format.magic(1, 0)
_LONGEST = 2**10  # bytes of a header that is remembered
# What NumPy's parser raises for headers that are not one; () as a type is an IndexError.
_UNREADABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, SyntaxError),
    *(tokenize.TokenError, RecursionError, MemoryError),
)


def to_numpy(array: Array) -> NDArray:
    """Deserialise an array from an untrusted source; its bytes count, not its declared type and shape.

    Returns
    -------
    The values as a read-only view of the array's bytes.

    Raises
    ------
    ValueError
        If the bytes are not exactly one ``.npy`` file of version 1.0, as NumPy writes it, without Python
        objects; the message has one line.
    """
    data = array.data
    if array.stype != _NPY or not isinstance(data, bytes) or not data.startswith(_MAGIC):
        # Other versions and formats may request memory before there is anything to read.
        raise ValueError("must be in NumPy's format, version 1.0")
    try:
        start = 10 + int.from_bytes(data[8:10], "little")  # as _begin, without the call: every array is read
        shape, order, dtype, size = _parse(data[len(_MAGIC) : start])
        if len(data) - start != size:
            raise ValueError(f"must have {size} bytes of values, got {len(data) - start}")
        return np.ndarray(shape, dtype, data, start, order=order)
    except _UNREADABLE as error:
        raise ValueError(f"cannot be read: {' '.join(str(error).split())[:200]}") from error


def _begin(data: bytes) -> int:
    """Return the position of the values: after the header, whose length follows the magic number."""
    return len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")


def same_layout(array: Array, other: Array) -> bool:
    """Return whether two arrays have the same type and shape, both in their bytes and as declared."""
    data, known = array.data, other.data
    if array.stype != _NPY or not isinstance(data, bytes) or len(data) != len(known):
        return False
    declared = array.dtype == other.dtype and tuple(array.shape) == tuple(other.shape)
    return declared and data[: _begin(known)] == known[: _begin(known)]


def serialised_bytes(arrays: Iterable[NDArray]) -> int:
    """Count the bytes of arrays as :func:`from_numpy` makes them, without making them."""
    return sum([len(_header(each.dtype, each.shape)[0]) + each.nbytes for each in arrays])


def from_numpy(values: NDArray) -> Array:
    """Serialise an array, in C order."""
    header, dtype = _header(values.dtype, values.shape)
    # Joined, the values are copied only once.
    data = b"".join((header, np.ascontiguousarray(values).data))
    # Not by keyword: Flower would then check each of its seven arguments, which takes longer than all else
    # here.
    return Array(dtype, values.shape, _NPY, data)


def is_npy(array: Array) -> bool:
    """Return whether an array is in NumPy's format, by what it declares."""
    return array.stype == _NPY and isinstance(array.data, bytes) and bool(array.data)


def from_bytes(data: bytes) -> Array:
    """Return the array of a ``.npy`` file's bytes; of other bytes one that :func:`to_numpy` refuses."""
    header = data[len(_MAGIC) : _begin(data)] if data.startswith(_MAGIC) else b""
    declared = _declared(header) if len(header) <= _LONGEST else ("", ())
    return Array(*declared, _NPY, data)


@lru_cache(maxsize=4096)
def _declared(header: bytes) -> tuple[str, tuple[int, ...]]:
    try:
        shape, _, dtype, _ = _parse(header)
    except _UNREADABLE:
        return "", ()
    return str(dtype), shape


@lru_cache(maxsize=4096)
def _parse(header: bytes) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype, int]:
    """Read shape, memory order, type and number of bytes of the values."""
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(header))
    if dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(f"must hold numbers, got dtype {dtype}")
    return shape, "F" if fortran else "C", dtype, math.prod(shape) * dtype.itemsize


@lru_cache(maxsize=4096)
def _header(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[bytes, str]:
    """Return the header of an ``.npy`` file, and the type's name, which NumPy recomputes each time."""
    file = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue(), str(dtype)
