"""Many clients' records in one message.

A bundle is a RecordDict with the contents that several clients receive or return. A record that many clients
share, such as their cluster's model, is stored once, and is one object again after unpacking: on both sides,
``is`` shows which clients share a record.
"""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

__all__ = ["is_bundle", "pack", "unpack"]

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


def unpack(bundle: RecordDict) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """Separate a bundle into its clients' contents.

    Returns
    -------
    The content of each client, and the error of each client without one, by client id.

    Raises
    ------
    ValueError
        If the content was not made by :func:`pack`.
    """
    index = _index(bundle)
    try:
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
