"""What nodes say of themselves: the clients they host, their own data, and the encoding they agree on."""

import dataclasses
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

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
from fedclust.messages.codec import (
    MOST_EXAMPLES,
    Entry,
    Made,
    Numbers,
    Pairs,
    Place,
    Reading,
    Real,
    Text,
    Texts,
    Whole,
    decode,
    short,
)

# Nodes are asked for what clients they host, what their sites say of their data, and told what all agreed on.
QUERY_CLIENTS, QUERY_STATEMENT, QUERY_AGREEMENT = "query.clients", "query.statement", "query.agreement"

Said = TypeVar("Said")


def read_from_node(cls: type[Said], content: RecordDict) -> Said:
    """Read what a node says of itself.

    Raises
    ------
    BadReply
        If something is missing or outside its bounds.
    """
    return decode(cls, content, Reading(sender="a node's reply"))


# -- Hosted clients -----------------------------------------------------------------------------------------

_CLIENTS = Place("clients", ConfigRecord)
_MOST_CLIENTS = 10**7  # a vector over clients is made of what one node says
_MOST_STEPS = 2**40  # sums over clients stay exact
_LONGEST = 200  # characters of a node's name, and of a digest


@dataclass(frozen=True)
class Hosted:
    """What a node says of itself.

    Attributes
    ----------
    clients
        Ids of the clients that it hosts.
    num_clients
        Number of clients in all.
    name
        Its name in its own configuration; empty if it has none.
    data
        Digest of the data that it holds, which all nodes of one dataset share; empty if there is none.
    steps
        Of each client, the local steps of a round, where any node may train any client; empty elsewhere.
    """

    clients: Annotated[tuple[int, ...], Numbers(_CLIENTS, 0, _MOST_CLIENTS, int)]
    num_clients: Annotated[int, Whole(_CLIENTS, 1, _MOST_CLIENTS)]
    name: Annotated[str, Text(_CLIENTS, _LONGEST, printable=True, sparse=True)] = ""
    data: Annotated[str, Text(_CLIENTS, _LONGEST, printable=True, sparse=True)] = ""
    steps: Annotated[tuple[int, ...], Numbers(_CLIENTS, 0, _MOST_STEPS, int, sparse=True)] = ()

    def check(self, at: Reading) -> None:
        """Check that each client is in 0…K−1, once, and has its steps."""
        if any(client >= self.num_clients for client in self.clients):
            raise at.bad(f"clients must be in [0, {self.num_clients - 1}], got {short(self.clients)}")
        if len(set(self.clients)) < len(self.clients):
            raise at.bad(f"clients must name each client once, got {short(self.clients)}")
        if len(self.steps) not in (0, len(self.clients)):
            raise at.bad(
                f"steps must be a list of {len(self.clients)} numbers, got {short(list(self.steps))}"
            )


# -- Sites with their own data ------------------------------------------------------------------------------

_LONGEST_NAME = 300  # characters of a client's name: that of its site and a value of a column
_REGISTRATION = Place("registration", ConfigRecord)
_SITE_NAMES = partial(Texts, _REGISTRATION, _LONGEST_NAME, printable=True)


@dataclass(frozen=True)
class Registered:
    """What a node says of its sites.

    Attributes
    ----------
    site_of
        Site of each client, by name.
    refused
        Why each other site of the node cannot take part.
    """

    site_of: Annotated[
        Mapping[str, str], Pairs(_SITE_NAMES(key="clients"), _SITE_NAMES(key="sites"), needed=True)
    ] = field(default_factory=dict)
    refused: Annotated[
        Mapping[str, str],
        Pairs(
            _SITE_NAMES(key="refused"),
            Texts(_REGISTRATION, 900, printable=True, key="reasons"),
            needed=True,
        ),
    ] = field(default_factory=dict)

    @classmethod
    def of(
        cls, clients: Mapping[str, Sequence[str]], refused: Mapping[str, str] = MappingProxyType({})
    ) -> "Registered":
        """Make it of the names of each site's clients."""
        return cls({client: site for site, names in clients.items() for client in names}, dict(refused))

    @property
    def clients(self) -> dict[str, tuple[str, ...]]:
        """By site, the names of its clients, sorted."""
        names: dict[str, list[str]] = {}
        for name, site in self.site_of.items():
            names.setdefault(site, []).append(name)
        return {site: tuple(sorted(each)) for site, each in names.items()}

    def check(self, at: Reading) -> None:
        """Check that each client is named after its site, and each site once."""
        for name, site in self.site_of.items():
            if name != site and not name.startswith(f"{site}/"):
                raise at.bad(f"a client of {short(site)} must be named after it, got {short(name)}")
        if both := set(self.site_of.values()) & self.refused.keys():
            raise at.bad(f"a name must occur once, got {short(sorted(both))}")


# -- Statements, and the agreement --------------------------------------------------------------------------

_STATEMENTS, _AGREEMENT = Place("statements", ConfigRecord), Place("agreement", ConfigRecord)
_MOST = 10**6
_ANY = Place("", ConfigRecord)  # entries of a mapping in JSON, which stand in no record of their own
_VALUES = Texts(_ANY, raw=True)  # of columns, or their names: as the site's rows have them
_PIXELS = {
    "count": Whole(_ANY, 1),
    "total": Whole(_ANY, 0, 255 * MOST_EXAMPLES),
    "squares": Whole(_ANY, 0, 255**2 * MOST_EXAMPLES),
}
_MOMENTS = {
    "rows": Whole(_ANY),
    "count": Whole(_ANY),
    "mean": Real(_ANY),
    "squares": Real(_ANY, 0, 1e100),
}


