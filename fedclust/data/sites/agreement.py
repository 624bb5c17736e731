"""The statements of sites about their data before round 1, and the one encoding that they agree on.

The encoding is the one that would have been fitted on their pooled training rows. For a column of numbers, a
site sends its number of values, their mean, and the sum of their squared differences from that mean. These
hold the same information as plain sums and sums of squares, without cancellation when the mean is large: with
dates in seconds, 1.6e9, and a standard deviation of 10, the difference of two float64 sums of squares has no
correct digit.

Source: Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance", The American Statistician 37,
1983, Eq. 2.1.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from fedclust.data.cache import digest
from fedclust.data.check import ITS_TYPE, spelling, typed
from fedclust.data.input_encoders import (
    MISSING,
    CategoryColumn,
    Encoding,
    NumberColumn,
    TableEncoder,
    other_unit,
    other_units,
    size_of,
)
from fedclust.data.targets import KINDS, Block, Classes, from_text, to_text
from fedclust.support.checks import few, read_as
from fedclust.typing import FloatArray

Label: TypeAlias = int | float | str

Kind: TypeAlias = Literal["number", "category", "empty"]
_LONGEST = 200  # characters of an encoder's fingerprint
_KEY = "or give a person's key with partition.group="
_PLURAL = {"number": "numbers", "category": "texts", "empty": "nothing"}


@dataclass(frozen=True)
class Moments:
    """Statistics of a column of numbers over a site's training rows.

    Attributes
    ----------
    rows
        Number of rows.
    count
        Number of rows that have a value.
    mean
        Mean of the values; 0 if there are none.
    squares
        Sum of the squared differences from the mean.
    """

    rows: int = 0
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: FloatArray) -> "Moments":
        """Compute the moments of float64 values, NaN where missing, shape (rows,)."""
        present = values[~np.isnan(values)]
        if not len(present):
            return cls(rows=len(values))
        mean = float(present.mean())
        return cls(len(values), len(present), mean, float(((present - mean) ** 2).sum()))

    def __add__(self, other: "Moments") -> "Moments":
        """Return the moments of both sites' rows together."""
        count = self.count + other.count
        if not count:
            return Moments(rows=self.rows + other.rows)
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        squares = self.squares + other.squares + apart**2 * self.count * other.count / count
        return Moments(self.rows + other.rows, count, mean, squares)

    @property
    def scale(self) -> float:
        """Divisor of the column: its standard deviation, where missing values count as the mean.

        As scikit-learn's ``StandardScaler`` after its ``SimpleImputer``: over all rows, and 1 for a column
        that is constant up to rounding.
        """
        return 1.0 if self.constant else math.sqrt(self.squares / self.rows)

    @property
    def constant(self) -> bool:
        """Whether the values are equal up to rounding, or there are none."""
        if not self.count:
            return True
        variance = self.squares / self.rows
        eps = float(np.finfo(np.float64).eps)
        return variance <= self.rows * eps * variance + (self.rows * self.mean * eps) ** 2

    @property
    def size(self) -> float:
        """Root mean square of the values, as far as it shows their unit; see :func:`size_of`."""
        return size_of(self.mean, self.mean**2 + self.squares / self.count) if self.count else 0.0


@dataclass(frozen=True)
class Column:
    """A site's description of one column.

    Attributes
    ----------
    kind
        ``"number"``; ``"category"``; or ``"empty"``, which fits both: no row has a value.
    moments
        For numbers, statistics of the training rows; for other kinds, only the number of rows.
    values
        For a category, the values in the source's training part, sorted.
    trained
        Whether each of these occurs in a training row.
    unfit
        Why a model should not learn from the column, such as an identifier or a date; the rest is then empty.
    """

    kind: Kind
    moments: Moments = field(default_factory=Moments)
    values: tuple[str, ...] = ()
    trained: tuple[bool, ...] = ()
    unfit: str = ""

    @property
    def constant(self) -> bool:
        """Whether all training rows have the same value."""
        if self.kind == "number":
            return self.moments.rows > 1 and self.moments.constant
        return self.kind == "category" and len(self.values) == 1


@dataclass(frozen=True)
class Pixels:
    """A site's description of one channel of its images, in exact whole numbers.

    Attributes
    ----------
    count, total, squares
        Number of pixels, sum of their values 0 … 255, and sum of the values' squares.
    """

    count: int
    total: int
    squares: int


