import pandas as pd
import pytest

from fedclust.data.check.identifiers import suspicion

ROWS = 40


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("row", range(ROWS), "it numbers the rows, from 0 to 39"),
        ("Unnamed: 0", range(ROWS, 0, -1), "it numbers the rows, from 40 to 1"),
        ("number", [3 * row * row for row in range(ROWS)], "it numbers the rows, from 0 to 4563"),
        ("patient_id", [row * 7919 % 101 for row in range(ROWS)], "its name, and 40 distinct values in 40"),
        ("visitID", [f"v{'x' * (row % 20)}" for row in range(ROWS)], "its name, and 20 distinct values"),
        ("ID number", [None, *[float(row % 20) for row in range(ROWS)]], "its name, and 20 distinct values"),
        ("pat_nr", [f"P{row // 3}" for row in range(60)], "20 distinct codes in 60 rows"),
        ("MRN", [f"{row // 2}" for row in range(30)], "its name, and 15 distinct values in 30 rows"),
        ("note", [f"seen by {row}" for row in range(ROWS)], "40 distinct texts in 40 rows"),
        ("day", ["2024-01-31", "2023-12-01T10:00:00Z"], "dates or times, such as '2024-01-31'"),
        ("day", ["31.01.2024", "1.2.24 10:00"], "dates or times"),
        ("day", ["31 January 2024", "1-Feb-24"], "dates or times"),
        ("day", ["Jan 31, 2024", None], "dates or times"),
        ("hour", ["23:59", "08:00:01"], "dates or times"),
        ("day", [20240131, 20231201, 20231201], "dates, such as 20240131"),
    ],
)
def test_identifiers_and_dates(name: str, values, reason: str) -> None:
    assert str(suspicion(name, pd.Series(list(values)))).startswith(reason)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("age", [20 + row * 7 % 35 for row in range(ROWS)]),
        ("income", [1000 + row * 7919 % 101 for row in range(ROWS)]),  # all different, in no order
        ("temperature", [36.0 + row / 10 for row in range(ROWS)]),  # rising, but measured
        ("code", [20241301, 20240101]),  # no month 13
        ("region_key", [f"r{row % 19}" for row in range(ROWS)]),  # fewer than 20, in more than two rows each
        ("key_symptom", [f"s{'x' * (row % 20)}" for row in range(ROWS)]),  # no key: its name does not end so
        ("region_id", [row % 5 for row in range(ROWS)]),  # a category
        ("fluid", [row * 7919 % 101 for row in range(ROWS)]),  # ends in "id", is no word of its own
        ("job", ["cook", "baker"] * 20),
        ("job", ["cook", "baker"]),  # all different, but too few rows to tell
        ("member", [True, False]),
        ("version", ["1.2", "1.3", "2.0"]),
        ("range", ["10-20", "20-30"]),
        ("empty", [None, None]),
    ],
)
def test_ordinary_columns(name: str, values) -> None:
    assert suspicion(name, pd.Series(values)) is None


def test_a_date_with_a_typing_error_is_a_date() -> None:
    days = [f"2024-01-{1 + row:02d}" for row in range(19)]
    assert suspicion("day", pd.Series([*days, "yesterday"])) is not None  # 19 of 20
    assert suspicion("day", pd.Series([*days[:17], "a", "b", "c"])) == "20 distinct texts in 20 rows"
