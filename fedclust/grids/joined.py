"""Many small arrays of a message as one array, for a SuperLink.

A SuperLink stores, fetches and confirms every array of a message on its own, which costs more than the bytes
where there are many small ones: a site that trains every coalition's model is sent about a hundred arrays a
round. On the way to SuperNodes such a message has one array with all the bytes, and a layout that says whose
they are; so has the answer to it. A message of few or large arrays stays as it is: nodes that are sent the
same model then share its arrays, in the server's memory and in the SuperLink's.
"""

import json
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedclust.messages.codec import filled
from fedclust.support.array_bytes import from_bytes, from_numpy, is_npy, to_numpy

_ARRAYS, _ALL, _LAYOUT, _SIZES = "fedclust-arrays", "all", "fedclust-layout", "sizes"
_MANY, _SMALL = 32, 2**16  # more arrays than this are joined, of at most so many bytes on average
_PER_ARRAY = 512  # characters of a layout


def is_joined(content: RecordDict) -> bool:
    """Return whether :func:`joined` made the content."""
    return _LAYOUT in content


def joined(content: RecordDict) -> RecordDict:
    """Put the bytes of many small arrays into one; records with none, or others than NumPy's, stay."""
    records = {name: each for name, each in content.items() if isinstance(each, ArrayRecord) and each}
    whole = {name: each for name, each in records.items() if all(map(is_npy, each.values()))}
    data = [array.data for record in whole.values() for array in record.values()]
    if len(data) <= _MANY or sum(map(len, data)) > _SMALL * len(data):
        return content
    sizes = {name: {key: len(each.data) for key, each in record.items()} for name, record in whole.items()}
    rest = {name: each for name, each in content.items() if name not in whole}
    together = filled(ArrayRecord, {_ALL: from_numpy(np.frombuffer(b"".join(data), np.uint8))})
    layout = filled(ConfigRecord, {_SIZES: json.dumps(sizes, separators=(",", ":"))})
    return filled(RecordDict, {**rest, _ARRAYS: together, _LAYOUT: layout})


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
    rest = {name: record for name, record in content.items() if name not in (_ARRAYS, _LAYOUT)}
    try:
        # Not content.config_records, which builds a dictionary of all records.
        layout: Any = content[_LAYOUT]
        together: Any = content[_ARRAYS]
        if most is not None and len(layout[_SIZES]) > _PER_ARRAY * most:  # before anything is built of it
            raise ValueError(f"at most {_PER_ARRAY * most} characters")
        sizes_of = json.loads(layout[_SIZES])
        if most is not None and sum(map(len, sizes_of.values())) > most:
            raise ValueError(f"at most {most} arrays")
        data, end = to_numpy(together[_ALL]).tobytes(), 0
        for name, sizes in sizes_of.items():
            if name in rest or not sizes or any(type(size) is not int or size < 1 for size in sizes.values()):
                raise ValueError(f"{name[:80]!r} must be a new record, of arrays of at least 1 byte")
            arrays = dict[str, Array]()
            for key, size in sizes.items():
                arrays[key] = from_bytes(data[end : end + size])
                end += size
            rest[name] = filled(ArrayRecord, arrays)
        if end != len(data):
            raise ValueError(f"sizes must add up to {len(data)}, got {end}")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"arrays must be joined as their layout says: {error!r:.200}") from error
    return filled(RecordDict, rest)
