"""Many clients' records in one message, and the bytes that are sent.

A bundle is a RecordDict with the contents that several clients receive or return. A record that many clients
share, such as their cluster's model, is stored once, and is one object again after unpacking: on both sides,
``is`` shows which clients share a record.

Counted are the contents of messages through a :class:`~fedclust.federation.ClientGrid`, both ways, those
before round 1 included: the bytes of an ArrayRecord's arrays, which are sent unchanged; in other records
eight bytes per number, one per truth value and the length of texts; and the length of all names. Not counted
are Flower's additions to a content (addresses, ids, a few bytes per record), errors of a whole node, and the
grid's own question which clients a node hosts. Nothing is serialised for counting.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.typing import IntArray

_INDEX = "fedclust-bundle"


def is_bundle(content: RecordDict) -> bool:
    """Return whether the content is a bundle made by :func:`pack`."""
    return _INDEX in content


def pack(contents: Mapping[int, RecordDict], errors: Mapping[int, str] | None = None) -> RecordDict:
    """Combine the contents of several clients into one.

    Parameters
    ----------
    contents
        The content of each client, by client id. Records that are the same object are stored once.
    errors
        Reason of each client without a content, by client id.

    Returns
    -------
    One content, for :func:`unpack`.

    Raises
    ------
    ValueError
        If a client has both a content and an error.
    """
    errors = errors or {}
    if both := sorted(set(contents) & set(errors)):
        raise ValueError(f"a client has either a content or an error, clients {both} have both")
    bundle = RecordDict()
    names: dict[int, str] = {}
    layouts: dict[int, int] = {}
    index: dict[str, Any] = {"clients": [], "layout": [], "layouts": []}
    for client, content in contents.items():
        if id(content) not in layouts:
            layout = {}
            for key, record in content.items():
                if id(record) not in names:
                    names[id(record)] = str(len(names))
                    bundle[names[id(record)]] = record
                layout[key] = names[id(record)]
            layouts[id(content)] = len(index["layouts"])
            index["layouts"].append(layout)
        index["clients"].append(client)
        index["layout"].append(layouts[id(content)])
    index["errors"] = list(errors.items())
    bundle[_INDEX] = ConfigRecord({"index": json.dumps(index, separators=(",", ":"))})
    return bundle


def unpack(bundle: RecordDict, asked: int | None = None) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """Separate a bundle into its clients' contents.

    Parameters
    ----------
    bundle
        The content.
    asked
        How many clients it may be of, and so how many contents may differ; any number unless given.

    Returns
    -------
    The content of each client, and the error of each client without one, by client id.

    Raises
    ------
    ValueError
        If the content was not made by :func:`pack`, or is of more clients than were asked.
    """
    index = _index(bundle)
    try:
        if asked is not None and max(len(index["layouts"]), len(index["clients"])) > asked:
            raise ValueError(
                f"it must be of at most {asked} clients, it has {len(index['layouts'])} contents"
            )
        shared = [
            RecordDict({key: bundle[name] for key, name in layout.items()}) for layout in index["layouts"]
        ]
        clients, layouts = index["clients"], index["layout"]
        errors = dict(index["errors"])
        if not {*map(type, clients), *map(type, layouts), *map(type, errors)} <= {int}:
            raise TypeError("clients and layouts must be whole numbers")
        if min(layouts, default=0) < 0 or len(set(clients)) < len(clients) or errors.keys() & set(clients):
            raise ValueError("each client must have one content or one error")
        if not all(isinstance(reason, str) for reason in errors.values()):
            raise TypeError("errors must be texts")
        contents = {client: shared[layout] for client, layout in zip(clients, layouts, strict=True)}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"content must be a bundle, its index does not fit: {error!r:.200}") from error
    return contents, errors


def _index(bundle: RecordDict) -> dict[str, Any]:
    if not is_bundle(bundle):
        raise ValueError(
            f"content must be a bundle with a record {_INDEX!r}, its records are {list(bundle)[:20]}"
        )
    # Not bundle.config_records, which builds a dictionary of every client's records.
    record = bundle[_INDEX]
    text = record.get("index") if isinstance(record, ConfigRecord) else None
    try:
        index = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"content must be a bundle, its index is no JSON: {error!s:.200}") from error
    if not isinstance(index, dict):
        raise ValueError(f"content must be a bundle, its index must be an object, got {text!r:.200}")
    return index


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes sent and received, from the server's side.

    Attributes
    ----------
    down, up
        To and from all nodes, as sent: one message per node, in which a record that clients share is once.
    down_by_client, up_by_client
        To and from each client, as if it had a separate message, shape (K,).
    """

    down: int
    up: int
    down_by_client: IntArray
    up_by_client: IntArray

    def since(self, earlier: "Traffic") -> "Traffic":
        """Return the bytes since an earlier reading of the same meter."""
        return Traffic(
            self.down - earlier.down,
            self.up - earlier.up,
            _sum_of(self.down_by_client, -earlier.down_by_client),
            _sum_of(self.up_by_client, -earlier.up_by_client),
        )

    def plus(self, other: "Traffic") -> "Traffic":
        """Add up two readings."""
        return Traffic(
            self.down + other.down,
            self.up + other.up,
            _sum_of(self.down_by_client, other.down_by_client),
            _sum_of(self.up_by_client, other.up_by_client),
        )

    def totals(self) -> dict[str, int]:
        """Add up over clients, by the keys of ``rounds.jsonl`` and ``summary.json``.

        Returns
        -------
        ``bytes_down`` and ``bytes_up`` as sent, and ``bytes_down_unbundled`` and ``bytes_up_unbundled`` as
        if every client had separate messages.
        """
        return {
            "bytes_down": self.down,
            "bytes_up": self.up,
            "bytes_down_unbundled": int(self.down_by_client.sum()),
            "bytes_up_unbundled": int(self.up_by_client.sum()),
        }

    def by_client(self, num_clients: int | None = None) -> dict[str, IntArray]:
        """Return the columns of ``clients.parquet``, of the first K clients, each of shape (K,)."""
        nothing = np.zeros(num_clients or 0, dtype=np.int64)
        return {
            "bytes_down": _sum_of(self.down_by_client, nothing)[:num_clients],
            "bytes_up": _sum_of(self.up_by_client, nothing)[:num_clients],
        }


