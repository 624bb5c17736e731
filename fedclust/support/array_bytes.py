"""Convert Flower's serialised arrays to NumPy and back, with a cache of parsed headers.

``Array.numpy()`` evaluates the text of the ``.npy`` header with Python's own parser and copies the values,
some 60 µs for an array of any size. A round reads every parameter several times, and headers repeat.
"""

import io
import math
import tokenize
from functools import lru_cache

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

_NPY = "numpy.ndarray"  # Flower's name for arrays in .npy format
_MAGIC = np.lib.format.magic(1, 0)


def to_numpy(array: Array) -> NDArray:
    """Deserialise an array.

    Returns
    -------
    The values as a read-only view of the array's bytes.

    Raises
    ------
    ValueError
        If the bytes are not an ``.npy`` file, contain Python objects, or are incomplete.
    """
    data = array.data
    if array.stype != _NPY or not data.startswith(_MAGIC):
        values: NDArray = array.numpy()
        values.flags.writeable = False
        return values
    start = len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
    shape, fortran, dtype = _parse(data[len(_MAGIC) : start])
    if dtype.hasobject:
        raise ValueError(f"array must hold numbers, got dtype {dtype}")
    try:  # one call: each parameter of each client is read several times a round
        return np.ndarray(shape, dtype, data, start, order="F" if fortran else "C")
    except TypeError as error:
        raise ValueError(f"array must have all bytes of its values: {error}") from error


def parse(array: Array) -> NDArray:
    """Deserialise an array that may have been made to do harm; its bytes count, not what it declares.

    Returns
    -------
    The values as a read-only view of the array's bytes.

    Raises
    ------
    ValueError
        If the bytes are not exactly one ``.npy`` file of version 1.0, as NumPy writes them, without Python
        objects; in one line.
    """
    data = array.data
    if array.stype != _NPY or not isinstance(data, bytes) or not data.startswith(_MAGIC):
        # Other versions and formats may say how much memory to take before there is anything to read.
        raise ValueError("must be in NumPy's format, version 1.0")
    try:
        start = len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
        shape, fortran, dtype = _parse(data[len(_MAGIC) : start])
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or not dtype.itemsize or any(length < 0 for length in shape):
            raise ValueError("must hold numbers")
        if len(data) - start != size:
            raise ValueError(f"must have {size} bytes of values, it has {len(data) - start}")
        flat = np.frombuffer(data, dtype, offset=start)
        return flat.reshape(shape, order="F" if fortran else "C")
    except (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot be read: {' '.join(str(error).split())[:200]}") from error


def same_layout(array: Array, other: Array) -> bool:
    """Say whether two arrays have the same type and shape, in their bytes and in what they declare."""
    data, known = array.data, other.data
    if array.stype != _NPY or not isinstance(data, bytes) or len(data) != len(known):
        return False
    start = len(_MAGIC) + 2 + int.from_bytes(known[len(_MAGIC) : len(_MAGIC) + 2], "little")
    return (
        data[:start] == known[:start]
        and array.dtype == other.dtype
        and tuple(array.shape) == tuple(other.shape)
    )


def from_numpy(values: NDArray) -> Array:
    """Serialise an array, in C order."""
    header, dtype = _header(values.dtype, values.shape)
    # Not by name: Flower then checks each of its seven arguments, which takes longer than all else here.
    return Array(dtype, values.shape, _NPY, header + values.tobytes())


@lru_cache(maxsize=4096)
def _parse(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    return np.lib.format.read_array_header_1_0(io.BytesIO(header))


@lru_cache(maxsize=4096)
def _header(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[bytes, str]:
    """Write the header of an ``.npy`` file; return also the type's name, which NumPy makes anew each time."""
    file = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, described)
    return file.getvalue(), str(dtype)
