"""Saved partitions: what is written is read back, and what does not fit is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedclust.data.dataset import Dataset
from fedclust.data.partition import ClientRows, load_client_rows, save_client_rows
from fedclust.data.shifts import Noise, Relabel

LINES = {
    "client": [0, 0, 1, 1],
    "part": ["train", "test", "train", "test"],
    "row": [4, 1, 0, 3],
}


def dataset(rows: int = 6, fingerprint: str = "abc") -> Dataset:
    return Dataset(
        name="tiny",
        inputs=torch.zeros(rows, 1),
        labels=torch.zeros(rows, dtype=torch.int64),
        num_classes=1,
        mean=(),
        std=(),
        class_names=("only",),
        num_train=rows,
        natural=None,
        fingerprint=fingerprint,
    )


def client_rows(**changes: Any) -> ClientRows:
    values: dict[str, Any] = {
        "train": (np.array([5, 2]), np.array([0])),
        "test": (np.array([1]), np.array([4, 3])),
        "groups": np.array([0, 1]),
        "shifts": (None, Noise(0.2)),
    }
    return ClientRows(**(values | changes))


def write(path: Path, lines: dict[str, Any], about: dict[str, Any] | None = None) -> Path:
    """Write a file as another tool would."""
    table = pa.table(lines)
    about = {"version": 1, "dataset": "tiny", "fingerprint": "abc"} | (about or {})
    pq.write_table(table.replace_schema_metadata({"fedclust": json.dumps(about)}), path)
    return path


def same(one: ClientRows, other: ClientRows) -> bool:
    return (
        all(np.array_equal(a, b) for a, b in zip(one.train + one.test, other.train + other.test, strict=True))
        and one.num_clients == other.num_clients
        and (
            one.groups is other.groups is None
            or (one.groups is not None and np.array_equal(one.groups, other.groups))  # type: ignore[arg-type]
        )
        and one.shifts == other.shifts
        and one.seed == other.seed
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"groups": None},
        {"seed": 7},
        {"shifts": (None, None)},
        {"shifts": (Relabel((1, 0)), Relabel((1, 0)))},
    ],
)
def test_saved_is_loaded(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved = client_rows(**changes)
    save_client_rows(saved, dataset(), tmp_path / "folder" / "rows.parquet")
    assert same(load_client_rows(tmp_path / "folder" / "rows.parquet", dataset()), saved)


@given(st.permutations(range(12)), st.integers(1, 4), st.booleans())
def test_any_partition_is_loaded_as_it_was_saved(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], num_clients: int, grouped: bool
) -> None:
    parts = [np.array(part) for part in np.array_split(np.array(order), 2 * num_clients)]
    saved = client_rows(
        train=tuple(parts[:num_clients]),
        test=tuple(parts[num_clients:]),
        groups=np.arange(num_clients) % 2 if grouped else None,
        shifts=(Noise(0.1), None, Noise(0.3), Noise(0.1))[:num_clients],
    )
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    save_client_rows(saved, dataset(12), path)
    assert same(load_client_rows(path, dataset(12)), saved)


def test_the_file_is_as_described(tmp_path: Path) -> None:
    save_client_rows(client_rows(), dataset(), tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.to_pydict() == {
        "client": [0, 0, 0, 1, 1, 1],
        "part": ["train", "train", "test", "train", "test", "test"],
        "row": [5, 2, 1, 0, 4, 3],
        "group": [0, 0, 0, 1, 1, 1],
        "shift": [None, None, None, 0, 0, 0],
    }
    assert json.loads(table.schema.metadata[b"fedclust"]) == {
        "version": 1,
        "dataset": "tiny",
        "fingerprint": "abc",
        "shifts": [{"kind": "noise", "std": 0.2}],
        "seed": None,
    }


def test_another_tool_needs_three_columns(tmp_path: Path) -> None:
    loaded = load_client_rows(write(tmp_path / "rows.parquet", LINES), dataset())
    assert same(
        loaded,
        ClientRows((np.array([4]), np.array([0])), (np.array([1]), np.array([3])), None, (None, None)),
    )


def test_a_file_that_does_not_name_its_dataset_is_loaded_with_a_warning(tmp_path: Path) -> None:
    pd.DataFrame(LINES).to_parquet(tmp_path / "rows.parquet")
    with pytest.warns(UserWarning, match="does not name its dataset; it is assumed to be tiny"):
        assert load_client_rows(tmp_path / "rows.parquet", dataset()).num_clients == 2


def test_a_partition_of_another_dataset_or_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", LINES)
    with pytest.raises(ValueError, match="must belong to tiny with fingerprint xyz, got one of tiny .* abc"):
        load_client_rows(path, dataset(fingerprint="xyz"))
    with pytest.raises(ValueError, match="version must be 1, got 2"):
        load_client_rows(write(path, LINES, {"version": 2}), dataset())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": [4, 1, 0, 6]}, r"row must be in \[0, 6\), got 0 to 6"),
        ({"row": [4, 1, 0, -1]}, r"row must be in \[0, 6\), got -1 to 4"),
        ({"row": [4, 1, 0, 4]}, "a row must belong to one part of one client, row 4 has two"),
        ({"row": [4.0, 1.0, 0.0, 3.5]}, "row must hold whole numbers, got 4 of type float64"),
        ({"client": [0, 0, 2, 2]}, "every client 0 to 2 must have train rows, got none for client 1"),
        ({"client": [0, 0, -1, 1]}, r"client must be in \[0, 4\), got -1 to 1"),
        (
            {"part": ["train", "train", "train", "test"]},
            "every client 0 to 1 must have test rows, got none for client 0",
        ),
        ({"group": [0, 1, 0, 0]}, "group must be the same in all lines of a client, and given"),
        ({"group": [0, 0, None, None]}, "group must be the same in all lines of a client, and given"),
        ({"shift": [0, 0, 1, 1]}, r"shift must be in \[0, 1\), the list of shifts, got 1"),
        ({"shift": [0, None, None, None]}, "shift must be the same in all lines of a client"),
    ],
)
def test_lines_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, list], message: str
) -> None:
    path = write(tmp_path / "rows.parquet", LINES | changes, {"shifts": [{"kind": "noise", "std": 0.1}]})
    with pytest.raises(ValueError, match=message):
        load_client_rows(path, dataset())


def test_another_part_than_train_and_test_is_refused(tmp_path: Path) -> None:
    lines = {
        "client": [0, 0, 0],
        "part": ["train", "test", "valid"],
        "row": [0, 1, 2],
    }
    with pytest.raises(ValueError, match="part must be 'train' or 'test', got .*'valid'"):
        load_client_rows(write(tmp_path / "rows.parquet", lines), dataset())


def test_an_empty_partition_is_refused(tmp_path: Path) -> None:
    lines = {
        name: pa.array([], type=kind)
        for name, kind in (("client", pa.int64()), ("part", pa.string()), ("row", pa.int64()))
    }
    with pytest.raises(ValueError, match="row must hold whole numbers, got 0 of type int64"):
        load_client_rows(write(tmp_path / "rows.parquet", lines), dataset())


def test_files_that_are_no_saved_partition_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.parquet"):
        load_client_rows(tmp_path / "nowhere.parquet", dataset())
    (tmp_path / "rows.parquet").write_text("client,row")
    with pytest.raises(ValueError, match="must be a Parquet file, got"):
        load_client_rows(tmp_path / "rows.parquet", dataset())
    pd.DataFrame({"client": [0]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"must have columns client, part and row, got \['client'\]"):
        load_client_rows(tmp_path / "rows.parquet", dataset())