@dataclass(frozen=True)
class Embedding:
    """The frozen encoder that embeds a site's rows before the network sees them.

    Attributes
    ----------
    fingerprint
        Its name and a digest of its weights and settings.
    dimension
        Length of an embedding.
    """

    fingerprint: str
    dimension: int

    def __post_init__(self) -> None:
        name = self.fingerprint
        if self.dimension < 1 or not 0 < len(name) <= _LONGEST or not name.isprintable():
            rule = f"fingerprint must be 1 to {_LONGEST} printable characters, with a dimension >= 1"
            raise ValueError(f"{rule}, got {name[:_LONGEST]!r} and {self.dimension}")


LONGEST = 1000
"""Characters of the longest label, category, word or column's name that a statement may have."""


@dataclass(frozen=True)
class Statement:
    """A site's description of its data; nothing else leaves the site before round 1.

    Attributes
    ----------
    labels
        The distinct labels, sorted; none of amounts and times.
    columns
        For a table: its columns, in the site's order.
    pixels
        For images: each channel of the source's training part.
    words
        For texts without a pretrained tokenizer: the count of each word in the training rows.
    warnings
        What somebody should look at in the data, without values; see :mod:`fedclust.data.check`.
    embedding
        The frozen encoder that embeds the rows; None without one.
    values
        Of amounts and times, blocks of the training rows' values; see
        :meth:`fedclust.data.targets.Numbers.stated`.
    """

    labels: tuple[Label, ...]
    columns: Mapping[str, Column] = field(default_factory=dict)
    pixels: tuple[Pixels, ...] = ()
    words: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    embedding: Embedding | None = None
    values: tuple[Block, ...] = ()

    def changed(self, before: "Statement") -> list[str]:
        """List what shows that the rows are others than those of an earlier statement under the same rules.

        Examples
        --------
        >>> column = Column("number", Moments.of(np.array([1.0, 3.0])))
        >>> other = Column("number", Moments.of(np.array([1.0, 4.0])))
        >>> Statement(("ill", "well"), {"x": other}).changed(Statement(("ill", "well"), {"x": column}))
        ['x']
        """
        parts = ("labels", "pixels", "words", "values")
        found = [name for name in parts if getattr(self, name) != getattr(before, name)]
        return found + [name for name, each in self.columns.items() if before.columns.get(name) != each]

    def summary(self) -> str:
        """List the contents in one line, for the log."""
        kinds = [column.kind for column in self.columns.values() if not column.unfit]
        parts = {
            "class names ({})": len(self.labels),
            "count, mean and spread of {} block(s) of neighbouring values": len(self.values),
            "names and kinds of {} column(s)": len(self.columns),
            "categories of {} column(s)": kinds.count("category"),
            "count, mean and sum of squares of {} column(s)": kinds.count("number"),
            "count, sum and sum of squares of {} channel(s)": len(self.pixels),
            "{} words with their counts": len(self.words),
            "{} warning(s) about its data": len(self.warnings),
            "name and digest of the encoder": self.embedding is not None,
        }
        return ", ".join(part.format(number) for part, number in parts.items() if number)


