"""What should be mended in a table before a model learns from it.

Pure: a pandas table comes in, findings go out. The words of a finding are fixed, so that they may leave a
site with the name of its column (:attr:`Finding.public`), which a deployed node withholds unless the run has
named it (:meth:`Finding.anonymous`). Its counts, rows and values stay at the site (:attr:`Finding.line`).
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from fedclust.data.targets import Classes, Target
from fedclust.support.checks import few
from fedclust.typing import FloatArray

if TYPE_CHECKING:
    import pandas as pd

    Values: TypeAlias = pd.Series[Any]

MOST_COLUMNS = 50_000  # a file with more is usually turned round
RARE = 0.05  # share of rows of a class that is called rare
_MANY_NUMBERS = 10  # more distinct numbers than this are measured, not codes
_MANY_CLASSES, _MOST_CLASSES = 20, 100  # of labels that are numbers: from here on doubtful; surely amounts
_FAR = 50.0  # times as large: 980 beside 1.259
_MOST_UNITS = 2  # of a column: g and kg
_ROWS_PER_CLASS = 10  # labels that occur in fewer rows on average are measured
_FEWEST_LABELS = 10  # with fewer distinct labels, a small table proves nothing

_MARKERS = {
    *("", "?", "-", "--", ".", "*", "x", "unknown", "unk", "missing", "none", "na", "n/a", "nan", "null"),
    *("nil", "not known", "not available", "not done", "not measured", "tbd"),
    *("inf", "-inf", "#n/a", "#value!"),
}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
_NEARLY = re.compile(r"[<>≤≥~=]*\s*[+\-\u2212]?\d+(?:[.,]\d+)*\s*[?*+!]*")  # <500, 27,5, 1,200, 38.1?
_COMMA = re.compile(r"[+-]?\d+,\d+")
# 1,259 or 1.259,5; 97%, 37.5 °C, € 12, 120/80 or 3-8
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}([,.'’ \u00a0\u202f])\d{3}(?:\1\d{3})*([.,]\d+)?")
_UNIT = re.compile(
    r"[<>≤≥~=]*\s*(?:([€$£¥])\s*[+-]?\d+(?:[.,]\d+)*|"
    r"[+-]?\d+(?:[.,]\d+)?\s*(?:([^\W_\d][^\s\d]*|[%‰°€$£¥][^\s\d]*)|([/–-])\s*\d+(?:[.,]\d+)?))"
)
_LONGEST = 1000  # characters of a category
_RULES = {",": "thousands", ".": "points"}  # others: "grouped"
_AS_CATEGORIES = {"stray", "unit", "marker"}  # what a column may hold that is used as categories

# What is wrong, and what to do.
_ERRORS = {
    "wide": ("too many columns", "a row must be a person, a column a quantity: is it turned round?"),
    "rows": ("no rows", "give a file with a row for each person"),
    "stray": (
        "texts in a column of numbers",
        "correct these cells or leave them empty, or use it as categories with 'dataset.keep=[{}]'",
    ),
    "comma": (
        "numbers with a decimal comma",
        "give 'dataset.csv_options.decimal=\",\"', or 'dataset.csv_options.thousands=\",\"' if 1,259 is "
        "1259; in Parquet store numbers",
    ),
    "thousands": (
        "numbers with a comma between thousands",
        "give 'dataset.csv_options.thousands=\",\"'; in Parquet store numbers",
    ),
    "points": (
        "numbers with a point between thousands",
        "give 'dataset.csv_options.thousands=\".\"' and 'dataset.csv_options.decimal=\",\"'",
    ),
    "grouped": (
        "numbers with a blank or an apostrophe between thousands",
        "write plain numbers, or name it, as in 'dataset.csv_options.thousands=\" \"'",
    ),
    "unit": (
        "numbers with a unit, or two numbers in a cell",
        "write one plain number in each cell, or use it as categories with 'dataset.keep=[{}]'",
    ),
    "type": ("values that are neither numbers nor categories", "leave it out with 'dataset.ignore=[{}]'"),
    "date": (
        "dates",
        "leave it out with 'dataset.ignore=[{}]', or write numbers, such as days since admission",
    ),
    "infinite": ("infinite numbers", "correct these cells or leave them empty"),
    "identifier": (
        "values that look like identifiers or dates",
        "leave it out with 'dataset.ignore=[{0}]', or use it with 'dataset.keep=[{0}]'; "
        "if it is a person's key, give partition.group={0}",
    ),
    "unlabelled": (
        "rows without a label",
        "label them or leave them out; if 'None' or 'NA' is a class, give "
        "dataset.csv_options.keep_default_na=false",
    ),
    "missing": ("rows without a value", "fill them in or leave these rows out"),
    "words": (
        "texts where numbers are needed",
        "write plain numbers, or leave out dataset.target for classes",
    ),
    "time": ("times that are not above 0", "correct them, or leave these rows out"),
    "event": (
        "events that are neither 0 nor 1, false nor true",
        "write 1 where the event happened, and 0 where a row was censored: observed until then, without it",
    ),
    "labels alike": ("labels that differ in case or blanks only", "spell each class in one way"),
    "continuous": (
        "too many different values to be classes",
        "to predict amounts give dataset.target=amounts, or dataset.event=COLUMN if they are times until an "
        "event; or group the values into classes, low and high",
    ),
    "multi-label": (
        "several labels in one row",
        "fedclust classifies into one class per row: make a column for each label, and a run for each column",
    ),
}
_WARNINGS = {
    "marker": (
        "a category that means missing",
        "leave these cells empty, or name it, as in 'dataset.csv_options.na_values=\"?\"'",
    ),
    "spelling": ("values that differ in case or blanks only", "spell each of them in one way"),
    "empty": ("no value at all", "leave it out with 'dataset.ignore=[{}]' if every site lacks it"),
    "three decimals": (
        "numbers of three decimals beside whole ones that are much larger",
        "give 'dataset.csv_options.thousands=\",\"' and 'dataset.csv_options.decimal=\".\"' if 1,259 is 1259",
    ),
    "constant": ("one value in all rows", "leave it out with 'dataset.ignore=[{}]' if it varies nowhere"),
    "twin": (
        "the values of another column in all rows",
        "leave one out, as with 'dataset.ignore=[{}]'; one that repeats the label gives it away",
    ),
    "one class": ("a single label", "this site cannot show how well a model tells the classes apart"),
    "many classes": ("more than 20 numbers as classes", "give dataset.target=amounts if they are amounts"),
    "one amount": ("one amount in at least eight of ten rows", "others are needed for a model to learn from"),
    "no event": ("no row with an event", "rows with an event are needed elsewhere for a model to learn from"),
    "rare": ("a class in fewer than 5 % of the rows", "read its sensitivity and the balanced accuracy"),
    "no owner": ("rows without the name of a client", "fill in those you know: these neither train nor test"),
    "no key": ("rows without a person's key", "each counts as a person of its own; fill in keys you know"),
    "copies": ("rows that repeat another of the same person", "remove them: they count twice"),
    "repeated": (
        "rows that repeat another in every column",
        "remove them, or give the person's key with partition.group=COLUMN: the same row trains and tests",
    ),
}
SETTING = re.compile(r"'?dataset\.(csv_options\.)?(\w+)=(\"[^\"]*\"|\[.*?\](?=')|[^\s;,']+)'?")
"""A setting that a remedy names: whether it is of CSV files, its name and its value.

