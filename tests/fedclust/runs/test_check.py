"""``fedclust check``: what a site's keeper sees before anything is sent."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedclust.runs import check
from fedclust.runs.check import main


def example_table(size: int, seed: int) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    age = draws.normal(60, 10, size).round(1)
    return pd.DataFrame({"age": age, "sex": ["f", "m"] * (size // 2), "y": np.where(age > 60, "bad", "good")})


def write_tables(folder: Path, **tables: pd.DataFrame) -> list[str]:
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return [str(folder / f"{name}.csv") for name in tables]


def test_a_keeper_checks_amounts_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = example_table(60, 1).drop(columns="y").assign(days=[3.5, 8.0, 2.0] * 20, died=[True, False] * 30)
    (file,) = write_tables(tmp_path, table=table)
    assert main([file, "--target", "days", "--event", "died"]) == 0
    printed = capsys.readouterr().out.splitlines()
    sends = "count, mean and spread of 48 block(s) of neighbouring values, names and kinds of 2 column(s), "
    sends += "categories of 1 column(s), count, mean and sum of squares of 1 column(s)"
    assert printed == [
        f"{file}: 60 rows, 4 columns",
        f"  a run would send: {sends}",
        "errors: 0, warnings: 0",
    ]
    rules = tmp_path / "site.toml"
    assert main([file, "--target", "days", "--event", "died", "--rules", str(rules)]) == 0
    assert 'labels = ["days", "died"]' in rules.read_text()
    assert "  statement: " in capsys.readouterr().out
    table.loc[[1, 4], "days"] = [0, -2]
    write_tables(tmp_path, table=table)
    assert main([file, "--target", "days", "--event", "died"]) == 1
    assert "error: days: times that are not above 0, in 2 of 60 rows" in capsys.readouterr().out
    assert main([file, "--target", "sex", "--kind", "amounts"]) == 1
    assert "error: sex: texts where numbers are needed, in 60 of 60 rows" in capsys.readouterr().out


def test_a_keeper_checks_files_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean, stray = example_table(60, 1), example_table(60, 2).astype({"age": object})
    stray.loc[[3, 5], "age"] = "<500"
    third = example_table(60, 3).replace({"sex": {"m": "M"}})
    clean_csv, stray_csv, third = write_tables(tmp_path, clean=clean, stray=stray, third=third)
    assert main([clean_csv, "--target", "y"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{clean_csv}: 60 rows, 3 columns"
    assert printed[1].startswith("  a run would send: ")
    assert printed[-1] == "errors: 0, warnings: 0"
    assert main([clean_csv]) == 0  # without labels nothing is described
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"{clean_csv}: 60 rows, 3 columns; --target COLUMN checks the labels, too: age, sex, y",
        "errors: 0, warnings: 0",
    ]
    assert main([clean_csv, stray_csv, "--target", "y"]) == 1
    seen = "error: age: texts in a column of numbers, in 2 of 60 rows ('<500' in rows 4, 6); correct"
    printed = capsys.readouterr().out
    assert seen in printed
    assert "or use it as categories with --keep age\n" in printed
    assert main([stray_csv, "--keep", "age", "--target", "y"]) == 0
    capsys.readouterr()
    assert "as the sites of one run:" not in printed  # one of them only could take part
    assert printed.endswith("errors: 1, warnings: 0\n")
    assert main([clean_csv, third, "--target", "y"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no other site has 'M' in sex (elsewhere 'm')") == 1
    assert "as the sites of one run:\n  warning: " in printed
    assert printed.endswith("errors: 0, warnings: 2\n")
    assert main([stray_csv, "--keep", "age", "--target", "z"]) == 1
    assert "error: label must be a column of the source, got z" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 40


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.csv must have rows, it is empty"),
        (b"y\na\nb\n", "y: .*|errors: 0"),
        ("größe;y\n2;ä\n".encode("latin-1"), "; set its encoding, for example --encoding latin-1"),
        ("x,y\n1,a\n2,b\n".encode("utf-16-le"), "; set its encoding, for example --encoding utf-16-le"),
        (b"x;y\n1;a\n2;b\n", 'has one column, .x;y.; set its separator, for example --sep ";"'),
        (b"\x00\x01\x02\x03", "error: "),
        (b"PK\x03\x04\x99\x88", "cannot read"),
        (b"x,y\n1,a,3,4\n2,b\n3,c,4,5,6\n", "line 2 must have at most 2 cells, as the lines above it, got 4"),
        (",".join(f"c{k}" for k in range(200)).encode() + b"\n", "error: "),
        (b"x\x1b[31m,y\n1,a\n1,b\n", r"x\?\[31m: one value in all rows"),
    ],
)
def test_hostile_files_end_in_a_line(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setattr("fedclust.data.check.MOST_COLUMNS", 100)  # 50,000 take a while to read
    (tmp_path / "a.csv").write_bytes(content)
    assert main([str(tmp_path / "a.csv"), "--target", "y"]) in (0, 1)
    printed = capsys.readouterr()
    assert re.search(message, printed.out)
    assert len(printed.out.splitlines()) <= 5
    assert printed.err == ""


def test_sites_that_cannot_train_together_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = example_table(60, 1), example_table(60, 2)
    second["y"] = second["y"].replace({"bad": "BAD"})
    assert main([*write_tables(tmp_path, first=first, second=second), "--target", "y"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert re.match("  error: .*spell a class alike", printed[-2])
    assert printed[-1] == "errors: 1, warnings: 0"


@pytest.mark.parametrize(("files", "most"), [(1, 14), (2, 7), (7, 3)])
def test_all_files_together_have_few_lines(tmp_path: Path, monkeypatch, files: int, most: int) -> None:
    asked: list[int] = []
    monkeypatch.setattr(check, "lines", lambda found, most, form: asked.append(most) or [])
    main(write_tables(tmp_path, **{f"site{number}": example_table(60, 1) for number in range(files)}))
    assert asked == [most] * files
