"""Recognise columns of identifiers and dates, which a model should not learn from."""

import re
from typing import TYPE_CHECKING

import numpy as np

from fedclust.typing import FloatArray

if TYPE_CHECKING:
    import pandas as pd


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


def suspicion(name: str, values: "pd.Series") -> str | None:
    """Explain why a column looks like an identifier or a date.

    - Dates: texts that parse as dates or times, and whole numbers such as 20240131.
    - Identifiers: texts that mostly occur once, or in few rows and have digits, where no text is much more
      frequent than the others; whole numbers that rise (or fall) from each row to the next, that repeat far
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


def _suspicious_texts(values: "pd.Series") -> str | None:
    different = values.drop_duplicates()
    sample = different.iloc[:_SAMPLE].str.strip()
    if sample.str.fullmatch(_DATE).mean() >= _SHARE:
        return f"dates or times, such as {sample.iloc[0]!r}"
    if len(values) >= _FEW and 2 * len(different) > len(values):
        return f"{len(different)} distinct texts in {len(values)} rows"
    if len(different) >= _FEW and _ROWS_PER_CODE * len(different) >= len(values):
        counts = values.value_counts().to_numpy()
        if counts.std() <= counts.mean() and sample.str.contains(r"\d").mean() >= _SHARE:
            return f"{len(different)} distinct codes in {len(values)} rows"
    return None
