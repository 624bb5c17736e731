import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from fedclust.data.source import SourceError
from fedclust.data.tables import Tables, suspicion

TRAIN = {"age": [1.0, 3.0], "job": ["cook", "baker"], "label": [0, 1]}


def write(folder: Path, train: dict[str, list[Any]], test: dict[str, list[Any]] | None = None) -> Path:
    pd.DataFrame(train).to_parquet(folder / "train.parquet")
    if test is not None:
        pd.DataFrame(test).to_parquet(folder / "test.parquet")
    return folder


def builder(path: Path, width: int, **changes: Any) -> Tables:
    return Tables(**({"name": "tiny", "num_classes": 2, "input_shape": [width], "path": str(path)} | changes))


def test_numbers_and_categories_are_fitted_on_the_training_part(tmp_path: Path) -> None:
    write(tmp_path, TRAIN, {"age": [5.0], "job": ["tailor"], "label": [0]})
    data = builder(tmp_path, 3).load(tmp_path / "cache")
    assert data.inputs.dtype == torch.float32
    # ages 1 and 3: mean 2, standard deviation 1, so the test part's 5 is 3; it is neither baker nor cook
    assert data.inputs.tolist() == [[-1, 0, 1], [1, 1, 0], [3, 0, 0]]
    assert data.num_train == 2
    assert (data.mean, data.std) == ((), ())


def test_categories_as_indices(tmp_path: Path) -> None:
    write(tmp_path, TRAIN, {"age": [5.0], "job": ["tailor"], "label": [0]})
    data = builder(tmp_path, 2, encoding="index").load(tmp_path / "cache")
    assert data.inputs[:, 1].tolist() == [2, 1, 0]  # baker 1, cook 2, unknown 0


@pytest.mark.parametrize("categories", [["job"], []])
def test_sizes_of_categories_are_checked(tmp_path: Path, categories: list[str]) -> None:
    write(tmp_path, TRAIN)
    right = [3] * len(categories)  # baker, cook, unknown
    table = {"encoding": "index", "numbers": ["age"], "categories": categories}
    width = 1 + len(categories)
    builder(tmp_path, width, category_sizes=right, **table).load(tmp_path / "cache")
    with pytest.raises(
        SourceError, match=rf"category_sizes must be \[{', '.join(map(str, right))}\], .*got \[5, 5\]"
    ):
        builder(tmp_path, width, category_sizes=[5, 5], **table).load(tmp_path / "cache")


def test_missing_values(tmp_path: Path) -> None:
    write(tmp_path, {"age": [1.0, None, 3.0], "job": [None, "cook", "cook"], "label": [0, 1, 1]})
    data = builder(tmp_path, 3).load(tmp_path / "cache")
    # the missing age is the mean, 2, so the variance is 2/3; "(missing)" sorts before "cook"
    high = 1.5**0.5
    np.testing.assert_allclose(data.inputs, [[-high, 1, 0], [0, 0, 1], [high, 0, 1]], rtol=1e-6)


def test_truth_values_are_numbers_and_constants_become_zero(tmp_path: Path) -> None:
    write(tmp_path, {"member": [True, False], "same": [7, 7], "label": [0, 1]})
    data = builder(tmp_path, 2).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[1, 0], [-1, 0]]


def test_a_column_without_any_value_becomes_zero(tmp_path: Path) -> None:
    write(tmp_path, {"age": [1.0, 3.0], "empty": [np.nan, np.nan], "label": [0, 1]})
    assert builder(tmp_path, 2).load(tmp_path / "cache").inputs[:, 1].tolist() == [0, 0]


def test_natural_and_ignored_columns_are_no_inputs(tmp_path: Path) -> None:
    write(tmp_path, TRAIN | {"hospital": ["b", "a"], "id": [17, 18]})
    data = builder(tmp_path, 3, natural="hospital", ignore=["id"]).load(tmp_path / "cache")
    assert data.natural is not None
    assert data.natural.tolist() == [1, 0]


def test_named_columns_come_in_the_order_named(tmp_path: Path) -> None:
    write(tmp_path, {"a": [1, 3], "b": [30, 10], "c": [9, 10], "label": [0, 1]})
    data = builder(tmp_path, 4, numbers=["b", "a"], categories=["c"]).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[1, -1, 0, 1], [-1, 1, 1, 0]]  # as categories, "10" sorts before "9"


