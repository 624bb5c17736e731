"""Files, networks and terminals that others have, through the command line: read, or one line that helps."""

import codecs
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra.utils import instantiate

from fedclust import load
from fedclust.results.saved_run import SavedRun
from fedclust.settings.composition import compose, plain
from tests.conftest import Outcome

Run = Callable[..., Outcome]

ONE = ("strategy=fedavg", "compare=[]", "proof=false", "rounds=1", "output_dir=out")
OWN = (*ONE, "partition=own", "partition.sites=sites")
TABLE = ("dataset=csv", "dataset.label=y")
TEXT = ("dataset=text", "dataset.path=a.csv", "partition=iid", "partition.num_clients=4")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))


def _table(size: int = 40, **columns: Any) -> pd.DataFrame:
    """Return ages that tell ill from well; a column of texts stands for a number that differs by row."""
    age = 40 + 7 * np.arange(size) % 31 + 0.5
    return pd.DataFrame({"age": age, **columns, "y": np.where(age > 55, "ill", "well")})


def _csv(table: pd.DataFrame) -> str:
    return table.to_csv(index=False)


def _lines(head: str, row: str) -> str:
    """Write a file of 40 rows: `row` with {k}, the number of the row, and {y}, its label."""
    return "\n".join([head, *(row.format(k=k, y="ill" if k % 2 else "well") for k in range(40)), ""])


LONGER = "a.csv: line {} must have at most 3 cells, as the lines above it, got 4; remove separators at"
COMMAS = "x: numbers with a comma between thousands, in 40 of 40 rows ('1,200' in row 1; "
POINTS = "x: numbers with a point between thousands, in 40 of 40 rows"
UNIT = "x: numbers with a unit, or two numbers in a cell, in 40 of 40 rows"
NO_LABEL = "give --csv keep_default_na=false"
ENCODING = "set its encoding, for example --encoding {}"
VALUES = "a.csv has a first line of values, not of names; add a line with the columns' names, or give --csv"
NAMES = "a.csv has several columns called {}; give each a name of its own"
GOOD = "errors: 0, warnings: 0"
THREE = "x: numbers of three decimals beside whole ones that are much larger"
FINE = (GOOD, THREE, "a run would send")
PLAIN = _csv(_table())
ZIPPED = gzip.compress(PLAIN.encode())
GAPS = PLAIN.replace("ill", "NA").replace("47.5,", ",")


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        # A comma at the end of each row, of a later one, and names of rows without a name of their own.
        (_lines("age,x,y", "4{k},5,{y},"), [], LONGER.format(2)),
        (_lines("age,x,y", "4{k},5,{y}") + "41,5,ill,7\n", [], LONGER.format(42)),
        (_lines("age;x;y", "p{k};4{k};5;{y}"), ["--sep", ";"], LONGER.format(2)),
        # Numbers as people write them.
        (_lines("x,y", '"1,2{k:02}",{y}') + '"980",ill\n', [], COMMAS.replace("40 of 40", "40 of 41")),
        (_lines("x,y", '"1,2{k:02}.5",{y}'), [], COMMAS.replace("1,200", "1,200.5")),
        (_lines("x,y", '"1,2{k:02}",{y}') + '"980",ill\n', ["--csv", "thousands=,"], "a run would send"),
        (
            _lines("x;y", "1,2{k:02};{y}") + "980;ill\n" * 15,
            ["--sep", ";", "--decimal", ","],
            THREE,
        ),
        (_lines("x;y", "1.2{k:02}.000,5;{y}"), ["--sep", ";"], POINTS),
        (_lines("x,y", "{k}%,{y}"), [], UNIT),
        (_lines("x,y", "1{k:02}/{k},{y}"), [], UNIT),
        (_lines("x,y", "3{k}.5 C,{y}"), [], UNIT),
        (_lines("x,y", "{k}.5 kg,{y}").replace("7.5 kg", "7500 g"), [], UNIT),
        (_lines("x,y", "€ 1{k}.5,{y}"), [], UNIT),
        (_lines("x,y", "{k}-5{k},{y}"), [], UNIT),
        (_lines("x,y", "\u22125{k},{y}"), [], "x: texts in a column of numbers, in 40 of 40 rows"),
        (
            _lines("age, y", "4{k}.5, {y}"),
            [],
            "label must be a column of the source, got y; did you mean ' y'?",
        ),
        # Two columns of one name: the target's, another one, and one that is so in another form of Unicode.
        (_lines("age,y,y", "4{k}.5,{y},{y}"), [], NAMES.format("y")),
        (_lines("age,age,y", "4{k}.5,{k},{y}"), [], NAMES.format("age")),
        (_lines("gr\u00f6sse,gro\u0308sse,y", "4{k}.5,{k},{y}"), [], NAMES.format("gr\u00f6sse")),
        # Classes that pandas takes for missing; empty cells of numbers stay missing.
        (PLAIN.replace("well", "None"), [], NO_LABEL),
        (PLAIN.replace("well", "None"), ["--csv", "keep_default_na=false"], GOOD),
        (GAPS, ["--csv", "keep_default_na=false"], GOOD),
        # Names that are numbers, and values instead of names.
        (_lines("Ages of 2024\nage,y", "4{k}.5,{y}"), [], "lines above the names with --csv skiprows=1"),
        (_lines("Ages of 2024\nage,y", "4{k}.5,{y}"), ["--csv", "skiprows=1"], GOOD),
        (_lines("0,1,2,y", "4{k}.5,0.{k},.{k}1,{y}"), [], VALUES),
        (_lines("0,1,2,y", "4{k}.5,0.{k},.{k}1,{y}"), ["--csv", "header=0"], GOOD),
        (_lines("41,0.5,ill", "4{k}.5,0.{k},{y}"), [], VALUES),
        # Damaged files, and whole numbers that no type of numbers holds.
        (ZIPPED[:-12], [], "a.csv.gz: Compressed file ended before the end-of-stream marker was reached"),
        (ZIPPED[:30] + b"\0\xff" * 9 + ZIPPED[48:], [], "a.csv.gz: Error -3 while decompressing data"),
        (
            _lines("age,x,y", "4{k}.5,1000000000000000000000{k:03},{y}"),
            [],
            "x: values that look like identif",
        ),
        (
            _lines("age,x,y", "4{k}.5,2{k:02}00000000000000000,{y}"),
            [],
            "x: values that look like identifiers",
        ),
        # Encodings: of a mark at the beginning, without one, and none that the file has.
        (PLAIN.encode("utf-16"), [], GOOD),
        (codecs.BOM_UTF32_BE + PLAIN.encode("utf-32-be"), [], GOOD),
        (codecs.BOM_UTF8 + PLAIN.replace("age", "größe").encode(), ["--encoding", "latin-1"], GOOD),
        (PLAIN.encode("utf-16-be"), [], ENCODING.format("utf-16-be")),
        (PLAIN.encode("utf-16-be"), ["--encoding", "utf-16-be"], GOOD),
        (PLAIN.replace("age", "größe").encode("latin-1"), [], ENCODING.format("latin-1")),
        # Lines as Windows and old Macs end them, with a mark and without.
        (PLAIN.replace("\n", "\r\n"), [], GOOD),
        (codecs.BOM_UTF8 + PLAIN.replace("\n", "\r\n").encode(), [], GOOD),
        (PLAIN.replace("\n", "\r"), [], GOOD),
        # The line by which Excel finds the separator.
        ("sep=;\n" + PLAIN.replace(",", ";"), [], GOOD),
        ('"sep=\t"\r\n' + PLAIN.replace(",", "\t"), [], GOOD),
        (gzip.compress(("sep=|\n" + PLAIN.replace(",", "|")).encode("utf-16")), [], GOOD),
    ],
)
def test_a_table_is_read_or_its_fault_is_named(
    run: Run, tmp_path: Path, content: str | bytes, options: list[str], expected: str
) -> None:
    raw = content.encode() if isinstance(content, str) else content
    name = "a.csv.gz" if raw.startswith(b"\x1f\x8b") else "a.csv"
    (tmp_path / name).write_bytes(raw)
    outcome = run("check", name, "--target", "y", *options)
    assert expected in outcome.printed, outcome.printed
    assert outcome.code == (0 if expected in FINE else 1)
    assert len(outcome.printed.splitlines()) <= 4
    assert outcome.complained == ""


