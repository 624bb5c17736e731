"""A site's rows: reading, division into clients' parts, description for other sites, and encoding."""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedclust.data import cache
from fedclust.data.check import ELSEWHERE, SETTING, Finding, lines, not_classes, suspicion
from fedclust.data.dataset import VALUES, FederatedData
from fedclust.data.images import Images, pixel_counts
from fedclust.data.input_encoders import InputEncoder, category_texts, numbers_of
from fedclust.data.partition import IN_BOTH_FILES, hold_out, holdout, named_groups
from fedclust.data.sites import OwnSitesPartition, SiteError, agreement
from fedclust.data.sites.rules import Rules
from fedclust.data.source import (
    UNREADABLE,
    USUAL,
    Labels,
    Part,
    SourceError,
    column,
    find_column,
    table_of,
    whole_numbers,
)
from fedclust.data.tables import Kind, Tables
from fedclust.data.targets import from_text
from fedclust.data.text import Text, count_words, tokenizer_of
from fedclust.support.reasons import about, is_open, reason_of
from fedclust.support.rng import generator
from fedclust.typing import BoolArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

_FORMAT = 2
_PUBLIC = attrgetter("public")
_POOLED = "; give dataset.path="  # advice for a run that names the data
_CHUNK = 1024  # images counted at a time
_TEST = "own test part"
_LONGEST = 300  # characters of a client's name, as records allow
_FEW_CODES = 10  # a column with at most so many different numbers holds codes, which may be rare
_UNKNOWN_YET = {"num_classes": 2, "class_names": None, "category_sizes": None, "hub": None, "sha256": None}

Builder: TypeAlias = Tables | Images | Text


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class SiteRows:
    """The rows of a site before they are encoded.

    Attributes
    ----------
    name
        The site's name.
    builder
        Reads the rows, with the site's own path.
    parts
        The source's training part and, if it has one, its test part.
    kept
        Which rows of the source are kept, shape (rows of the source,).
    labels
        Label of each kept row as the source has it, shape (N,): whole numbers, numbers, or texts. Of amounts
        and times their values, float32, shape (N,) or (N, 2).
    num_train
        Kept rows of the source's training part.
    clients
        Names of the site's clients, sorted.
    train, test, validation
        Kept rows of each client's parts; `validation` is empty if no rows are held out.
    findings
        What should be looked at in the data; see :mod:`fedclust.data.check`.
    persons
        Number of the person that each kept row is of, shape (N,); None without a key.
    rules
        What the site lets leave it; None in the user's own process.
    named_groups
        Name of each client's group, see :attr:`~fedclust.data.dataset.FederatedData.named_groups`.
    """

    name: str
    builder: Builder
    parts: Sequence[Part]
    kept: BoolArray
    labels: NDArray[Any]
    num_train: int
    clients: tuple[str, ...]
    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    validation: tuple[IntArray, ...] = ()
    findings: Sequence[Finding] = ()
    persons: IntArray | None = None
    rules: Rules | None = None
    named_groups: tuple[str, ...] = ()

    @property
    def floor(self) -> int:
        """Least number of rows that anything which leaves the site is of."""
        return self.rules.min_cell if self.rules else 1

    @property
    def shared_persons(self) -> bool:
        """Whether a person has rows in several clients; without a key each row is a person of its own."""
        if self.persons is None:
            return False
        of = [np.unique(self.persons[np.concatenate(parts)]) for parts in zip(*self._parts, strict=True)]
        return len(np.unique(np.concatenate(of))) < sum(map(len, of))

    @property
    def _parts(self) -> tuple[tuple[IntArray, ...], ...]:
        return (self.train, self.test, *([self.validation] if self.validation else []))

    @property
    def trained(self) -> IntArray:
        """Rows that some client trains on, sorted; everything is fitted on these."""
        return np.sort(np.concatenate(self.train))


_NAMES_COLUMNS = ("label", "event", "natural", "groups", "numbers", "categories", "ignore", "text", "image")
_FORM = (
    "name",
    "target",
    "unit",
    "error",
    "num_classes",
    "class_names",
    "input_shape",
    "resize",
    "encoding",
    "category_sizes",
)
_OF_A_RUN = frozenset({*_NAMES_COLUMNS, *_FORM, "vocabulary_size", "tokenizer"})
"""What a run may set of ``dataset`` on a deployed node: names of columns, and the form of the inputs."""