def test_only_rows_that_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"age": [1, 9, 3], "year": [2018, 2019, 2018], "label": [0, 0, 1]})
    data = builder(tmp_path, 1, only={"year": 2018}, ignore=["year"]).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[-1], [1]]
    assert data.labels.tolist() == [0, 1]


def test_dropped_labels_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, {"age": [1, 100, 3], "label": ["no", "?", "yes"]})
    data = builder(tmp_path, 1, drop_labels=["?"]).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[-1], [1]]


def test_another_width_is_refused_with_both(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"input_shape must be \[3\], the shape of this data, got \[2\]"):
        builder(write(tmp_path, TRAIN), 2).load(tmp_path / "cache")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": ["job"]}, "numbers must be numeric columns"),
        ({"numbers": ["salary"]}, "numbers must be a column of the source, got salary; columns are age, job"),
        ({"categories": ["salary"]}, "categories must be a column"),
        ({"only": {"salary": 1}}, "only must be a column"),
        ({"label": "sick"}, "label must be a column"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        builder(write(tmp_path, TRAIN), 3, **changes).load(tmp_path / "cache")


def test_a_column_that_is_neither_number_nor_text_must_be_ignored(tmp_path: Path) -> None:
    write(tmp_path, TRAIN | {"born": pd.to_datetime(["2000-01-01", "2001-01-01"]).tolist()})
    with pytest.raises(
        SourceError,
        match=r"born \(its type, timestamp.*leave them out with 'dataset\.ignore=\[born\]' \(read",
    ):
        builder(tmp_path, 3).load(tmp_path / "cache")
    assert builder(tmp_path, 3, ignore=["born"]).load(tmp_path / "cache").inputs.shape[1:] == (3,)


PATIENTS: dict[str, list[Any]] = {
    "row": list(range(30)),
    "visit day": [f"2024-02-{1 + row % 28:02d}" for row in range(30)],
    "it's": [f"patient {row}" for row in range(30)],
    "age": [30 + row % 7 for row in range(30)],
    "site": ["Rome", "Oslo", "Bern"] * 10,
    "label": [0, 1] * 15,
}


def test_identifiers_and_dates_are_refused_with_the_line_to_copy(tmp_path: Path) -> None:
    write(tmp_path, PATIENTS | {"born": pd.to_datetime(["2000-01-01"] * 30).tolist()})
    with pytest.raises(SourceError) as refusal:
        builder(tmp_path, 4, ignore=["age"]).load(tmp_path / "cache")
    message = str(refusal.value)
    assert "row (it numbers the rows, from 0 to 29)" in message
    assert "visit day (dates or times, such as '2024-02-01')" in message
    assert "it's (30 distinct texts in 30 rows)" in message
    assert "born (its type, timestamp" in message
    assert "site" not in message
    assert str(tmp_path / "train.parquet") in message
    # What is to be copied goes through a shell, then through Hydra.
    copied = {}
    for word in shlex.split(message[message.index("leave them out with ") :].partition(" (read from")[0]):
        if word.startswith("dataset."):
            override = OverridesParser.create().parse_override(word)
            copied[override.key_or_group] = [str(name) for name in override.value()]
    assert copied == {
        "dataset.ignore": ["age", "row", "visit day", "it's", "born"],
        "dataset.keep": ["row", "visit day", "it's"],
    }
    width = 3  # Bern, Oslo, Rome
    assert builder(tmp_path, width, ignore=copied["dataset.ignore"]).load(tmp_path / "cache").num_train == 30


def test_kept_columns_are_taken(tmp_path: Path) -> None:
    write(tmp_path, {name: PATIENTS[name] for name in ("row", "age", "label")})
    assert builder(tmp_path, 2, keep=["row"]).load(tmp_path / "cache").inputs.shape[1:] == (2,)


def test_columns_that_are_named_are_taken_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, PATIENTS)
    assert builder(tmp_path, 1, numbers=["row"]).load(tmp_path / "cache").inputs.shape[1:] == (1,)


