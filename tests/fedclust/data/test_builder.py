import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

from fedclust.data.builder import DatasetBuilder
from fedclust.data.digits import Digits
from fedclust.data.source import SourceError
from fedclust.data.tables import Tables


def write(folder: Path, numbers: list[float]) -> Path:
    folder.mkdir(exist_ok=True)
    frame = pd.DataFrame({"x": numbers, "label": [i % 2 for i in range(len(numbers))]})
    frame.to_parquet(folder / "train.parquet")
    return folder


def builder(path: Path, **changes: Any) -> Tables:
    return Tables(**({"name": "tiny", "num_classes": 2, "input_shape": [1], "path": str(path)} | changes))


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "datasets").iterdir() if path.is_dir())


def test_a_second_load_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "source", [1, 2, 3])
    first = builder(tmp_path / "source").load(tmp_path / "cache")

    def decode(self: DatasetBuilder, folder: Path) -> None:
        raise AssertionError("decoded a second time")

    monkeypatch.setattr(Tables, "write", decode)
    second = builder(tmp_path / "source").load(tmp_path / "cache")
    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.fingerprint == second.fingerprint
    assert first.class_names == second.class_names == ("0", "1")


def test_the_cache_is_found_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))
    builder(write(tmp_path / "source", [1, 2])).load()
    assert len(folders(tmp_path / "cache")) == 1


def test_a_changed_file_is_decoded_again(tmp_path: Path) -> None:
    source = write(tmp_path / "source", [1, 2, 3])
    first = builder(source).load(tmp_path / "cache")
    write(source, [1, 2, 7])
    os.utime(source / "train.parquet", ns=(1, 1))  # two writes may fall into one tick of the clock
    second = builder(source).load(tmp_path / "cache")
    assert second.inputs[2] != first.inputs[2]
    assert second.fingerprint != first.fingerprint


def test_the_same_content_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    first = builder(write(tmp_path / "a", [1, 2])).load(tmp_path / "cache a")
    second = builder(write(tmp_path / "b", [1, 2])).load(tmp_path / "cache b")
    assert first.fingerprint == second.fingerprint


def test_settings_that_change_a_tensor_have_their_own_place(tmp_path: Path) -> None:
    source = write(tmp_path / "source", [1, 2, 3])
    builder(source).load(tmp_path / "cache")
    builder(source, encoding="index").load(tmp_path / "cache")
    builder(source, class_names=["no", "yes"]).load(tmp_path / "cache")
    assert len(folders(tmp_path / "cache")) == 3


def test_a_failed_load_leaves_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "source", [1, 2, 3])
    with pytest.raises(SourceError):
        builder(source, input_shape=[2]).load(tmp_path / "cache")
    assert folders(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "name must be made of letters, .* got 'a/b'"),
        ({"num_classes": 1}, "num_classes must be >= 2, got 1"),
        ({"input_shape": []}, r"input_shape must be sizes >= 1, got \[\]"),
        ({"input_shape": [0]}, r"got \[0\]"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        builder(tmp_path, **changes)


def digits_builder(**changes: Any) -> Digits:
    return Digits(**({"name": "digits", "num_classes": 10, "input_shape": [1, 8, 8]} | changes))


def test_digits_are_grey_images_of_the_full_range(tmp_path: Path) -> None:
    data = digits_builder().load(tmp_path)
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert data.inputs.dtype == torch.uint8
    assert data.num_train == 1797
    assert data.class_names == tuple("0123456789")
    source = load_digits()
    np.testing.assert_array_equal(data.labels, source.target)
    # 0 to 16 became 0 to 255, so dividing by 255 gives back sixteenths, to half a grey level
    np.testing.assert_allclose(data.inputs[:, 0].numpy() / 255, source.images / 16, atol=0.5 / 255)
    assert data.mean == pytest.approx([source.images.mean() / 16], abs=1e-3)
    assert data.std == pytest.approx([source.images.std() / 16], abs=1e-3)


@pytest.mark.parametrize("changes", [{"path": "somewhere"}, {"hub": "someone/digits"}])
def test_a_source_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(
        SourceError, match=r"comes with scikit-learn, so dataset\.path and \.hub must be null"
    ):
        digits_builder(**changes)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"input_shape must be \[1, 8, 8\], .* got \[64\]"):
        digits_builder(input_shape=[64]).load(tmp_path)
    with pytest.raises(SourceError, match="num_classes must be 10, .* got 9"):
        digits_builder(num_classes=9).load(tmp_path)
