"""Turn dataclasses into Flower records and back, and check every value that comes in.

A message is a frozen dataclass. The hint of each field states its type, shape and bounds::

    @dataclass(frozen=True, eq=False)
    class Brightness:
        place = IN_METRICS

        mean: Annotated[float, Real(0, 1)]
        num_rows: Annotated[int, Whole(1, train_rows)]

Fields stand in the record that the message names as its ``place``, or that their own hint does; otherwise
arrays stand in the ArrayRecord ``arrays`` and all else in the ConfigRecord ``config``. A field's key is its
name with dashes. One with a default may be missing; a value of None is not written. A field ``client`` is not
sent: it is the sender. A field that is a message itself stands in the same content. A message's function
``check`` compares fields with each other.

A reply comes from a process that the server does not control. It is checked for its kind and range before
anything else looks at it, so that a reply that makes no sense costs its client the round and nobody else
anything. A question comes from the server: what a client does not know in it is ignored.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.data.targets import Target
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.support.reasons import Sendable
from fedclust.typing import IntArray

LARGEST_LOSS = 2.0**24
"""Nats. Above, neighbouring float32 numbers are 2 nats apart: a client whose loss is larger has diverged."""

LARGEST_NUMBER = float(np.finfo(np.float32).max)
"""What models and losses are computed in holds no larger one; squares are then finite in float64."""

MOST_EXAMPLES = 2**48
"""No client has more; sums over clients then stay exact."""

MOST_LISTED = 2**20
"""No list of a reply has more numbers, where nothing else is known of their number."""

UNSENT = types.MappingProxyType({"sent": False})
"""Metadata of a dataclass field that the codec neither writes nor reads."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")  # JSON can name one alone; files and terminals cannot hold it
_CONTROL = re.compile(rf"[\x00-\x1f\x7f-\x9f]|{_SURROGATE.pattern}")
_KINDS = {"f": "numbers", "iu": "whole numbers", "u": "whole numbers without a sign"}

Record = ArrayRecord | ConfigRecord | MetricRecord
AnyRecord = TypeVar("AnyRecord", ArrayRecord, ConfigRecord, MetricRecord)
AnyRecords = TypeVar("AnyRecords", bound=ArrayRecord | ConfigRecord | MetricRecord | RecordDict)
Answer = TypeVar("Answer")


