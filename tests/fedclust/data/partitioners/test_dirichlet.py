"""Dirichlet partitions, against flwr-datasets' and at extremes that can be worked out by hand."""

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import DirichletPartitioner

from fedclust.data.partitioners import Dirichlet, Examples, dirichlet
from fedclust.data.partitioners.dirichlet import client_size, counts_by_class, counts_by_client


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def dealt(partitioner: Dirichlet, labels: list[int]) -> np.ndarray:
    """Return the examples of each class that each client holds, shape (K, C)."""
    clients = partitioner.assignment(Examples.of(labels)).clients
    counts = np.zeros((partitioner.num_clients, max(labels) + 1), dtype=int)
    np.add.at(counts, (clients[clients >= 0], np.array(labels)[clients >= 0]), 1)
    return counts


@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
@pytest.mark.parametrize("self_balancing", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_by_class_draws_what_flwr_datasets_draws(seed: int, self_balancing: bool) -> None:
    labels = np.repeat([0, 1, 2], [40, 60, 50])
    flower = DirichletPartitioner(
        num_partitions=6,
        partition_by="label",
        alpha=0.4,
        min_partition_size=3,
        self_balancing=self_balancing,
        shuffle=False,
        seed=seed,
    )
    flower.dataset = datasets.Dataset.from_dict({"label": labels})
    expected = [np.bincount(flower.load_partition(client)["label"], minlength=3) for client in range(6)]
    ours = counts_by_class(np.array([40, 60, 50]), 6, 0.4, 3, self_balancing, draws(seed))
    np.testing.assert_array_equal(ours, expected)


def test_by_class_with_a_large_alpha_every_client_gets_an_even_share() -> None:
    # 8 and 12 examples over 4 clients: 2 and 3 each, or one more or less by rounding.
    counts = dealt(Dirichlet(4, alpha=1e9), [0] * 8 + [1] * 12)
    assert counts.sum() == 20
    assert (np.abs(counts - [2, 3]) <= 1).all()


def test_by_class_leaves_every_client_the_minimum() -> None:
    counts = dealt(Dirichlet(10, alpha=0.1, min_samples=3), [0, 1, 2, 3] * 50)
    assert counts.sum(axis=0).tolist() == [50] * 4
    assert counts.sum(axis=1).min() >= 3


@pytest.mark.parametrize("self_balancing", [False, True])
def test_by_class_finds_minima_that_whole_draws_hardly_meet(self_balancing: bool) -> None:
    # The setting of Clust-PSI-PFL on Fashion-MNIST: one whole draw in twenty thousand would do.
    for seed in range(3):
        counts = counts_by_class(np.full(10, 7000), 100, 0.05, 10, self_balancing, draws(seed))
        assert counts.sum(axis=0).tolist() == [7000] * 10
        assert counts.sum(axis=1).min() >= 10


def test_redrawing_classes_gives_what_repeating_whole_draws_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three classes of 1000 over 4 clients with at least 400 each, which one whole draw in four gives: the
    # size of the largest client under both, in 400 draws of each.
    source, repeated = draws(1), []
    while len(repeated) < 400:
        shares = source.dirichlet(np.full(4, 0.5), size=3)
        sizes = (1000 * shares).sum(axis=0)
        if sizes.min() >= 400:
            repeated.append(sizes.max())
    monkeypatch.setattr(dirichlet, "_WHOLE_DRAWS", 1)
    largest = [
        counts_by_class(np.full(3, 1000), 4, 0.5, 400, False, draws(seed)).sum(axis=1).max()
        for seed in range(400)
    ]
    assert np.mean(largest) == pytest.approx(np.mean(repeated), abs=4 * np.std(repeated) * (2 / 400) ** 0.5)
    assert np.std(largest) == pytest.approx(np.std(repeated), rel=0.2)


def test_by_class_refuses_what_no_draw_gives() -> None:
    # One class and alpha 0.001: nearly everything goes to one of ten clients, in every draw.
    with pytest.raises(
        ValueError, match=r"every one of 10 clients at least 2 .*with fewer .* alpha 0\.001; raise"
    ):
        counts_by_class(np.array([20]), 10, 0.001, 2, False, draws())
    with pytest.raises(ValueError, match="at most the 20 examples, got 3 times 10"):
        counts_by_class(np.array([20]), 10, 1.0, 3, False, draws())


def test_equal_sizes_are_exact_and_leave_the_remainder() -> None:
    counts = dealt(Dirichlet(4, alpha=0.3, equal_sizes=True), [0] * 9 + [1] * 9 + [2] * 5)
    assert counts.sum(axis=1).tolist() == [5, 5, 5, 5]  # 23 = 4 · 5 + 3
    counts = dealt(Dirichlet(4, alpha=0.3, equal_sizes=True, samples_per_client=3), [0] * 9 + [1] * 14)
    assert counts.sum(axis=1).tolist() == [3, 3, 3, 3]


def test_equal_sizes_with_a_large_alpha_mix_as_the_whole() -> None:
    # 5 examples each, 8 of 20 of class 0: 5 · 0.4 = 2 and 5 · 0.6 = 3.
    counts = dealt(Dirichlet(4, alpha=1e12, equal_sizes=True), [0] * 8 + [1] * 12)
    assert counts.tolist() == [[2, 3]] * 4


def test_equal_sizes_with_a_tiny_alpha_hold_one_class() -> None:
    counts = dealt(Dirichlet(4, alpha=1e-6, equal_sizes=True), [0, 1, 2, 3] * 10)
    assert sorted(counts.max(axis=1)) == [10] * 4
    assert sorted(counts.argmax(axis=1)) == [0, 1, 2, 3]


def test_alpha_of_equal_sizes_is_the_sum_of_the_parameters() -> None:
    # For shares ~ Dir(alpha·p) with C even classes, E sum_c q_c^2 = (alpha/C + 1) / (alpha + 1): here 0.55.
    # (Were alpha the parameter of each class, it would be (1 + 1) / (10 + 1) = 0.18.) Only a fortieth of the
    # examples is used, so that what is left stays as mixed as the whole; the standard error is 0.015.
    counts = counts_by_client(np.full(10, 40_000), np.full(250, 1.0), 40, draws())
    assert ((counts / 40) ** 2).sum(axis=1).mean() == pytest.approx(0.55, abs=0.05)


def test_the_last_clients_are_as_mixed_as_the_first() -> None:
    # alpha 1000 over 100 classes, all examples used: about 5 per class, for every client.
    counts = counts_by_client(np.full(100, 500), np.full(100, 1000.0), 500, draws())
    assert counts.sum(axis=0).tolist() == [500] * 100
    present = (counts > 0).sum(axis=1)
    assert present.min() >= 90


@pytest.mark.parametrize(
    ("class_sizes", "alphas", "expected"),
    [
        ([12, 12], [1, 1], 12),  # everything: 24 / 2
        ([12, 12], [0, 0, 1, 1], 6),  # class c: one one-class client, and half of two others: 12 / (1 + 1)
        ([12, 12], [0, 1], 8),  # the class of the one-class client: 12 / (1 + 0.5)
        ([4, 20], [0, 0, 0], 6),  # all three in class 1 (20, 10 and 20/3 each, always above 4): 20 / 3
    ],
)
def test_client_size_by_hand(class_sizes: list[int], alphas: list[float], expected: int) -> None:
    assert client_size(np.array(class_sizes), np.array(alphas, dtype=float), None) == expected


def test_client_size_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="between 1 and 12, the share of 2 clients in 24 examples, got 13"):
        client_size(np.array([12, 12]), np.array([0.0, 1.0]), 13)
    # 3 · 7 = 21 of 24 examples, but all of class 1, which has 20.
    with pytest.raises(ValueError, match="3 one-class clients share class 1 of 20 examples, got 7"):
        client_size(np.array([4, 20]), np.zeros(3), 7)


def test_one_class_clients_get_one_class_and_the_others_their_mix() -> None:
    counts = counts_by_client(np.array([12, 12]), np.array([1e12, 0.0, 1e12, 0.0]), 6, draws())
    assert counts[0].tolist() == counts[2].tolist() == [3, 3]
    assert sorted(counts[[1, 3]].tolist()) == [[0, 6], [6, 0]]


def test_no_client_gets_a_class_without_examples() -> None:
    counts = counts_by_client(np.array([6, 0, 6]), np.array([0.5, 0.0]), 4, draws())
    assert counts.sum(axis=1).tolist() == [4, 4]
    assert not counts[:, 1].any()