ALIKE = "x: the values of another column in all rows"


@pytest.mark.parametrize(
    ("column", "way", "expected", "times"),
    [
        ("", "check", "x: no value at all; leave it out with --ignore x", 1),
        ("", "pooled", "warning: x: no value at all; leave it out with 'dataset.ignore=[x]'", 1),
        ("", "sites", "every site: x has no value; leave it out with 'dataset.ignore=[x]'", 2),
        ("3", "pooled", "warning: x: one value in all rows ('3'); leave it out with", 1),
        ("{age}", "check", f"{ALIKE} (age); leave one out, as with --ignore x", 1),
        ("{age}0", "pooled", f"warning: {ALIKE} (age); leave one out", 1),  # 47.50: the same number
        ("{y}", "pooled", f"warning: {ALIKE} (y); leave one out", 1),
        ("{y}", "sites", f"{ALIKE};", 3),  # of each site, and of both at the end
    ],
)
def test_columns_that_are_of_no_use_are_named_in_one_line(
    run: Run, tmp_path: Path, column: str, way: str, expected: str, times: int
) -> None:
    table = _table()
    table["x"] = [column.format(age=age, y=y) for age, y in zip(table["age"], table["y"], strict=True)]
    _write_sites(tmp_path, a=_csv(table), b=_csv(table))
    pooled = (*ONE, *TABLE, "dataset.path=sites/a.csv", "partition=iid", "partition.num_clients=2")
    given = {"check": ("check", "sites/a.csv", "--target", "y"), "pooled": pooled, "sites": (*OWN, *TABLE)}
    outcome = run(*given[way])
    assert outcome.code in (0, 3), outcome
    printed = outcome.printed + outcome.complained
    assert printed.count(expected) == times, printed