@dataclass(frozen=True)
class Wanted:
    """The run's configuration of the encoding.

    Attributes
    ----------
    num_classes, class_names
        Number and names of the classes; None: those of the sites.
    columns
        Whether the data is a table.
    numbers, categories
        Columns of a table; None for both: those that more than half of the sites have.
    encoding
        As in :class:`fedclust.data.tables.Tables`.
    vocabulary_size
        Largest number of words of texts, including padding and unknown; None if words are not counted.
    input_shape
        Shape of an example of anything but a table.
    kind, chosen
        What is predicted, one of :data:`fedclust.data.targets.KINDS`, and what people choose of it, such as a
        unit.
    """

    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    columns: bool = False
    numbers: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    encoding: Encoding = "onehot"
    vocabulary_size: int | None = None
    input_shape: tuple[int, ...] = ()
    kind: str = Classes.kind
    chosen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Agreement:
    """The encoding of every site's rows.

    Attributes
    ----------
    labels
        Label of each class as in the data, shape (C,); none of amounts and times.
    class_names
        Name of each class, or of each bin of amounts and times, shape (C,).
    input_shape
        Shape of one encoded example.
    numbers, categories
        Columns of a table, in this order. A missing number is replaced by the mean; the values of a category
        are those of all sites, sorted.
    encoding
        As in :class:`Wanted`.
    mean, std
        Statistics of each channel of images, divided by 255.
    words
        Words of texts, from token 2 on: 0 is padding, 1 any other word.
    embedding
        The frozen encoder that embeds the rows encoded like this; None without one.
    target
        What is predicted, see :func:`fedclust.data.targets.to_text`; empty for classes.
    """

    labels: tuple[Label, ...]
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    numbers: tuple[NumberColumn, ...] = ()
    categories: tuple[CategoryColumn, ...] = ()
    encoding: Encoding = "onehot"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    words: tuple[str, ...] = ()
    embedding: Embedding | None = None
    target: str = ""

    @property
    def table(self) -> TableEncoder:
        """The encoder of a table's rows."""
        return TableEncoder(self.numbers, self.categories, self.encoding)

    def to_json(self) -> str:
        """Convert the agreement to JSON, which keeps every digit."""
        values = dataclasses.asdict(self)
        if not self.target:  # classes
            del values["target"]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Agreement":
        """Create an agreement from the text of :meth:`to_json`.

        Raises
        ------
        ValueError
            If the text is anything else.
        """
        agreement: Agreement = read_as(cls, json.loads(text))
        return agreement

    def digest(self) -> str:
        """Compute a hash that is the same for the same encoding."""
        return digest(self.to_json())

    def settings(self) -> dict[str, Any]:
        """Return the values of the configuration that models are built from, by dotted key."""
        values: dict[str, Any] = {"dataset.num_classes": len(self.class_names)}
        values["dataset.input_shape"] = list(self.input_shape)
        if self.numbers or self.categories:
            sizes = [len(each.values) + 1 for each in self.categories]
            values["dataset.category_sizes"] = sizes if self.encoding == "index" else None
        if self.embedding is not None:
            values["features.input_shape"] = [self.embedding.dimension]
        return values


@dataclass(frozen=True)
class Outcome:
    """The result of :func:`agree`.

    Attributes
    ----------
    agreement
        Encoding of the sites that are not refused; None if no site is left.
    refused
        Why each refused site does not fit, by name.
    cautions
        Lines about what an operator should check.
    """

    agreement: Agreement | None
    refused: Mapping[str, str] = field(default_factory=dict)
    cautions: tuple[str, ...] = ()


def agree(statements: Mapping[str, Statement], wanted: Wanted) -> Outcome:
    """Choose the encoding of all sites.

    A site that does not fit is refused, and the others agree without it. What the configuration leaves open,
    more than half of the sites decide: which columns are used, and whether one holds numbers or categories;
    on a tie it holds numbers.

    Parameters
    ----------
    statements
        Each site's description of its data, by name.
    wanted
        The configuration.

    Raises
    ------
    ValueError
        If the sites' data cannot be encoded as configured, even without the refused sites.
    """
    embedding, refused = _embedding(statements)
    refused |= _unfit_labels({site: each for site, each in statements.items() if site not in refused}, wanted)
    left = {site: each for site, each in sorted(statements.items()) if site not in refused}
    cautions: list[str] = []
    kinds = _kinds(left, wanted) if wanted.columns else {}
    for site, each in left.items():
        if reason := _misfit(each, kinds, "most sites have", "at most sites"):
            refused[site] = reason
        if beyond := [name for name in each.columns if name not in kinds]:
            cautions.append(f"{site}: not used, as half of the sites or more lack it: {', '.join(beyond)}")
    left = {site: each for site, each in left.items() if site not in refused}
    if not left:
        return Outcome(None, refused, tuple(cautions))
    labels, names, target = _predicted(left, wanted)
    cautions += [f"{site}: {line}" for site, each in left.items() for line in each.warnings]
    cautions += _apart(left, kinds)
    numbers, categories = _encoders(left, kinds)
    for column in numbers:
        far = other_units(_sizes(left, column.name))
        cautions += [f"{site}: {other_unit(column.name, column.sizes[site], far[site])}" for site in far]
    index = wanted.encoding == "index"
    width = len(numbers) + sum(1 if index else len(each.values) for each in categories)
    if wanted.columns and not width:
        raise ValueError("sites must have a column besides the label in common, got none")
    shape = (width,) if wanted.columns else wanted.input_shape
    words = _vocabulary(left, wanted.vocabulary_size)
    columns = numbers, categories, wanted.encoding
    agreed = Agreement(labels, names, shape, *columns, *_channels(left), words, embedding, target)
    return Outcome(agreed, refused, tuple(cautions))


