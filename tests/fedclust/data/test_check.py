"""Tables made by hand, each with what is wrong in it; clean tables have no finding."""

import re
import shlex
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from fedclust.data.check import Finding, check_table, lines, suspicion
from fedclust.data.targets import Amounts, Times
from fedclust.runs.check import main
from fedclust.settings.composition import compose

_AGES = [20 + 1.5 * k for k in range(40)]  # 40 different numbers
_SEXES = ["f", "m"] * 20
_LABELS = ["ill", "well"] * 20


def _with(values: list, changes: dict) -> list:
    return [changes.get(place, value) for place, value in enumerate(values)]


def _found(columns: dict, labels: list = _LABELS, **options) -> list[tuple[str, str, str, int]]:
    table = pd.DataFrame({**columns, "y": labels})
    return [(each.severity, each.rule, each.column, each.rows) for each in check_table(table, "y", **options)]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (_with(_AGES, {3: "<500", 5: "n/a?", 7: "unknown", 9: "unknown"}), ("error", "stray", 4)),
        (_with(_AGES, {3: "27,5"}), ("error", "stray", 1)),
        ([f"{20 + k},5" for k in range(40)], ("error", "comma", 40)),
        ([f"1,0{10 + k}" for k in range(40)], ("error", "comma", 40)),  # of three digits, as of a density
        ([f"{1 + k},0{10 + k}" if k % 2 else str(900 + k) for k in range(40)], ("error", "thousands", 20)),
        ([f"{1 + k},0{10 + k}.5" for k in range(40)], ("error", "thousands", 40)),
        ([f"{1 + k}.0{10 + k},5" for k in range(40)], ("error", "points", 40)),
        ([f"{1 + k}'0{10 + k}" if k % 2 else str(900 + k) for k in range(40)], ("error", "grouped", 20)),
        ([f"{60 + k}%" if k % 2 else str(60 + k) for k in range(40)], ("error", "unit", 20)),
        ([f"{100 + k}/{60 + k}" for k in range(40)], ("error", "unit", 40)),
        ([f"3{k % 8}.{k % 5} °C" for k in range(40)], ("error", "unit", 40)),
        ([1 + k / 1000 if k % 2 else 900 + k for k in range(40)], ("warning", "three decimals", 0)),
        ([1 + k / 1000 if k % 2 else 1.0 for k in range(40)], None),  # densities
        ([1 + k / 100 if k % 2 else 900 + k for k in range(40)], None),  # two decimals
        (["5 mg", "10 mg", "20 mg", "none"] * 10, None),  # doses: few enough to be categories
        ([f"{1 + k % 4}{'abcd'[k % 4]}" for k in range(40)], None),  # stages
        (_with(_AGES, {3: np.inf}), ("error", "infinite", 1)),
        (_with(_AGES, {3: 1e39, 5: -1e300}), ("error", "infinite", 2)),  # as float32
        (_with(_SEXES, {3: "f" * 1000}), None),
        (_with(_SEXES, {3: "f" * 1001}), ("error", "identifier", 0)),
        (_with(list("0123") * 10, {3: "?"}), ("warning", "marker", 1)),
        (_with(_SEXES, {0: "F", 1: "m ", 2: "F"}), ("warning", "spelling", 3)),
        ([None] * 40, ("warning", "empty", 0)),
        ([" "] * 40, ("warning", "empty", 0)),
        ([7] * 40, ("warning", "constant", 0)),
        (["f"] * 39 + [None], ("warning", "constant", 0)),
        (list(range(100, 140)), ("error", "identifier", 0)),
        ([f"Smith {k}" for k in range(40)], ("error", "identifier", 0)),
        (["2024-01-31", "2024-02-01"] * 20, ("error", "identifier", 0)),
        # 7 k mod 41 for k = 1 … 40: each of 1 … 40 once; 40 draws from them would repeat 14.5.
        ([7 * k % 41 for k in range(1, 41)], ("error", "identifier", 0)),
        ([float(7 * k % 41) for k in range(1, 40)] + [None], ("error", "identifier", 0)),
        ([10_000_000 + 7919 * (7 * k % 41) for k in range(1, 41)], ("error", "identifier", 0)),
        (
            [7 * (k // 2) % 23 for k in range(40)],
            ("error", "identifier", 0),
        ),  # visits of 20 persons, in blocks
        ([f"F{7 * k % 20:03d}" for k in range(40)], ("error", "identifier", 0)),  # two cases of each of 20
        ([f"C{min(k, 19):02d}" for k in range(40)], None),  # codes of which one has half of the rows
        ([50 + 7 * k % 20 for k in range(40)], None),  # two persons of each of 20 ages
        ([50 + k % 38 for k in range(40)], None),  # weights: 2 repeats, by chance 14.5
        (sorted([60, 60, 61] + [25 + 2 * k for k in range(37)]), None),  # sorted by age
        (_AGES, None),
        (_with(_AGES, {3: None}), None),
        (["3a", "3b", "1", "2"] * 10, None),  # grades: texts among few numbers
        (["f", "m", "unknown", "f"] * 10, None),  # a category of its own
        (["V45", "250.1", "E878", "x"] * 10, None),
    ],
)
def test_a_column(column: list, expected: tuple[str, str, int] | None) -> None:
    found = _found({"column": column})
    assert found == ([] if expected is None else [(expected[0], expected[1], "column", expected[2])])
    assert _found({"column": column}, keep=["column"]) == []


