from typing import Any

import numpy as np
import pytest
import torch

from fedclust.data.dataset import FederatedData


def make(**changes: Any) -> FederatedData:
    values: dict[str, Any] = {
        "name": "tiny",
        "inputs": torch.zeros(6, 2),
        "labels": torch.tensor([0, 0, 1, 2, 2, 2]),
        "train": (np.array([0, 2]), np.array([3, 4])),
        "test": (np.array([1]), np.array([5])),
        "num_classes": 4,
        "mean": (),
        "std": (),
        "groups": None,
        "class_names": ("a", "b", "c", "d"),
        "fingerprint": "f",
    }
    return FederatedData(**(values | changes))


def test_label_counts_of_each_part() -> None:
    data = make()
    # client 0 trains on rows 0 and 2, labelled 0 and 1; client 1 on rows 3 and 4, both labelled 2
    np.testing.assert_array_equal(data.label_counts(), [[1, 1, 0, 0], [0, 0, 2, 0]])
    np.testing.assert_array_equal(data.label_counts("test"), [[1, 0, 0, 0], [0, 0, 1, 0]])


def test_as_many_names_as_clients() -> None:
    assert make(client_names=("Mercy", "St. Anna")).client_names == ("Mercy", "St. Anna")
    with pytest.raises(ValueError, match="client_names must have one name per client, got 1 for 2 clients"):
        make(client_names=("Mercy",))


def test_every_position_counts() -> None:
    labels = torch.tensor([[0, 1], [1, 1], [0, 0], [3, 3], [3, 0], [0, 0]])
    # client 0: rows 0 and 2, that is 0, 1, 0, 0; client 1: rows 3 and 4, that is 3, 3, 3, 0
    np.testing.assert_array_equal(make(labels=labels).label_counts(), [[3, 1, 0, 0], [1, 0, 0, 3]])


def test_a_client_without_rows_has_counts_of_zero() -> None:
    data = make(test=(np.array([], dtype=np.int64), np.array([5])))
    np.testing.assert_array_equal(data.label_counts("test")[0], [0, 0, 0, 0])


def test_sizes() -> None:
    data = make()
    assert data.num_clients == 2
    assert data.input_shape == (2,)


def test_label_counts_refuses_another_part() -> None:
    with pytest.raises(ValueError, match="part must be 'train' or 'test', got 'validation'"):
        make().label_counts("validation")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": (), "test": ()}, "at least one client"),
        ({"test": (np.array([1]),)}, "test must have one part per client, got 1 for 2 clients"),
        ({"groups": np.array([0, 1, 1])}, r"groups must have shape \(2,\), got \(3,\)"),
        ({"test": (np.array([1]), np.array([6]))}, r"rows must be in \[0, 6\), got 0 to 6"),
        ({"test": (np.array([-1]), np.array([5]))}, "got -1 to 5"),
        ({"test": (np.array([1]), np.array([2]))}, "row 2 is used 2 times"),
        ({"train": (np.array([0, 0]), np.array([3]))}, "row 0 is used 2 times"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)