_ELSEWHERE = frozenset({"path", "hub", "hub_options", "sha256", "sha256_help", "group"})
"""What is about a source other than a site's own, or is set by ``partition``; it is ignored."""

_IN_CONF = {"csv_options": {"sep": ",", "encoding": "utf-8", "decimal": ".", **USUAL}}


def of_a_node(dataset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``dataset`` node with which a deployed node reads its data, as the node alone decides.

    Parameters
    ----------
    dataset
        The ``dataset`` node of the run.
    own
        The node's own settings of it.

    Raises
    ------
    SiteError
        If the run sets how the data is read.
    """
    kind = _kind(dataset)
    for field in dataclasses.fields(kind):
        unset = [None, field.default, _IN_CONF.get(field.name)]
        if field.default_factory is not dataclasses.MISSING:
            unset.append(field.default_factory())
        value = dataset.get(field.name)
        if field.name not in _OF_A_RUN | _ELSEWHERE and value not in unset and value not in ([], {}):
            how = "it is read as its operator's --node-config says"
            raise SiteError(f"dataset.{field.name} must not be set for a site's own data, {how}")
    used = _OF_A_RUN - _UNKNOWN_YET.keys()  # which builder_of sets itself
    chosen = {key: value for key, value in dataset.items() if key in used or key.startswith("_")}
    if unknown := [key for key in own if key not in {field.name for field in dataclasses.fields(kind)}]:
        raise SiteError(f"the node's {unknown[0]} is for another kind of data than {dataset.get('name')}")
    return chosen | dict(own)


def _kind(dataset: Mapping[str, Any]) -> type[Builder]:
    from hydra.utils import get_class

    kind = get_class(dataset["_target_"])
    if not issubclass(kind, Tables | Images | Text):
        rule = "partition=own reads tables, images and texts, such as dataset=csv, image_folder and text"
        raise SiteError(f"{rule}, got dataset {dataset.get('name', kind.__name__)}")
    return kind


def builder_of(dataset: Mapping[str, Any], path: Path) -> Builder:
    """Build the reader of a site's data.

    Parameters
    ----------
    dataset
        The ``dataset`` node of the run; values that are not yet known may be missing.
    path
        The site's own file or folder; the run's own ``path`` is ignored.

    Raises
    ------
    SiteError
        If the dataset cannot be a site's own file.
    ValueError
        If a setting is out of range.
    """
    kind = _kind(dataset)
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = {key: value for key, value in _UNKNOWN_YET.items() if key in known}
    given = {"input_shape": [1], **dataset, **unknown, "path": str(path)}
    with about("dataset"):
        return kind(**{key: value for key, value in given.items() if not key.startswith("_")})


def read_site(
    name: str, builder: Builder, own: OwnSitesPartition, seed: int, rules: Rules | None = None
) -> SiteRows:
    """Read a site's rows and divide them into its clients' parts.

    A site is one client with its name or, with a ``natural`` column, one client per value of that column,
    such as ``north/ward-3``. Which rows train and which test depends only on the seed and the client's name.

    Parameters
    ----------
    name
        The site's name.
    builder
        Result of :func:`builder_of`.
    own
        The run's settings.
    seed
        The run's seed.
    rules
        What the site lets leave it; None in the user's own process.

    Raises
    ------
    SiteError
        If the rows cannot be read or are too few, or the run asks for what the rules forbid; the message has
        no path.
    """
    floor = max(own.min_samples, rules.min_cell if rules else 0)
    with private(builder), builder.opened() as parts:
        if builder.per_position:
            raise SiteError("partition=own needs one label per row, got dataset.per_position=true")
        builder = dataclasses.replace(builder, group=own.group)
        if rules:
            builder = _ruled(builder, parts, rules)
        findings = _checked(builder, parts)
        read = builder.read_values if builder.kind.numeric else partial(_classes, builder, rules)
        labels, kept, num_train = read(parts)
        with _as_site_error():
            ranks = builder.kind.strata(labels)
        owner, names = builder.encode_names(parts, kept, "natural") or (
            np.zeros(len(labels), np.int64),
            ("",),
        )
        if nobodys := int((owner < 0).sum()):
            own_column = find_column(parts[0], builder.natural or (), "natural")
            findings = [*findings, Finding("no owner", own_column, nobodys, len(owner))]
        clients = [f"{name}/{each}" if each else name for each in names]
        if own.test == "official" and num_train == len(labels):
            raise SiteError("partition.test=official needs a test file, the site has none")
        if unfit := [each for each in clients if len(each) > _LONGEST or not each.isprintable()]:
            rule = f"names of clients must be at most {_LONGEST} printable characters"
            raise SiteError(rule + (f", got {unfit[0]!r}" if is_open() else ""))
        persons = builder.persons(parts, kept)
        person = np.arange(len(labels)) if persons is None else persons
        seed = seed if own.seed is None else own.seed
        # A person with rows in several clients of the site has the part that the first draw gave.
        drawn, in_test = np.zeros((2, int(person.max(initial=-1)) + 1), dtype=bool)
        owned = np.flatnonzero(owner >= 0)
        of_test = owned >= num_train
        if own.test == "official" and np.isin(person[owned[of_test]], person[owned[~of_test]]).any():
            raise SiteError(IN_BOTH_FILES)
        held: dict[str, tuple[IntArray, IntArray]] = {}
        sizes = [0]  # of clients that are left out
        for client, number in sorted((client, number) for number, client in enumerate(clients)):
            rows = np.flatnonzero(owner == number)
            people, first = np.unique(person[rows], return_index=True)
            if len(people) < floor:
                sizes.append(len(people))
                continue
            if own.test == "official":
                tested = rows >= num_train
            else:  # as for pooled data, but by the client's name alone
                draws, new = generator(seed, _TEST, key_of(client)), ~drawn[people]
                if new.sum() > 1:
                    alone = np.zeros(new.sum(), np.int64)
                    in_test[people[new]] = holdout(alone, ranks[rows[first[new]]], own.test_fraction, draws)
                drawn[people] = True
                tested = in_test[person[rows]]
            if not tested.all():
                held[client] = rows[~tested], rows[tested]
        if not held:
            what = "rows" if persons is None else "persons"
            got = f", got {max(sizes)}" if is_open() else ""
            raise SiteError(f"a client must have at least {floor} {what}{got}")
        fitted = {key_of(client): train for client, (train, _) in held.items()}
        train, validation = hold_out(fitted, own.fraction, seed, person)
        test = tuple(rows for _, rows in held.values())
        least = rules.min_cell if rules else 0
        enough = [len(rows) >= least for rows in train]
        named = tuple(compress(held, enough))
        train, test, validation = (tuple(compress(each, enough)) for each in (train, test, validation))
        if not named:
            raise SiteError(f"a client must train on at least {least} rows")
        groups = builder.encode_names(parts, kept, "groups")
        with _as_site_error():
            in_groups = () if groups is None else named_groups(*groups, train)
        facts = name, builder, parts, kept, labels, num_train, named, train, test
        return SiteRows(*facts, validation if own.fraction else (), findings, persons, rules, in_groups)


@contextmanager
def _as_site_error() -> Iterator[None]:
    """Convert a ValueError without values of the site to a :class:`SiteError`."""
    try:
        yield
    except ValueError as error:
        raise SiteError(str(error)) from error


def _classes(
    builder: Builder, rules: Rules | None, parts: Sequence[Part]
) -> tuple[NDArray[Any], BoolArray, int]:
    """Read labels; return them, which rows of the source are kept, and how many of these train."""
    arrays, kept = builder.read_labels(parts)
    labels = whole_numbers(np.concatenate(arrays))
    named = builder.names_in(parts[0])
    if named and labels.min() >= 0:  # the names' order may be another at each site
        labels = np.array(named)[labels]
    if labels.dtype.kind not in "if":  # the same at every site
        labels = np.array([str(label) for label in labels])
    if rules:
        _check_classes(labels, rules)
    return labels, kept, len(arrays[0])


def _named(builder: Builder) -> dict[str, list[str]]:
    """List the columns that the run names, by setting."""
    given = {role: getattr(builder, role, None) or () for role in (*_NAMES_COLUMNS, "group")}
    return {role: [names] if isinstance(names, str) else list(names) for role, names in given.items()}


_RULE_OF = {
    **dict.fromkeys(("label", "event"), "labels"),
    "natural": "groups",
    "groups": "groups",
    **dict.fromkeys(("numbers", "categories", "text", "image"), "inputs"),
}
"""By which of the rules' lists a setting may name a column."""

_KEPT = "kept.npy"  # of a site some of whose rows are left out, the numbers of the others

_FIRST = ("label", "natural", "groups", "text", "image")  # of several names, the first that exists is used


def _ruled(builder: Builder, parts: Sequence[Part], rules: Rules) -> Builder:
    """Return the reader without columns that must not be inputs.

    Raises
    ------
    SiteError
        If the run names a column that the rules do not allow, or, where they list none, one whose values
        would leave the node and that looks like an identifier or a date.
    """
    keep = set(getattr(builder, "keep", ()))
    for role, names in _named(builder).items():
        if role not in _RULE_OF or not names:
            continue
        own = [find_column(parts[0], names, role)] if role in _FIRST else names
        columns = [find_column(parts[0], name, role) for name in own]
        listed, setting = getattr(rules, _RULE_OF[role]), f"dataset.{role}"
        allow = f"its operator can allow it in the {_RULE_OF[role]} of the rules"
        if listed is not None:
            if others := [name for name in columns if name not in listed]:
                raise SiteError(f"{setting} must be allowed by the site's rules, got {others[0]}; {allow}")
        elif role in ("label", "event", "natural", "groups", "numbers", "categories"):
            table = table_of(parts, columns, slice(None))
            if found := [name for name in columns if name not in keep and suspicion(name, table[name])]:
                raise SiteError(f"{setting} must not name an identifier or a date, got {found[0]}; {allow}")
    _check_key(builder, parts, rules)
    if isinstance(builder, Tables) and builder.chooses and rules.inputs is not None:
        others = [name for name in parts[0].rows.schema.names if name not in rules.inputs]
        builder = dataclasses.replace(builder, ignore=[*builder.ignore, *others])
    return builder


def _check_key(builder: Builder, parts: Sequence[Part], rules: Rules) -> None:
    """Check that the key of a patient is the rules', as how many keys there are leaves the site."""
    named = None if builder.group is None else find_column(parts[0], builder.group, "group")
    if rules.patient is not None and named != rules.patient:
        rule = f"partition.group must be {rules.patient} at this site, by the rules of its operator"
        raise SiteError(f"{rule}, got {named or 'none'}")
    listed = (rules.labels, rules.inputs, rules.groups)
    if named is None or rules.patient is not None or None in listed:
        return
    if not any(named in each for each in listed if each is not None):
        allow = "its operator can allow it as the patient of the rules"
        raise SiteError(f"partition.group must be allowed by the site's rules, got {named}; {allow}")


def _check_classes(labels: NDArray[Any], rules: Rules) -> None:
    counts = np.unique(labels, return_counts=True)[1]
    if len(counts) > rules.max_values:
        raise SiteError(f"dataset.label must have at most {rules.max_values} classes at this site")
    if counts.min() < rules.min_cell:
        rule = f"dataset.label must have at least {rules.min_cell} rows of each of its classes at this site"
        raise SiteError(f"{rule}; its operator can group classes or leave rows out")


def _checked(builder: Builder, parts: Sequence[Part]) -> Sequence[Finding]:
    """Check a site's data.

    Raises
    ------
    SiteError
        If something must be mended first; without a value, a count or a path.
    """
    if isinstance(builder, Tables):
        found = builder.findings(parts)
    else:
        labels = column(parts[0], find_column(parts[0], builder.label, "label"))
        if builder.kind.numeric or labels.type.num_fields:  # a list is refused where labels are read
            return ()
        found = not_classes(labels.to_pandas())
    if errors := [each for each in found if each.severity == "error" and each.rule not in ELSEWHERE]:
        if not is_open():
            named = {name for names in _named(builder).values() for name in names}
            alike = dict.fromkeys(each.anonymous(named) for each in errors)
            problems = "; ".join(each.problem for each in alike)
            raise SiteError(f"{problems}; fedclust check FILE shows where, to the site's operator")
        raise SiteError(f"{'; '.join(lines(errors, 3, _PUBLIC))}; fedclust check FILE shows where")
    return found


def key_of(name: str) -> int:
    """Return a whole number that stands for a name in :func:`fedclust.support.rng.generator`, below 2^64."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


@contextmanager
def private(builder: Builder) -> Iterator[None]:
    """Convert errors about a site's data to a :class:`SiteError` without its path."""
    try:
        yield
    except SiteError:
        raise
    except UNREADABLE as error:
        if not is_open():
            if isinstance(error, SourceError):
                error.args = (_for_operator(str(error)),)  # who reads the log
            raise SiteError(reason_of(error, "reading the data")) from error
        text = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise SiteError(_without_path(text, str(builder.path))) from error


def _for_operator(text: str) -> str:
    """Write what only a deployed node's operator can set as in its configuration; leave a run's settings."""

    def key(match: re.Match[str]) -> str:
        csv, name, value = match.groups()
        if not csv and name != "keep":  # a run may set it
            return match[0]
        plain = value.strip('[]"')
        typed = plain in ("true", "false") or plain.isdecimal()
        return f"{name}={plain}" if typed else f"{name}='{plain}'"

    text = text.partition(_POOLED)[0]
    written = SETTING.sub(key, text)
    return written if written == text else f"{written} (in --node-config)"


def _without_path(text: str, path: str) -> str:
    absolute = Path(path).expanduser().absolute()
    for pooled_advice in (_POOLED, " (read from "):
        text = text.partition(pooled_advice)[0]
    for root in sorted({str(absolute), path, str(absolute.parent)}, key=len, reverse=True):
        if len(root) > 1:
            text = re.sub(re.escape(root) + r"[^\s,;:()']*", "its data", text)
    return " ".join(text.split())


@lru_cache(maxsize=64)  # of as many sites as a node keeps rows of
def describe(rows: SiteRows) -> agreement.Statement:
    """Describe a site's rows as far as needed to agree on an encoding.

    Raises
    ------
    SiteError
        If the rows cannot be read, or too few train.
    """
    builder, size, floor = rows.builder, rows.num_train, rows.floor
    if len(rows.trained) < floor:
        raise SiteError(f"a site must train on at least {floor} rows")
    warnings = lines((each for each in rows.findings if each.rule not in ELSEWHERE), 6, _PUBLIC)
    if rows.rules:
        warnings = [_for_operator(line) for line in warnings]
    statement = agreement.Statement((), warnings=tuple(line[:900] for line in warnings))
    if builder.kind.numeric:
        if not (values := builder.kind.stated(rows.labels[rows.trained], floor)):
            raise SiteError(f"a site must train on at least {floor} rows with the event, or without it")
        statement = dataclasses.replace(statement, values=values)
    else:
        statement = dataclasses.replace(statement, labels=tuple(np.unique(rows.labels).tolist()))
        _check_lengths(statement.labels, "labels")
    with private(builder):
        if isinstance(builder, Tables):
            kinds = builder.kinds(rows.parts[0])
            table = table_of(rows.parts, kinds, rows.kept)  # one by one, thousands of columns take minutes
            trained = table.iloc[rows.trained]
            unfit = builder.unfit(rows.findings)
            columns = {
                name: _column(size, table[name], trained[name], kind or "category", unfit.get(name), floor)
                for name, kind in kinds.items()
            }
            _check_lengths(columns, "names of columns")
            for name, each in columns.items():
                _check_lengths(each.values, f"values of {name}")
            if rules := rows.rules:
                columns = {name: _within(each, rules) for name, each in columns.items()}
            return dataclasses.replace(statement, columns=columns)
        if isinstance(builder, Images):
            return dataclasses.replace(statement, pixels=_pixels(images_of(rows, builder)[:size]))
        if builder.tokenizer is not None:
            return statement
        texts = texts_of(rows, builder)
        words = count_words(texts[row] for row in rows.trained)
        if floor > 1:  # a word in fewer texts may be a name
            held = Counter(word for row in rows.trained for word in count_words([texts[row]]))
            words = Counter({word: count for word, count in words.items() if held[word] >= floor})
        short = {word: count for word, count in words.items() if len(word) <= agreement.LONGEST}
        return dataclasses.replace(statement, words=short)


def _within(column: agreement.Column, rules: Rules) -> agreement.Column:
    """Withhold the categories of a column that has too many."""
    if len(column.values) <= rules.max_values:
        return column
    return agreement.Column("category", unfit="too many different values")


def _check_lengths(texts: Iterable[agreement.Label], what: str) -> None:
    """Refuse a site whose texts no message takes; others at the same node would fail with it."""
    if any(isinstance(text, str) and len(text) > agreement.LONGEST for text in texts):
        raise SiteError(f"{what} must have at most {agreement.LONGEST:,} characters; shorten the longest")


def _column(
    num_train: int,
    values: "pd.Series[Any]",
    trained: "pd.Series[Any]",
    kind: Kind,
    unfit: str | None,
    floor: int,
) -> agreement.Column:
    if values.isna().all():
        return agreement.Column("empty", agreement.Moments(rows=len(trained)))
    if unfit:  # without the values at the end of the reason, and without counts
        reason = re.sub(r" in [\d,]+ rows", "", re.split(r", (?!and |\d)", unfit)[0])
        return agreement.Column(kind, unfit=re.sub(r"\d[\d,]*", "many", reason))
    if kind == "number":
        try:
            trained = trained.astype(np.float64)
        except (TypeError, ValueError):  # texts instead of the configured numbers: they are not described
            return agreement.Column("category")
        moments = agreement.Moments.of(numbers_of(_without_rare(trained, trained, floor)))
        if moments.count < floor:
            return agreement.Column("empty", agreement.Moments(rows=len(trained)))
        few_gaps = moments.rows - moments.count < floor  # the number of missing values is a count, too
        return agreement.Column(
            kind, dataclasses.replace(moments, count=moments.rows) if few_gaps else moments
        )
    texts = category_texts(values)
    # As in pooled data, the whole training part of the source decides which categories have a column.
    counts, here = Counter(texts[:num_train]), set(texts[trained.index])
    known = sorted(text for text, count in counts.items() if count >= floor)
    return agreement.Column(kind, values=tuple(known), trained=tuple(each in here for each in known))


def _without_rare(values: "pd.Series[Any]", trained: "pd.Series[Any]", floor: int) -> "pd.Series[Any]":
    """Leave out codes, such as 0 and 1, that few rows train on: the moments say how many these are."""
    counts = trained.value_counts()
    if floor < 2 or len(counts) > _FEW_CODES:
        return values
    return values.where(values.isin(counts.index[counts >= floor]))


def wanted_of(
    builder: Builder, num_classes: int | None, class_names: tuple[str, ...] | None
) -> agreement.Wanted:
    """Return a run's configuration of the encoding.

    Parameters
    ----------
    builder
        Created from the run's ``dataset`` node.
    num_classes, class_names
        Those of the node; None if it has none.
    """
    wanted = agreement.Wanted(
        num_classes,
        class_names,
        input_shape=tuple(builder.input_shape),
        kind=builder.kind.kind,
        chosen=builder.chosen,
    )
    if isinstance(builder, Tables):
        named = (builder.numbers, builder.categories)
        numbers, categories = (None if names is None else tuple(names) for names in named)
        return dataclasses.replace(
            wanted,
            columns=True,
            numbers=numbers,
            categories=categories,
            encoding=builder.encoding,
            input_shape=(),
        )
    if isinstance(builder, Text) and builder.tokenizer is None:
        return dataclasses.replace(wanted, vocabulary_size=builder.vocabulary_size)
    return wanted


def images_of(rows: SiteRows, builder: Images) -> NDArray[Any]:
    """Decode a site's images into the cache; return them, uint8, shape (N, channels, height, width)."""
    key = cache.digest(_FORMAT, builder.identity(), list(builder.input_shape), builder.resize, rows.name)
    labels = Labels(np.zeros(len(rows.labels), np.int64), rows.kept, rows.num_train, ())
    folder = cache.cache_folder("sites", "images", key)
    cache.prepared(folder, lambda scratch: builder.encode(rows.parts, labels, scratch))
    return cache.map_array(folder / "inputs.npy")


def _pixels(images: NDArray[Any]) -> tuple[agreement.Pixels, ...]:
    """Count the pixels of the source's whole training part, as for pooled data, which are not refitted."""
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for start in range(0, len(images), _CHUNK):
        counts += pixel_counts(np.asarray(images[start : start + _CHUNK]))
    values = np.arange(256)
    sums = ((each.sum(), each @ values, each @ values**2) for each in counts)
    return tuple(agreement.Pixels(*map(int, each)) for each in sums)


def texts_of(rows: SiteRows, builder: Text) -> list[str]:
    """Read a site's texts, in the form that :class:`Text` stores."""
    chunks = builder.chunks(rows.parts, rows.kept)
    return [text.encode("utf-8", "replace").decode() for chunk in chunks for text in chunk]


# -- The encoding that all sites agree on -------------------------------------------------------------------


def prepare_site(rows: SiteRows, agreed: agreement.Agreement, name: str, settings: Any) -> str:
    """Encode a site's rows into the cache, once.

    Parameters
    ----------
    rows, agreed
        The rows and their encoding.
    name
        Name of the dataset.
    settings
        JSON-compatible values that the rows of the parts depend on, such as the seed.

    Returns
    -------
    A folder of the cache with ``inputs.npy``, ``labels.npy``, of amounts and times ``values.npy``, and
    ``clients.npz``, which is read from now on in place of the site's files.

    Raises
    ------
    SiteError
        If the rows do not fit the agreement, or the cache cannot be written.
    """
    with private(rows.builder):
        if rows.rules:
            agreed = _limited(agreed, describe(rows))
        key = cache.digest(_FORMAT, rows.builder.identity(), rows.name, settings, agreed.digest())
        folder = cache.cache_folder("sites", name, key)
        cache.prepared(folder, lambda scratch: _write(scratch, rows, agreed))
    return str(folder)


def _limited(agreed: agreement.Agreement, stated: agreement.Statement) -> agreement.Agreement:
    """Limit an encoding to what the site has described; the server that sends it may ask for more."""
    kinds = {each.name: "number" for each in agreed.numbers}
    for name, kind in (kinds | {each.name: "category" for each in agreed.categories}).items():
        column = stated.columns.get(name)
        if column is None or column.unfit or column.kind not in (kind, "empty"):
            raise SiteError(f"the encoding must use columns as the site has described them, got {name}")
    categories = []
    for each in agreed.categories:
        here = stated.columns[each.name].values
        known = tuple(known and value in here for value, known in zip(each.values, each.known, strict=True))
        categories.append(dataclasses.replace(each, known=known))
    # In the place of any other word stands one that no tokeniser makes.
    words = tuple(word if word in stated.words else f"[{n}]" for n, word in enumerate(agreed.words))
    return dataclasses.replace(agreed, categories=tuple(categories), words=words)


def _write(folder: Path, rows: SiteRows, agreed: agreement.Agreement) -> None:
    target = from_text(agreed.target)
    if target.kind != rows.builder.kind.kind:
        raise SiteError(f"the encoding must be of {rows.builder.kind.kind}, as the run, got {target.kind}")
    if target.bin_names():
        np.save(folder / "labels.npy", target.bins(rows.labels))
        np.save(folder / VALUES, rows.labels)
    else:
        np.save(folder / "labels.npy", _codes(rows.labels, agreed))
    inputs = _inputs(rows, agreed)
    if inputs.shape[1:] != agreed.input_shape:
        raise SiteError(f"examples must have shape {agreed.input_shape}, got {inputs.shape[1:]}")
    np.save(folder / "inputs.npy", inputs)
    if rows.persons is not None:
        np.save(folder / "persons.npy", rows.persons)
    if not rows.kept.all():
        np.save(folder / _KEPT, np.flatnonzero(rows.kept))
    parts = rows.train, rows.test, rows.validation
    about = {"groups": np.array(rows.named_groups)} if rows.named_groups else {}
    cache.save_parts(folder / "clients.npz", *parts, names=np.array(rows.clients), **about)


def _codes(labels: NDArray[Any], agreed: agreement.Agreement) -> IntArray:
    """Return the class of each label."""
    code = {label: number for number, label in enumerate(agreed.labels)}
    if unknown := sorted({label for label in labels.tolist() if label not in code}, key=str):
        got = f", got {unknown[0]}" if is_open() else ""
        raise SiteError(f"labels must be among {', '.join(agreed.class_names)}{got}")
    return np.array([code[label] for label in labels.tolist()], dtype=np.int64)


def _inputs(rows: SiteRows, agreed: agreement.Agreement) -> NDArray[Any]:
    if isinstance(rows.builder, Images):
        return images_of(rows, rows.builder)
    if isinstance(rows.builder, Text):
        return rows.builder.tokeniser(agreed.words)(texts_of(rows, rows.builder))
    table = table_of(rows.parts, agreed.table.names, rows.kept)
    for name in (each.name for each in agreed.table.numbers):
        table[name] = _without_rare(table[name], table[name].iloc[rows.trained], rows.floor)
    return agreed.table.encode(table)


def federated(
    folders: Sequence[str],
    agreed: agreement.Agreement,
    ids: Mapping[str, int],
    num_clients: int,
    dataset: Mapping[str, Any],
) -> FederatedData:
    """Read the encoded rows of a node's sites.

    Parameters
    ----------
    folders
        The folders of the node's sites, from :func:`prepare_site`.
    agreed
        Their encoding.
    ids
        Id of each of the node's clients, by name.
    num_clients
        Number of clients K of the federation.
    dataset
        The run's ``dataset`` node.

    Returns
    -------
    The data, with the rows of the node's own clients and none of others.
    """
    import torch

    nobody = [np.zeros(0, dtype=np.int64)] * num_clients
    parts: dict[str, list[IntArray]] = {part: list(nobody) for part in ("train", "test", "validation")}
    names, groups = ([""] * num_clients for _ in range(2))  # empty for other nodes' clients, unknown here
    inputs, labels, values, persons, numbers, start, held_out = [], [], [], [], [], 0, False
    for folder in map(Path, folders):
        inputs.append(cache.map_tensor(folder / "inputs.npy"))
        labels.append(cache.map_tensor(folder / "labels.npy"))
        values += [cache.map_tensor(folder / VALUES)] if (folder / VALUES).exists() else []
        persons += [np.load(folder / "persons.npy")] if (folder / "persons.npy").exists() else []
        with np.load(folder / "clients.npz", allow_pickle=False) as saved:
            held_out = held_out or "validation" in saved
            here = saved["names"].tolist()
            for client, group in zip(here, saved.get("groups", ()), strict=False):
                if client in ids:
                    groups[ids[client]] = str(group)
            for part, clients in cache.load_parts(saved).items():
                for client, rows in zip(here, clients, strict=False):  # no validation rows, or all clients'
                    if client in ids:
                        parts[part][ids[client]], names[ids[client]] = rows + start, client
        kept = folder / _KEPT
        numbers.append(np.load(kept) if kept.exists() else np.arange(len(inputs[-1])))
        start += len(inputs[-1])
    return FederatedData(
        name=str(dataset["name"]),
        inputs=inputs[0] if len(inputs) == 1 else torch.cat(inputs),
        labels=labels[0] if len(labels) == 1 else torch.cat(labels),
        train=tuple(parts["train"]),
        test=tuple(parts["test"]),
        validation=tuple(parts["validation"]) if held_out else (),
        num_classes=len(agreed.class_names),
        mean=agreed.mean,
        std=agreed.std,
        class_names=agreed.class_names,
        fingerprint=cache.digest(agreed.digest(), list(folders), dict(ids)),
        client_names=tuple(names),
        named_groups=tuple(groups) if any(groups) else (),
        grouped_by=str(dataset.get("groups") or ""),
        encoder=partial(input_encoder, agreed, dict(dataset)),
        persons=np.concatenate(persons) if persons else None,
        source_rows=np.concatenate(numbers),
        target=from_text(agreed.target),
        values=torch.cat(values) if values else None,
    )


def input_encoder(agreed: agreement.Agreement, dataset: Mapping[str, Any]) -> InputEncoder | None:
    """Return the encoder of new rows: the one that encoded the sites' own.

    Parameters
    ----------
    agreed
        The encoding of all sites.
    dataset
        The run's ``dataset`` node.

    Returns
    -------
    The encoder; None for texts with a pretrained tokenizer, as for pooled data.
    """
    builder = builder_of(dataset, Path())
    if isinstance(builder, Tables):
        return agreed.table
    if isinstance(builder, Images):
        return builder.encoder(agreed.mean, agreed.std)
    return None if builder.tokenizer else builder.encoder(tokenizer_of(agreed.words).to_str())