def test_a_column_of_another_type_is_never_an_input() -> None:
    columns = {"x": _AGES, "seen": [[k] for k in range(40)]}  # lists
    for keep in [], ["seen"]:
        found = _found(columns, keep=keep, other={"seen": "list<int64>"})
        assert found == [("error", "type", "seen", 0)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([25 + k for k in range(40)], ("error", "continuous", 0)),
        ([0.1 * k for k in range(25)] * 2, ("error", "continuous", 0)),
        (list(range(101)) * 20, ("error", "continuous", 0)),
        (list(range(30)) * 20, ("warning", "many classes", 0)),
        ([f"word {k}" for k in range(40)], ("error", "continuous", 0)),
        (["flu", "asthma", "flu;asthma", "none"] * 10, ("error", "multi-label", 10)),
        (["['flu']", "['flu', 'asthma']", "['asthma']"] * 10, ("error", "multi-label", 30)),
        (["ill", "well", "ILL", "well "] * 10, ("error", "labels alike", 20)),
        (["ill"] * 3 + ["well"] * 97, ("warning", "rare", 3)),  # 3 %
        (["ill"] * 5 + ["well"] * 95, None),  # 5 %
        (["ill"] * 40, ("warning", "one class", 0)),
        (["ill", "well", None, "ill"] * 10, ("error", "unlabelled", 10)),
        ((list(range(10)) * 3)[:25], None),  # 10 numbers in 20 rows are classes, in 19 they are measured
        ((list(range(10)) * 2)[:19], ("error", "continuous", 0)),
        (["stage 1; mild", "stage 1; grave", "stage 2; new"] * 10, None),
    ],
)
def test_labels(labels: list, expected: tuple[str, str, int] | None) -> None:
    found = _found({"x": np.arange(len(labels)) % 7}, labels)
    assert found == ([] if expected is None else [(expected[0], expected[1], "y", expected[2])])


_DAYS = [5.0 + 3 * k for k in range(40)]
_DIED = [1, 0] * 20