class BadReply(Sendable):
    """A client's reply lacks something or holds values that must not be aggregated."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """What is known of a federation that its clients' replies must agree with.

    Attributes
    ----------
    num_train, num_test, num_validation
        Rows of each client's parts, as it described them, shape (K,); None where nobody asked.
    num_classes
        Number of classes C; None where nobody asked.
    own_metrics
        Names of the user's own metrics, which clients may report besides the usual figures.
    least_loss
        Least value of the loss: 0 for cross-entropy; minus infinity where unknown.
    target
        What clients predict; None where nobody asked.
    num_steps
        Steps of a round of each client's training, shape (K,); None where unknown.
    """

    num_train: IntArray | None = None
    num_test: IntArray | None = None
    num_validation: IntArray | None = None
    num_classes: int | None = None
    own_metrics: Collection[str] = ()
    least_loss: float = -math.inf
    num_steps: IntArray | None = None
    target: Target | None = None


_UNKNOWN = Bounds()


@dataclass(frozen=True, eq=False)
class Reading:
    """What a message is read against.

    Attributes
    ----------
    client
        Id of the sender.
    server_round
        The round, for error messages; None outside of rounds.
    bounds
        What clients may say of themselves.
    asked
        The question that is answered.
    sender
        Who sent it, for error messages, where that is no client.
    strict
        Whether anything that was not asked for is refused: true for replies, false for questions.
    """

    client: int = -1
    server_round: int | None = None
    bounds: Bounds = _UNKNOWN
    asked: Any = None
    sender: str = ""
    strict: bool = True

    def bad(self, problem: str) -> BadReply:
        """Make the error of a message that cannot be used."""
        at = "" if self.server_round is None else f", round {self.server_round}"
        return BadReply(f"{self.sender or f'client {self.client}{at}'}: {_CONTROL.sub(' ', problem)}")

    def lacks(self, key: str, found: Collection[str]) -> BadReply:
        """Make the error of a message without a record or an entry."""
        return self.bad(f"no {key!r} in reply, keys are {short(list(found))}")

    def known(self, found: Collection[str], known: Collection[str], what: str) -> None:
        """Check that there are no records or entries but the known ones; raise BadReply if there are."""
        if unknown := set(found).difference(known):
            raise self.bad(f"{what} must be among {sorted(known)}, got {short(sorted(unknown))}")

    @property
    def classes(self) -> int | None:
        """Number of classes that an answer is about; None for any."""
        return 1 if getattr(self.asked, "pooled", False) else self.bounds.num_classes

    def most(self, rows: IntArray | None) -> int:
        """Return the most rows of a part that the client may speak of; of one that came later, any."""
        return MOST_EXAMPLES if rows is None or self.client >= len(rows) else int(rows[self.client])


SERVER = Reading(sender="the server's message", strict=False)
"""What a client reads a question against."""


def train_rows(at: Reading) -> int:
    """Return the most rows that a client may say it trained on."""
    return at.most(at.bounds.num_train)


def test_rows(at: Reading) -> int:
    """Return the most rows that a client may say it evaluated on."""
    return at.most(at.bounds.num_test)


def least_loss(at: Reading) -> float:
    """Return the least value of a loss."""
    return max(at.bounds.least_loss, -LARGEST_NUMBER)


class Question(Generic[Answer]):
    """A question to clients: a dataclass with the type of its messages and that of its answers."""

    kind: ClassVar[str]
    answer: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        """Take the answer's type from ``Question[Answer]`` unless the class names it."""
        if "answer" not in vars(cls):
            cls.answer = typing.get_args(cls.__orig_bases__[-1])[0]  # type: ignore[attr-defined]


def short(value: object) -> str:
    """Show a value of a reply in one line that is not long."""
    shown = " ".join(repr(value[:20] if isinstance(value, list | tuple | str | bytes) else value).split())
    return shown if len(shown) <= 200 else f"{shown[:200]} …"


# -- Bytes --------------------------------------------------------------------------------------------------

_NUMBER = 8


def record_bytes(record: Record) -> int:
    """Count the bytes of a record: its values, and the names of its entries."""
    return entries_bytes(dict(record.items()))


def entries_bytes(entries: Mapping[str, Any]) -> int:
    """Count the bytes of a record's entries."""
    total = 0
    for key, value in entries.items():  # a plain loop: every client of every round has such records
        total += len(key)
        if isinstance(value, Array):
            total += len(value.data)
        elif isinstance(value, str | bytes):
            total += _length(value)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], str | bytes):
            total += sum(map(_length, value))  # a record's list has values of one type
        elif isinstance(value, list | tuple):
            total += len(value) * (1 if value and isinstance(value[0], bool) else _NUMBER)
        else:
            total += 1 if isinstance(value, bool) else _NUMBER
    return total


def _length(value: str | bytes) -> int:
    return len(value if isinstance(value, bytes) or value.isascii() else value.encode())


# -- What a field may hold ----------------------------------------------------------------------------------

Limit = float | Callable[[Reading], float]


@dataclass(frozen=True)
class Place:
    """A record of a content.

    Attributes
    ----------
    record
        Its name.
    kind
        Its type.
    optional
        Whether it may be missing.
    when
        Field of the question that allows it; always allowed if empty.
    """

    record: str
    kind: type[Record]
    optional: bool = False
    when: str = ""


ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # as Flower's own strategies name them
IN_ARRAYS, IN_CONFIG = Place(ARRAYS, ArrayRecord), Place(CONFIG, ConfigRecord)
IN_METRICS = Place(METRICS, MetricRecord)