def _embedding(statements: Mapping[str, Statement]) -> tuple[Embedding | None, dict[str, str]]:
    """Return the encoder that most sites have, and why the others are refused; raise ValueError on a tie."""
    held = Counter(each.embedding for each in statements.values())
    (most, number), *others = held.most_common() or [(None, 0)]
    if others and others[0][1] == number:
        listed = sorted(f"{_encoder(each.embedding)} at {site}" for site, each in statements.items())
        raise ValueError(f"sites must have the same encoder, got {few(listed)}")
    rule = f"its encoder must be {_encoder(most)} as at most sites, got "
    unlike = {site: each.embedding for site, each in statements.items() if each.embedding != most}
    return most, {site: rule + _encoder(each) for site, each in unlike.items()}


def _encoder(embedding: Embedding | None) -> str:
    return "none" if embedding is None else embedding.fingerprint


def _unfit_labels(statements: Mapping[str, Statement], wanted: Wanted) -> dict[str, str]:
    if KINDS[wanted.kind].numeric:
        return {site: why for site, each in statements.items() if (why := _unfit_values(each, wanted.kind))}
    refused: dict[str, str] = {}
    texts = {site: any(isinstance(label, str) for label in each.labels) for site, each in statements.items()}
    most = 2 * sum(texts.values()) > len(texts)  # whether more than half have texts
    for site, each in statements.items():
        if (known := wanted.class_names) is not None:
            if unknown := [label for label in each.labels if _named(label, known) is None]:
                refused[site] = f"labels must be among {', '.join(known)}, got {few(unknown)}"
        elif texts[site] != most:
            kinds = ("texts", "numbers") if most else ("numbers", "texts")
            refused[site] = f"labels must be {kinds[0]} as at most sites, got {kinds[1]}"
    left = {site: each for site, each in statements.items() if site not in refused}
    return refused if wanted.class_names is not None else refused | _other_spellings(left)


def _unfit_values(statement: Statement, kind: str) -> str | None:
    """Explain why a site's values are not of a kind; None if they are, or few."""
    chosen = KINDS[kind]
    fits = all(len(each.mean) == chosen.per_row for each in statement.values)
    means = np.array([each.mean for each in statement.values] if fits else ()).reshape(-1, chosen.per_row)
    faults = {name for name, _, _ in chosen.faults(means[:, 0] if chosen.per_row == 1 else means)}
    if statement.labels or not fits or not faults.isdisjoint(("infinite", "time", "event")):
        return f"its values must be {kind}, as those of the run"
    return None


def _other_spellings(statements: Mapping[str, Statement]) -> dict[str, str]:
    """Refuse the sites that spell a class otherwise than most; raise ValueError where no spelling leads."""
    held: dict[str, Counter[str]] = {}
    for each in statements.values():
        for label in each.labels:
            if isinstance(label, str):
                held.setdefault(spelling(label), Counter())[label] += 1
    refused: dict[str, str] = {}
    for spelt in held.values():
        (first, most), *others = spelt.most_common()
        if others and others[0][1] == most:
            rule = "sites must spell a class alike, with the same case and blanks"
            sites = {text: few(s for s, each in statements.items() if text in each.labels) for text in spelt}
            got = ", ".join(f"{text!r} at {sites[text]}" for text in sorted(spelt))
            raise ValueError(f"{rule}, got {got}: correct the labels of one")
        for other, _ in others:
            for site, each in statements.items():
                if other in each.labels:
                    refused[site] = f"label {other!r} must be spelt {first!r}, as at most sites"
    return refused


def _apart(left: Mapping[str, Statement], kinds: Mapping[str, Kind]) -> list[str]:
    """List columns that are empty or constant at some sites, and categories that one site alone has."""
    found: list[str] = []
    for name, kind in kinds.items() if len(left) > 1 else ():
        columns = {site: each.columns[name] for site, each in left.items()}
        for what, alike in (
            ("no value", [site for site in columns if columns[site].kind == "empty"]),
            ("one value in all rows", [site for site in columns if columns[site].constant]),
        ):
            if alike:
                where = "every site" if len(alike) == len(columns) else few(alike)
                advice = f"leave it out with 'dataset.ignore=[{typed([name])}]', or ask why"
                found.append(f"{where}: {name} has {what}; {advice}")
        if kind == "number":
            continue
        holders = Counter(value for column in columns.values() for value in column.values)
        for site, column in columns.items():
            alone = [value for value in column.values if holders[value] == 1 and value != MISSING]
            if alone and len(alone) < len(holders):
                keys = {spelling(value) for value in alone}
                others = [value for value in holders if spelling(value) in keys and value not in alone]
                elsewhere = f" (elsewhere {few(map(repr, others), 3)})" if others else ""
                values = few(map(repr, alone), 3)
                found.append(
                    f"{site}: no other site has {values} in {name}{elsewhere}; check how it is coded"
                )
    return found