It is that of a run over a pooled table, or of a simulation; other readers are told their own way to set it.
"""

ITS_TYPE = "its type"
"""Why a column is of dates that cannot be kept, as texts of dates can."""

ELSEWHERE = frozenset({"identifier", "date", "empty", "constant", "unlabelled"})
"""Checks that reading the labels and the sites' agreement make themselves."""


@dataclass(frozen=True)
class Finding:
    """Something to mend in a table.

    Attributes
    ----------
    rule
        Name of the check, a key of this module's texts.
    column
        Name of the column; empty if the finding is about the table.
    rows
        Number of rows that it is about; 0 if all.
    of
        Number of rows of the table.
    detail
        Values and where they are, which stay at the site.
    """

    rule: str
    column: str
    rows: int = 0
    of: int = 0
    detail: str = ""

    @property
    def severity(self) -> Literal["error", "warning"]:
        """Whether the table should not be used as it is, or somebody should look."""
        return "error" if self.rule in _ERRORS else "warning"

    @property
    def line(self) -> str:
        """The finding in one line, for who may see the table."""
        rows = f", in {self.rows:,} of {self.of:,} rows" if self.rows else ""
        return self._written(f"{rows} ({self.detail})" if self.detail else rows)

    @property
    def public(self) -> str:
        """The finding in one line, without a value or a count."""
        return self._written("")

    def anonymous(self, named: Collection[str]) -> "Finding":
        """Return the finding without its details, and without its column's name unless that is in `named`."""
        return Finding(self.rule, self.column if self.column in {*named, ""} else "a column")

    @property
    def problem(self) -> str:
        """What is wrong, without a value, a count or a remedy."""
        problem, _ = (_ERRORS | _WARNINGS)[self.rule]
        return f"{self.column}: {problem}" if self.column else problem

    def _written(self, about: str) -> str:
        _, remedy = (_ERRORS | _WARNINGS)[self.rule]
        return f"{self.problem}{about}; {remedy.format(typed([self.column]))}"


