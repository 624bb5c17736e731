"""Known groupings: sizes, labels and shifts worked out by hand."""

import numpy as np
import pytest

from fedclust.data.partitioners import (
    Assignment,
    ClientPartitioner,
    Conventions,
    Domains,
    Examples,
    FlippedFeatures,
    Heterogeneity,
    Natural,
    Similarity,
)
from fedclust.data.partitioners.groups import conventions
from fedclust.data.shifts import Blur, FlipLabels, Invert, Noise, Relabel, Rotate

LABELS = [0, 1] * 12
SEED = 0


def over(partitioner: ClientPartitioner, labels: list[int] = LABELS, **columns: list) -> Assignment:
    return partitioner.assignment(Examples.of(labels, **columns), SEED)


def counts(found: Assignment, labels: list[int] = LABELS) -> list[list[int]]:
    values = np.array(labels)
    return [
        np.bincount(values[found.clients == client], minlength=2).tolist()
        for client in range(found.num_clients)
    ]


def test_heterogeneity_by_hand() -> None:
    # 12 examples of each class. One-class clients: one per class. 6 examples each: 12 / (1 + 2 · 1/2).
    found = over(Heterogeneity(4, groups=[2, 2], alphas=[1e12, 0]))
    assert found.groups.tolist() == [0, 0, 1, 1]
    held = counts(found)
    assert held[:2] == [[3, 3], [3, 3]]
    assert sorted(held[2:]) == [[0, 6], [6, 0]]
    assert found.shifts == ()


def test_heterogeneity_takes_the_size_asked_for() -> None:
    held = counts(over(Heterogeneity(4, groups=[1, 3], alphas=[0, 0.5], samples_per_client=4)))
    assert [sum(client) for client in held] == [4] * 4


def test_domains_in_order_with_their_strengths() -> None:
    found = over(
        Domains(10, clean=0.4, noise=0.2, blur=0.2, rotation=0.1, invert=0.1, noise_std=0.3, blur_sigma=1.5)
    )
    assert found.groups.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 4]
    assert found.shifts == (
        *(None,) * 4,
        *(Noise(0.3),) * 2,
        *(Blur(1.5),) * 2,
        Rotate(90.0),
        Invert(),
    )
    assert np.bincount(found.clients, minlength=10).sum() == 24


def test_a_domain_without_clients_is_no_group() -> None:
    found = over(Domains(4, clean=0.5, noise=0.0, blur=0.5))
    assert found.groups.tolist() == [0, 0, 1, 1]
    assert found.shifts == (None, None, Blur(2.0), Blur(2.0))


def test_domains_lie_over_a_shuffled_base() -> None:
    # Sorted, clients 0 and 1 would hold zeros only; the sets of examples stay, who holds them is drawn.
    orders = set()
    for seed in range(12):
        domains = Domains(4, clean=0.5, noise=0.5, base=Similarity(9, similarity=0))
        held = counts(domains.assignment(Examples.of(LABELS), seed))
        assert sorted(held) == [[0, 6], [0, 6], [6, 0], [6, 0]]
        orders.add(str(held))
    assert len(orders) > 1


def test_domains_read_the_columns_of_their_base() -> None:
    users = [5] * 10 + [6] * 12 + [7]
    found = over(Domains(2, clean=0.5, invert=0.5, base=Natural()), [0] * 23, natural=users)
    assert sorted(np.bincount(found.clients[found.clients >= 0])) == [10, 12]


def test_conventions_group_and_relabel() -> None:
    found = over(Conventions(3, groups=[2, 1]))
    assert found.groups.tolist() == [0, 0, 1]
    assert found.shifts == (None, None, Relabel((1, 0)))  # two classes have one other convention
    assert np.bincount(found.clients).tolist() == [8, 8, 8]


def test_conventions_lie_over_dirichlet_where_alpha_is_given() -> None:
    sizes = np.bincount(over(Conventions(4, groups=[2, 2], alpha=0.2)).clients)
    assert sizes.sum() == 24
    assert len(set(sizes.tolist())) > 1


def test_no_two_groups_agree_on_any_class() -> None:
    names = conventions(4, 6, np.random.default_rng(0))
    assert names[0].tolist() == list(range(6))
    for one in range(4):
        assert sorted(names[one]) == list(range(6))
        for other in range(one):
            assert (names[one] != names[other]).all()


def test_conventions_by_hand() -> None:
    # In the circle 2 → 0 → 1 → 2, group 1 calls each class by the next one's name.
    class Circle:
        def permutation(self, size: int) -> np.ndarray:
            return np.array([2, 0, 1])

    names = conventions(2, 3, Circle())  # type: ignore[arg-type]
    assert names.tolist() == [[0, 1, 2], [1, 2, 0]]


def test_conventions_refuse_more_groups_than_classes() -> None:
    with pytest.raises(ValueError, match="groups must be at most the 2 classes, got 3 groups"):
        over(Conventions(3, groups=[1, 1, 1]))


def test_the_second_group_has_flipped_labels_over_the_base() -> None:
    found = over(FlippedFeatures(4, [3, 1], most=7), [0, 1] * 20)
    assert found.groups.tolist() == [0, 0, 0, 1]
    assert found.shifts == (None, None, None, FlipLabels(7))
    assert np.bincount(found.clients).tolist() == [10] * 4
