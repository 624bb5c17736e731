from typing import Any

import numpy as np
import pytest
import torch

from fedclust.data.dataset import Dataset


def make(**changes: Any) -> Dataset:
    values: dict[str, Any] = {
        "name": "tiny",
        "inputs": torch.zeros(3, 2),
        "labels": torch.tensor([0, 1, 1]),
        "num_classes": 2,
        "mean": (),
        "std": (),
        "class_names": ("a", "b"),
        "num_train": 2,
        "natural": None,
        "fingerprint": "f",
    }
    return Dataset(**(values | changes))


def test_input_shape_is_that_of_one_example() -> None:
    assert make(inputs=torch.zeros(3, 1, 8, 8)).input_shape == (1, 8, 8)


def test_labels_may_be_per_position() -> None:
    assert make(labels=torch.zeros(3, 5, dtype=torch.int64)).labels.shape == (3, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(0, 2), "labels": torch.zeros(0, dtype=torch.int64)}, "at least one example"),
        ({"labels": torch.tensor([0, 1])}, r"labels must have shape \(3,\) .* got \(2,\)"),
        ({"labels": torch.zeros(3, 1, 1, dtype=torch.int64)}, "labels must have shape"),
        ({"labels": torch.tensor([0.0, 1.0, 1.0])}, "labels must be int64, got torch.float32"),
        ({"labels": torch.tensor([0, 1, 2])}, r"labels must be in \[0, 2\), got 0 to 2"),
        ({"labels": torch.tensor([-1, 1, 0])}, "got -1 to 1"),
        ({"class_names": ("a",)}, "class_names must have 2 names, got 1"),
        ({"num_train": 4}, r"num_train must be in \[1, 3\], got 4"),
        ({"num_train": 0}, "num_train must be"),
        ({"natural": np.array([0, 1])}, r"natural must have shape \(3,\), got \(2,\)"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)
