"""Messages before round 1: clients describe their data, and nodes themselves."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedclust.data.input_encoders import InputEncoder, encoder_from, to_values
from fedclust.data.sites.agreement import LONGEST, Agreement, Column, Statement
from fedclust.data.sites.rules import Rules
from fedclust.data.targets import CLASSES, Target, from_text, to_text
from fedclust.messages import codec
from fedclust.privacy import Disclosed
from fedclust.support.checks import read_as
from fedclust.typing import FloatArray, IntArray

_LONGEST = 200  # characters of a node's name, and of a digest


@dataclass(frozen=True)
class Names:
    """Names in a federation's data, the same for all clients.

    Attributes
    ----------
    classes
        Names of the classes, in label order, shape (C,); empty if unknown.
    left_out
        Names of sources with too few examples for a client, and their numbers of examples; "" for examples
        without a source.
    target
        What is predicted; the classes are its bins.
    grouped_by
        What clients' named groups are by, such as a column; empty if they have none.
    """

    place = codec.Place("names", ConfigRecord)

    classes: Annotated[tuple[str, ...], codec.Texts(key="class-names")] = ()
    left_out: Annotated[
        Mapping[str, int],
        codec.Pairs(codec.Texts(), codec.Numbers(0, codec.MOST_EXAMPLES, int, key="left-out-rows")),
    ] = field(default_factory=dict)
    target: Annotated[Target, codec.Made(writes=to_text, reads=from_text, sparse=True)] = CLASSES
    grouped_by: Annotated[str, codec.Text(_LONGEST, printable=True, sparse=True)] = ""


_COUNTS = {"least": 0, "most": codec.MOST_EXAMPLES, "to": np.int64, "at_least": 1}
_DISCLOSED: Mapping[Disclosed, tuple[str, ...]] = {
    "labels": ("label_counts", "test_label_counts"),
    "sizes": ("num_classes", "num_train", "num_test"),
    "nothing": ("num_classes",),
}
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class Description:
    """A client's description of its data, before round 1.

    Attributes
    ----------
    label_counts, test_label_counts
        Number of its training and test samples of each class, shape (C,); None if not asked for.
    num_classes
        Number of classes C; None if label counts were asked for.
    num_train, num_test
        Number of its training and test samples; None unless only these were asked for.
    group
        The known group it belongs to, or None.
    mean, std
        Mean and standard deviation by which it normalises each channel of its images; empty if it does not.
    name
        Its name in the data (a hospital, a writer, a user), or None.
    named_group
        Name of the group that people put it in, such as a vendor, or None.
    num_validation
        Number of its training rows that are held out for the proof.
    names
        Names that are the same for all clients of its data.
    """

    label_counts: Annotated[IntArray | None, codec.Numbers(**_COUNTS, key="train-counts")] = None
    test_label_counts: Annotated[IntArray | None, codec.Numbers(**_COUNTS, key="test-counts")] = None
    num_classes: Annotated[int | None, codec.Whole(1, 2**24)] = None
    num_train: Annotated[int | None, codec.Whole(1)] = None
    num_test: Annotated[int | None, codec.Whole()] = None
    group: Annotated[int | None, codec.Whole()] = None
    # Sent at every privacy setting: a model is useless without the images' normalisation.
    mean: Annotated[tuple[float, ...], codec.Numbers(to=float)] = ()
    std: Annotated[tuple[float, ...], codec.Numbers(_TINY, to=float)] = ()
    name: Annotated[str | None, codec.Text()] = None
    named_group: Annotated[str | None, codec.Text(_LONGEST, printable=True)] = None
    num_validation: Annotated[int, codec.Whole(key="validation", sparse=True)] = 0
    names: Names = field(default_factory=Names)

    @classmethod
    def of(
        cls, train_counts: IntArray, test_counts: IntArray, disclosed: Disclosed = "labels", **fields: Any
    ) -> "Description":
        """Describe a client by its label counts, as far as these are disclosed.

        Parameters
        ----------
        train_counts, test_counts
            Number of its training and test samples of each class, shape (C,).
        disclosed
            What the client discloses about its rows.
        fields
            Further fields of the description.
        """
        available: dict[str, Any] = {
            "label_counts": np.asarray(train_counts),
            "test_label_counts": np.asarray(test_counts),
            "num_classes": len(train_counts),
            "num_train": int(np.sum(train_counts)),
            "num_test": int(np.sum(test_counts)),
        }
        if disclosed == "nothing":
            fields.pop("num_validation", None)
        return cls(**{name: available[name] for name in _DISCLOSED[disclosed]}, **fields)

    def check(self, at: codec.Reading) -> None:
        """Check that the client disclosed what was asked, and that lists have equal lengths."""
        disclosed: Disclosed = "labels" if at.asked is None else at.asked.disclosed
        for name in _DISCLOSED["labels"] + _DISCLOSED["sizes"]:
            if (getattr(self, name) is None) == (name in _DISCLOSED[disclosed]):
                raise at.bad(
                    f"a description must have {' and '.join(_DISCLOSED[disclosed])}, {name} is not as asked"
                )
        if disclosed == "nothing" and self.num_validation:
            raise at.bad("a description must not tell its held-out rows")
        if self.label_counts is not None and self.test_label_counts is not None:
            if len(self.label_counts) != len(self.test_label_counts):
                classes, others = len(self.label_counts), len(self.test_label_counts)
                raise at.bad(f"test-counts must have {classes} classes, got {others}")
            if not self.label_counts.any():
                raise at.bad("train-counts must not all be 0")
        if len(self.mean) != len(self.std):
            raise at.bad(f"mean and std must have one length, got {len(self.mean)} and {len(self.std)}")

    @property
    def train_counts(self) -> IntArray:
        """Number of its training samples of each class, shape (C,).

        If they were not asked for, the first is the number of all samples, or 0 if unknown, and the others
        are 0.
        """
        return self._counts(self.label_counts, self.num_train)

    @property
    def test_counts(self) -> IntArray:
        """Number of its test samples of each class, like :attr:`train_counts`."""
        return self._counts(self.test_label_counts, self.num_test)

    def _counts(self, by_class: IntArray | None, rows: int | None) -> IntArray:
        if by_class is not None:
            return by_class
        counts = np.zeros(self.num_classes or 0, dtype=np.int64)
        counts[:1] = rows or 0
        return counts


@dataclass(frozen=True)
class DescriptionQuestion(codec.Question[Description]):
    """Ask for a description.

    Attributes
    ----------
    disclosed
        What clients disclose about their rows: label counts, their number, or neither.
    """

    kind = "query.description"
    place = codec.Place(codec.CONFIG, ConfigRecord, optional=True)

    disclosed: Annotated[Disclosed, codec.Text(sparse=True)] = "labels"

    def check(self, at: codec.Reading) -> None:
        """Check that it is a known choice."""
        if self.disclosed not in _DISCLOSED:
            raise at.bad(f"disclosed must be one of {', '.join(_DISCLOSED)}, got {self.disclosed!r}")


def _storable(values: Any) -> Any:
    """Return values that files can hold; of others, such as half a character, raise a UnicodeError."""
    json.dumps(values, ensure_ascii=False).encode()
    return values


@dataclass(frozen=True)
class Encoder:
    """How raw rows become a network's inputs, for the run's folder.

    Attributes
    ----------
    encoder
        Encodes them as the dataset's rows.
    embedded_by
        Fingerprint of the frozen encoder that embeds these; empty without one.
    """

    encoder: Annotated[
        InputEncoder,
        codec.Made(
            key="input-encoder",
            writes=lambda encoder: json.dumps(to_values(encoder)),
            reads=lambda text: encoder_from(_storable(json.loads(text)) if isinstance(text, str) else text),
        ),
    ]
    embedded_by: Annotated[str, codec.Text(_LONGEST, printable=True, sparse=True)] = ""


@dataclass(frozen=True)
class EncoderQuestion(codec.Question[Encoder]):
    """Ask how a node encodes its inputs."""

    kind = "query.encoder"


# -- A client's classes in an embedding ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prototypes:
    """A client's classes in a foundation model's embedding.

    Attributes
    ----------
    prototypes
        Mean embedding per class, shape (C, d); C is 1 if the question pools the classes.
    counts
        Training examples of each class, shape (C,).
    """

    prototypes: Annotated[FloatArray, codec.Values("f4", "C d")]
    counts: Annotated[IntArray, codec.Values("i8", "C", 0, codec.train_rows, (1, codec.train_rows))]

    def check(self, at: codec.Reading) -> None:
        """Check that both have the same classes."""
        shapes = self.prototypes.shape, self.counts.shape
        if shapes[0][:1] != shapes[1]:
            raise at.bad(f"prototypes and counts must have the same classes, got shapes {shapes}")


@dataclass(frozen=True)
class PrototypesQuestion(codec.Question[Prototypes]):
    """Ask for class prototypes.

    Attributes
    ----------
    input
        The embedding: ``"encoder"``, the node's; ``"untrained"``, a network that every node draws from the
        same seed; or ``"pixels"``.
    pooled
        Whether all classes count as one.
    vocabulary_size
        Number of tokens, for an untrained network on texts; None for other inputs.
    """

    kind = "query.prototypes"

    input: Annotated[str, codec.Text()] = "encoder"
    pooled: Annotated[bool, codec.Flag()] = False
    vocabulary_size: Annotated[int | None, codec.Whole()] = None


_ROUND_OFF = 1e-3  # of float32, in sums over a whole example


@dataclass(frozen=True, eq=False)
class Subspaces:
    """The subspaces that a client's classes span.

    Attributes
    ----------
    subspaces
        Orthonormal columns of each class, shape (C, d, p); 0 where the class has fewer than p.
    """

    subspaces: Annotated[FloatArray, codec.Values("f4", "C d p", -1 - _ROUND_OFF, 1 + _ROUND_OFF)]

    def check(self, at: codec.Reading) -> None:
        """Check that each subspace has the requested number of columns, orthonormal or 0."""
        vectors, bases = at.asked.vectors, self.subspaces
        if bases.shape[2] != vectors:
            raise at.bad(f"subspaces must have shape (classes, width, {vectors}), got {bases.shape}")
        products = np.einsum("cdp,cdq->cpq", bases, bases)
        lengths = np.diagonal(products, axis1=1, axis2=2)
        wanted = np.where(lengths < _ROUND_OFF, 0.0, 1.0)[:, None, :] * np.eye(vectors)
        if not (np.abs(products - wanted) <= _ROUND_OFF).all():
            raise at.bad("the vectors of a subspace must be orthonormal, or 0")


@dataclass(frozen=True)
class SubspacesQuestion(codec.Question[Subspaces]):
    """Ask for the subspaces that a client's classes span.

    Attributes
    ----------
    input
        The columns of the data matrix: ``"pixels"`` or ``"encoder"``.
    vectors
        p, singular vectors per class, >= 1.
    """

    kind = "query.subspaces"

    input: Annotated[str, codec.Text()]
    vectors: Annotated[int, codec.Whole(1)]


# Nodes are asked for the clients that they host and for their sites' statements, and sent the agreement.
QUERY_CLIENTS, QUERY_STATEMENT, QUERY_AGREEMENT = "query.clients", "query.statement", "query.agreement"

Answer = TypeVar("Answer")


def read_from_node(cls: type[Answer], content: RecordDict) -> Answer:
    """Read a node's report about itself.

    Raises
    ------
    BadReply
        If something is missing or outside its bounds.
    """
    return codec.decode(cls, content, codec.Reading(sender="a node's reply"))


# -- Hosted clients -----------------------------------------------------------------------------------------

_MOST_CLIENTS = 10**7  # the server allocates a vector of the size that one node reports
_MOST_STEPS = 2**40  # sums over clients stay exact


@dataclass(frozen=True)
class Hosted:
    """A node's report about itself.

    Attributes
    ----------
    clients
        Ids of the clients that it hosts.
    num_clients
        Number of clients in all.
    name
        Its name in its own configuration; empty if it has none.
    data
        Digest of its data, equal for all nodes with the same dataset; empty if there is none. Then the
        fingerprint of the frozen encoder that embeds them, if there is one.
    steps
        Local steps of a round for each client, if any node may train any client; otherwise empty.
    """

    place = codec.Place("clients", ConfigRecord)

    clients: Annotated[tuple[int, ...], codec.Numbers(0, _MOST_CLIENTS, int, at_most=_MOST_CLIENTS)]
    num_clients: Annotated[int, codec.Whole(1, _MOST_CLIENTS)]
    name: Annotated[str, codec.Text(_LONGEST, printable=True, sparse=True)] = ""
    data: Annotated[str, codec.Text(_LONGEST, printable=True, sparse=True)] = ""
    steps: Annotated[
        tuple[int, ...], codec.Numbers(0, _MOST_STEPS, int, at_most=_MOST_CLIENTS, sparse=True)
    ] = ()

    def check(self, at: codec.Reading) -> None:
        """Check that each client is in 0…K−1, once, and has its steps."""
        if any(client >= self.num_clients for client in self.clients):
            raise at.bad(f"clients must be in [0, {self.num_clients - 1}], got {codec.short(self.clients)}")
        if len(set(self.clients)) < len(self.clients):
            raise at.bad(f"clients must name each client once, got {codec.short(self.clients)}")
        if len(self.steps) not in (0, len(self.clients)):
            raise at.bad(f"steps must be {len(self.clients)} numbers, got {codec.short(list(self.steps))}")


# -- Sites with their own data ------------------------------------------------------------------------------

_LONGEST_NAME = 300  # characters of a client's name: that of its site and a value of a column
_SITE_NAMES = partial(codec.Texts, _LONGEST_NAME, printable=True)


@dataclass(frozen=True)
class _Ruled(codec.Texts):
    """The sites' rules, each as JSON."""

    longest: int = 10_000
    raw: bool = True

    def write(self, value: Iterable[Rules]) -> list[str]:
        """Write the rules."""
        return [each.to_json() for each in value]

    def one(self, value: Any, name: str, at: codec.Reading) -> Any:
        """Read one site's rules."""
        try:
            return Rules.from_json(super().one(value, name, at))
        except (ValueError, RecursionError) as error:
            raise at.bad(f"rules must be those of a site: {str(error)[:200]}") from error