def typed(names: Iterable[str]) -> str:
    """Write columns as the elements of a list on a command line, which Hydra reads.

    Examples
    --------
    >>> typed(["age", "größe", "pressure, mmHg"])
    'age,"größe","pressure, mmHg"'
    """
    plain = re.compile(r"[A-Za-z_]\w*", re.ASCII)
    return ",".join(each if plain.fullmatch(each) else json.dumps(each, ensure_ascii=False) for each in names)


def names_typed(text: str) -> list[str]:
    """Read what :func:`typed` wrote.

    Examples
    --------
    >>> names_typed('age,"größe","pressure, mmHg"')
    ['age', 'größe', 'pressure, mmHg']
    """
    parts = re.findall(r'"(?:[^"\\]|\\.)*"|[^,]+', text)
    return [json.loads(each) if each.startswith('"') else each for each in parts]


def check_table(
    table: "pd.DataFrame",
    target: str | None = None,
    group: str | None = None,
    keep: Collection[str] = (),
    other: Mapping[str, str] = MappingProxyType({}),
    event: str | None = None,
    kind: type[Target] = Classes,
) -> list[Finding]:
    """Check a table.

    Parameters
    ----------
    table
        A row per example; all columns but `target`, `event` and `group` are inputs.
    target
        Column with the labels; None if it is not known.
    group
        Column with the key of the person that a row belongs to; None without one.
    keep
        Columns to use as they are.
    other
        Type of each column that holds neither numbers nor texts, such as dates or lists.
    event
        Column that says whether the event happened; None if there is none.
    kind
        What the labels are.

    Returns
    -------
    The findings, errors first, then in the order of the columns. A table without rows, or with very many
    columns, has one finding.
    """
    size, names = len(table), [str(name) for name in table.columns]
    if len(names) > MOST_COLUMNS:
        return [Finding("wide", "", detail=f"{len(names):,}")]
    if not size:
        return [Finding("rows", "")]
    found: list[Finding] = []
    for name in table.columns:
        if name in (target, event, group):
            continue
        if name in other:
            rule = "date" if re.match("date|time", other[name]) else "type"
            found.append(Finding(rule, str(name), detail=f"{ITS_TYPE}, {other[name]}"))
        elif name not in keep:
            found += _column(table[name], str(name))
    if target is not None and kind.numeric:
        found += check_values(kind, table[target], None if event is None else table[event])
    elif target is not None and target not in keep:
        found += check_target(table[target])
    known = {*other, group, *(each.column for each in found if each.rule in ("empty", "constant"))}
    found += _twins(
        table, [name for name in dict.fromkeys([target, *table.columns]) if name not in {None, *known}]
    )
    found += _persons(table, group)
    return sorted(found, key=lambda each: each.severity != "error")