@dataclass(frozen=True)
class Entry:
    """A value in a record.

    Attributes
    ----------
    place
        The record; the message's unless given.
    key
        Its name there; the field's with dashes unless given.
    sparse
        Whether it is not written where it is the field's default.
    """

    default: ClassVar[Place] = IN_CONFIG

    place: Place | None = dataclasses.field(default=None, kw_only=True)
    key: str = dataclasses.field(default="", kw_only=True)
    sparse: bool = dataclasses.field(default=False, kw_only=True)

    def write(self, value: Any) -> Any:
        """Return what stands in the record."""
        return value

    def read(self, value: Any, name: str, at: Reading) -> Any:  # noqa: ARG002
        """Return the field's value; raise BadReply if it must not be used."""
        return value


def _limit(limit: Limit, at: Reading) -> float:
    return limit(at) if callable(limit) else limit


def _check_total(total: float, limits: tuple[Limit, Limit] | None, name: str, at: Reading) -> None:
    if limits is None:
        return
    low, high = (_limit(limit, at) for limit in limits)
    if not low <= total <= high:
        raise at.bad(f"{name} must add up to a number in [{low}, {high}], got {total}")


@dataclass(frozen=True)
class Flag(Entry):
    """A truth value; 0 or 1 in metrics, which hold numbers only."""

    def write(self, value: Any) -> bool | int:
        """Return the value as the record can hold it."""
        return int(value) if self.place and self.place.kind is MetricRecord else bool(value)

    def read(self, value: Any, name: str, at: Reading) -> bool:
        """Return the value."""
        if type(value) is not bool and (type(value) is not int or value not in (0, 1)):
            raise at.bad(f"{name} must be a truth value, got {short(value)}")
        return bool(value)


@dataclass(frozen=True)
class Real(Entry):
    """A number; NaN is in no range."""

    least: Limit = -LARGEST_NUMBER
    most: Limit = LARGEST_NUMBER

    def write(self, value: Any) -> float:
        """Return the number."""
        return float(value)

    def read(self, value: Any, name: str, at: Reading) -> float:
        """Return the number if it is in its range."""
        if type(value) is not float and (at.strict or type(value) is not int):
            raise at.bad(f"{name} must be a number, got {short(value)}")
        return float(self._in_range(value, name, at))

    def _in_range(self, value: float, name: str, at: Reading) -> float:
        least, most = self.least, self.most
        if callable(least):  # this is read for every number of every reply
            least = least(at)
        if callable(most):
            most = most(at)
        if not least <= value <= most:
            raise at.bad(f"{name} must be in [{least}, {most}], got {value}")
        return value


@dataclass(frozen=True)
class Whole(Real):
    """A whole number, which may be written as a float."""

    least: Limit = 0
    most: Limit = MOST_EXAMPLES

    def write(self, value: Any) -> int:
        """Return the number."""
        return int(value)

    def read(self, value: Any, name: str, at: Reading) -> int:
        """Return the number if it is in its range."""
        if type(value) is not int and (type(value) is not float or not value.is_integer()):
            raise at.bad(f"{name} must be a whole number, got {short(value)}")
        return int(self._in_range(value, name, at))


