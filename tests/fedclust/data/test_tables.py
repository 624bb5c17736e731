import hashlib
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from fedclust.data.dataset import Dataset, SourceError
from fedclust.data.tables import Tables
from fedclust.data.targets import Amounts

TRAIN = {"age": [1.0, 3.0], "job": ["cook", "baker"], "label": [0, 1]}


def write(folder: Path, train: dict[str, list], test: dict[str, list] | None = None) -> Path:
    pd.DataFrame(train).to_parquet(folder / "train.parquet")
    if test is not None:
        pd.DataFrame(test).to_parquet(folder / "test.parquet")
    return folder


def builder(path: Path, width: int, **changes) -> Tables:
    return Tables(**({"name": "tiny", "num_classes": 2, "input_shape": [width], "path": str(path)} | changes))


PATIENTS: dict[str, list] = {
    "row": list(range(30)),
    "visit day": [f"2024-02-{1 + row % 28:02d}" for row in range(30)],
    "it's": [f"patient {row}" for row in range(30)],
    "age": [30 + row % 7 for row in range(30)],
    "site": ["Rome", "Oslo", "Bern"] * 10,
    "label": [0, 1] * 15,
}


def load(folder: Path, width: int, **changes) -> Dataset:
    return builder(folder, width, **changes).load(folder / "cache")


def test_the_fingerprint_stays_as_saved_partitions_name_it(tmp_path: Path) -> None:
    assert load(write(tmp_path, TRAIN), 3).fingerprint == "7f138b7db20b720101cf3437ea5dc295"


HIGH = 1.5**0.5
RISING = [[(row - 14.5) / (899 / 12) ** 0.5] for row in range(30)]


@pytest.mark.parametrize(
    ("columns", "settings", "expected"),
    [
        # The missing age is the mean, 2, so the variance is 2/3.
        ({"age": [1.0, None, 3.0]}, {}, [[-HIGH], [0], [HIGH]]),
        ({"job": [None, "cook", "cook"]}, {}, [[1, 0], [0, 1], [0, 1]]),  # "(missing)" sorts before "cook"
        ({"member": [True, False], "same": [7, 7]}, {}, [[1, 0], [-1, 0]]),  # a constant becomes zero
        ({"age": [1.0, 3.0], "empty": [np.nan, np.nan]}, {}, [[-1, 0], [1, 0]]),
        ({"a": [1, 3], "b": [30, 10]}, {"numbers": ["b", "a"]}, [[1, -1], [-1, 1]]),
        ({"c": [9, 10]}, {"categories": ["c"]}, [[0, 1], [1, 0]]),  # "10" sorts before "9"
        ({"age": [1, 9, 3], "y": [8, 9, 8]}, {"only": {"y": 8}, "ignore": ["y"]}, [[-1], [1]]),
        ({"age": [1, 100, 3], "label": ["no", "?", "yes"]}, {"drop_labels": ["?"]}, [[-1], [1]]),
        (
            {"age": [1, 3], "ward": ["b", "a"], "id": [1, 1]},
            {"natural": "ward", "ignore": ["id"]},
            [[-1], [1]],
        ),
        ({"row": PATIENTS["row"]}, {"keep": ["row"]}, RISING),  # though it looks like an identifier
        ({"row": PATIENTS["row"]}, {"numbers": ["row"]}, RISING),
    ],
)
def test_columns_by_hand(tmp_path: Path, columns: dict, settings: dict, expected: list) -> None:
    size = len(next(iter(columns.values())))
    write(tmp_path, {"label": ([0, 1] * size)[:size], **columns})
    np.testing.assert_allclose(load(tmp_path, len(expected[0]), **settings).inputs, expected, rtol=1e-6)