def _twins(table: "pd.DataFrame", names: Iterable[Any]) -> Iterator[Finding]:
    """Find columns that hold, in all rows, what an earlier one of `names` does."""
    import pandas as pd

    seen: dict[bytes, Any] = {}
    for name in names:
        values = table[name]
        if pd.api.types.is_numeric_dtype(values):
            values = values.astype(np.float64)
        rows = pd.util.hash_pandas_object(values, index=False).to_numpy()
        earlier = seen.setdefault(hashlib.sha256(rows.tobytes()).digest(), name)
        if earlier != name:
            yield Finding("twin", str(name), detail=str(earlier))


def check_target(labels: "Values") -> list[Finding]:
    """Check a column of labels: classes, one per row, spelt in one way and none of them rare."""
    from pandas.api import types

    name, size, number = str(labels.name), len(labels), types.is_numeric_dtype(labels)
    number &= not types.is_bool_dtype(labels)
    present = labels.dropna() if number else labels.dropna().astype(str)
    found: list[Finding] = []
    if gaps := size - len(present):
        found.append(Finding("unlabelled", name, gaps, size, _rows(labels.index[labels.isna()])))
    counts = present.value_counts()
    if len(counts) < 2:
        return found + [Finding("one class", name, detail=_quoted(counts.index)) for _ in counts]
    if several := [] if number else _several(list(counts.index)):
        return [*found, Finding("multi-label", name, int(counts[several].sum()), size, _quoted(several))]
    if _measured(counts.index.to_numpy(), len(present), number):
        return [*found, Finding("continuous", name, detail=f"{len(counts)} in {len(present):,} rows")]
    if number and len(counts) > _MANY_CLASSES:
        return [*found, Finding("many classes", name, detail=f"{len(counts)}")]
    if not number:
        found += _spellings(present, "labels alike")
        found += _strays(present.str.strip(), name, size)
    rare = counts[counts < len(present) * min(RARE, 0.5 / len(counts))]
    if len(rare):
        detail = ", ".join(f"{_quoted([value])}: {count}" for value, count in list(rare.items())[:3])
        found.append(Finding("rare", name, int(rare.sum()), size, detail))
    return found


def check_values(kind: type[Target], labels: "Values", events: "Values | None" = None) -> list[Finding]:
    """Check a column of amounts or of times, and that of the events of times."""
    size, found = len(labels), list[Finding]()
    columns = [labels] if events is None else [labels, events]
    values = measured_values(labels, events)
    for column, numbers in zip(columns, values.reshape(size, -1).T, strict=True):
        name, missing = str(column.name), np.asarray(column.isna(), dtype=bool)
        if gaps := int(missing.sum()):
            found.append(Finding("missing", name, gaps, size, _rows(column.index[missing])))
        if (words := np.isnan(numbers) & ~missing).any():
            texts = column[~missing].astype(str).str.strip()
            chosen = list(dict.fromkeys(column[words].astype(str).str.strip()))
            rule = "words" if column is labels else "event"
            stray = [each for each in _strays(texts, name, size) if each.rule not in _AS_CATEGORIES]
            one = Finding(rule, name, int(words.sum()), size, _examples(texts, chosen))
            found += stray if stray and column is labels else [one]
    whole = np.flatnonzero(~np.isnan(values.reshape(size, -1)).any(axis=1))
    for rule, place, rows in kind.faults(values[whole]):
        column, where = columns[place], labels.index[whole[rows]]
        if rows.all():
            found += [Finding(rule, str(column.name))] if len(whole) == size else []
        else:
            detail = f"{_quoted(column[where].iloc[:1])} {_rows(where)}"
            found.append(Finding(rule, str(column.name), len(where), size, detail))
    return found


