"""Files, networks and terminals that others have, through the command line: read, or one line that helps."""

import codecs
import gzip
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

from tests.conftest import Outcome

Run = Callable[..., Outcome]

ONE = ("strategy=fedavg", "compare=[]", "proof=false", "rounds=1", "output_dir=out")
OWN = (*ONE, "partition=own", "partition.sites=sites")
TABLE = ("dataset=csv", "dataset.label=y")

pytestmark = pytest.mark.usefixtures("without_pages")


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
        (_lines("x;y", "1.2{k:02}.000,5;{y}"), ["--sep", ";"], POINTS),
        (_lines("x,y", "{k}%,{y}"), [], UNIT),
        (_lines("x,y", "1{k:02}/{k},{y}"), [], UNIT),
        (_lines("x,y", "3{k}.5 C,{y}"), [], UNIT),
        (_lines("x,y", "{k}.5 kg,{y}").replace("7.5 kg", "7500 g"), [], UNIT),
        # Two columns of one name: the target's, another one, and one that is so in another form of Unicode.
        (_lines("age,y,y", "4{k}.5,{y},{y}"), [], NAMES.format("y")),
        (_lines("age,age,y", "4{k}.5,{k},{y}"), [], NAMES.format("age")),
        (_lines("gr\u00f6sse,gro\u0308sse,y", "4{k}.5,{k},{y}"), [], NAMES.format("gr\u00f6sse")),
        # Classes that pandas takes for missing; empty cells of numbers stay missing.
        (PLAIN.replace("well", "None"), [], NO_LABEL),
        (PLAIN.replace("well", "None"), ["--csv", "keep_default_na=false"], GOOD),
        (GAPS, ["--csv", "keep_default_na=false"], GOOD),
        # Names that are numbers, and values instead of names.
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
    assert outcome.code == (0 if expected in (GOOD, "a run would send") else 1)
    assert len(outcome.printed.splitlines()) <= 4
    assert outcome.complained == ""


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
            "x: values that look like identifiers or dates (its type, times",
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