@dataclass(frozen=True)
class Numbers(Entry):
    """A list of finite numbers.

    Attributes
    ----------
    least, most
        Their range.
    to
        The type of the field's value: a NumPy type for an array; int or float for a tuple. Whole types take
        whole numbers.
    count
        How many there must be; any number unless given.
    at_least, at_most
        How many there must be at least, and at most.
    total
        Range of their sum; any unless given.
    """

    least: Limit = -LARGEST_NUMBER
    most: Limit = LARGEST_NUMBER
    to: type = np.float64
    count: Limit | None = None
    at_least: int = 0
    at_most: Limit = MOST_LISTED
    total: tuple[Limit, Limit] | None = None

    def write(self, value: Any) -> list[Any]:
        """Return the numbers."""
        return list(map(int if self._whole else float, value))

    def read(self, value: Any, name: str, at: Reading) -> Any:
        """Return the numbers if all are in their range."""
        number = self.count(at) if callable(self.count) else self.count
        at_most = self.at_most(at) if callable(self.at_most) else self.at_most
        if isinstance(value, list | tuple) and number is None and len(value) > at_most:
            raise at.bad(f"{name} must be at most {at_most} numbers, got {len(value)}")
        # Their number first: looking at each of millions takes seconds.
        listed = isinstance(value, list | tuple) and number in (None, len(value))
        if not listed or len(value) < self.at_least or not set(map(type, value)) <= {float, int}:
            wanted = "a list of finite numbers" if number is None else f"{number} finite numbers"
            raise at.bad(f"{name} must be {wanted}, got {short(value)}")
        if value:
            least = self.least(at) if callable(self.least) else self.least
            most = self.most(at) if callable(self.most) else self.most
            # Compared in Python: a number that is not finite fails one of the comparisons, NaN both.
            if not (least <= min(value) and max(value) <= most and math.isfinite(math.fsum(value))):
                raise at.bad(f"{name} must be finite numbers in [{least}, {most}], got {short(list(value))}")
            if self._whole and {*map(type, value)} != {int} and any(each % 1 for each in value):
                raise at.bad(f"{name} must be whole numbers, got {short(list(value))}")
            if self.total is not None:
                _check_total(sum(value), self.total, name, at)
        if issubclass(self.to, np.generic):
            return np.array(value, dtype=self.to)
        return tuple(map(self.to, value))

    @cached_property
    def _whole(self) -> bool:
        return issubclass(self.to, int | np.integer)


@dataclass(frozen=True)
class Texts(Entry):
    """A list of texts.

    Attributes
    ----------
    longest
        Characters of the longest.
    printable
        Whether each must have a character and none that cannot be printed; else spaces take the place of
        control characters, which could write to the terminal that shows them.
    raw
        Whether control characters stay, as in values of a table, which are compared with its rows.
    """

    longest: int = 1000
    printable: bool = False
    raw: bool = dataclasses.field(default=False, kw_only=True)

    def write(self, value: Any) -> Any:
        """Return the texts."""
        return list(value)

    def read(self, value: Any, name: str, at: Reading) -> Any:
        """Return the texts if none is too long."""
        if not isinstance(value, list | tuple) or len(value) > 10**6:
            raise at.bad(f"{name} must be a list of texts, got {short(value)}")
        return tuple([self.one(each, name, at) for each in value])

    def one(self, value: Any, name: str, at: Reading) -> str:
        """Read one text."""
        if not isinstance(value, str):
            raise at.bad(f"{name} must be a text, got {short(value)}")
        if len(value) > self.longest:
            raise at.bad(f"{name} must be at most {self.longest} characters long, got {short(value)}")
        if _SURROGATE.search(value):
            raise at.bad(f"{name} must be a text that UTF-8 can hold, got {short(value)}")
        if self.printable and not (value and value.isprintable()):
            raise at.bad(f"{name} must be printable, got {short(value)}")
        return value if self.raw else _CONTROL.sub(" ", value)


@dataclass(frozen=True)
class Text(Texts):
    """A text."""

    def write(self, value: Any) -> Any:
        """Return the text."""
        return str(value)

    def read(self, value: Any, name: str, at: Reading) -> Any:
        """Return the text if it is not too long."""
        return self.one(value, name, at)


@dataclass(frozen=True)
class Pairs:
    """A mapping, as two lists in a record.

    Attributes
    ----------
    keys, values
        How its keys, which are texts, and its values are written and read.
    needed
        Whether both must be there although the field has a default.
    """

    keys: Entry
    values: Entry
    needed: bool = False

    sparse: ClassVar[bool] = False

    def write(self, value: Mapping[Any, Any]) -> tuple[Any, Any]:
        """Return the lists."""
        return self.keys.write(value), self.values.write(value.values())

    def read(self, lists: Sequence[Any], names: Sequence[str], at: Reading) -> dict[Any, Any]:
        """Return the mapping if each key occurs once and has a value."""
        one, other = self.keys.read(lists[0], names[0], at), self.values.read(lists[1], names[1], at)
        if len(one) != len(other) or len(set(one)) < len(one):
            raise at.bad(f"{names[0]} must differ, as many as {names[1]}, got {short(one)} and {len(other)}")
        return dict(zip(one, other, strict=True))