def read_values(kind: type[Target], labels: "Values", events: "Values | None" = None) -> FloatArray:
    """Read amounts, float32, shape (n,), or times and events, shape (n, 2).

    Raises
    ------
    ValueError
        If one is missing or impossible; the message has all that :func:`check_values` finds.
    """
    found = check_values(kind, labels, events)
    if wrong := [each.line for each in found if each.severity == "error"]:
        raise ValueError("; ".join(wrong))
    return measured_values(labels, events).astype(np.float32)


def measured_values(labels: "Values", events: "Values | None" = None) -> FloatArray:
    """Read amounts, shape (n,), or times and events, shape (n, 2); NaN where missing or no number.

    Events may be written as ``true`` and ``false``.
    """
    import pandas as pd

    read = []
    for column in [labels] if events is None else [labels, events]:
        numbers = column
        if not pd.api.types.is_numeric_dtype(column):  # booleans are; dates would become large numbers
            texts = column.astype("string").str.strip()
            if column is events:
                texts = texts.str.lower().replace({"true": "1", "false": "0"})
            numbers = pd.to_numeric(texts, errors="coerce")
        read.append(numbers.to_numpy(dtype=np.float64, na_value=np.nan))
    return read[0] if events is None else np.stack(read, axis=1)


def not_classes(labels: "Values") -> list[Finding]:
    """Check only that labels are no amounts, and one per row."""
    from pandas.api import types

    wrong = {"multi-label", "continuous"} if types.is_numeric_dtype(labels) else {"multi-label"}
    return [each for each in check_target(labels) if each.rule in wrong]


def lines(findings: Iterable[Finding], most: int, write: Callable[[Finding], str]) -> list[str]:
    """Write findings in at most `most` lines and one more; columns with the same finding share a line."""
    by_rule: dict[str, list[Finding]] = {}
    for each in findings:
        by_rule.setdefault(each.rule, []).append(each)
    written: list[str] = []
    for group in by_rule.values():
        if len(group) > 3:
            others = few([each.column for each in group[1:]], 4)
            written.append(f"{write(group[0])} (likewise {others})")
        else:
            written += map(write, group)
    more = len(written) - most
    return written[:most] + ([f"and {more} more"] if more > 0 else [])


def _column(values: "Values", name: str) -> Iterator[Finding]:
    from pandas.api import types

    size, texts = len(values), None
    if types.is_numeric_dtype(values):  # in NumPy: pandas is slow for thousands of columns
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        if endless := int((np.abs(numbers) > np.finfo(np.float32).max).sum()):
            yield Finding("infinite", name, endless, size)
        numbers = numbers[~np.isnan(numbers)]
        if _thousandths(numbers):
            yield Finding("three decimals", name)
        empty = not len(numbers)
        constant = not empty and numbers.min() == numbers.max()
    else:
        texts = values.dropna().astype(str).str.strip()
        empty, constant = bool((texts == "").all()), values.nunique() == 1
    if empty:
        yield Finding("empty", name)
        return
    reason = suspicion(name, values)
    if constant and not reason:
        present = values.dropna()
        yield Finding("constant", name, detail=_quoted(present.iloc[:1]) if len(present) == size else "")
        return
    if texts is not None:
        strays = _strays(texts, name, size)
        yield from strays
        yield from _spellings(values.dropna().astype(str), "spelling")
        if any(each.severity == "error" for each in strays):
            return
    if reason:
        yield Finding("identifier", name, detail=reason)


def _thousandths(numbers: FloatArray) -> bool:
    """Return whether numbers, shape (present,), look like thousands whose comma was read as a decimal's."""
    numbers = np.abs(numbers[np.isfinite(numbers)])
    whole, parts = numbers[numbers == np.round(numbers)], numbers[numbers != np.round(numbers)]
    if not len(whole) or not len(parts) or parts.min() < 1 or numbers.max() >= 1000:
        return False
    third = np.isclose(1000 * parts, np.round(1000 * parts), rtol=0, atol=1e-6)
    second = np.isclose(100 * parts, np.round(100 * parts), rtol=0, atol=1e-6)
    return bool(third.all() and not second.all() and np.median(whole) > _FAR * np.median(parts))


