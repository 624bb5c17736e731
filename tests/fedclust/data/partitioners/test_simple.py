"""IID, by quantity, by label and by user, on examples few enough to count."""

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import PathologicalPartitioner

from fedclust.data.partitioners import (
    Assignment,
    ClientPartitioner,
    Examples,
    Iid,
    Natural,
    Pathological,
    QuantitySkew,
    Similarity,
)


def counts(partitioner: ClientPartitioner, labels: list[int]) -> np.ndarray:
    """Return the examples of each class that each client holds, shape (K, C)."""
    found = partitioner.assignment(Examples.of(labels))
    counts = np.zeros((found.num_clients, max(labels) + 1), dtype=int)
    np.add.at(counts, (found.clients[found.clients >= 0], np.array(labels)[found.clients >= 0]), 1)
    return counts


def test_iid_deals_everything_evenly_in_random_order() -> None:
    clients = Iid(3).assignment(Examples.of([0] * 10), 1).clients
    assert np.bincount(clients).tolist() == [4, 3, 3]
    assert np.flatnonzero(clients == 0).tolist() != [0, 1, 2, 3]


def test_quantity_skew_keeps_the_minimum_and_the_sum() -> None:
    sizes = counts(QuantitySkew(10, alpha=0.1, min_samples=3), [0] * 200)
    assert sizes.sum() == 200
    assert sizes.min() >= 3
    assert sizes.max() > 40  # twice the mean: with alpha 0.1 a few clients hold most
    assert counts(QuantitySkew(4, alpha=1e12), [0] * 40).tolist() == [[10]] * 4
    with pytest.raises(ValueError, match="at most the 10 examples, got 3 times 4"):
        counts(QuantitySkew(4, alpha=1.0, min_samples=3), [0] * 10)


def by_user(partitioner: Natural, users: list[int], seed: int = 0) -> Assignment:
    return partitioner.assignment(Examples.of([0] * len(users), natural=users), seed)


def test_natural_clients_are_users_with_enough_examples() -> None:
    # Users 3 and 7; user 9 has one example, and -1 is nobody.
    found = by_user(Natural(), [7, 3, 9, 7, 3, 7, -1, -1])
    assert found.clients.tolist() == [1, 0, -1, 1, 0, 1, -1, -1]
    assert found.left_out == {9: 1}
    assert by_user(Natural(min_samples=3), [7, 3, 9, 7, 3, 7, -1]).left_out == {3: 2, 9: 1}
    # Who could be a client but is not drawn is not left out.
    assert by_user(Natural(num_clients=1), [7, 3, 9, 7, 3, 7]).left_out == {9: 1}


def test_natural_draws_as_many_users_as_are_asked_for() -> None:
    users = [user for user in range(10) for _ in range(3)]
    chosen = set()
    for seed in range(5):
        clients = by_user(Natural(num_clients=4), users, seed).clients
        held = tuple(int(np.flatnonzero(clients == client)[0]) // 3 for client in range(4))
        assert np.bincount(clients + 1).tolist() == [18, 3, 3, 3, 3]
        assert list(held) == sorted(held)
        chosen.add(held)
    assert len(chosen) > 1


def test_natural_refuses_more_clients_than_users() -> None:
    with pytest.raises(ValueError, match=r"between 1 and 1, the users with at least 2 .*\(of 2 .*got 2"):
        by_user(Natural(num_clients=2), [0, 0, 1])
    with pytest.raises(ValueError, match=r"between 1 and 0, .*got None"):
        by_user(Natural(), [0, 1])


def test_similarity_0_deals_sorted_blocks() -> None:
    held = counts(Similarity(6, similarity=0), [2, 0, 1] * 4)  # 12 examples, 2 each
    assert held.tolist() == [[2, 0, 0], [2, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2], [0, 0, 2]]


def test_similarity_1_deals_at_random() -> None:
    held = counts(Similarity(4, similarity=1), [0, 1] * 200)
    assert held.sum(axis=1).tolist() == [100] * 4
    # 50 ± 5 of each class by the hypergeometric distribution (50 · 50 · 300 / 399)^0.5 / 10 = 4.3.
    assert (np.abs(held - 50) < 22).all()


def test_similarity_between_shares_both_kinds_evenly() -> None:
    # Half of 40 sorted: clients 0 and 1 get 5 zeros each, 2 and 3 five ones, plus 5 random examples each.
    held = counts(Similarity(4, similarity=0.5), [0, 1] * 20)
    assert held.sum(axis=1).tolist() == [10] * 4
    assert held.sum(axis=0).tolist() == [20, 20]
    assert held[0, 0] >= 4  # the sorted half has 20 examples, at least 4 zeros among its first 5
    sizes = counts(Similarity(3, similarity=0.5), [0, 1] * 5).sum(axis=1)
    assert sizes.tolist() == [4, 3, 3]


def test_pathological_deterministic_by_hand() -> None:
    # Client k holds classes k and k + 1 mod 3; every class has 6 examples and two holders.
    held = counts(Pathological(3, 2, "deterministic"), [0, 1, 2] * 6)
    assert held.tolist() == [[3, 3, 0], [0, 3, 3], [3, 0, 3]]


def test_pathological_deterministic_as_flwr_datasets() -> None:
    labels = [0] * 7 + [1] * 11 + [2] * 5 + [3] * 8
    flower = PathologicalPartitioner(
        5, "label", num_classes_per_partition=2, class_assignment_mode="deterministic"
    )
    flower.dataset = datasets.Dataset.from_dict({"label": labels})
    expected = [np.bincount(flower.load_partition(client)["label"], minlength=4) for client in range(5)]
    np.testing.assert_array_equal(counts(Pathological(5, 2, "deterministic"), labels), expected)


def test_pathological_first_deterministic_begins_with_its_own_class() -> None:
    held = counts(Pathological(8, 2), [0, 1, 2, 3] * 30) > 0
    assert held.sum(axis=1).tolist() == [2] * 8
    assert all(held[client, client % 4] for client in range(8))


def test_pathological_random_gives_so_many_classes() -> None:
    held = counts(Pathological(8, 3, "random"), [0, 1, 2, 3] * 30) > 0
    assert held.sum(axis=1).tolist() == [3] * 8


def test_pathological_leaves_out_classes_nobody_holds() -> None:
    assert counts(Pathological(1, 1, "deterministic"), [0, 1, 0, 1]).tolist() == [[2, 0]]


def test_pathological_refuses_what_is_impossible() -> None:
    with pytest.raises(ValueError, match="at most the 2 classes in the data, got 3"):
        counts(Pathological(2, 3), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="got 2 clients for the 1 of class 1"):
        counts(Pathological(2, 2), [0, 0, 0, 1])