@pytest.mark.parametrize(
    ("days", "died", "expected"),
    [
        (_DAYS, None, None),
        ([str(each) for each in _DAYS], None, None),
        (_with(_DAYS, {3: None, 5: None}), None, ("error", "missing", "y", 2)),
        (_with(_DAYS, {3: np.inf}), None, ("error", "infinite", "y", 1)),
        (_with(_DAYS, {3: 1e39}), None, ("error", "infinite", "y", 1)),  # as float32
        (_with(_DAYS, {3: "27,5"}), None, ("error", "words", "y", 1)),
        (_with(_DAYS, {3: "<500", 5: "unknown"}), None, ("error", "words", "y", 2)),
        (
            _with([1, 2, 3, 4] * 10, {3: "?", 9: "unknown"}),
            None,
            ("error", "words", "y", 2),
        ),  # few are no codes
        (_with([1, 2, 3, 4] * 10, {3: "?"}), _DIED, ("error", "words", "y", 1)),
        ([f"{each} EUR" for each in _DAYS], None, ("error", "words", "y", 40)),
        ([f"{each:,.1f}".replace(".", ",") for each in _DAYS], None, ("error", "comma", "y", 40)),
        (_SEXES, None, ("error", "words", "y", 40)),
        (["2024-01-31"] * 40, None, ("error", "words", "y", 40)),
        ([7.0] * 36 + [1.0, 2.0, 8.0, 9.0], None, ("warning", "one amount", "y", 0)),
        ([7.0] * 31 + _DAYS[-9:], None, None),  # nine of forty are above: the last tenth begins there
        (_DAYS, _DIED, None),
        (_DAYS, [True, False] * 20, None),
        (_DAYS, ["TRUE", "false "] * 20, None),
        (_DAYS, [1, 2] * 20, ("error", "event", "died", 20)),
        (_DAYS, ["yes", "0"] * 20, ("error", "event", "died", 20)),
        (_DAYS, _with(_DIED, {3: None}), ("error", "missing", "died", 1)),
        (_with(_DAYS, {3: 0, 7: -2}), _DIED, ("error", "time", "y", 2)),
        (_DAYS, [0] * 40, ("warning", "no event", "died", 0)),
    ],
)
def test_amounts_and_times(days: list, died: list | None, expected: tuple[str, str, str, int] | None) -> None:
    columns = {"x": np.arange(40) % 7} | ({} if died is None else {"died": died})
    kind, event = (Amounts, None) if died is None else (Times, "died")
    found = _found(columns, days, kind=kind, event=event)
    assert found == ([] if expected is None else [expected])


def test_where_a_time_is_wrong_and_what_to_do() -> None:
    table = pd.DataFrame({"y": _with(_DAYS, {3: -2.0, 7: 0}), "died": _DIED})
    (found,) = check_table(table, "y", kind=Times, event="died")
    assert found.line == (
        "y: times that are not above 0, in 2 of 40 rows ('-2.0' in rows 4, 8); correct them, or leave these "
        "rows out"
    )
    (found,) = check_table(pd.DataFrame({"y": _DAYS}), "y")  # as classes
    assert "to predict amounts give dataset.target=amounts, or dataset.event=COLUMN" in found.line


def test_rows_of_persons() -> None:
    table = {"x": _AGES[:38] + _AGES[:2], "person": [f"p{k % 19}" for k in range(40)]}
    labels = _LABELS[:38] + _LABELS[:2]  # rows 38 and 39 repeat rows 0 and 1, of the same persons
    assert _found(table, labels, group="person") == [("warning", "copies", "person", 2)]
    gaps = {"x": _AGES, "person": [None, *["p1", "p2"] * 19, "p1"]}
    assert _found(gaps, group="person") == [("warning", "no key", "person", 1)]
    # 40 · 39/2 = 780 pairs; alike by chance in x: 780 (36 + 2 · 4)/1600 = 21.5, and half of these in y.
    # Three such columns: 780 · 0.0275³/2 = 0.008, and 2 rows are.
    assert _found({"x": table["x"]}, labels) == []
    columns = {n: [(step * k) % 38 / 7 for k in range(38)] for n, step in (("x", 1), ("z", 5), ("v", 7))}
    repeated = {name: values + values[:2] for name, values in columns.items()}
    assert _found(repeated, labels) == [("warning", "repeated", "", 2)]