@dataclass(frozen=True)
class Made(Entry):
    """A value that functions of its own write and read.

    Attributes
    ----------
    writes, reads
        What makes an entry of the value, and the value of an entry; the second raises ValueError.
    """

    writes: Callable[[Any], Any] = lambda value: value
    reads: Callable[[Any], Any] = lambda value: value

    def write(self, value: Any) -> Any:
        """Return the entry."""
        return self.writes(value)

    def read(self, value: Any, name: str, at: Reading) -> Any:
        """Return the value."""
        try:
            return self.reads(value)
        except (ValueError, RecursionError) as error:
            raise at.bad(f"{name} cannot be read, got {short(value)}: {error}") from error


@dataclass(frozen=True)
class Values(Entry):
    """An array, of which the bytes count and not what is declared.

    Attributes
    ----------
    dtype
        What it is written and returned as; it may arrive in another size of its kind.
    shape
        Names of its axes; ``C`` is the number of classes where that is known, ``...`` any further axes.
    least, most
        Range of its numbers, which must be finite; any number where `least` is None.
    total
        Range of their sum; any unless given.
    """

    default: ClassVar[Place] = IN_ARRAYS

    dtype: str
    shape: str
    least: Limit | None = -LARGEST_NUMBER
    most: Limit = LARGEST_NUMBER
    total: tuple[Limit, Limit] | None = None

    def write(self, value: Any) -> Any:
        """Return the array as Flower's."""
        return from_numpy(np.asarray(value, dtype=self.dtype))

    def read(self, value: Any, name: str, at: Reading) -> np.ndarray:
        """Return the numbers if all are in their range."""
        try:
            values = to_numpy(value)
        except ValueError as error:
            raise at.bad(f"{name} {error}") from error
        kinds = "iu" if self.dtype[0] == "i" else self.dtype[0]
        if values.dtype.kind not in kinds:
            raise at.bad(f"{name} must be {_KINDS[kinds]}, got dtype {values.dtype}")
        axes = self.shape.replace("C", str(at.classes or "C"))
        pattern = re.sub("[A-Za-z]+", r"\\d+", axes).replace(" ...", r"( \d+)*")
        if not re.fullmatch(pattern, " ".join(map(str, values.shape))):
            raise at.bad(f"{name} must have shape ({axes.replace(' ', ', ')}), got {values.shape}")
        if self.least is None:
            return values.astype(self.dtype)
        least, most = _limit(self.least, at), _limit(self.most, at)
        # One by one before their sum, which could overflow; NaN is in no range. As Python's numbers: NumPy
        # casts a limit to the array's type, where it may become infinite.
        if values.size and not (least <= values.min().item() and values.max().item() <= most):
            raise at.bad(f"{name} must be finite and in [{least}, {most}], they are not")
        _check_total(values.sum(), self.total, name, at)
        return values.astype(self.dtype)


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Own:
    """A whole record.

    Attributes
    ----------
    place
        The record.
    write, read
        What makes it of the value; and the value of it and of what it is read against, which raises
        BadReply.
    rounds
        Whether the record holds its numbers with less precision than the value.
    num_bytes
        Counts the bytes of the record's entries by the value; None to make the record for it.
    """

    place: Place
    write: Callable[[Any], Record] = _as_it_is
    read: Callable[[Any, Reading], Any] = lambda record, _: record
    rounds: bool = False
    num_bytes: Callable[[Any], int] | None = None


