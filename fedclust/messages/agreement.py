"""What sites say of their data before round 1, and the encoding that they are told."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedclust.data.sites.agreement import (
    CATEGORY,
    EMPTY,
    NUMBER,
    Agreement,
    Column,
    Label,
    Moments,
    Pixels,
    Statement,
)
from fedclust.messages.bounds import (
    LARGEST_NUMBER,
    MOST_EXAMPLES,
    check_keys,
    finite_list,
    only_records,
    record_of,
    short,
    whole,
)
from fedclust.messages.keys import BadReply

__all__ = [
    "Agreed",
    "Stated",
    "agreed_content",
    "read_agreed",
    "read_refused",
    "read_stated",
    "refused_content",
    "stated_content",
]

_RECORD, _SITES, _BODIES, _REFUSED, _REASONS = "statements", "sites", "bodies", "refused", "reasons"
_AGREEMENT, _ENCODING, _NAMES, _IDS, _NUM_CLIENTS = "agreement", "encoding", "names", "ids", "num-clients"
_MOST, _LONGEST = 10**6, 1000


@dataclass(frozen=True)
class Stated:
    """What each site of a node says, and why each other site cannot."""

    statements: Mapping[str, Statement] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreed:
    """What a node is told: the encoding, and the ids of its clients.

    Attributes
    ----------
    agreement
        The encoding, the same for all nodes.
    ids
        Id of each of the node's clients, by name.
    num_clients
        Number of clients K of the federation.
    """

    agreement: Agreement
    ids: Mapping[str, int]
    num_clients: int


def stated_content(stated: Stated) -> RecordDict:
    """Make a node's reply."""
    config = ConfigRecord(
        {
            _SITES: list(stated.statements),
            _BODIES: [json.dumps(dataclasses.asdict(each)) for each in stated.statements.values()],
            _REFUSED: list(stated.refused),
            _REASONS: list(stated.refused.values()),
        }
    )
    return RecordDict({_RECORD: config})


def read_stated(content: RecordDict) -> Stated:
    """Read what the sites of a node say.

    Raises
    ------
    BadReply
        If it lacks something, or holds what no data can have.
    """
    where = "a node's statement"
    only_records(content, {_RECORD}, where)
    config = record_of(content, _RECORD, ConfigRecord, where)
    check_keys(config, {_SITES, _BODIES, _REFUSED, _REASONS}, where, "entries")
    sites, bodies, refused, reasons = (
        _texts(config.get(key), where, key) for key in (_SITES, _BODIES, _REFUSED, _REASONS)
    )
    if len(sites) != len(bodies) or len(refused) != len(reasons):
        raise BadReply(f"{where}: {_SITES} and {_BODIES} must be as many, got {len(sites)}, {len(bodies)}")
    statements = {site: _statement(body, site) for site, body in zip(sites, bodies, strict=True)}
    return Stated(statements, dict(zip(refused, reasons, strict=True)))


def _statement(body: str, site: str) -> Statement:
    where = f"{short(site)}'s statement"
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"{where}: must be JSON, got {short(body)}") from error
    if not isinstance(values, dict):
        raise BadReply(f"{where}: must be a mapping, got {short(body)}")
    check_keys(values, {"labels", "columns", "pixels", "words"}, where, "entries")
    labels, columns = values.get("labels"), _mapping(values.get("columns"), where, "columns")
    pixels, words = values.get("pixels", []), _mapping(values.get("words"), where, "words")
    if not isinstance(pixels, list) or len(pixels) > _MOST:
        raise BadReply(f"{where}: pixels must be a list, got {short(pixels)}")
    return Statement(
        _labels(labels, where),
        {name: _column(each, f"{where}, column {short(name)}") for name, each in columns.items()},
        tuple(_pixels(each, where) for each in pixels),
        {word: whole(count, 1, MOST_EXAMPLES, where, "words") for word, count in words.items()},
    )


def _labels(values: Any, where: str) -> tuple[Label, ...]:
    if not isinstance(values, list) or not 0 < len(values) <= _MOST:
        raise BadReply(f"{where}: labels must be a list, got {short(values)}")
    kinds = set(map(type, values))
    if kinds == {str}:
        return tuple(_texts(values, where, "labels"))
    if kinds != {int} and kinds != {float}:
        raise BadReply(f"{where}: labels must be all texts or all numbers, got {short(values)}")
    finite_list(values, -LARGEST_NUMBER, LARGEST_NUMBER, where, "labels")
    return tuple(values)