def _named(label: Label, names: Sequence[str]) -> int | None:
    """Return a label's class, by name or by number."""
    if str(label) in names:
        return names.index(str(label))
    if isinstance(label, int) and 0 <= label < len(names) and not any(name.isdecimal() for name in names):
        return label
    return None


def _predicted(
    left: Mapping[str, Statement], wanted: Wanted
) -> tuple[tuple[Label, ...], tuple[str, ...], str]:
    """Return the labels, the names of the classes or bins, and the target as text."""
    blocks = (block for each in left.values() for block in each.values)
    target = KINDS[wanted.kind].from_stated(blocks, **wanted.chosen)
    labels, names = ((), bins) if (bins := target.bin_names()) else _classes(left, wanted)
    return labels, names, to_text(target)


def _classes(left: Mapping[str, Statement], wanted: Wanted) -> tuple[tuple[Label, ...], tuple[str, ...]]:
    classes = sorted({label for each in left.values() for label in each.labels})
    if (names := wanted.class_names) is not None:
        own = {_named(label, names): label for label in classes}
        return tuple(own.get(number, name) for number, name in enumerate(names)), names
    size = wanted.num_classes
    if size is not None and all(isinstance(label, int) and 0 <= label < size for label in classes):
        classes = list(range(size))  # class indices, some of which no site has
    if size is not None and len(classes) != size:
        rule = f"dataset.num_classes must be {len(classes)}, as the sites' labels are {few(classes)}"
        raise ValueError(f"{rule}, got {size}")
    if len(classes) < 2:
        raise ValueError(f"sites must have at least 2 different labels, got {few(classes)}")
    return tuple(classes), tuple(map(str, classes))


def _kinds(left: Mapping[str, Statement], wanted: Wanted) -> dict[str, Kind]:
    """Return the kind of each column in use.

    Raises
    ------
    ValueError
        If a column looks like an identifier or a date to half of the sites, even one that would not be used:
        it may be the key that keeps a person's rows together.
    """
    kinds: dict[str, Kind] = dict.fromkeys(wanted.numbers or (), "number")
    kinds |= dict.fromkeys(wanted.categories or (), "category")
    held = Counter(name for each in left.values() for name in each.columns)
    if wanted.numbers is None and wanted.categories is None:
        for name in (name for name, sites in held.items() if 2 * sites > len(left)):
            reported = [each.columns[name].kind for each in left.values() if name in each.columns]
            kinds[name] = "category" if reported.count("category") > reported.count("number") else "number"
    reasons: dict[str, str] = {}
    for name in held:
        unfit = [each.columns[name].unfit for each in left.values() if name in each.columns]
        if any(unfit) and 2 * sum(map(bool, unfit)) >= len(left):
            reasons[name] = next(filter(None, unfit))
    if reasons:
        listed = ", ".join(f"{name} ({reason})" for name, reason in reasons.items())
        texts = [name for name, reason in reasons.items() if reason != ITS_TYPE]
        advice = f"leave them out with 'dataset.ignore=[{typed(reasons)}]'"
        if texts:
            advice += f" or use them with 'dataset.keep=[{typed(texts)}]', in a deployment with "
            advice += f"keep='{','.join(texts)}' in each site's --node-config"
        rule = f"columns must not be identifiers or dates, got {listed}"
        raise ValueError(f"{rule}; {advice}, {_KEY}{typed([next(iter(reasons))])}")
    return kinds


