import numpy as np
import pytest
import torch

from fedclust.data.arrays import from_arrays
from fedclust.data.dataset import Dataset, FederatedData, newcomers_last, num_held_out, training_first

PLAIN: dict = {"name": "tiny", "mean": (), "std": (), "fingerprint": "f"}


def make(**changes) -> Dataset:
    values: dict = {"inputs": torch.zeros(3, 2), "labels": torch.tensor([0, 1, 1]), "natural": None}
    values |= {"num_classes": 2, "class_names": ("a", "b"), "num_train": 2}
    return Dataset(**(PLAIN | values | changes))


def federated(**changes) -> FederatedData:
    values: dict = {"inputs": torch.zeros(6, 2), "labels": torch.tensor([0, 0, 1, 2, 2, 2]), "groups": None}
    values |= {"train": (np.array([0, 2]), np.array([3, 4])), "test": (np.array([1]), np.array([5]))}
    values |= {"num_classes": 4, "class_names": ("a", "b", "c", "d")}
    return FederatedData(**(PLAIN | values | changes))


NO_ROWS = {"inputs": torch.zeros(0, 2), "labels": torch.zeros(0, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("made", "changes", "message"),
    [
        (make, NO_ROWS, r"labels must have shape \(0,\)"),
        (make, {"labels": torch.tensor([0, 1])}, r"labels must have shape \(3,\) .* got \(2,\)"),
        (make, {"labels": torch.zeros(3, 1, 1, dtype=torch.int64)}, "labels must have shape"),
        (make, {"labels": torch.tensor([0, 1, 2])}, r"labels must be in \[0, 2\), got 0 to 2"),
        (make, {"labels": torch.tensor([-1, 1, 0])}, "got -1 to 1"),
        (make, {"class_names": ("a",)}, "num_classes must be 1, got 2"),
        (federated, {"train": (), "test": ()}, "at least one client"),
        (federated, {"test": (np.array([1]),)}, "test must have one entry per client, got 1 for 2"),
        (federated, {"client_names": ("Mercy",)}, "client_names must have one entry per client, got 1 for 2"),
        (federated, {"groups": np.array([0, 1, 1])}, r"groups must have shape \(2,\), got \(3,\)"),
        (federated, {"test": (np.array([1]), np.array([6]))}, r"rows must be in \[0, 6\), got 0 to 6"),
        (federated, {"test": (np.array([-1]), np.array([5]))}, "got -1 to 5"),
        (federated, {"test": (np.array([1]), np.array([2]))}, "row 2 has 2"),
        (federated, {"train": (np.array([0, 0]), np.array([3]))}, "row 0 has 2"),
    ],
)
def test_contradictions_are_refused(made, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changes)


def test_label_counts_of_each_part() -> None:
    data = federated(test=(np.array([], dtype=np.int64), np.array([5])))
    # client 0 trains on rows 0 and 2, labelled 0 and 1; client 1 on rows 3 and 4, both labelled 2
    np.testing.assert_array_equal(data.label_counts(), [[1, 1, 0, 0], [0, 0, 2, 0]])
    np.testing.assert_array_equal(data.label_counts("test"), [[0, 0, 0, 0], [0, 0, 1, 0]])
    assert (data.num_clients, data.input_shape) == (2, (2,))
    labels = torch.tensor([[0, 1], [1, 1], [0, 0], [3, 3], [3, 0], [0, 0]])
    # every position counts: client 0 has 0, 1, 0, 0; client 1 has 3, 3, 3, 0
    np.testing.assert_array_equal(federated(labels=labels).label_counts(), [[3, 1, 0, 0], [1, 0, 0, 3]])


@pytest.mark.parametrize(
    ("held_out", "expected"),
    [(0, 0), (0.2, 2), (0.25, 2), (0.01, 1), (3, 3), (9, 9), (0.9, 9)],  # of ten; 2.5 rounds to even
)
def test_a_share_or_a_number_is_left_out(held_out, expected) -> None:
    assert num_held_out(10, held_out) == expected


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        *((each, f"must leave a client to train, got {each} of 10") for each in (10, 0.99)),
        *((each, "holdout_clients must be a share in") for each in (-1, 1.5, True, "0.2", float("nan"))),
    ],
)
def test_a_client_must_be_left_to_train(held_out, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        num_held_out(10, held_out)


def test_who_is_left_out_comes_last_and_depends_on_the_seed_alone() -> None:
    order = training_first(10, 0.3, seed=4)
    assert sorted(order) == list(range(10))
    assert sorted(order[:7]) == list(order[:7])
    assert sorted(order[7:]) == list(order[7:])
    np.testing.assert_array_equal(order, training_first(10, 3, seed=4))
    assert len({tuple(training_first(10, 3, seed)) for seed in range(20)}) > 10


def test_clients_keep_their_rows_and_names() -> None:
    data = from_arrays([(np.full((4, 1), client, np.float32), [0, 1, 0, 1]) for client in range(5)], seed=3)
    found = newcomers_last(data, 2, seed=1)
    order = training_first(5, 2, seed=1)
    for number, client in enumerate(order.tolist()):
        np.testing.assert_array_equal(found.train[number], data.train[client])
        assert (found.inputs[found.train[number]] == client).all()
        assert (found.inputs[found.test[number]] == client).all()
    assert found.fingerprint != data.fingerprint
    assert newcomers_last(data, 0, seed=1) is data