@pytest.mark.parametrize("role", ["ignore", "keep"])
def test_an_unknown_name_is_an_error(tmp_path: Path, role: str) -> None:
    write(tmp_path, TRAIN)
    message = rf"dataset\.{role} must be a column of the source, got jop; did you mean job\? columns are age"
    with pytest.raises(SourceError, match=message):
        builder(tmp_path, 1, **{role: ["jop"]}).load(tmp_path / "cache")


@pytest.mark.parametrize(
    ("content", "options", "encoding"),
    [
        ("age;job;sick\n1,5;Köchin;no\n2,5;;yes\n", {"sep": ";", "decimal": ","}, "utf-8"),
        ("age\tjob\tsick\n1.5\tKöchin\tno\n2.5\t\tyes\n", {"sep": r"\t", "encoding": "latin-1"}, "latin-1"),
        ("age::job::sick\n1.5::Köchin::no\n2.5::::yes\n", {"sep": "::"}, "utf-8"),
    ],
)
def test_separators_and_encodings_of_csv_files(
    tmp_path: Path, content: str, options: dict[str, str], encoding: str
) -> None:
    (tmp_path / "patients.csv").write_text(content, encoding=encoding)
    data = builder(tmp_path / "patients.csv", 3, label="sick", csv_options=options).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[-1, 0, 1], [1, 1, 0]]  # "(missing)" sorts before "Köchin"
    assert data.class_names == ("no", "yes")


def test_other_csv_options_are_another_dataset(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x,label\n1,0\n#2,1\n3,1\n")
    sizes = [
        len(builder(tmp_path / "data.csv", width, csv_options=options).load(tmp_path / "cache").inputs)
        for width, options in ((3, {}), (1, {"comment": "#"}))  # "#2" makes x text
    ]
    assert sizes == [3, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoding": "hash"}, "encoding must be one of onehot, index, got 'hash'"),
        ({"numbers": ["a", "b"], "categories": ["b"]}, "must not share columns, got b"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        builder(tmp_path, 3, **changes)


ROWS = 40


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("row", range(ROWS), "it numbers the rows, from 0 to 39"),
        ("Unnamed: 0", range(ROWS, 0, -1), "it numbers the rows, from 40 to 1"),
        ("number", [3 * row * row for row in range(ROWS)], "it numbers the rows, from 0 to 4563"),
        (
            "patient_id",
            [row * 7919 % 101 for row in range(ROWS)],
            "its name, and 40 distinct values in 40 rows",
        ),
        ("visitID", [f"v{row % 20}" for row in range(ROWS)], "its name, and 20 distinct values in 40 rows"),
        ("ID number", [None, *[float(row % 20) for row in range(ROWS)]], "its name, and 20 distinct values"),
        ("note", [f"seen by {row}" for row in range(ROWS)], "40 distinct texts in 40 rows"),
        ("day", ["2024-01-31", "2023-12-01T10:00:00Z"], "dates or times, such as '2024-01-31'"),
        ("day", ["31.01.2024", "1.2.24 10:00"], "dates or times"),
        ("day", ["31 January 2024", "1-Feb-24"], "dates or times"),
        ("day", ["Jan 31, 2024", None], "dates or times"),
        ("hour", ["23:59", "08:00:01"], "dates or times"),
        ("day", [20240131, 20231201, 20231201], "dates, such as 20240131"),
    ],
)
def test_identifiers_and_dates(name: str, values: Any, reason: str) -> None:
    found = suspicion(name, pd.Series(list(values)))
    assert found is not None
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("age", [20 + row * 7 % 50 for row in range(ROWS)]),
        ("income", [1000 + row * 7919 % 101 for row in range(ROWS)]),  # all different, in no order
        ("temperature", [36.0 + row / 10 for row in range(ROWS)]),  # rising, but measured
        ("code", [20241301, 20240101]),  # no month 13
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
def test_ordinary_columns(name: str, values: Any) -> None:
    assert suspicion(name, pd.Series(values)) is None


def test_a_date_with_a_typing_error_is_a_date() -> None:
    days = [f"2024-01-{1 + row:02d}" for row in range(19)]
    assert suspicion("day", pd.Series([*days, "yesterday"])) is not None  # 19 of 20
    assert suspicion("day", pd.Series([*days[:17], "a", "b", "c"])) == "20 distinct texts in 20 rows"
