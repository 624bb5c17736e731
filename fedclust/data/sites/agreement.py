"""One encoding for all sites: the one that would have been fitted on their pooled training rows."""

import dataclasses
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedclust.data.cache import digest
from fedclust.data.input_encoders import MISSING
from fedclust.data.sites.moments import Moments
from fedclust.data.sites.statement import CATEGORY, EMPTY, NUMBER, Column, Kind, Label, Statement

__all__ = ["UNITS", "Agreement", "Categories", "Numbers", "Outcome", "Wanted", "agree"]

UNITS = 10.0  # a column whose values are so many times as large as elsewhere is in another unit, probably


@dataclass(frozen=True)
class Wanted:
    """What the run's configuration says of the encoding.

    Attributes
    ----------
    num_classes, class_names
        Number and names of the classes; None: what the sites have.
    columns
        Whether the data is a table.
    numbers, categories
        Columns of a table; None for both: those that more than half of the sites have.
    encoding
        As in :class:`fedclust.data.tables.Tables`.
    vocabulary_size
        Most words of texts, padding and unknown included; None where nothing is counted.
    input_shape
        Shape of an example that is not a table's.
    """

    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    columns: bool = False
    numbers: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    encoding: Literal["onehot", "index"] = "onehot"
    vocabulary_size: int | None = None
    input_shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: its `mean` is subtracted, then it is divided by its `scale`."""

    name: str
    mean: float
    scale: float


@dataclass(frozen=True)
class Categories:
    """A column of categories: all sites' `values`, sorted, and which of them are in a training row."""

    name: str
    values: tuple[str, ...]
    trained: tuple[bool, ...]


