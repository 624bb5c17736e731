"""All arrays of a message as one array, for a SuperLink.

A SuperLink stores, fetches and confirms every array of a message on its own, which costs more than the bytes
where there are many small ones: a site that trains every coalition's model is sent about a hundred arrays a
round. On the way to and from SuperNodes a message therefore has one array with all the bytes, and a layout
that says whose they are.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedclust.messages.codec import filled
from fedclust.support.array_bytes import from_bytes, from_numpy, is_npy, to_numpy

_ARRAYS, _ALL, _LAYOUT = "fedclust-arrays", "all", "fedclust-layout"


def is_joined(content: RecordDict) -> bool:
    """Return whether :func:`joined` made the content."""
    return _LAYOUT in content


def joined(content: RecordDict) -> RecordDict:
    """Put the bytes of all arrays into one; records without arrays, or with others than NumPy's, stay."""
    records = {name: each for name, each in content.items() if isinstance(each, ArrayRecord) and each}
    whole = {name: each for name, each in records.items() if all(map(is_npy, each.values()))}
    arrays = [(name, key, array.data) for name, record in whole.items() for key, array in record.items()]
    if not arrays:
        return content
    names, keys, data = map(list, zip(*arrays, strict=True))
    layout = {"records": names, "keys": keys, "sizes": [*map(len, data)]}
    together = from_numpy(np.frombuffer(b"".join(data), np.uint8))
    rest = {name: each for name, each in content.items() if name not in whole}
    arrays_record, layout_record = filled(ArrayRecord, {_ALL: together}), filled(ConfigRecord, layout)
    return filled(RecordDict, {**rest, _ARRAYS: arrays_record, _LAYOUT: layout_record})


def separated(content: RecordDict, most: int | None = None) -> RecordDict:
    """Undo :func:`joined`; a content that is not joined is returned as it is.

    Parameters
    ----------
    content
        The content, from an untrusted source.
    most
        Most arrays that it may have; any number unless given.

    Raises
    ------
    ValueError
        If the layout does not fit the bytes, or has more arrays than it may.
    """
    if not is_joined(content):
        return content
    try:
        records: dict[str, dict[str, Array]] = {}
        for name, key, data in _parts(content, most):
            if key in (record := records.setdefault(name, {})):
                raise ValueError(f"two are called {key[:80]!r}")
            record[key] = from_bytes(data)
        rest = {name: record for name, record in content.items() if name not in (_ARRAYS, _LAYOUT)}
        if both := rest.keys() & records.keys():
            raise ValueError(f"a record {min(both)[:80]!r} is there already")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"arrays must be joined as their layout says: {error!r:.200}") from error
    return filled(RecordDict, {**rest, **{name: filled(ArrayRecord, each) for name, each in records.items()}})


def _parts(content: RecordDict, most: int | None) -> Iterator[tuple[str, str, bytes]]:
    """List the record, the key and the bytes of each array."""
    layout: Any = content[_LAYOUT]
    together: Any = content[_ARRAYS]
    values = to_numpy(together[_ALL])
    names, keys, sizes = layout["records"], layout["keys"], layout["sizes"]
    if most is not None and len(sizes) > most:
        raise ValueError(f"at most {most} arrays, got {len(sizes)}")
    if values.dtype != np.uint8 or values.ndim != 1:
        raise ValueError(f"bytes, got {values.dtype} of shape {values.shape}")
    if {*map(type, sizes)} != {int} or {*map(type, names), *map(type, keys)} != {str}:
        raise TypeError("names must be texts and sizes whole numbers")
    if min(sizes) < 1 or sum(sizes) != len(values):
        raise ValueError(f"sizes must be positive and add up to {len(values)}")
    data, start = values.tobytes(), 0
    for name, key, size in zip(names, keys, sizes, strict=True):
        yield name, key, data[start : start + size]
        start += size