def _arrow(values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with a column x of 40 values."""
    return pa.Table.from_pandas(_table()).append_column("x", values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([Decimal(k % 7) / 4 for k in range(40)]), GOOD),
        (pa.array([Decimal(k % 7) if k else None for k in range(40)], pa.decimal256(60, 2)), GOOD),
        (pa.nulls(40), "x: no value at all"),
        (pa.array(["ab"[k % 2] for k in range(40)], pa.string_view()), GOOD),
        (pa.array(["ab"[k % 2] for k in range(40)]).dictionary_encode(), GOOD),
        (
            pa.array([[k] for k in range(40)]),
            "x: values that are neither numbers nor categories (its type, li",
        ),
        (
            pa.array([{"a": k} for k in range(40)]),
            "x: values that are neither numbers nor categories (its type",
        ),
        (pa.array([b"a"] * 40), "x: values that are neither numbers nor categories (its type, binary)"),
        (
            pa.array([datetime(2024, 1, 1)] * 40),
            "x: dates (its type, timestamp[us]); leave it out with --ignore x, or write numbers",
        ),
    ],
)
def test_columns_of_other_types(run: Run, tmp_path: Path, values: Any, expected: str) -> None:
    pq.write_table(_arrow(values), tmp_path / "a.parquet")
    outcome = run("check", "a.parquet", "--target", "y")
    assert expected in outcome.printed, outcome.printed
    fine = outcome.code == 0
    assert fine == (expected in (GOOD, "x: no value at all"))
    outcome = run(*ONE, *TABLE, "dataset.path=a.parquet", "partition=iid", "partition.num_clients=2")
    assert outcome.code == (0 if fine else 2), outcome
    assert fine or (outcome.complained.count("\n") == 1 and "dataset.ignore=[x]" in outcome.complained)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (["x"], "3 columns\n  a run would send: class names (2), names and kinds of 2 column(s)"),
        (["x", "age"], "3 columns\n  a run would send: class names (2), names and kinds of 2 column(s)"),
        ([], "2 columns\n  a run would send: class names (2), names and kinds of 1 column(s)"),
        (["key"], "error: key: values that look like identifiers"),
    ],
)
def test_an_index_of_pandas_is_a_column_if_it_has_a_name(
    run: Run, tmp_path: Path, index: list[str], expected: str
) -> None:
    held = {"x": np.arange(40) % 7 + 0.5, "key": [f"p{k}" for k in range(40)]}
    table = _table(**{name: held[name] for name in index if name != "age"})
    shuffled = table.sample(frac=1, random_state=0)  # numbers of rows, which pandas writes as an index
    (shuffled.set_index(index) if index else shuffled).to_parquet(tmp_path / "a.parquet")
    outcome = run("check", "a.parquet", "--target", "y")
    assert expected in outcome.printed, outcome.printed
    given = (*TABLE, "dataset.path=a.parquet", "partition=iid", "partition.num_clients=2")
    assert "key" in index or run(*ONE, *given).code == 0


@pytest.mark.parametrize("twice", ["age", "y"])
def test_a_parquet_file_has_each_column_once(run: Run, tmp_path: Path, twice: str) -> None:
    table = pa.Table.from_pandas(_table())
    pq.write_table(table.append_column(twice, table[twice]), tmp_path / "a.parquet")
    outcome = run("check", "a.parquet", "--target", "y")
    assert NAMES.format(twice).replace("a.csv", "a.parquet") in outcome.printed


@pytest.mark.parametrize(
    ("content", "option"),
    [
        (_lines("age,x,y", '4{k}.5,"1,2{k:02}.5",{y}'), 'thousands=","'),
        (PLAIN.replace("well", "None"), "keep_default_na=false"),
        (_lines("0,1,2,y", "4{k}.5,0.{k},.{k}1,{y}"), "header=0"),
        (PLAIN.replace("well", "w\u00f6hl").encode("utf-16-le"), "encoding=utf-16-le"),
        ("From the ward\n" + PLAIN, "skiprows=1"),
    ],
)
def test_the_option_that_a_line_names_is_a_setting(
    run: Run, tmp_path: Path, content: str | bytes, option: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    given = (*ONE, *TABLE, "dataset.path=a.csv", "partition=iid", "partition.num_clients=2")
    refused = run(*given)
    assert refused.code == 2
    assert f"dataset.csv_options.{option}" in refused.complained
    assert run(*given, f"dataset.csv_options.{option}").code in (0, 3)


def test_images_in_a_table_may_have_a_class_called_na(run: Run, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "scans").mkdir()
    for number in range(8):
        Image.new("L", (2, 2), 20 * number).save(tmp_path / "scans" / f"{number}.png")
    rows = [f"{number}.png,{'NA' if number % 2 else 'ill'}" for number in range(8)]
    (tmp_path / "scans" / "labels.csv").write_text("\n".join(["image,label", *rows, ""]))
    given = ["dataset=image_folder", "dataset.path=scans", "dataset.input_shape=[1,2,2]", "partition=iid"]
    assert "csv_options.keep_default_na=false" in run(*ONE, *given, "partition.num_clients=2").complained
    config = compose([*given, "dataset.csv_options.keep_default_na=false"])
    part, _ = instantiate(plain(config.dataset)).open()
    assert part.rows.to_table().column("label").to_pylist() == ["ill", "NA"] * 4


def _write_sites(tmp_path: Path, **sites: str | bytes) -> None:
    """Write the file of each site, by its name without the suffix."""
    (tmp_path / "sites").mkdir()
    for name, content in sites.items():
        raw = content.encode() if isinstance(content, str) else content
        suffix = ".csv.gz" if raw.startswith(b"\x1f\x8b") else ".csv"
        (tmp_path / "sites" / f"{name}{suffix}").write_bytes(raw)


@pytest.mark.parametrize(
    "role", ["dataset.natural", "partition.group", "dataset.label", "dataset.categories"]
)
def test_a_column_of_lists_has_no_role(run: Run, tmp_path: Path, role: str) -> None:
    (tmp_path / "sites").mkdir()
    for site in "ab":
        pq.write_table(_arrow(pa.array([[k] for k in range(40)])), tmp_path / "sites" / f"{site}.parquet")
    outcome = run(*OWN, *TABLE, f"{role}={'[x]' if role.endswith('categories') else 'x'}")
    assert outcome.code == 2
    assert "a is refused: x must hold one " in outcome.printed
    assert "got list<element: int64>" in outcome.complained


MISSPELT = PLAIN.replace("well", "gesu\u0308nder")
SPELT = PLAIN.replace("well", "ges\u00fcnder")


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (ZIPPED[:-12], "cannot read its data: Compressed file ended before the end-of-stream marker"),
        (ZIPPED[:30] + b"\0\xff" * 9 + ZIPPED[48:], "cannot read its data: Error -3 while decompressing"),
        (_lines("age,x,y", "4{k}.5,1000000000000000000000{k:03},{y}"), "column x looks like an identifier"),
        (_lines("age,y", "4{k}.5,{y},"), "a CSV file must have a name for every cell of a row, divided"),
        (_lines("age,y,y", "4{k}.5,{y},{y}"), "its data has several columns called y"),
        (_lines("age,x,y", "4{k}.5,{k}%,{y}"), "x: numbers with a unit, or two numbers in a cell; write one"),
        (_lines("age,x,y", '4{k}.5,"1,2{k:02}.5",{y}'), "x: numbers with a comma between thousands; give"),
        (_lines("41,0.5,ill", "4{k}.5,0.{k},{y}"), "its data has a first line of values, not of names"),
        (
            PLAIN.replace("well", "None"),
            "label must have a value in every row, 20 examples have none in y; label them",
        ),
        (PLAIN.encode("utf-16-le"), "cannot read its data: it must be text, it has zero bytes; set its enc"),
        (
            _lines("age,x,y", "4{k}.5,c{y},{y}").replace("cill", 1001 * "7"),
            "column x looks like an identifier",
        ),
        (PLAIN.replace(".5,", ".5e60,"), "age: infinite numbers; correct these cells or leave them empty"),
    ],
)
def test_an_odd_file_excludes_its_site_and_no_other(
    run: Run, tmp_path: Path, odd: str | bytes, reason: str
) -> None:
    _write_sites(tmp_path, a=PLAIN, b=PLAIN, odd=odd)
    outcome = run(*OWN, *TABLE)
    assert outcome.code == 0, outcome
    (line,) = (line for line in outcome.printed.splitlines() if line.startswith("odd is refused: "))
    assert line.startswith(f"odd is refused: {reason}"), line
    # No value of a row, such as the first one of x.
    assert not any(value in line for value in ("1000000", "0%", "1,200", "0.5", "None,", "777"))
    assert len(pd.read_parquet(tmp_path / "out" / "clients.parquet")) == 2


@pytest.mark.parametrize(
    ("sites", "classes"),
    [
        ({"a": SPELT, "b": MISSPELT, "c": SPELT}, "gesünder"),
        # The same of a column's name.
        (
            {"a": SPELT.replace("age", "gr\u00f6sse"), "b": MISSPELT.replace("age", "gro\u0308sse")},
            "gesünder",
        ),
        ({"a": PLAIN.encode("utf-16"), "b": "sep=;\n" + PLAIN.replace(",", ";")}, "well"),
    ],
)
def test_sites_that_write_the_same_in_other_ways_train_together(
    run: Run, tmp_path: Path, sites: dict[str, str | bytes], classes: str
) -> None:
    _write_sites(tmp_path, **sites)
    outcome = run(*OWN, *TABLE)
    assert outcome.code == 0, outcome
    agreement = json.loads((tmp_path / "out" / "agreement.json").read_text())["agreement"]
    assert agreement["class_names"] == sorted([classes, "ill"])
    assert "warning" not in outcome.printed
    assert len(pd.read_parquet(tmp_path / "out" / "clients.parquet")) == len(sites)


def test_new_rows_are_read_like_those_of_training(run: Run, tmp_path: Path) -> None:
    jobs = ["M\u00e4dchen" if k % 2 else "Junge" for k in range(40)]
    table = _csv(_table(job=jobs))
    _write_sites(tmp_path, **{"a": table, "ko\u0308ln": table})
    assert run(*OWN, *TABLE).code == 0
    for name, raw in {
        "one.csv": "age,job\n50.5,M\u00e4dchen\n".encode(),
        "two.csv": "sep=;\nage;job\n50.5;Ma\u0308dchen\n".encode("utf-16"),
    }.items():
        (tmp_path / name).write_bytes(raw)
    composed, other = (run("predict", "out", name, "--site", "a") for name in ("one.csv", "two.csv"))
    assert composed.code == 0
    assert composed == other  # without a note about an unknown category
    assert run("predict", "out", "one.csv", "--site", "k\u00f6ln").code == 0
    (tmp_path / "cut.csv.gz").write_bytes(ZIPPED[:-12])
    for arguments, reason in {
        ("none.csv",): "rows must be a file or folder that exists, got none.csv",
        ("one.csv", "--out", "sites"): "--out must be a file that can be written, got sites: ",
    }.items():
        assert f"fedclust predict: {reason}" in run("predict", "out", *arguments, "--site", "a").complained
    cut = run("predict", "out", "cut.csv.gz", "--site", "a")
    assert cut.code == 2
    assert cut.complained.startswith("fedclust predict: cannot read ")
    (tmp_path / "bare.csv").write_text("50.5,1\n")
    (tmp_path / "wide.csv").write_bytes("age,job\n50.5,Junge\n".encode("utf-16-le"))
    (tmp_path / "long.csv").write_text("age,job\n50.5,Junge,\n")
    for name in ("cut.csv.gz", "bare.csv", "wide.csv", "long.csv"):  # settings are a run's
        complained = run("predict", "out", name, "--site", "a").complained
        assert "; write it as the training rows are, or give --sep, --dec" in complained, complained
        assert "dataset." not in complained
    assert cut.complained.count("\n") == 1


@pytest.mark.parametrize("odd", [False, True])
def test_sites_with_texts_agree_on_their_words(run: Run, tmp_path: Path, odd: bool) -> None:
    good, bad = "sch\u00f6n warm", "kalt nass"
    rows = [f"{good if k % 2 else bad} {k},{k % 2}" for k in range(32)]
    texts = "\n".join(["review,stars", *rows, ""])
    _write_sites(tmp_path, a=texts, b=texts.replace("\u00f6", "o\u0308") if odd else texts)
    network = ["model=embedding_dense", "dataset=text", "dataset.text=review", "dataset.label=stars"]
    outcome = run(*OWN, *network, "rounds=60")
    assert outcome.code == 0, outcome
    # schön, warm, kalt, nass, and the numbers of the 25 or 26 training rows
    assert "words with their counts" in outcome.printed
    clients = pd.read_parquet(tmp_path / "out" / "clients.parquet")
    assert clients["accuracy"].tolist() == [1.0, 1.0]  # short texts, of which padding is the largest part


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["", None], "review must have a text in some row, it is empty in all"),
        ([" ", "\t"], "review must have a text in some row, it is empty in all"),
        ([["kalt", "nass"]] * 2, "review must hold one text or number in each row, got list<"),
        ([{"de": "kalt"}] * 2, "review must hold one text or number in each row, got struct<"),
    ],
)
@pytest.mark.parametrize("site", [True, False])
def test_a_column_without_texts_is_refused(
    run: Run, tmp_path: Path, texts: list[Any], reason: str, site: bool
) -> None:
    good = pa.table({"review": ["warm", "kalt"] * 16, "stars": [1, 0] * 16})
    (tmp_path / "sites").mkdir()
    for name, table in {"a": good, "b": good, "odd": good.set_column(0, "review", [texts * 16])}.items():
        pq.write_table(table, tmp_path / "sites" / f"{name}.parquet")
    network = ["model=embedding_dense", "dataset=text", "dataset.text=review", "dataset.label=stars"]
    pooled = (*ONE, *network, "dataset.path=sites/odd.parquet", "partition=iid", "partition.num_clients=2")
    outcome = run(*OWN, *network) if site else run(*pooled)
    assert outcome.code == (0 if site else 2), outcome
    line = f"odd is refused: {reason}" if site else f"fedclust: dataset text: {reason}"
    assert line in outcome.printed + outcome.complained


@pytest.mark.parametrize("held", ["nested", "text", "gone"])
def test_no_pixel_leaves_a_site(run: Run, tmp_path: Path, held: str) -> None:
    values = {"nested": [[7, 77], [177, 7]], "text": "7, 77, 177, 7", "gone": "scan 77, 177.png"}[held]
    rows = pa.table({"image": [values] * 20, "label": [0, 1] * 10})
    for site in "ab":
        (tmp_path / "sites" / site).mkdir(parents=True)
        pq.write_table(rows, tmp_path / "sites" / site / "data.parquet")
    outcome = run(*OWN, "dataset=image_folder", "dataset.input_shape=[1,2,2]")
    assert outcome.code == 2
    assert "a is refused: image of example 0 must be " in outcome.printed
    assert "77" not in (outcome.printed + outcome.complained).replace(str(tmp_path), "")


def test_images_in_folders_count_more_than_a_table_of_labels(run: Run, tmp_path: Path) -> None:
    from PIL import Image

    for number in range(40):
        shade = "dark" if number % 2 else "light"
        (tmp_path / "scans" / shade).mkdir(parents=True, exist_ok=True)
        picture = Image.new("L", (2, 2), 5 * number % 100 + (0 if number % 2 else 150))
        picture.save(tmp_path / "scans" / shade / f"{number}.png")
    (tmp_path / "scans" / "labels.csv").write_text("file,label\n0.png,light\n")
    options = (
        "dataset.path=scans",
        "dataset.input_shape=[1,2,2]",
        "partition=iid",
        "partition.num_clients=2",
    )
    outcome = run(*ONE, "dataset=image_folder", *options)
    assert outcome.code == 0, outcome
    assert "classes: 2 of equal size, training rows of each: 16" in outcome.printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["dataset.path=epoch=9/a.csv"],
            "a text with such characters is quoted so: \"dataset.path='epoch=9/a",
        ),
        (["output_dir=~/x"], "is quoted so: \"output_dir='~/x'\""),
        (["dataset.path=病.csv"], "is quoted so: \"dataset.path='病.csv'\""),
        (["-m", "strategy=glob(zz*)"], "strategy=glob(zz*) must have at least one choice among auto, "),
        (["-m", "seed=range(0,3,0)"], "seed=range(0,3,0) must be a sweep that ends: range() arg 3 must not"),
        (["-m", "seed=range(3,0)"], "seed=range(3,0) must have at least one choice, it has none"),
        (["-m", "seed=range(0,0)"], "seed=range(0,0) must have at least one choice, it has none"),
        (
            ["-m", "partition=dirichlet", "partition.alpha=interval(0.1,1)"],
            "alpha=interval(0.1,1) needs a sweeper that searches an interval: hydra/sweeper=optuna, pip inst",
        ),
        (["--config-dir", "conf", "model=utf16"], "conf/model/utf16.yaml must be a text in UTF-8"),
        (["--config-dir", "conf", "model=broken"], "conf/model/broken.yaml"),
        (
            ["--config-dir", "conf", "strategy=items"],
            "strategy/items.yaml must have settings, each as 'key: value'",
        ),
        (
            ["--config-dir", "conf", "experiment=short"],
            "experiment/short.yaml must begin with the line '# @package _global_'",
        ),
        (
            ["--config-dir", "conf", "experiment=marked"],
            "experiment/marked.yaml must begin with the line '# @package _global_', without a byte order",
        ),
        (["--config-dir", "conf", "model=gone"], "model._target_ must be importable, got nope.Net: "),
        (
            ["--config-dir", "conf", "model=unnamed"],
            "model must have a _target_, the class or function to call",
        ),
        (["+foo=1"], "unknown key 'foo', which nothing reads"),
        (["++sed=1"], "unknown key 'sed', which nothing reads: did you mean 'seed'?"),
        (["+foo.bar=1"], "unknown key 'foo', which nothing reads"),
    ],
)
def test_settings_end_in_a_line_that_helps(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "conf" / "model" / "folder.yaml").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "utf16.yaml").write_bytes("hidden: [3]\n".encode("utf-16"))
    for name, text in {
        "model/broken": "a: [1\nb: 2\n",
        "model/gone": "_target_: nope.Net\n",
        "model/unnamed": "hidden: [3]\n",
        "strategy/items": "- a\n",
        "experiment/short": "rounds: 3\n",
        "experiment/marked": "\ufeff# @package _global_\ndefaults:\n  - override /strategy: fedavg",
    }.items():
        (file := tmp_path / "conf" / f"{name}.yaml").parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    outcome = run(*arguments)
    assert outcome.code == 2
    assert message in outcome.complained
    assert outcome.complained.startswith("fedclust: ")
    assert outcome.complained.count("\n") == 1


def test_a_sweep_takes_what_a_pattern_finds(run: Run) -> None:
    outcome = run("-m", "strategy=glob(fedav*)", "compare=[]", "proof=false", "rounds=1", "output_dir=out")
    assert outcome.code == 0, outcome
    assert SavedRun(Path("out/0")).strategy == "fedavg"


@pytest.mark.parametrize("outputs", [10, 11, 14])
def test_a_network_may_have_more_outputs_than_classes(run: Run, outputs: int) -> None:
    outcome = run(*ONE, f"model.num_classes={outputs}")
    assert outcome.code == 0, outcome


NETWORKS = '''
from torch import nn
class Net(nn.Module):
    """Ends as it is told."""
    def __init__(self, end):
        super().__init__()
        self.layer, self.end = nn.Linear(64, 10), end
    def forward(self, x):
        x = x.flatten(1)
        if self.end == "in place":
            x.mul_(0.5)
        y = self.layer(x)
        others = {"tuple": (y, x), "whole": y.long(), "dict": {"logits": y}, "flat": y.flatten(), "list": [y]}
        return others.get(self.end, y)
def statistics(end):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, 10))
'''


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("tuple", "for 2 examples with a class index each, got tuple"),
        ("dict", "got dict"),
        ("list", "got list"),
        ("flat", "got [20]"),
        ("whole", "got [2, 10] of type torch.int64"),
        ("in place", None),
        ("statistics", None),
    ],
)
def test_what_a_network_returns(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, message: str | None
) -> None:
    (tmp_path / "odd_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    target = "odd_networks.statistics" if end == "statistics" else "odd_networks.Net"
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(f"_target_: {target}\nend: {end}\n")
    outcome = run("--config-dir", "conf", *ONE, "model=mine")
    assert outcome.code == (0 if message is None else 2), outcome
    if message is not None:
        rule = (
            "model must return a tensor of shape [2, 10], an output per class, amount or interval of time, "
        )
        assert rule in outcome.complained
        assert message in outcome.complained
        assert outcome.complained.count("\n") == 1


@pytest.mark.parametrize(
    ("encoding", "arguments"),
    [
        ("cp1252", [*OWN, *TABLE]),
        ("ascii", ["report", "out"]),
        ("latin-1", ["compare", "out", "out"]),
        ("ascii", ["help"]),
        ("cp1252", ["check", "sites/a.csv", "--target", "y"]),
    ],
)
def test_a_terminal_may_lack_characters(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, arguments: list[str]
) -> None:
    table = PLAIN.replace("age", "年齢").replace("well", "良い")
    _write_sites(tmp_path, **{"a": table, "病院": table})
    if arguments[0] in ("report", "compare"):
        assert run(*OWN, *TABLE).code == 0
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding=encoding))
    outcome = run(*arguments)
    sys.stdout.flush()
    assert outcome.code == 0, outcome
    assert raw.getvalue().decode(encoding)


def test_a_run_goes_on_without_a_reader(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedclust", *ONE]
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with subprocess.Popen(command, **piped) as process:
        process.stdout.close()
        complained = process.stderr.read()
    assert process.returncode == 0, complained
    assert (tmp_path / "out" / "summary.json").is_file()
    assert complained.count("the output can no longer be written ([Errno 32] Broken pipe), the run goes") == 1


PADDED = '''
import torch
from torch import nn
from torch.nn import functional
class Net(nn.Module):
    """Averages vectors, that of padding among them, which is not trained."""
    def __init__(self, kind):
        super().__init__()
        options = {"limited": {"max_norm": 0.5}, "by frequency": {"scale_grad_by_freq": True}}
        self.kind, self.rows = kind, nn.Embedding(50, 4, **options.get(kind, {"padding_idx": 0}))
        self.end = nn.Linear(4, 2)
    def forward(self, x):
        if self.kind == "function":
            return self.end(functional.embedding(x, self.rows.weight, padding_idx=0).mean(1))
        return self.end(self.rows(x).mean(1))
'''


@pytest.mark.parametrize("kind", ["layer", "function", "limited", "by frequency"])
def test_an_embedding_is_trained_alike_in_every_mode(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "odd_padding.py").write_text(PADDED)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(f"_target_: odd_padding.Net\nkind: {kind}\n")
    rows = [f"{'good' if k % 2 else 'bad'} {'day ' * (k % 5)},{k % 2}" for k in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows, ""]))
    trained = {}
    for mode in ("vectorised", "sequential"):
        own = ("rounds=3", f"output_dir={mode}", f"training.mode={mode}", "training.learning_rate=1")
        outcome = run("--config-dir", "conf", *ONE[:3], *TEXT, "model=mine", *own)
        assert outcome.code in (0, 3), outcome  # too short to learn
        network = load(tmp_path / mode, allow="odd_padding.").model_for(0)
        trained[mode] = network.rows.weight.detach().numpy()
    one, other = trained.values()
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    if kind == "layer":
        assert not one[0].any()  # as it began


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--strategy", "fmcl"],
            "there is no option --strategy; settings have no dashes: fedclust strategy=fmcl",
        ),
        (["--rounds=3"], "settings have no dashes: fedclust rounds=3"),
        (["strategy", "fmcl"], "a setting has its value after =, without blanks: fedclust strategy=fmcl"),
        (
            ["strategy", "=", "fmcl"],
            "a setting has its value after =, without blanks: fedclust strategy=fmcl",
        ),
        (["fmcl"], "a choice needs the name of its setting: fedclust strategy=fmcl"),
        ([*ONE, "partition=natural"], "needs writers, users or regions: dataset.natural= names their column"),
        (
            [*ONE, *TEXT],
            "whole numbers are tokens, as for model=embedding_lstm",
        ),
        (["-m", "hydra/sweeper=optuna", "seed=1,2"], "got 'optuna'; pip install 'fedclust[optuna]'"),
        (["-m", "hydra/launcher=ray", "seed=1,2"], "got 'ray'; pip install 'fedclust[ray-launcher]'"),
        (
            ["engine=superlink"],
            "engine.connection must be given; fedclust help engine=superlink says what it",
        ),
        (["-m", "strategy=fedavg,"], "=fedavg,' does not parse: it ends with a comma\n"),
        (["seed=1,"], "=1,' does not parse: it ends with a comma\n"),
        (["seed=0,1"], "seed must have one value, got 0,1: fedclust -m seed=0,1 runs each"),
        (["strategy=[fedavg,fmcl]"], "got ['fedavg', 'fmcl']: fedclust -m strategy=fedavg,fmcl runs each"),
        (
            ["seed=1", "strategy:fmcl"],
            "a setting has its value after =, got strategy:fmcl: fedclust strategy=fmcl",
        ),
        (["model.hidden=8"], "each entry a whole number, got 8; as a list: model.hidden=[8]"),
        ([*TABLE, "dataset.path=a.csv", "dataset.ignore=age"], "; as a list: dataset.ignore=[age]"),
        ([*TABLE, "dataset.path=a.csv", "partition=iid"], "columns are text, label; dataset.label= names it"),
        (
            [*TABLE, "dataset.path=a.csv", "dataset.event=y"],
            "dataset.event must be another column than dataset.label, which has the times, got y for both",
        ),
        (
            [*TABLE, "partition=own", "partition.sites=[sites/a.csv]"],
            "or names with paths as {north: a.csv, south: b.csv}, got the path sites/a.csv",
        ),
        (["dataset=my data/b.csv"], "; a file is given so: dataset=csv 'dataset.path=my data/b.csv'"),
        (["dataset=scans/"], "; a file is given so: dataset=image_folder dataset.path=scans/"),
        (
            ["dataset.path=a.csv"],
            "comes with scikit-learn, so dataset.path and .hub must be null, got a.csv; ",
        ),
        ([*TABLE, "dataset.path=none.csv"], "none.csv must have rows, it is empty"),
        ([*TABLE, "dataset.path=a.tsv"], "or be an image; rename it to .csv, and give its separator, for ex"),
        ([*TABLE, "dataset.path=a.xlsx"], "or be an image; save it as CSV or Parquet, with a row for each"),
        (["lr=0.1"], "unknown key 'lr': did you mean 'training.learning_rate'? there is aggregator"),
        (["clients=8"], "unknown key 'clients': did you mean 'partition.num_clients'? there is"),
        (["privacy.epsilon=3"], "unknown key 'privacy.epsilon': privacy=none has label_counts"),
        (["device=gpu"], "got 'gpu': those of PyTorch are cpu, cuda, cuda:1, mps, xpu and so on"),
        (["output_dir="], "output_dir must be given, it is empty"),
        (["seed=range(0,3", "-m"], "; a bracket is open: seed=range(0,3)"),
        (["--cfg"], "argument --cfg/-c: expected one argument; fedclust run --help lists the options"),
        (["help", "rounds"], "(did you mean 'run'?); fedclust --cfg job prints every setting"),
        (["help", "model.hidden"], "; fedclust help model lists its choices, fedclust help model=CHOICE the"),
        (["-m", "objective=acuracy", "seed=0,1"], "objective must be one of ad, adjusted_rand_index, auc"),
        (["partition.num_clients=2000"], "got [20, 10] with sum 30; give partition.groups=, too"),
    ],
)
def test_a_mistake_ends_in_a_line_with_the_way_out(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "a.csv").write_text(
        "\n".join(["text,label", *(f"a b {k % 2},{k % 2}" for k in range(40)), ""])
    )
    for name in ("none.csv", "a.tsv", "a.xlsx"):
        (tmp_path / name).write_text("x" if name[0] == "a" else "")
    outcome = run(*arguments)
    assert outcome.code == 2
    assert message in outcome.complained
    assert outcome.complained.startswith("fedclust")
    assert outcome.complained.count("\n") == 1


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("ray", ["engine=ray"], "simulation"),
        ("datasets", ["dataset=cifar10"], "hub"),
        ("transformers", ["strategy=fmcl", "encoder=transformers"], "encoders"),
    ],
)
def test_a_missing_package_names_its_extra(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, arguments: list[str], extra: str
) -> None:
    raised = f"No module named {package!r}"
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError({raised!r}, name={package!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (package, "fedclust.grids.ray_grid", "fedclust.models.foundation"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    outcome = run(*ONE, *arguments)
    assert outcome.code == 2
    assert outcome.complained.endswith(f" pip install 'fedclust[{extra}]'\n")


def test_unlabelled_examples_are_no_class(run: Run, tmp_path: Path) -> None:
    import datasets

    labels = datasets.ClassLabel(names=["ill", "well"])
    features = datasets.Features({"age": datasets.Value("float64"), "y": labels})
    rows = {"age": [40.5 + 7 * k % 31 for k in range(40)], "y": [k % 3 - 1 for k in range(40)]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    given = (*ONE, *TABLE, "dataset.path=saved", "partition=iid", "partition.num_clients=2")
    outcome = run(*given)
    assert outcome.code == 2
    assert "y must have a label in every example, some have -1" in outcome.complained
    assert run(*given, "dataset.drop_labels=[-1]").code == 0


def test_one_client_is_told_that_it_trains_with_nobody(run: Run) -> None:
    outcome = run(*ONE, "partition=iid", "partition.num_clients=1")
    assert outcome.code in (0, 3)
    assert "warning: one client trains with nobody; partition.num_clients= or " in outcome.printed


def test_spaces_and_umlauts_in_the_names_of_files_and_folders(run: Run, tmp_path: Path) -> None:
    """The table and a user's own experiment have lines as Windows ends them."""
    table, own = tmp_path / "größe 1" / "a ü.csv", tmp_path / "meine Wahl" / "experiment" / "kurz.yaml"
    for path, text in (
        (table, PLAIN),
        (own, "# @package _global_\n# größer\nproof: false\ncompare: []\nrounds: 1\n"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8", newline="\r\n")
    asked = ("strategy=fedavg", *TABLE, "partition=iid", "partition.num_clients=4")
    places = ("dataset.path='größe 1/a ü.csv'", "output_dir='für A/Lauf 1'")
    outcome = run("--config-dir", "meine Wahl", "experiment=kurz", *asked, *places)
    assert outcome.code == 0, outcome.complained
    assert "fedclust report 'für A/Lauf 1'" in outcome.printed
    assert SavedRun(tmp_path / "für A" / "Lauf 1").config["rounds"] == 1
    assert run("export", "für A/Lauf 1", "Modelle für A").code == 0
    assert run("predict", "Modelle für A", "--site", "0", "größe 1/a ü.csv", "--out", "ü 1.csv").code == 0
    assert len(pd.read_csv("ü 1.csv")) == 40
