import os
from pathlib import Path
from typing import Any

import pytest

from fedclust.data.loading import classes_in_data
from fedclust.data.source import SourceError
from fedclust.settings import ConfigError, compose, plain


def node(path: Path, **changes: Any) -> dict[str, Any]:
    values = {"_target_": "fedclust.data.text.Text", "name": "tiny", "path": str(path), "input_shape": [4]}
    return {**values, "vocabulary_size": 9, "text": "text", "label": "stars", **changes}


def write(folder: Path, stars: list[Any], name: str = "train.csv") -> Path:
    rows = [f"word,{value}" for value in stars]
    (folder / name).write_text("\n".join(["text,stars", *rows, ""]))
    return folder


def test_different_labels_of_the_training_part_are_counted(tmp_path: Path) -> None:
    write(write(tmp_path, [1, 5, 3, 1]), [4], "test.csv")
    assert classes_in_data(node(tmp_path)) == 3
    assert classes_in_data(node(tmp_path, drop_labels=[3])) == 2


def test_a_file_that_has_changed_is_counted_anew(tmp_path: Path) -> None:
    write(tmp_path, ["a", "b"])
    assert classes_in_data(node(tmp_path)) == 2
    write(tmp_path, ["a", "b", "c"])
    os.utime(tmp_path / "train.csv", ns=(1, 1))
    assert classes_in_data(node(tmp_path)) == 3


def test_what_cannot_be_counted(tmp_path: Path) -> None:
    write(tmp_path, ["a", "a"])
    with pytest.raises(SourceError, match="stars must hold at least 2 different labels, got 1"):
        classes_in_data(node(tmp_path))
    with pytest.raises(SourceError, match=r"label must be a column .* got star; .*train\.csv\)"):
        classes_in_data(node(tmp_path, label="star"))
    digits = {"_target_": "fedclust.data.digits.Digits", "name": "digits", "input_shape": [1, 8, 8]}
    with pytest.raises(SourceError, match=r"dataset digits: dataset\.num_classes must be given"):
        classes_in_data(digits)


def test_a_configuration_of_texts_needs_the_path_and_the_columns_only(tmp_path: Path) -> None:
    write(tmp_path, [1, 5, 3, 1])
    config = compose(
        ["dataset=text", f"dataset.path={tmp_path}", "dataset.label=stars", "model=embedding_dense"]
    )
    assert plain(config)["dataset"]["num_classes"] == 3
    assert plain(config.model)["num_classes"] == 3
    assert (
        plain(compose(["dataset=text", f"dataset.path={tmp_path}", "dataset.num_classes=7"]))["dataset"][
            "num_classes"
        ]
        == 7
    )


def test_errors_in_the_data_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^dataset text: has no source; give dataset.path="):
        plain(compose(["dataset=text"]))
    missing = tmp_path / "nowhere.csv"
    with pytest.raises(ConfigError, match="^dataset text: there is no file or folder .*nowhere.csv; "):
        plain(compose(["dataset=text", f"dataset.path={missing}"]))