@dataclass(frozen=True)
class Registered:
    """A node's registration of its sites.

    Attributes
    ----------
    site_of
        Site of each client, by name.
    refused
        Why each other site of the node cannot take part.
    rules
        What each site lets leave it, by its name; none of sites in the user's own process.
    """

    place = codec.Place("registration", ConfigRecord)

    site_of: Annotated[
        Mapping[str, str], codec.Pairs(_SITE_NAMES(key="clients"), _SITE_NAMES(key="sites"), needed=True)
    ] = field(default_factory=dict)
    refused: Annotated[
        Mapping[str, str],
        codec.Pairs(
            _SITE_NAMES(key="refused"),
            codec.Texts(900, printable=True, key="reasons"),
            needed=True,
        ),
    ] = field(default_factory=dict)
    rules: Annotated[
        Mapping[str, Rules], codec.Pairs(_SITE_NAMES(key="ruled"), _Ruled(key="rules"), needed=True)
    ] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        clients: Mapping[str, Sequence[str]],
        refused: Mapping[str, str] = MappingProxyType({}),
        rules: Mapping[str, Rules] = MappingProxyType({}),
    ) -> "Registered":
        """Make a registration from the names of each site's clients."""
        site_of = {client: site for site, names in clients.items() for client in names}
        return cls(site_of, dict(refused), dict(rules))

    @property
    def clients(self) -> dict[str, tuple[str, ...]]:
        """Names of each site's clients, sorted."""
        names: dict[str, list[str]] = {}
        for name, site in self.site_of.items():
            names.setdefault(site, []).append(name)
        return {site: tuple(sorted(each)) for site, each in names.items()}

    def check(self, at: codec.Reading) -> None:
        """Check that each client is named after its site, and that no site is also refused."""
        for name, site in self.site_of.items():
            if name != site and not name.startswith(f"{site}/"):
                raise at.bad(f"client of {codec.short(site)} must be named after it, got {codec.short(name)}")
        if both := set(self.site_of.values()) & self.refused.keys():
            raise at.bad(f"a name must occur once, got {codec.short(sorted(both))}")