def _misfit(statement: Statement, kinds: Mapping[str, Kind], who: str, where: str) -> str | None:
    """Explain why a site's columns do not have these kinds; None if they do."""
    columns = statement.columns
    if missing := [name for name in kinds if name not in columns]:
        return f"it lacks the columns {', '.join(missing)}, which {who}"
    for name, column in columns.items():  # in use or not: it may be the key of persons
        if column.unfit:
            what = f"column {name} looks like an identifier or a date ({column.unfit})"
            return f"{what}; leave it out, {_KEY}{name}"
    for name, kind in kinds.items():
        if columns[name].kind not in (kind, "empty"):
            got = _PLURAL[columns[name].kind]
            return f"column {name} must hold {_PLURAL[kind]} as {where}, got {got}"
    return None


def _encoders(
    left: Mapping[str, Statement], kinds: Mapping[str, Kind]
) -> tuple[tuple[NumberColumn, ...], tuple[CategoryColumn, ...]]:
    numbers, categories = [], []
    for name, kind in kinds.items():
        columns = [each.columns[name] for each in left.values()]
        if kind == "number":
            total = sum((column.moments for column in columns), Moments())
            fitted = NumberColumn(name, total.mean, total.mean, total.scale)
            numbers.append(fitted.of_sites(_sizes(left, name)))
            continue
        trained: dict[str, bool] = {}
        for column in columns:
            empty = [(MISSING, True)] if column.kind == "empty" else []
            for value, here in empty or zip(column.values, column.trained, strict=True):
                trained[value] = trained.get(value, False) or here
        values = tuple(sorted(trained))
        categories.append(CategoryColumn(name, values, tuple(trained[value] for value in values)))
    return tuple(numbers), tuple(categories)


def _sizes(left: Mapping[str, Statement], name: str) -> dict[str, float]:
    """Return the root mean square of a column's training values at each site."""
    return {site: each.columns[name].moments.size for site, each in left.items()}


def _channels(left: Mapping[str, Statement]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel divided by 255; 1 for a constant one."""
    mean, std = [], []
    for channel in zip(*(each.pixels for each in left.values()), strict=True):
        each_site = [dataclasses.astuple(pixels) for pixels in channel]
        count, total, squares = map(sum, zip(*each_site, strict=True))
        # Python's integers: nothing is rounded before the division.
        variance = (squares * count - total**2) / count**2
        mean.append(total / count / 255)
        std.append(math.sqrt(variance) / 255 if variance > 0 else 1.0)
    return tuple(mean), tuple(std)


def _vocabulary(left: Mapping[str, Statement], size: int | None) -> tuple[str, ...]:
    """Return the most frequent words, ties alphabetically, as :class:`fedclust.data.text.Text` takes them."""
    if size is None:
        return ()
    counts: Counter[str] = Counter()
    for each in left.values():
        counts.update(each.words)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0].encode()))
    return tuple(word for word, _ in ranked[: size - 2])


def unfit_for(statement: Statement, agreement: Agreement) -> str | None:
    """Explain why a site cannot use an encoding; None if it can.

    Because models are already trained, categories that the others lack are encoded like any value that no
    training row had, columns that the others lack are ignored, and numbers keep the others' mean and scale.

    Parameters
    ----------
    statement
        The site's description of its data.
    agreement
        The encoding.
    """
    if statement.embedding != agreement.embedding:
        run, own = _encoder(agreement.embedding), _encoder(statement.embedding)
        return f"its encoder must be {run} as in the run, got {own}"
    if reason := _unfit_values(statement, from_text(agreement.target).kind) if agreement.target else None:
        return reason
    known = {*agreement.labels, *agreement.class_names}
    if unknown := [label for label in statement.labels if label not in known]:
        return f"labels must be among {few(agreement.class_names, 10)}, got {few(unknown, 10)}"
    kinds: dict[str, Kind] = dict.fromkeys((each.name for each in agreement.numbers), "number")
    kinds |= dict.fromkeys((each.name for each in agreement.categories), "category")
    if reason := _misfit(statement, kinds, "the run uses", "in the run"):
        return reason
    if len(statement.pixels) != len(agreement.mean):
        return f"images must have {len(agreement.mean)} channels, got {len(statement.pixels)}"
    return None


def late_units(site: str, statement: Statement, agreement: Agreement) -> list[str]:
    """List the columns of a late site that may be in another unit than in the run, one line each.

    Parameters
    ----------
    site
        Name of the site.
    statement
        The site's description of its data, which fits the agreement.
    agreement
        The encoding, with the sizes of the values at the sites that agreed on it.
    """
    found = [each.other_unit(statement.columns[each.name].moments.size) for each in agreement.numbers]
    return [f"{site}: {line}" for line in found if line]
