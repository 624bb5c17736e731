"""Files of a stranger's folder: whatever is wrong with one is a ValueError in one line."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedclust.results.saved_run import SavedRun
from fedclust.support.untrusted import read_arrays, read_json, read_table, read_yaml


@pytest.mark.parametrize(
    "content", [b"\x93\x00\xff", b"[" * 200_000, b'{"a":' * 100_000, b"{", b"- " * 90_000]
)
@pytest.mark.parametrize(
    "read", [read_yaml, read_json, lambda path: read_table(path, 9), lambda p: dict(read_arrays(p))]
)
def test_broken_and_deep_files_are_one_line(read, content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r"file must be ") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


@pytest.mark.parametrize("content", ["a: &a [x, x]\nb: [*a, *a]\n", "a: &a [*a]\n"])
def test_yaml_that_refers_to_itself_is_refused(content: str, tmp_path: Path) -> None:
    """Nine lines, each of ten references to the one before, are a billion values to whoever walks them."""
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(ValueError, match=r"a\.yaml must be YAML: it must repeat values, .* by \*a$"):
        read_yaml(tmp_path / "a.yaml")


def test_what_is_fine_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: {b: [1, 2]}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": {"b": [1, 2]}}
    np.savez(tmp_path / "a.npz", x=np.eye(2), y=np.zeros((0, 3)))
    np.testing.assert_array_equal(dict(read_arrays(tmp_path / "a.npz"))["x"], np.eye(2))


def test_a_folder_larger_than_it_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"num_clients": 3}')
    pd.DataFrame({"cluster": np.zeros(10_000, int)}).to_parquet(tmp_path / "clients.parquet")
    with pytest.raises(ValueError, match="must have at most 1300 rows, got 10000"):
        _ = SavedRun(tmp_path).clients
    lists = pd.DataFrame({"label_counts": [np.zeros(300_000, int)] * 2})
    lists.to_parquet(tmp_path / "clients.parquet")
    with pytest.raises(ValueError, match="at most 65536 values per cell"):
        _ = SavedRun(tmp_path).clients
    pd.DataFrame({"label_counts": [np.zeros(65_536, int)] * 2}).to_parquet(tmp_path / "clients.parquet")
    assert len(SavedRun(tmp_path).clients["label_counts"][1]) == 65_536
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(tmp_path / "matrices.npz", "w") as archive:
        archive.writestr("m.npy", file.getvalue())
    with pytest.raises(ValueError, match="m.npy says 8000000000000 bytes, it has "):
        list(SavedRun(tmp_path).matrices())


def test_an_archive_that_unpacks_to_more_than_its_file_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "small.npz", m=np.zeros((1000, 1000)))  # 8 MB in some 10 kB
    with pytest.raises(ValueError, match=r"must have at most the \d+ bytes of the file, got 8000128"):
        dict(read_arrays(tmp_path / "small.npz"))