# -- Statements, and the agreement --------------------------------------------------------------------------

_VALUES = codec.Texts(LONGEST, raw=True)  # of columns, or their names: as the site's rows have them
_MOST_WARNINGS = 20  # of a site; more are not shown
_PIXELS = {
    "count": codec.Whole(1),
    "total": codec.Whole(0, 255 * codec.MOST_EXAMPLES),
    "squares": codec.Whole(0, 255**2 * codec.MOST_EXAMPLES),
}
_MOMENTS = {
    "rows": codec.Whole(),
    "count": codec.Whole(),
    "mean": codec.Real(),
    "squares": codec.Real(0, 1e100),
}


@dataclass(frozen=True)
class _Statements(codec.Texts):
    """The sites' statements, each as JSON."""

    longest: int = sys.maxsize
    raw: bool = True

    def write(self, value: Iterable[Statement]) -> list[str]:
        """Write the statements."""
        return [json.dumps(dataclasses.asdict(each)) for each in value]

    def one(self, value: Any, name: str, at: codec.Reading) -> Any:
        """Read one statement."""
        return _statement(super().one(value, name, at), at)


@dataclass(frozen=True)
class Stated:
    """The statement of each of a node's sites, and why each other site has none.

    A node also answers an agreement with it; there are then no statements.
    """

    place = codec.Place("statements", ConfigRecord)

    statements: Annotated[
        Mapping[str, Statement],
        codec.Pairs(codec.Texts(key="sites"), _Statements(key="bodies"), needed=True),
    ] = field(default_factory=dict)
    refused: Annotated[
        Mapping[str, str],
        codec.Pairs(codec.Texts(key="refused"), codec.Texts(key="reasons"), needed=True),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreed:
    """The agreement that a node is sent: the encoding, and the ids of its clients.

    Attributes
    ----------
    agreement
        The encoding, the same for all nodes.
    ids
        Id of each of the node's clients, by name.
    num_clients
        Number of clients K of the federation.
    key
        Key of the run, the same when it is resumed: a node's sites must have the same rows throughout.
    """

    place = codec.Place("agreement", ConfigRecord)

    agreement: Annotated[
        Agreement,
        codec.Made(
            key="encoding",
            writes=Agreement.to_json,
            reads=lambda text: Agreement.from_json(str(text)),
        ),
    ]
    ids: Annotated[
        Mapping[str, int],
        codec.Pairs(codec.Texts(key="names"), codec.Numbers(0, to=int, key="ids")),
    ]
    num_clients: Annotated[int, codec.Whole()]
    key: Annotated[str, codec.Text(_LONGEST, printable=True, sparse=True, key="run")] = ""


@dataclass(frozen=True)
class InRun:
    """What a node is sent that is asked for its sites' statements.

    Attributes
    ----------
    key
        Key of the run, see :class:`Agreed`: in a run a site makes one statement, as two that differ by a row
        give it.
    """

    place = codec.Place("asked", ConfigRecord)

    key: Annotated[str, codec.Text(_LONGEST, printable=True, sparse=True, key="run")] = ""


def _statement(body: str, at: codec.Reading) -> Statement:
    """Read one site's statement; any text gives a statement or a one-line error."""
    at = dataclasses.replace(at, strict=False)  # JSON writes 0.0 as it likes
    try:
        stated: Statement = read_as(Statement, json.loads(body))
    except (ValueError, RecursionError) as error:
        raise at.bad(f"a statement must describe a site's data: {str(error)[:200]}") from error
    if len(set(map(type, stated.labels))) > 1 or bool(stated.labels) == bool(stated.values):
        raise at.bad(f"labels must be all texts or all numbers, got {codec.short(stated.labels)}")
    texts = any(isinstance(label, str) for label in stated.labels)
    (_VALUES if texts else codec.Numbers()).read(stated.labels, "labels", at)
    for block in stated.values:
        codec.Whole(1).read(block.rows, "rows of a block", at)
        codec.Numbers().read(block.mean, "mean of a block", at)
        codec.Real(0).read(block.spread, "spread of a block", at)
    _VALUES.read([*stated.columns, *stated.words], "names of columns and words", at)
    codec.Numbers(1, codec.MOST_EXAMPLES, int).read(list(stated.words.values()), "words", at)
    for each in stated.pixels:
        _check_numbers(each, _PIXELS, "pixels", at)
        if each.total > 255 * each.count or each.squares > 255**2 * each.count:
            raise at.bad(f"pixels must be at most 255, got {each}")
    columns = {
        name: _column(each, f"column {codec.short(name)}", at) for name, each in stated.columns.items()
    }
    warnings = codec.Texts().read(stated.warnings[:_MOST_WARNINGS], "warnings", at)
    return dataclasses.replace(stated, columns=columns, warnings=warnings)


def _check_numbers(value: Any, entries: Mapping[str, codec.Entry], name: str, at: codec.Reading) -> None:
    for key, entry in entries.items():
        entry.read(getattr(value, key), f"{key} of {name}", at)


def _column(column: Column, name: str, at: codec.Reading) -> Column:
    moments, values = column.moments, column.values
    _check_numbers(moments, _MOMENTS, f"moments of {name}", at)
    if moments.count > moments.rows:
        raise at.bad(f"{name} must have at most {moments.rows} values, got {moments.count}")
    if len(column.trained) != len(_VALUES.read(values, f"values of {name}", at)):
        raise at.bad(f"{name} must have a truth value per value, got {codec.short(column.trained)}")
    if list(values) != sorted(set(values)):
        raise at.bad(f"values of {name} must be sorted and differ, got {codec.short(values)}")
    unfit = codec.Text().read(column.unfit, f"unfit of {name}", at)
    return dataclasses.replace(column, unfit=unfit[:200])
