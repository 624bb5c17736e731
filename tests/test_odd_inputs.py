"""Files, networks and terminals that others have, through the command line: read, or one line that helps."""

import codecs
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedclust.results.saved_run import SavedRun
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


NAMED = "cannot read a.csv: line {} must have at most 3 cells, as the lines above it, got 4; remove separators"
UNIT = "x: numbers with a unit, or two numbers in a cell, in 40 of 40 rows"
GOOD = "errors: 0, warnings: 0"
ZIPPED = gzip.compress(_csv(_table()).encode())


@pytest.mark.parametrize(
    ("file", "content", "options", "expected"),
    [
        # A comma at the end of each row, of a later one, and names of rows without a name of their own.
        ("a.csv", _lines("age,x,y", "4{k},5,{y},"), [], NAMED.format(2)),
        ("a.csv", _lines("age,x,y", "4{k},5,{y}") + "41,5,ill,7\n", [], NAMED.format(42)),
        ("a.csv", _lines("age;x;y", "p{k};4{k};5;{y}"), ["--sep", ";"], NAMED.format(2)),
        # Numbers that people write in other ways.
        ("a.csv", _lines("age,x,y", '4{k}.5,"{k},25{k}",{y}').replace('"0,', '"'), [], "give --csv thousands=\",\""),
        ("a.csv", _lines("x;y", "1.2{k:02}.000,5;{y}"), ["--sep", ";"], "points between thousands"),
        ("a.csv", _lines("x,y", "{k}%,{y}"), [], UNIT),
        ("a.csv", _lines("x,y", "1{k:02}/{k},{y}"), [], UNIT),
        ("a.csv", _lines("x,y", "3{k}.5 C,{y}"), [], UNIT),
        ("a.csv", _lines("x,y", "{k}.5 kg,{y}").replace("7.5 kg", "7500 g"), [], UNIT),
    ],
)
def test_a_file_is_read_or_its_fault_is_named(
    run: Run, tmp_path: Path, file: str, content: str | bytes, options: list[str], expected: str
) -> None:
    (tmp_path / file).write_bytes(content.encode() if isinstance(content, str) else content)
    outcome = run("check", file, "--target", "y", *options)
    assert expected in outcome.printed, outcome
    assert outcome.code == (0 if expected == GOOD else 1)
    assert len(outcome.printed.splitlines()) <= 4
    assert outcome.complained == ""