@dataclass(frozen=True)
class Spread:
    """A mapping or list whose values are records each, all of one kind.

    Attributes
    ----------
    each
        How one is written and read.
    names
        The names that its records may have, without the prefix; None if they are 0, 1, … of a list.
    prefix
        What their names begin with.
    """

    each: Own
    names: Callable[[Reading], Collection[str]] | None = None
    prefix: str = ""

    def known(self, at: Reading) -> list[str]:
        """List the records that there may be."""
        return [f"{self.prefix}{name}" for name in self.names(at)] if self.names else []

    def write(self, value: Any, content: dict[str, Any]) -> None:
        """Write the records."""
        for name, one in value.items() if isinstance(value, Mapping) else enumerate(value):
            content[f"{self.prefix}{name}"] = self.each.write(one)

    def read(self, content: Mapping[str, Any], at: Reading) -> Any:
        """Read the records that there are."""
        kind = self.each.place.kind
        if self.names is None:
            found: dict[str, Any] = of_kind(content, kind)
            if not found or found.keys() != {str(number) for number in range(len(found))}:
                raise at.bad(f"models must be named 0, 1, …, records are {short(list(content))}")
            return tuple(self.each.read(found[str(number)], at) for number in range(len(found)))
        values = {}
        for name in self.names(at):
            record = content.get(f"{self.prefix}{name}")
            if record is not None and not isinstance(record, kind):
                raise at.bad(f"{self.prefix}{name} must be a {kind.__name__}, got {type(record).__name__}")
            if record is not None:
                values[name] = self.each.read(record, at)
        return values


def filled(kind: type[AnyRecords], entries: Mapping[str, Any]) -> AnyRecords:
    """Make a record, or a content of records, of entries that are known to be of its types.

    Flower's constructors check the type of each entry, which takes ten times as long as all else in here.
    """
    record = kind()
    vars(record)["_data"].update(entries)
    return record


def as_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Make a record of arrays that it may share; Flower's constructor makes two more of each."""
    return filled(ArrayRecord, arrays)


def of_kind(content: Mapping[str, Any], kind: type[AnyRecord]) -> dict[str, AnyRecord]:
    """Return the records of a kind by name.

    ``content.array_records`` and the like check every record again, and what they return refers to itself and
    to `content`: a message's models would stay in memory until Python looks for circles, many rounds later.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


class Content(RecordDict):
    """Records for code that asks for one kind in Flower's way; what it gets is a copy, not a view."""

    array_records = property(partial(of_kind, kind=ArrayRecord))
    config_records = property(partial(of_kind, kind=ConfigRecord))
    metric_records = property(partial(of_kind, kind=MetricRecord))


def Model(name: str = ARRAYS) -> Own:
    """A model, as it was sent: only :func:`fedclust.messages.models.canonical` makes it safe to use."""
    return Own(Place(name, ArrayRecord))


# -- The codec ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """The entries of one record: by key, or by a mapping's two, the field, how it stands and its default."""

    place: Place
    entries: dict[tuple[str, ...], tuple[str, Entry | Pairs, Any]]

    @cached_property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """All keys, each with those of its field."""
        return {key: keys for keys in self.entries for key in keys}

    @cached_property
    def needed(self) -> tuple[str, ...]:
        """Keys without a default."""
        return tuple(key for key, keys in self.keys.items() if self.entries[keys][2] is dataclasses.MISSING)

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of some fields' values."""
        entries: dict[str, Any] = {}
        for keys, (field, how, default) in self.entries.items():
            value = values.get(field)
            if value is not None and not (how.sparse and value == default):
                if isinstance(how, Pairs):
                    entries |= zip(keys, how.write(value), strict=True)
                else:
                    entries[keys[0]] = how.write(value)
        return entries

    def read(self, content: Mapping[str, Any], at: Reading) -> dict[str, Any]:
        """Return the values of fields."""
        record = content.get(self.place.record)
        if record is None and not self.needed:
            return {}
        if not isinstance(record, self.place.kind):
            raise at.lacks(self.place.record, content)
        found = dict(record.items())  # a record's own look-ups are slow
        if at.strict and not found.keys() <= self.keys.keys():
            at.known(found, self.keys, self.place.record)
        return self.values(found, at)

    def values(self, found: Mapping[str, Any], at: Reading) -> dict[str, Any]:
        """Return the values of fields by the entries that there are."""
        values = {}
        for key in self.needed:
            if key not in found:
                raise at.lacks(key, found)
        for key, value in found.items():
            if (keys := self.keys.get(key)) is not None:
                field, how, _ = self.entries[keys]
                if isinstance(how, Entry):
                    values[field] = how.read(value, key, at)
                elif field not in values:
                    values[field] = how.read([found.get(each) for each in keys], keys, at)
        return values