@pytest.mark.parametrize("categories", [["job"], []])
def test_sizes_of_categories_are_checked(tmp_path: Path, categories: list[str]) -> None:
    write(tmp_path, TRAIN)
    right = [3] * len(categories)  # baker, cook, unknown
    table = {"encoding": "index", "numbers": ["age"], "categories": categories}
    load(tmp_path, 1 + len(categories), category_sizes=right, **table)
    message = rf"category_sizes must be \[{', '.join(map(str, right))}\], .*got \[5, 5\]"
    with pytest.raises(SourceError, match=message):
        load(tmp_path, 1 + len(categories), category_sizes=[5, 5], **table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": ["job"]}, "numbers must be numeric columns"),
        ({"numbers": ["salary"]}, "numbers must be a column of the source, got salary; columns are age, job"),
        ({"categories": ["salary"]}, "categories must be a column"),
        ({"only": {"salary": 1}}, "only must be a column"),
        ({"label": "sick"}, "label must be a column"),
        ({"encoding": "index"}, r"input_shape must be \[2\], the shape of this data, got \[3\]"),
        ({"ignore": ["jop"]}, "ignore must be a column .* jop; did you mean job"),
        ({"keep": ["jop"]}, "dataset.keep must be a column of the source, got jop; did you mean job"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        load(write(tmp_path, TRAIN), 3, **changes)


@pytest.mark.parametrize(
    ("born", "message"),
    [
        (list(pd.to_datetime(["2000-01-01", None])), r"born \(its type, timestamp.*leave them out with "),
        ([[2000], [1]], r"born: values that are neither numbers .* \(its type, list.*leave it out with "),
    ],
)
def test_a_column_that_is_neither_number_nor_text_must_be_ignored(
    tmp_path: Path, born: list, message: str
) -> None:
    write(tmp_path, TRAIN | {"born": born})
    with pytest.raises(SourceError, match=message + r"'dataset\.ignore=\[born\]' \(read"):
        load(tmp_path, 3)
    assert load(tmp_path, 3, ignore=["born"]).inputs.shape[1:] == (3,)


def test_identifiers_and_dates_are_refused_with_the_line_to_copy(tmp_path: Path) -> None:
    write(tmp_path, PATIENTS | {"born": pd.to_datetime(["2000-01-01"] * 30).tolist()})
    with pytest.raises(SourceError) as refusal:
        load(tmp_path, 4, ignore=["age"])
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
    assert load(tmp_path, width, ignore=copied["dataset.ignore"]).num_train == 30


@pytest.mark.parametrize(
    ("content", "options", "encoding"),
    [
        ("age;job;sick\n1,5;Köchin;no\n2,5;;yes\n", {"sep": ";", "decimal": ","}, "utf-8"),
        ("age\tjob\tsick\n1.5\tKöchin\tno\n2.5\t\tyes\n", {"sep": r"\t", "encoding": "latin-1"}, "latin-1"),
        ("age::job::sick\n1.5::Köchin::no\n2.5::::yes\n", {"sep": "::"}, "utf-8"),
    ],
)
def test_separators_and_encodings_of_csv_files(tmp_path, content, options, encoding) -> None:
    (tmp_path / "patients.csv").write_text(content, encoding=encoding)
    data = builder(tmp_path / "patients.csv", 3, label="sick", csv_options=options).load(tmp_path / "cache")
    assert data.inputs.tolist() == [[-1, 0, 1], [1, 1, 0]]  # "(missing)" sorts before "Köchin"
    assert data.class_names == ("no", "yes")


def test_rows_are_recognised_in_any_order_and_format_and_other_rows_refused(tmp_path: Path) -> None:
    lines = '["0", "30", "cook"]', '["1", "40", "baker"]'  # label, number, category; in sorted order
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    rules = {"numbers": ["age"], "categories": ["job"], "sha256": digest, "sha256_help": "turned round"}
    whole = {"age": [40, 30], "job": ["baker", "cook"], "label": [1, 0], "more": ["x", "y"]}
    file = tmp_path / "floats.csv"
    file.write_text("label,job,age\n1.0,baker,40.0\n0.0,cook,30.0\n")
    for path in (write(tmp_path, whole), file):
        assert builder(path, 3, **rules).load(tmp_path / "cache").num_train == 2
    for other in ({**whole, "label": [0, 1]}, {"age": [40, 30], "target": [1, 0]}):
        with pytest.raises(SourceError, match=f"SHA-256 must be {digest}, got .*; turned round"):
            load(write(tmp_path, other), 3, **rules)


def test_other_csv_options_are_another_dataset(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x,label\n1,0\n#2,1\n3,1\n")
    assert len(load(tmp_path, 3).inputs) == 3  # "#2" makes x text
    assert len(load(tmp_path, 1, csv_options={"comment": "#"}).inputs) == 2


@pytest.mark.parametrize(("encoding", "width", "sizes"), [("onehot", 3, None), ("index", 2, [3])])
def test_sizes_are_counted_in_the_data(tmp_path: Path, encoding: str, width: int, sizes) -> None:
    # age, and two jobs; as index there is one more for unknown ones. Two classes.
    expected = {"num_classes": 2, "input_shape": [width], "category_sizes": sizes}
    assert builder(write(tmp_path, TRAIN), 1, encoding=encoding).sizes_in_data() == expected
    with pytest.raises(SourceError, match="must have a column besides label, got none"):
        builder(write(tmp_path, {"label": [0, 1]}), 1, encoding=encoding).sizes_in_data()


def test_amounts_of_a_table(tmp_path: Path) -> None:
    # The training part's 1 … 11 have the tenths 2 … 10; the test part's 0 and 99 are in the end bins.
    train = {"age": [float(k % 3) for k in range(11)], "stay": list(range(1, 12))}
    made = builder(write(tmp_path, train, {"age": [1.0, 2.0], "stay": [0.0, 99.0]}), 1)
    made = replace(made, label="stay", target="amounts", unit="days")
    assert made.sizes_in_data()["num_classes"] == 10
    data = made.load(tmp_path / "cache")
    assert data.target == Amounts(2.0, 10.0, tuple(map(float, range(2, 11))), unit="days")
    assert data.values.tolist() == [*range(1, 12), 0, 99]
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 0, 9]
    assert (data.num_classes, data.class_names[0], data.num_train) == (10, "< 2", 11)
    assert data.inputs.shape == (13, 1)  # the amount is no input


@pytest.mark.parametrize("died", [[1, 0, 1, 0, 1], [True, False, True, False, True], list("10101")])
def test_times_of_a_table(tmp_path: Path, died: list) -> None:
    rows = {"age": [1.0, 3.0, 2.0, 3.0, 1.0], "days": [10, 20, 30, 40, -9], "died": died}
    made = builder(write(tmp_path, rows), 1, label="days", event="died", drop_labels=[-9])
    data = made.load(tmp_path / "cache")
    # Events at 10 and 30: eighths between them; the 97.5 % quantile of 10, 20, 30, 40 is 39.25.
    assert data.target.cuts == (12.5, 15.0, 17.5, 20.0, 22.5, 25.0, 27.5)
    assert data.target.last == 39.25
    assert data.values.tolist() == [[10, 1], [20, 0], [30, 1], [40, 0]]
    # Each interval has a bin of censored rows and one of events: 20 is in the fourth.
    assert data.labels.tolist() == [1, 6, 15, 14]
    assert data.inputs.shape == (4, 1)


def test_the_error_of_classes_and_times_is_not_chosen(tmp_path: Path) -> None:
    file = write(tmp_path, {"age": [1.0, 3.0], "stay": [1.0, 2.0], "died": [0, 1]})
    for about, kind in (({}, "classes"), ({"event": "died"}, "times")):
        with pytest.raises(SourceError, match=f"squared with dataset.target={kind}, .* got huber"):
            builder(file, 1, label="stay", error="huber", **about)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stay": [1.0, None, 3.0]}, "stay: rows without a value, in 1 of 3 rows"),
        ({"stay": ["a", "b", "a"]}, "stay: texts where numbers are needed"),
        (
            {"stay": [4.0, 4.0, 4.0]},
            "stay: target.low must be < target.high, got 4 and 4: there is nothing",
        ),
        ({"stay": [[1.0], [2.0], [3.0]]}, "stay must hold one text or number in each row"),
        ({"died": [0, 0, 0]}, "stay: events must happen to some rows, all 3 are censored"),
        ({"died": [0, 1, 2]}, "died: events that are neither 0 nor 1, .*1 of 3 rows .*'2' in row 3"),
        ({"died": [0, 1, 1], "stay": [0, 1, 2]}, "stay: times that are not above 0, in 1 of 3 rows"),
        ({"dead": [0, 1, 1]}, "event must be a column of the source, got died; did you mean dead"),
    ],
)
def test_amounts_and_times_that_cannot_be_learned(tmp_path: Path, changes: dict, message: str) -> None:
    rows = {"age": [1.0, 3.0, 2.0], "stay": [1.0, 2.0, 3.0], **changes}
    times = "died" in changes or "dead" in changes
    about = {"event": "died"} if times else {"target": "amounts"}
    with pytest.raises(SourceError, match=message):
        builder(write(tmp_path, rows), 1, label="stay", **about).load(tmp_path / "cache")


def test_an_owner_in_another_unit_keeps_its_size(tmp_path: Path) -> None:
    # Owner b has 4 and 3 where a has 60 and 80 and c 50: root mean squares √12.5, √5000 and 50.
    values = {
        "x": [4, 60, 3, 80, 50, None, 7],
        "at": ["b", "a", "b", "a", "c", "c", None],
        "label": [0, 1] * 3 + [0],
    }
    file = write(tmp_path, values)
    (x,) = builder(file, 1, natural="at").load(tmp_path / "owned").encoder(np.arange(7), tmp_path).numbers
    assert x.sizes == {"b": pytest.approx(np.sqrt(12.5))}
    assert x.size == pytest.approx(50)  # the median of three
    (x,) = builder(file, 1, ignore=["at"]).load(tmp_path / "plain").encoder(np.arange(7), tmp_path).numbers
    # All rows: 16 + 3600 + 9 + 6400 + 2500 + 49 = 12574, of six values.
    assert (x.size, x.sizes) == (pytest.approx(np.sqrt(12574 / 6)), {})