def _strays(texts: "Values", name: str, size: int) -> list[Finding]:
    """Find what is no number in a column of texts most of which are numbers; shape of `texts` (present,)."""
    counts = texts.value_counts()
    plain = np.array([bool(_NUMBER.fullmatch(text)) for text in counts.index])
    nearly = plain | [bool(_NEARLY.fullmatch(text)) for text in counts.index]
    marker = np.array([bool({text.lower(), text.lower().rstrip("?! ")} & _MARKERS) for text in counts.index])
    rows = counts.to_numpy()
    united = [_UNIT.fullmatch(text) for text in counts.index]
    unit = np.array(united, dtype=bool)
    if len({"".join(filter(None, each.groups())) for each in united if each}) > _MOST_UNITS:
        unit[:] = False  # codes such as 1a and 2b
    nearly |= unit | [bool(_GROUPED.fullmatch(text)) for text in counts.index]
    numbers, others = int(rows[nearly].sum()), int(rows[~nearly & ~marker].sum())
    distinct, stray = int(nearly.sum()), ~plain
    if numbers <= others or not stray.any():
        return []
    comma = np.array([bool(_COMMA.fullmatch(text)) for text in counts.index])
    grouped = [each for text in counts.index[~plain] if (each := _GROUPED.fullmatch(text))]
    # 1,259 and 1,260 alone may be decimals: a plain number beside them, or 1,259.5, shows that they are none.
    sure = plain.any() or any(each[2] or each[0].count(each[1]) > 1 for each in grouped)
    measured = distinct > _MANY_NUMBERS or (distinct >= 5 and 2 * distinct > numbers)
    if grouped and sure and len(grouped) == int((nearly & ~plain).sum()):
        rule, stray = _RULES.get(grouped[0][1], "grouped"), nearly & ~plain
    elif 2 * int(rows[comma].sum()) > numbers:
        rule, stray = "comma", comma
    elif measured and 2 * int(rows[unit].sum()) > int(rows[stray].sum()):
        rule, stray = "unit", unit
    elif measured:
        rule = "stray"
    elif (marker | ~stray).all():
        # Few numbers are codes, and a text among them another code, unless it says that the value is missing.
        rule = "marker"
    else:
        return []
    chosen = [str(text) for text in counts.index[stray]]
    return [Finding(rule, name, int(rows[stray].sum()), size, _examples(texts, chosen))]


def _spellings(texts: "Values", rule: str) -> list[Finding]:
    """Find values that differ in case or blanks only."""
    counts = texts.value_counts()
    spelt: dict[str, list[str]] = {}
    for text in map(str, counts.index):
        spelt.setdefault(spelling(text), []).append(text)
    several = [each for each in spelt.values() if len(each) > 1]
    if not several:
        return []
    fewer = [text for each in several for text in each[1:]]  # the most frequent spelling stands first
    detail = few((" and ".join(map(repr, each)) for each in several), 3)
    return [Finding(rule, str(texts.name), int(counts[fewer].sum()), len(texts), detail)]


def is_number(text: str) -> bool:
    """Return whether a text is a plain number, such as the name of a column that is none."""
    return bool(_NUMBER.fullmatch(text.strip()))


def spelling(text: str) -> str:
    """Return a text without differences of case and blanks."""
    return " ".join(text.split()).casefold()


def _measured(values: Any, rows: int, number: bool) -> bool:
    """Return whether distinct labels are measurements or free texts, not classes; shape (distinct,)."""
    different = len(values)
    if number and different >= _FEWEST_LABELS and 2 * different > rows:
        return True
    if different <= _MANY_CLASSES:
        return False
    whole = number and bool((values == np.round(values)).all())
    return rows < _ROWS_PER_CLASS * different or (number and (not whole or different > _MOST_CLASSES))


def _parts(text: str) -> set[str]:
    """Divide a label such as ``flu;asthma`` or ``['flu', 'asthma']`` into its labels; none if it is one."""
    inside = re.fullmatch(r"\s*[\[{(](.*)[\]})]\s*", text)
    parts = re.split(r"[;|]|,", inside[1]) if inside else re.split(r"[;|]", text)
    stripped = {part.strip(" '\"") for part in parts} - {""}
    return stripped if len(stripped) > 1 or (inside and stripped) else set()