@dataclass(frozen=True)
class _Plan:
    """How a dataclass is written and read, worked out once.

    `parts` has a field's name, how it stands or the type of a message, and whether it has a default. A group
    of entries is not of one field.
    """

    parts: tuple[tuple[str, Any, bool], ...]
    sender: bool

    @cached_property
    def places(self) -> list[Place]:
        """The records."""
        return [part.place for _, part, _ in self.parts if isinstance(part, _Group | Own)]

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the records that nothing must allow."""
        return frozenset(place.record for place in self.places if not place.when)

    @cached_property
    def inner(self) -> list[Any]:
        """The mappings and the messages that have records of their own."""
        return [part for _, part, _ in self.parts if isinstance(part, Spread | type)]

    def asked(self, at: Reading) -> set[str]:
        """List the records that the question asks for."""
        return {each.record for each in self.places if each.when and getattr(at.asked, each.when, None)}

    def allowed(self, at: Reading) -> set[str]:
        """List the records that there may be."""
        names = self.asked(at) | self.names
        for part in self.inner:
            names.update(part.known(at) if isinstance(part, Spread) else _plan(part).allowed(at))
        return names


@cache
def _plan(cls: Any) -> _Plan:
    slots = [vars(each).get("__slots__") for each in cls.__mro__]
    if any(slots):  # it is read by vars(), for speed
        raise TypeError(f"a message must be declared without slots, got {cls.__name__}")
    hints = typing.get_type_hints(cls, include_extras=True)
    parts: dict[tuple[str, str], tuple[str, Any, bool]] = {}  # by record or field
    for each in dataclasses.fields(cls):
        hint, default = hints[each.name], each.default
        if each.default_factory is not dataclasses.MISSING:
            default = each.default_factory()
        how = getattr(hint, "__metadata__", (None,))[0]
        if isinstance(how, Entry | Pairs):
            first, key = how.keys if isinstance(how, Pairs) else how, each.name.replace("_", "-")
            keys: tuple[str, ...] = (first.key or key,)
            if isinstance(how, Pairs):
                keys = *keys, how.values.key or key
                default = dataclasses.MISSING if how.needed else default
            place: Any = first.place or getattr(cls, "place", first.default)
            group = parts.setdefault((place.record, ""), ("", _Group(place, {}), False))[1]
            if isinstance(how, Flag):  # how it is written depends on the record
                how = dataclasses.replace(how, place=place)
            group.entries[keys] = each.name, how, default
        elif each.name != "client" and each.metadata.get("sent", True):
            if how is None:
                how = next(one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one))
            parts["", each.name] = each.name, how, default is not dataclasses.MISSING
    return _Plan(tuple(parts.values()), "client" in hints)


def encode(value: Any, shared: dict[int, RecordDict] | None = None) -> RecordDict:
    """Write a message.

    Parameters
    ----------
    value
        The message. Models in it are not copied.
    shared
        What messages inside messages were written as, by their ids, so that what several have is sent once.
        Valid while all of them exist.
    """
    content: dict[str, Any] = {}
    shared = {} if shared is None else shared
    cls: Any = type(value)
    for field, part, _ in _plan(cls).parts:
        inside = getattr(value, field, None)
        if type(part) is _Group:
            if (entries := part.write(vars(value))) or not part.place.optional:
                content[part.place.record] = filled(part.place.kind, entries)
        elif inside is None:
            continue
        elif isinstance(part, Own):
            content[part.place.record] = part.write(inside)
        elif isinstance(part, Spread):
            part.write(inside, content)
        else:
            if id(inside) not in shared:
                shared[id(inside)] = encode(inside)
            content |= shared[id(inside)]
    return filled(RecordDict, content)


@cache
def keys_of(cls: Any) -> frozenset[str]:
    """Return the keys of a message's entries, in whatever record."""
    groups = [part for _, part, _ in _plan(cls).parts if isinstance(part, _Group)]
    return frozenset(key for group in groups for key in group.keys)