class Meter:
    """Adds up the bytes that a grid sends and receives."""

    def __init__(self) -> None:
        self._down = self._up = 0
        self._down_by_client: dict[int, int] = {}
        self._up_by_client: dict[int, int] = {}

    def sent(self, bundle: RecordDict, contents: Mapping[int, RecordDict]) -> int:
        """Count a message to a node and the clients' contents in it; return the message's bytes."""
        size = _add(bundle, contents, self._down_by_client, {})
        self._down += size
        return size

    def received(
        self, bundle: RecordDict, contents: Mapping[int, RecordDict], sizes: dict[int, int] | None = None
    ) -> None:
        """Count a node's reply and the clients' contents in it; `sizes` as of :func:`content_bytes`."""
        self._up += _add(bundle, contents, self._up_by_client, {} if sizes is None else sizes)

    def read(self, num_clients: int) -> Traffic:
        """Return the bytes sent and received so far."""
        return Traffic(
            self._down,
            self._up,
            _per_client(self._down_by_client, num_clients),
            _per_client(self._up_by_client, num_clients),
        )


def content_bytes(content: RecordDict, sizes: dict[int, int] | None = None) -> int:
    """Estimate the bytes of a content; see the module for what is counted.

    Parameters
    ----------
    content
        The content.
    sizes
        Sizes of records already measured, by ``id``; new ones are added. Valid while all records exist.

    Returns
    -------
    Number of bytes.
    """
    sizes = {} if sizes is None else sizes
    total = 0
    for name, record in content.items():
        size = sizes.get(id(record))
        if size is None:
            size = sizes[id(record)] = _record_bytes(record)
        total += len(name) + size
    return total


def _record_bytes(record: ArrayRecord | MetricRecord | ConfigRecord) -> int:
    if isinstance(record, ArrayRecord):
        return sum(len(key) + len(array.data) for key, array in record.items())
    total = 0
    for key, value in record.items():  # a plain loop: every client of every round has such records
        total += len(key) + (8 if type(value) is float or type(value) is int else _size(value))
    return total


def _size(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, bool):
        return 1
    if isinstance(value, list | tuple):
        # A list in a record has one type.
        one = value[0] if value else None
        fixed = isinstance(one, int | float)
        return len(value) * _size(one) if fixed else _sum(value)
    return 8


def _sum(values: Iterable[object]) -> int:
    return sum(map(_size, values))


def _add(
    bundle: RecordDict,
    contents: Mapping[int, RecordDict],
    by_client: dict[int, int],
    sizes: dict[int, int],
) -> int:
    whole: dict[int, int] = {}  # clients of a cluster share their content, or at least its records
    for client, content in contents.items():
        if id(content) not in whole:
            whole[id(content)] = content_bytes(content, sizes)
        by_client[client] = by_client.get(client, 0) + whole[id(content)]
    return content_bytes(bundle, sizes)


def _per_client(values: Mapping[int, int], num_clients: int) -> IntArray:
    array = np.zeros(num_clients, dtype=np.int64)
    known = [client for client in values if client < num_clients]  # others asked to join, and did not fit
    array[known] = [values[client] for client in known]
    return array


def _sum_of(one: IntArray, other: IntArray) -> IntArray:
    """Add up two vectors over clients, of which some joined between the two."""
    total = np.zeros(max(len(one), len(other)), dtype=np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total