def _column(values: Any, where: str) -> Column:
    values = _mapping(values, where, "it")
    check_keys(values, {"kind", "moments", "values", "trained", "unfit"}, where, "entries")
    kind = values.get("kind")
    if kind not in (NUMBER, CATEGORY, EMPTY):
        raise BadReply(f"{where}: kind must be {NUMBER}, {CATEGORY} or {EMPTY}, got {short(kind)}")
    moments = _mapping(values.get("moments"), where, "moments")
    check_keys(moments, {"rows", "count", "mean", "squares"}, where, "moments")
    rows = whole(moments.get("rows"), 0, MOST_EXAMPLES, where, "rows")
    count = whole(moments.get("count"), 0, rows, where, "count")
    (mean,) = finite_list([moments.get("mean")], -LARGEST_NUMBER, LARGEST_NUMBER, where, "mean")
    (squares,) = finite_list([moments.get("squares")], 0, 1e100, where, "squares")
    names, trained = _texts(values.get("values"), where, "values"), values.get("trained")
    if not isinstance(trained, list) or set(map(type, trained)) - {bool} or len(trained) != len(names):
        raise BadReply(f"{where}: trained must have a truth value per value, got {short(trained)}")
    if names != sorted(set(names)):
        raise BadReply(f"{where}: values must be sorted and differ, got {short(names)}")
    unfit = values.get("unfit", "")
    (unfit,) = _texts([unfit], where, "unfit")
    return Column(kind, Moments(rows, count, mean, squares), tuple(names), tuple(trained), unfit[:200])


def _pixels(values: Any, where: str) -> Pixels:
    values = _mapping(values, where, "pixels")
    check_keys(values, {"count", "total", "squares"}, where, "pixels")
    count = whole(values.get("count"), 1, MOST_EXAMPLES, where, "count")
    total = whole(values.get("total"), 0, 255 * count, where, "total")
    return Pixels(count, total, whole(values.get("squares"), 0, 255**2 * count, where, "squares"))


def _mapping(values: Any, where: str, what: str) -> dict[str, Any]:
    if not isinstance(values, dict) or len(values) > _MOST:
        raise BadReply(f"{where}: {what} must be a mapping, got {short(values)}")
    _texts(list(values), where, what)
    return values


def _texts(values: Any, where: str, key: str) -> list[str]:
    if not isinstance(values, list | tuple) or len(values) > _MOST:
        raise BadReply(f"{where}: {key} must be a list of texts, got {short(values)}")
    for value in values:
        if not isinstance(value, str) or (len(value) > _LONGEST and key != _BODIES):
            raise BadReply(f"{where}: {key} must be texts, at most {_LONGEST} long, got {short(value)}")
    return list(values)


def agreed_content(agreed: Agreed) -> RecordDict:
    """Make the message that tells a node the encoding and its clients' ids."""
    config = ConfigRecord(
        {
            _ENCODING: agreed.agreement.to_json(),
            _NAMES: list(agreed.ids),
            _IDS: list(agreed.ids.values()),
            _NUM_CLIENTS: agreed.num_clients,
        }
    )
    return RecordDict({_AGREEMENT: config})


def read_agreed(content: RecordDict) -> Agreed:
    """Read what a node is told; also from where it keeps it.

    Raises
    ------
    BadReply
        If there is no agreement.
    """
    config = record_of(content, _AGREEMENT, ConfigRecord, "the server's message")
    names, ids, size = config[_NAMES], config[_IDS], config[_NUM_CLIENTS]
    return Agreed(Agreement.from_json(str(config[_ENCODING])), dict(zip(names, ids, strict=True)), int(size))


def refused_content(refused: Mapping[str, str]) -> RecordDict:
    """Make a node's reply to the agreement: why a site of its cannot be encoded like this."""
    return stated_content(Stated({}, refused))


def read_refused(content: RecordDict) -> Mapping[str, str]:
    """Read a node's reply to the agreement.

    Raises
    ------
    BadReply
        If it cannot be read.
    """
    return read_stated(content).refused