Sizes = dict[tuple[int, str], int]
"""Bytes of a message's records, by what makes a record and its name. One that messages share has the same key
in all; keys are valid while all of these exist."""


def passed(
    value: Answer, at: Reading | None = None, shared: dict[tuple[int, int], Any] | None = None
) -> tuple[Answer, Sizes]:
    """Count the bytes of a message's records, and return the message as it would be read, without making one.

    What fields may hold, such as finite numbers of at most the client's rows, is checked, and numbers have
    the precision in which they are sent. Whole records, such as a model, are taken as they are unless their
    precision is lower.

    Parameters
    ----------
    value
        The message.
    at
        What it is read against; None to return it as it is.
    shared
        What messages inside answers to the same question came to, by their ids and the question's, so that
        what several clients' answers have is read once. Valid while all of them exist.

    Raises
    ------
    BadReply
        As :func:`decode`.
    """
    made: Any = value
    shared = {} if shared is None else shared
    cls: Any = type(value)
    values: dict[str, Any] = {}
    found: Sizes = {}
    for field, part, _ in _plan(cls).parts:
        inside, records = getattr(made, field, None), dict[str, Any]()
        if type(part) is _Group:
            entries = part.write(vars(made))
            if entries or not part.place.optional:
                name = part.place.record
                found[id(made), name] = len(name) + entries_bytes(entries)
            if at is not None:
                values |= part.values(entries, at)
        elif inside is None:
            continue
        elif isinstance(part, type):
            key = id(inside), id(at and at.asked)
            if key not in shared:
                shared[key] = passed(inside, at)
            values[field], sizes = shared[key]
            found |= sizes
        elif isinstance(part, Own) and part.num_bytes is not None:
            found[id(made), part.place.record] = len(part.place.record) + part.num_bytes(inside)
        elif isinstance(part, Own):
            records[part.place.record] = part.write(inside)
            if at is not None and part.rounds:
                values[field] = part.read(records[part.place.record], at)
        else:
            part.write(inside, records)
        for name, record in records.items():  # one that was just made is the message's own
            own = part.write if isinstance(part, Own) else part.each.write
            owner = record if own is _as_it_is else made
            found[id(owner), name] = len(name) + record_bytes(record)
    if at is not None:
        made = dataclasses.replace(made, **values) if values else made
        if hasattr(made, "check"):
            made.check(at)
    return made, found


def decode(cls: type[Answer], content: Mapping[str, Any], at: Reading) -> Answer:
    """Read a message.

    Raises
    ------
    BadReply
        If something is missing or outside its bounds, or, in a reply, was not asked for; in one line that
        names the sender, the round, the field, the rule and the value.
    """
    made: Any = cls
    if at.strict and not content.keys() <= _plan(made).names:
        at.known(content, _plan(made).allowed(at), "records")
    read: Answer = _decode(made, content, at)
    return read


def _decode(cls: Any, content: Mapping[str, Any], at: Reading) -> Any:
    plan = _plan(cls)
    values: dict[str, Any] = {"client": at.client} if plan.sender else {}
    for field, part, optional in plan.parts:
        if type(part) is _Group:
            values |= part.read(content, at)
        elif isinstance(part, Spread):
            values[field] = part.read(content, at)
        elif isinstance(part, Own):
            record = content.get(part.place.record)
            if isinstance(record, part.place.kind):
                values[field] = part.read(record, at)
            elif record is not None or not optional:
                raise at.lacks(part.place.record, content)
        elif not optional or _plan(part).asked(at) or not content.keys().isdisjoint(_plan(part).allowed(at)):
            values[field] = _decode(part, content, at)
    made = cls(**values)
    if hasattr(made, "check"):
        made.check(at)
    return made