class _Statements(Entry):
    """The sites' statements, each as JSON."""

    def write(self, value: Sequence[Statement]) -> list[str]:
        """Write the statements."""
        return [json.dumps(dataclasses.asdict(each)) for each in value]

    def read(self, value: Any, name: str, at: Reading) -> list[Statement]:
        """Read the statements."""
        bodies = Texts(self.place, sys.maxsize, raw=True).read(value, name, at)
        return [_statement(body, at) for body in bodies]


@dataclass(frozen=True)
class Stated:
    """What each site of a node says, and why each other site cannot.

    A node also answers to the agreement with it: then there are no statements.
    """

    statements: Annotated[
        Mapping[str, Statement],
        Pairs(Texts(_STATEMENTS, key="sites"), _Statements(_STATEMENTS, key="bodies"), needed=True),
    ] = field(default_factory=dict)
    refused: Annotated[
        Mapping[str, str],
        Pairs(Texts(_STATEMENTS, key="refused"), Texts(_STATEMENTS, key="reasons"), needed=True),
    ] = field(default_factory=dict)


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

    agreement: Annotated[
        Agreement,
        Made(
            _AGREEMENT,
            key="encoding",
            writes=Agreement.to_json,
            reads=lambda text: Agreement.from_json(str(text)),
        ),
    ]
    ids: Annotated[
        Mapping[str, int], Pairs(Texts(_AGREEMENT, key="names"), Numbers(_AGREEMENT, 0, to=int, key="ids"))
    ]
    num_clients: Annotated[int, Whole(_AGREEMENT)]


def _statement(body: str, at: Reading) -> Statement:
    """Read what one site says; whatever it holds, it makes a statement or an error in one line."""
    at = dataclasses.replace(at, strict=False)  # JSON writes 0.0 as it likes
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise at.bad(f"a statement must be JSON, got {short(body)}") from error
    told = _mapping(values, "a statement", at, ("labels", "columns", "pixels", "words"))
    columns = _mapping(told.get("columns"), "columns", at)
    words = _mapping(told.get("words"), "words", at)
    return Statement(
        _labels(told.get("labels"), at),
        {name: _column(each, f"column {short(name)}", at) for name, each in columns.items()},
        tuple(_pixels(each, at) for each in _list(told.get("pixels", []), "pixels", at)),
        {word: Whole(_ANY, 1).read(count, "words", at) for word, count in words.items()},
    )


def _mapping(values: Any, name: str, at: Reading, known: Collection[str] | None = None) -> dict[str, Any]:
    if not isinstance(values, dict) or len(values) > _MOST:
        raise at.bad(f"{name} must be a mapping, got {short(values)}")
    _VALUES.read(list(values), name, at)
    if known is not None:
        at.known(values, known, name)
    return values


def _list(values: Any, name: str, at: Reading) -> list[Any]:
    if not isinstance(values, list) or len(values) > _MOST:
        raise at.bad(f"{name} must be a list, got {short(values)}")
    return values


def _numbers(values: Any, entries: Mapping[str, Entry], name: str, at: Reading) -> dict[str, Any]:
    told = _mapping(values, name, at, entries)
    return {key: entry.read(told.get(key), f"{key} of {name}", at) for key, entry in entries.items()}


def _labels(values: Any, at: Reading) -> tuple[Label, ...]:
    kinds = set(map(type, _list(values, "labels", at)))
    if kinds == {str}:
        return _VALUES.read(values, "labels", at)
    if kinds != {int} and kinds != {float}:
        raise at.bad(f"labels must be all texts or all numbers, got {short(values)}")
    Numbers(_ANY).read(values, "labels", at)
    return tuple(values)


def _column(values: Any, name: str, at: Reading) -> Column:
    told = _mapping(values, name, at, ("kind", "moments", "values", "trained", "unfit"))
    kind, trained = told.get("kind"), told.get("trained")
    if kind not in (NUMBER, CATEGORY, EMPTY):
        raise at.bad(f"{name} must be of kind {NUMBER}, {CATEGORY} or {EMPTY}, got {short(kind)}")
    moments = Moments(**_numbers(told.get("moments"), _MOMENTS, f"moments of {name}", at))
    if moments.count > moments.rows:
        raise at.bad(f"{name} must have at most {moments.rows} values, got {moments.count}")
    texts = _VALUES.read(told.get("values"), f"values of {name}", at)
    if not isinstance(trained, list) or set(map(type, trained)) - {bool} or len(trained) != len(texts):
        raise at.bad(f"{name} must have a truth value per value, got {short(trained)}")
    if list(texts) != sorted(set(texts)):
        raise at.bad(f"values of {name} must be sorted and differ, got {short(texts)}")
    unfit = Text(_ANY).read(told.get("unfit", ""), f"unfit of {name}", at)
    return Column(kind, moments, texts, tuple(trained), unfit[:200])


def _pixels(values: Any, at: Reading) -> Pixels:
    pixels = Pixels(**_numbers(values, _PIXELS, "pixels", at))
    if pixels.total > 255 * pixels.count or pixels.squares > 255**2 * pixels.count:
        raise at.bad(f"pixels must be at most 255, got {pixels}")
    return pixels