@dataclass(frozen=True)
class Agreement:
    """The encoding of every site's rows.

    Attributes
    ----------
    labels
        The label of each class as the data has it, shape (C,).
    class_names
        Its name, shape (C,).
    input_shape
        Shape of one encoded example.
    numbers, categories
        Columns of a table, in this order.
    encoding
        As in :class:`Wanted`.
    mean, std
        Of each channel of images, divided by 255.
    words
        Words of texts, from token 2 on: 0 is padding, 1 any other word.
    """

    labels: tuple[Label, ...]
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    numbers: tuple[Numbers, ...] = ()
    categories: tuple[Categories, ...] = ()
    encoding: Literal["onehot", "index"] = "onehot"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    words: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write it as JSON, which keeps every digit."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Agreement":
        """Read what :meth:`to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        for key, kind in (("numbers", Numbers), ("categories", Categories)):
            values[key] = tuple(kind(**{k: _tuple(v) for k, v in each.items()}) for each in values[key])
        return cls(**{key: _tuple(value) for key, value in values.items()})

    def digest(self) -> str:
        """Hash it: the same for the same encoding."""
        return digest(self.to_json())

    def settings(self) -> dict[str, Any]:
        """Return the values of the ``dataset`` node that models are built from."""
        found: dict[str, Any] = {"num_classes": len(self.class_names), "input_shape": list(self.input_shape)}
        if self.numbers or self.categories:
            index = self.encoding == "index"
            found["category_sizes"] = [len(each.values) + 1 for each in self.categories] if index else None
        return found


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Outcome:
    """What came of agreeing.

    Attributes
    ----------
    agreement
        Of the sites that are not refused; None if no site is left.
    refused
        Why each other site does not fit, by name.
    cautions
        What an operator should look at, a line each.
    """

    agreement: Agreement | None
    refused: Mapping[str, str] = field(default_factory=dict)
    cautions: tuple[str, ...] = ()


def agree(statements: Mapping[str, Statement], wanted: Wanted) -> Outcome:
    """Agree on an encoding.

    A site that does not fit is refused, and the others agree without it. Where the configuration does not
    decide, more than half of the sites do: which columns there are, and whether one holds numbers or
    categories; where as many say one as the other, it holds numbers.

    Parameters
    ----------
    statements
        What each site says, by name.
    wanted
        What the configuration says.

    Raises
    ------
    ValueError
        If the data that the sites have cannot be what is configured, whoever is refused.
    """
    refused = _unfit_labels(statements, wanted)
    left = {site: each for site, each in sorted(statements.items()) if site not in refused}
    cautions: list[str] = []
    kinds: dict[str, Kind] = {}
    if wanted.columns:
        kinds, found, more = _columns(left, wanted)
        refused |= found
        cautions += more
        left = {site: each for site, each in left.items() if site not in refused}
    if not left:
        return Outcome(None, refused, tuple(cautions))
    labels, names = _classes(left, wanted)
    numbers, categories = _encoders(left, kinds)
    cautions += _other_units(left, kinds)
    width = len(numbers) + (
        len(categories) if wanted.encoding == "index" else sum(len(each.values) for each in categories)
    )
    if wanted.columns and not width:
        raise ValueError("sites must have a column besides the label in common, they have none")
    mean, std = _channels(left)
    return Outcome(
        Agreement(
            labels=labels,
            class_names=names,
            input_shape=(width,) if wanted.columns else wanted.input_shape,
            numbers=numbers,
            categories=categories,
            encoding=wanted.encoding,
            mean=mean,
            std=std,
            words=_vocabulary(left, wanted.vocabulary_size),
        ),
        refused,
        tuple(cautions),
    )


# -- Classes ------------------------------------------------------------------------------------------------


def _unfit_labels(statements: Mapping[str, Statement], wanted: Wanted) -> dict[str, str]:
    refused: dict[str, str] = {}
    texts = {site: any(isinstance(label, str) for label in each.labels) for site, each in statements.items()}
    if wanted.class_names is not None:
        known = wanted.class_names
        for site, each in statements.items():
            if unknown := [label for label in each.labels if _named(label, known) is None]:
                refused[site] = f"labels must be among {', '.join(known)}, got {_few(unknown)}"
        return refused
    most = 2 * sum(texts.values()) > len(texts)  # do more than half have texts?
    for site, is_text in texts.items():
        if is_text != most:
            kind = {True: "texts", False: "numbers"}
            refused[site] = f"labels must be {kind[most]} as at most sites, got {kind[is_text]}"
    return refused


def _named(label: Label, names: Sequence[str]) -> int | None:
    """Return the class of a label: that of its name, or its own number."""
    if str(label) in names:
        return names.index(str(label))
    if isinstance(label, int) and 0 <= label < len(names) and not any(name.isdecimal() for name in names):
        return label
    return None


def _classes(left: Mapping[str, Statement], wanted: Wanted) -> tuple[tuple[Label, ...], tuple[str, ...]]:
    found = sorted({label for each in left.values() for label in each.labels})
    if (names := wanted.class_names) is not None:
        own = {_named(label, names): label for label in found}
        return tuple(own.get(number, name) for number, name in enumerate(names)), names
    size = wanted.num_classes
    if size is not None and all(isinstance(label, int) and 0 <= label < size for label in found):
        found = list(range(size))  # class indices, some of which no site has
    if size is not None and len(found) != size:
        raise ValueError(
            f"dataset.num_classes must be {len(found)}, as the sites' labels are {_few(found)}, got {size}"
        )
    if len(found) < 2:
        raise ValueError(f"sites must have at least 2 different labels, got {_few(found)}")
    return tuple(found), tuple(map(str, found))


# -- Columns ------------------------------------------------------------------------------------------------


def _columns(
    left: Mapping[str, Statement], wanted: Wanted
) -> tuple[dict[str, Kind], dict[str, str], list[str]]:
    """Return the kind of each column in use, the sites without one, and what they have beyond."""
    held = Counter(name for each in left.values() for name in each.columns)
    stated = wanted.numbers is not None or wanted.categories is not None
    if stated:
        kinds: dict[str, Kind] = dict.fromkeys(wanted.numbers or (), NUMBER)
        kinds |= dict.fromkeys(wanted.categories or (), CATEGORY)
    else:
        kinds = {name: _kind(left, name) for name, sites in held.items() if 2 * sites > len(left)}
    _refuse_unfit(left, kinds)
    refused: dict[str, str] = {}
    cautions: list[str] = []
    for site, each in left.items():
        missing = [name for name in kinds if name not in each.columns]
        other = [
            name
            for name, kind in kinds.items()
            if name in each.columns and each.columns[name].kind not in (kind, EMPTY)
        ]
        unfit = [name for name in kinds if name in each.columns and each.columns[name].unfit]
        if missing:
            refused[site] = f"it lacks the columns {', '.join(missing)}, which most sites have"
        elif unfit:
            name = unfit[0]
            refused[site] = f"column {name} looks like an identifier or a date ({each.columns[name].unfit})"
        elif other:
            name = other[0]
            refused[site] = (
                f"column {name} must hold {_PLURAL[kinds[name]]} as at most sites, got "
                + (_PLURAL[each.columns[name].kind])
            )
        if beyond := [name for name in each.columns if name not in kinds]:
            cautions.append(f"{site}: not used, as half of the sites or more lack it: {', '.join(beyond)}")
    return kinds, refused, cautions


_PLURAL = {NUMBER: "numbers", CATEGORY: "texts", EMPTY: "nothing"}


def _kind(left: Mapping[str, Statement], name: str) -> Kind:
    kinds = [each.columns[name].kind for each in left.values() if name in each.columns]
    categories, numbers = kinds.count(CATEGORY), kinds.count(NUMBER)
    return CATEGORY if categories > numbers else NUMBER


def _refuse_unfit(left: Mapping[str, Statement], kinds: Mapping[str, str]) -> None:
    """Raise if a column looks like an identifier or a date to more than half of the sites that have it."""
    reasons: dict[str, str] = {}
    for name in kinds:
        having = [each.columns[name] for each in left.values() if name in each.columns]
        unfit = [column.unfit for column in having if column.unfit]
        if 2 * len(unfit) > len(having):
            reasons[name] = unfit[0]
    if reasons:
        listed = ", ".join(f"{name} ({reason})" for name, reason in reasons.items())
        names = ",".join(reasons)
        raise ValueError(
            f"columns must not be identifiers or dates, got {listed}; leave them out with "
            f"'dataset.ignore=[{names}]' or use them with 'dataset.keep=[{names}]'"
        )


def _encoders(
    left: Mapping[str, Statement], kinds: Mapping[str, str]
) -> tuple[tuple[Numbers, ...], tuple[Categories, ...]]:
    numbers, categories = [], []
    for name, kind in kinds.items():
        columns = [each.columns[name] for each in left.values()]
        if kind == NUMBER:
            total = Moments.total(column.moments for column in columns)
            numbers.append(Numbers(name, total.mean, total.scale))
            continue
        trained: dict[str, bool] = {}
        for column in columns:
            for value, here in _values(column):
                trained[value] = trained.get(value, False) or here
        values = tuple(sorted(trained))
        categories.append(Categories(name, values, tuple(trained[value] for value in values)))
    return tuple(numbers), tuple(categories)


def _values(column: Column) -> list[tuple[str, bool]]:
    if column.kind == EMPTY:
        return [(MISSING, True)]
    return list(zip(column.values, column.trained, strict=True))


def _other_units(left: Mapping[str, Statement], kinds: Mapping[str, str]) -> list[str]:
    """List the columns that a site may have in another unit."""
    lines = []
    for name, kind in kinds.items():
        if kind != NUMBER:
            continue
        sizes = {site: each.columns[name].moments.size for site, each in left.items()}
        sizes = {site: size for site, size in sizes.items() if size > 0}
        for site, size in sizes.items():
            others = [other for each, other in sizes.items() if each != site]
            if others and abs(math.log(size / statistics.median(others))) >= math.log(UNITS):
                lines.append(
                    f"{site}: column {name} may be in another unit: its values are about {size:.3g}, "
                    f"those of the other sites {statistics.median(others):.3g}"
                )
    return lines


# -- Images and texts ---------------------------------------------------------------------------------------


def _channels(left: Mapping[str, Statement]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel divided by 255; 1 for a constant one."""
    mean, std = [], []
    for channel in zip(*(each.pixels for each in left.values()), strict=True):
        count, total, squares = (
            sum(getattr(pixels, key) for pixels in channel) for key in ("count", "total", "squares")
        )
        # Whole numbers of any length: nothing is rounded before the division.
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


def _few(values: Sequence[Label]) -> str:
    shown = ", ".join(str(value) for value in values[:5])
    return f"{shown}, … ({len(values)} in all)" if len(values) > 5 else shown