def _several(texts: list[str]) -> list[str]:
    """List the texts that are several labels: each of these occurs in other texts, too."""
    parts = {text: _parts(text) for text in texts}
    seen = Counter(part for text in texts for part in parts[text] or {text.strip()})
    return [text for text in texts if parts[text] and all(seen[part] > 1 for part in parts[text])]


def _persons(table: "pd.DataFrame", group: str | None) -> Iterator[Finding]:
    missing = table[group].isna() if group is not None else np.zeros(len(table), dtype=bool)
    if group is not None and missing.any():
        where = _rows(table.index[missing])
        yield Finding("no key", group, int(missing.sum()), len(table), where)
    try:  # few rows repeat another in the first columns; only these are compared in all, maybe thousands
        alike = table.iloc[:, :50].duplicated(keep=False)
        copies = int(table[alike & ~missing].duplicated().sum())
    except TypeError:  # lists cannot be compared
        return
    if group is not None and copies:
        yield Finding("copies", group, copies, len(table))
    elif copies > 10 * _copies_by_chance(table):
        yield Finding("repeated", "", copies, len(table))


def _copies_by_chance(table: "pd.DataFrame") -> float:
    """Estimate how many pairs of rows would be alike if the columns were independent."""
    pairs = len(table) * (len(table) - 1) / 2
    for name in table.columns:
        if pairs < 1e-3:
            break
        pairs *= float((table[name].value_counts(normalize=True, dropna=False) ** 2).sum())
    return pairs


def _examples(texts: "Values", chosen: list[str]) -> str:
    """Name up to three values, each with its rows, counted from 1 without the header."""
    parts = [f"{_quoted([value])} {_rows(texts.index[texts == value])}" for value in chosen[:3]]
    return "; ".join(parts) + (f"; and {len(chosen) - 3} more" if len(chosen) > 3 else "")


def _rows(rows: Iterable[int]) -> str:
    numbers = [int(row) + 1 for row in rows]
    return f"in row{'s' * (len(numbers) > 1)} {few(numbers, 3)}"


def _quoted(values: Iterable[Any]) -> str:
    return few((repr(str(value)[:30]) for value in values), 3)


# -- Identifiers and dates, which a model should not learn from ---------------------------------------------

_FEW = 20  # with fewer rows, repeated values prove nothing
_ROWS_PER_IDENTIFIER = 20  # a value that occurs in more rows than this on average is a category
_ROWS_PER_CODE = 10  # the same without a name that says what it is
_DIGITS = 7  # whole numbers of one length, no shorter than this, are numbers of records
_SAMPLE = 1000  # distinct texts checked for dates
_SHARE = 0.95  # share of texts that must parse as dates: files have typing errors

_ID_WORDS = {"id", "ids", "uuid", "guid", "identifier", "mrn", "ssn"}  # the first or the last of a name
_TIME = r"(?:[T ,]+\d{1,2}:\d{2}.*)?"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}{_TIME}"  # 2024-01-31
    rf"|\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d{{2}}){_TIME}"  # 31.01.2024, 1/31/24
    rf"|\d{{1,2}}[- .]+{_MONTH}[- ,]+\d{{2,4}}{_TIME}"  # 31 January 2024
    rf"|{_MONTH}[- ]+\d{{1,2}}[, ]+\d{{4}}{_TIME}"  # Jan 31, 2024
    r"|\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?",  # 23:59
    re.IGNORECASE,
)


