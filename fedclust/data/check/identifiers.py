"""Recognise columns of identifiers and dates, which a model should not learn from."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


_FEW = 20  # with fewer rows, repeated values prove nothing
_ROWS_PER_IDENTIFIER = 20  # a value that occurs in more rows than this on average is a category
_SAMPLE = 1000  # distinct texts checked for dates
_SHARE = 0.95  # share of texts that must parse as dates: files have typing errors

_ID_WORDS = {"id", "ids", "uuid", "guid", "identifier"}
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
    - Identifiers: texts that mostly occur once; whole numbers that rise (or fall) from each row to the next;
      texts or whole numbers in a column with a name like ``patient_id`` or ``visitId``, unless a value occurs
      in more than 20 rows on average. Columns of fewer than 20 rows are never called identifiers.

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

    present = values.dropna()
    if not len(present) or types.is_bool_dtype(present):
        return None
    if types.is_numeric_dtype(present):
        whole = bool((present == present.round()).all())
        reason = _suspicious_numbers(present) if types.is_integer_dtype(present) else None
    else:
        whole = True
        reason = _suspicious_texts(present.astype(str))
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    if reason is None and whole and not _ID_WORDS.isdisjoint({*words[:1], *words[-1:]}):
        different = present.nunique()
        if different >= _FEW and different * _ROWS_PER_IDENTIFIER >= len(present):
            return f"its name, and {different} distinct values in {len(present)} rows"
    return reason


def _suspicious_numbers(values: "pd.Series") -> str | None:
    import pandas as pd

    if values.between(1900_01_01, 2100_12_31).all():
        dates = pd.to_datetime(values.drop_duplicates().astype(str), format="%Y%m%d", errors="coerce")
        if dates.notna().all():
            return f"dates, such as {values.iloc[0]}"
    in_order = values.is_monotonic_increasing or values.is_monotonic_decreasing
    if len(values) >= _FEW and values.is_unique and in_order:
        return f"it numbers the rows, from {values.iloc[0]} to {values.iloc[-1]}"
    return None


def _suspicious_texts(values: "pd.Series") -> str | None:
    different = values.drop_duplicates()
    sample = different.iloc[:_SAMPLE].str.strip()
    if sample.str.fullmatch(_DATE).mean() >= _SHARE:
        return f"dates or times, such as {sample.iloc[0]!r}"
    if len(values) >= _FEW and 2 * len(different) > len(values):
        return f"{len(different)} distinct texts in {len(values)} rows"
    return None