def test_a_table_that_is_none() -> None:
    assert _found({"x": []}, []) == [("error", "rows", "", 0)]
    wide = pd.DataFrame(np.zeros((1, 10**5)), columns=[f"c{k}" for k in range(10**5)])
    assert [each.rule for each in check_table(wide, None)] == ["wide"]


def test_a_line_shows_rows_and_the_public_one_no_value() -> None:
    table = pd.DataFrame({"age": _with(_AGES, {3: "<500", 7: "unknown", 9: "unknown"}), "y": _LABELS})
    (found,) = check_table(table, "y")
    where = "age: texts in a column of numbers"
    assert found.line.startswith(
        f"{where}, in 3 of 40 rows ('unknown' in rows 8, 10; '<500' in row 4); correct"
    )
    assert found.public.startswith(f"{where}; correct")
    assert "500" not in found.public
    alike = [Finding("empty", f"c{k}") for k in range(9)]
    assert lines(alike, 5, attrgetter("line")) == [f"{alike[0].line} (likewise c1, c2, c3, c4 and 4 more)"]
    assert lines(alike[:3], 1, attrgetter("public")) == [alike[0].public, "and 2 more"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_clean_tables_have_no_finding(data: st.DataObject) -> None:
    rows, seed = data.draw(st.integers(60, 200)), data.draw(st.integers(0, 2**32 - 1))
    draws = np.random.default_rng(seed)
    classes = data.draw(st.integers(2, 4))
    labels = draws.permutation(np.arange(rows) % classes)
    table: dict = {"y": [f"class {label}" for label in labels] if seed % 2 else labels}
    for number in range(data.draw(st.integers(1, 4))):
        table[f"n{number}"] = draws.normal(data.draw(st.floats(-1e6, 1e6)), 10, rows)
        table[f"w{number}"] = draws.permutation(np.arange(rows) % 50)
        names = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=5, unique=True))
        texts = np.array(names, dtype=object)[draws.permutation(np.arange(rows) % len(names))]
        table[f"t{number}"] = np.where(draws.random(rows) < 0.1, None, texts)
    frame = pd.DataFrame(table)
    assert check_table(frame, "y") == []


@pytest.mark.parametrize("values", [["2024-01-31"] * 3, [20240131] * 3, ["31.01.2024", None, "31.01.2024"]])
def test_one_date_in_all_rows_is_refused_as_a_date_not_listed_as_constant(values: list[object]) -> None:
    (finding,) = check_table(pd.DataFrame({"day": values}))
    assert (finding.rule, finding.severity) == ("identifier", "error")
    assert finding.detail.startswith("dates")


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
        ("note", ["seen", "x" * 5000], "a text of 5,000 characters"),
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


@pytest.mark.parametrize("name", ["größe", "n0 (i-)", "carcinoma, NOS", "Unnamed: 0", 'the "dose"', "age"])
def test_the_advice_for_a_column_can_be_typed_as_it_stands(name: str, tmp_path: Path, capsys) -> None:
    table = pd.DataFrame({name: [7] * 40, "x": np.arange(40) ** 2 % 7, "y": ["a", "b"] * 20})
    (finding,) = check_table(table, "y")
    (advice,) = re.findall("leave it out with (.*) if it varies", finding.public)
    assert list(compose(["dataset=csv", *shlex.split(advice)]).dataset.ignore) == [name]
    table.to_csv(tmp_path / "a.csv", index=False)
    main([str(tmp_path / "a.csv"), "--target", "y"])
    (advice,) = re.findall("leave it out with (.*) if it varies", capsys.readouterr().out)
    assert shlex.split(advice) == ["--ignore", name]
    main([str(tmp_path / "a.csv"), "--target", "y", *shlex.split(advice)])
    assert "errors: 0, warnings: 0" in capsys.readouterr().out