def suspicion(name: str, values: "Values") -> str | None:
    """Explain why a column looks like an identifier or a date.

    - Dates: texts that parse as dates or times, and whole numbers such as 20240131.
    - Identifiers: texts of more than 1,000 characters; texts that mostly occur once, or in few rows and have
      digits, where no text is much more frequent than the others; whole numbers that rise (or fall) from
      each row to the next, that repeat far
      less often than draws from their range would, that all have seven digits or more, or each of which
      stands in one block of rows; texts or whole numbers in a column with a name like ``patient_id``,
      ``visitId``, ``patient_key`` or ``mrn`` with 20 values or two rows a value, unless a value occurs in
      more than 20 rows on average. Columns of fewer than 20 rows are never called identifiers.

    Parameters
    ----------
    name
        The column's name.
    values
        Its values: numbers, booleans or texts.

    Returns
    -------
    A short reason; None for an ordinary column.
    """
    from pandas.api import types

    if types.is_bool_dtype(values):
        return None
    if types.is_numeric_dtype(values):  # in NumPy: pandas is slow for thousands of columns
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        numbers = numbers[~np.isnan(numbers)]
        whole = bool((numbers == np.round(numbers)).all())
        counted = types.is_integer_dtype(values) or (whole and len(numbers) < len(values))
        reason = _suspicious_numbers(numbers) if len(numbers) and counted else None
    else:
        whole = True
        present = values.dropna()
        reason = _suspicious_texts(present.astype(str)) if len(present) else None
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    named = words[-1:] == ["key"] or not _ID_WORDS.isdisjoint({*words[:1], *words[-1:]})
    if reason is None and whole and named:
        different, rows = values.nunique(), int(values.count())
        many = different >= _FEW or (rows >= _FEW and 2 * different >= rows)
        if many and different * _ROWS_PER_IDENTIFIER >= rows:
            return f"its name, and {different} distinct values in {rows} rows"
    return reason


def _suspicious_numbers(values: FloatArray) -> str | None:
    """Explain why whole numbers, shape (rows,), look like dates or numbers of rows."""
    import pandas as pd

    if values.min() >= 1900_01_01 and values.max() <= 2100_12_31:
        texts = np.unique(values).astype(np.int64).astype(str)
        if pd.to_datetime(texts, format="%Y%m%d", errors="coerce").notna().all():
            return f"dates, such as {values[0]:.0f}"
    steps = np.diff(values)
    if len(values) >= _FEW and ((steps > 0).all() or (steps < 0).all()):
        return f"it numbers the rows, from {values[0]:.0f} to {values[-1]:.0f}"
    if len(values) < _FEW:
        return None
    different, counts = np.unique(values, return_counts=True)
    rows, ends = len(values), f", from {different[0]:.0f} to {different[-1]:.0f}"
    repeats, wide = rows - len(different), different[-1] - different[0] + 1
    by_chance = rows + wide * np.expm1(rows * np.log1p(-1 / wide)) if wide > 1 else rows
    long = different[0] > 0 and len(f"{different[0]:.0f}") == len(f"{different[-1]:.0f}") >= _DIGITS
    if 20 * repeats <= rows and (long or by_chance >= 9 + 4 * repeats):
        return f"{len(different)} different whole numbers in {rows} rows{ends}"
    blocks = 1 + int(np.count_nonzero(steps))
    alike = counts.min() > 1 and 4 * counts.std() < counts.mean()
    ordered = (steps >= 0).all() or (steps <= 0).all()  # a table may be sorted by a measurement
    if _FEW <= len(different) == blocks and repeats > 4 and (alike or not ordered):
        return f"each whole number stands in one block of rows{ends}"
    return None


def _suspicious_texts(values: "Values") -> str | None:
    different = values.drop_duplicates()
    sample = different.iloc[:_SAMPLE].str.strip()
    if (longest := int(different.str.len().max())) > _LONGEST:
        return f"a text of {longest:,} characters"
    if sample.str.fullmatch(_DATE).mean() >= _SHARE:
        return f"dates or times, such as {sample.iloc[0]!r}"
    if len(values) >= _FEW and 2 * len(different) > len(values):
        return f"{len(different)} distinct texts in {len(values)} rows"
    if len(different) >= _FEW and _ROWS_PER_CODE * len(different) >= len(values):
        counts = values.value_counts().to_numpy()
        if counts.std() <= counts.mean() and sample.str.contains(r"\d").mean() >= _SHARE:
            return f"{len(different)} distinct codes in {len(values)} rows"
    return None
