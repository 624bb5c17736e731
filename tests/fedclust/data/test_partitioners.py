"""Who holds what, on examples few enough to count, against flwr-datasets' rules and sums done by hand."""

from dataclasses import dataclass

import datasets
import numpy as np
import pytest
from flwr_datasets.partitioner import DirichletPartitioner, PathologicalPartitioner

from fedclust.data import partitioners as rules
from fedclust.data.emd import EmdKMeans
from fedclust.data.shifts import Blur, FlipLabels, Invert, Noise, Opposite, Relabel, Rotate
from fedclust.data.targets import Amounts, to_text


def assigned(partitioner, labels: list[int], seed: int = 0, natural=None) -> rules.Assignment:
    examples = rules.Examples(np.array(labels), max(labels) + 1, NotImplemented, natural)
    return partitioner.assignment(examples, seed)


def dealt(partitioner: rules.ClientPartitioner, labels: list[int], seed: int = 0) -> np.ndarray:
    """Return the examples of each class that each client holds, shape (K, C)."""
    found = assigned(partitioner, labels, seed)
    counts = np.zeros((found.num_clients, max(labels) + 1), dtype=int)
    np.add.at(counts, (found.clients[found.clients >= 0], np.array(labels)[found.clients >= 0]), 1)
    return counts


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def as_flower(partitioner, labels: list[int]) -> list[np.ndarray]:
    """Return what a partitioner of flwr-datasets gives each client of each class."""
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels})
    clients = range(partitioner.num_partitions)
    return [
        np.bincount(partitioner.load_partition(client)["label"], minlength=max(labels) + 1)
        for client in clients
    ]


@dataclass(frozen=True)
class Given(rules.ClientPartitioner):
    """Assigns rows as given."""

    clients: tuple[int, ...] = ()

    def assign(self, examples: rules.Examples, draws: np.random.Generator) -> rules.Assignment:
        return rules.Assignment(np.array(self.clients))


NO_EXAMPLE = "Given over 3 examples leaves 1 of 3 clients without any.*client 1"


# -- What all share ------------------------------------------------------------------------------------------


def test_blocks_differ_by_one_and_the_first_are_larger() -> None:
    assert rules.blocks(10, 3).tolist() == [4, 3, 3]
    assert rules.blocks(2, 4).tolist() == [1, 1, 0, 0]


def test_apportion_gives_what_is_left_to_the_largest_remainders() -> None:
    # Whole parts 0, 0, 1; two of three are still missing; remainders 0.2, 0.9, 0.9.
    assert rules.apportion(np.array([0.2, 0.9, 1.9]), 3, draws()).tolist() == [0, 1, 2]
    # 0.1 + 0.2 is 0.30000000000000004: a whole quota that is a rounding error short stays whole.
    assert rules.apportion(np.array([2.9999999999999996, 1.0]), 4, draws()).tolist() == [3, 1]
    winners = {int(rules.apportion(np.array([0.5, 0.5]), 1, draws(seed)).argmax()) for seed in range(20)}
    assert winners == {0, 1}  # ties are drawn


def test_deal_gives_the_counts_at_random_and_leaves_the_rest_to_nobody() -> None:
    labels = np.array([0, 1, 1, 0, 1])
    clients = rules.deal(labels, np.array([[1, 1], [1, 0]]), draws(3))
    assert sorted(clients[labels == 0]) == [0, 1]
    assert sorted(clients[labels == 1]) == [-1, -1, 0]
    one_of_six = {tuple(rules.deal(np.zeros(6, int), np.array([[1]]), draws(s)).tolist()) for s in range(60)}
    assert len(one_of_six) == 6


@pytest.mark.parametrize(
    ("rule", "settings", "message"),
    [
        (rules.Iid, {"num_clients": 0}, "num_clients must be >= 1 or None, got 0"),
        (rules.Conventions, {"num_clients": None, "groups": [2, 3]}, "num_clients must be >= 1, got None"),
        (rules.QuantitySkew, {"alpha": 0}, "alpha must be > 0 and finite, got 0"),
        (rules.QuantitySkew, {"alpha": 1, "min_samples": 0}, "min_samples must be >= 1, got 0"),
        (rules.Natural, {"min_samples": 0}, "min_samples must be >= 1, got 0"),
        (rules.Similarity, {"similarity": 1.1}, r"similarity must be in \[0, 1\], got 1.1"),
        (rules.Pathological, {"classes_per_client": 0}, "classes_per_client must be >= 1, got 0"),
        (rules.Pathological, {"classes_per_client": 1, "choice": "best"}, "choice must be one .*got 'best'"),
        (rules.Dirichlet, {"alpha": -1.0}, "alpha must be > 0 and finite, got -1.0"),
        (rules.Dirichlet, {"alpha": 1, "min_samples": 0}, "min_samples must be >= 1, got 0"),
        (rules.Dirichlet, {"alpha": 1, "samples_per_client": 5}, "must be null without equal_sizes=true, g"),
        (EmdKMeans, {"target": 0, "relative": False}, "target must be > 0, got 0"),
        (EmdKMeans, {"target": 1.5}, r"target must be in \(0, 1\], got 1.5"),
        (EmdKMeans, {"target": 0.5, "step": 0.6}, r"step must be in \(0, 0.5\], got 0.6"),
        (EmdKMeans, {"target": 0.5, "bins": 1}, "bins must be >= 2, got 1"),
        (EmdKMeans, {"target": 0.5, "min_samples": 0}, "min_samples must be >= 1, got 0"),
        (rules.Heterogeneity, {"groups": [2, 2], "alphas": [1, 0]}, r"5, got \[2, 2\] with sum 4"),
        (rules.Heterogeneity, {"groups": [3, 2], "alphas": [1]}, "one per group, got 1 for 2 groups"),
        (rules.Heterogeneity, {"groups": [3, 2], "alphas": [1, -1]}, r">= 0 and finite, got \[1, -1\]"),
        (rules.Domains, {"clean": 0.5, "noise": 0.4}, r"got \[0\.5, 0\.4, 0\.0, 0\.0, 0\.0\] with sum 0\.9"),
        (rules.Domains, {"clean": 1.5, "noise": -0.5}, r">= 0 and add up to 1, got \[1\.5, -0\.5"),
        (rules.Domains, {"clean": 1, "noise_std": -1}, "std must be >= 0, got -1"),
        (rules.Conventions, {"groups": [5, 0]}, "groups must be >= 1 each and add up to num_clients, 5, got"),
        (rules.Conventions, {"groups": [5], "alpha": 1, "base": rules.Iid(5)}, "alpha must be null if a"),
        (rules.Conventions, {"groups": [5], "base": rules.Domains(5, clean=1.0)}, "of its own, got Dom"),
        (rules.FlippedFeatures, {"groups": [1, 1, 3], "most": 7}, r"groups must be two sizes, .*\[1, 1, 3\]"),
        (rules.FlippedFeatures, {"groups": [1, 4], "most": 0}, "most must be >= 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(rule: type, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rule(**{"num_clients": 5, **settings})


@pytest.mark.parametrize(
    ("partitioner", "labels", "message"),
    [
        (rules.Iid(4), [0, 0, 0], "at most the number of examples, 3, got 4"),
        *((Given(number, (0, 2, 2)), [0] * 3, NO_EXAMPLE) for number in (3, None)),
        (rules.QuantitySkew(4, alpha=1.0, min_samples=3), [0] * 10, "the 10 examples, got 3 times 4"),
        (rules.Pathological(2, 3), [0, 1, 0, 1], "at most the 2 in the data, got 3"),
        (rules.Pathological(2, 2), [0, 0, 0, 1], "got 2 clients for the 1 of class 1"),
        (rules.Conventions(3, groups=[1, 1, 1]), [0, 1, 0], "at most the 2 classes, got 3 groups"),
    ],
)
def test_what_examples_do_not_allow_is_refused(partitioner, labels, message) -> None:
    with pytest.raises(ValueError, match=message):
        assigned(partitioner, labels)


# -- By one simple rule --------------------------------------------------------------------------------------


def test_iid_and_quantity_skew_keep_the_minimum_and_the_sum() -> None:
    clients = assigned(rules.Iid(3), [0] * 10, 1).clients
    assert np.bincount(clients).tolist() == [4, 3, 3]
    assert np.flatnonzero(clients == 0).tolist() != [0, 1, 2, 3]  # in random order
    sizes = dealt(rules.QuantitySkew(10, alpha=0.1, min_samples=3), [0] * 200)
    assert sizes.sum() == 200
    assert sizes.min() >= 3
    assert sizes.max() > 40  # twice the mean: with alpha 0.1 a few clients hold most
    assert dealt(rules.QuantitySkew(4, alpha=1e12), [0] * 40).tolist() == [[10]] * 4


def by_user(users: list[int], seed: int = 0, **settings: int) -> rules.Assignment:
    return assigned(rules.Natural(**settings), [0] * len(users), seed, natural=users)


def test_natural_clients_are_users_with_enough_examples() -> None:
    # Users 3 and 7; user 9 has one example, and -1 is nobody.
    found = by_user([7, 3, 9, 7, 3, 7, -1, -1])
    assert found.clients.tolist() == [1, 0, -1, 1, 0, 1, -1, -1]
    assert found.left_out == {-1: 2, 9: 1}
    assert by_user([7, 3, 9, 7, 3, 7, -1], min_samples=3).left_out == {-1: 1, 3: 2, 9: 1}
    # Who could be a client but is not drawn is not left out.
    assert by_user([7, 3, 9, 7, 3, 7], num_clients=1).left_out == {9: 1}
    with pytest.raises(ValueError, match=r"between 1 and 1, the users with at least 2 .*\(of 2\), got 2"):
        by_user([0, 0, 1], num_clients=2)
    with pytest.raises(ValueError, match=r"between 1 and 0, .*got None"):
        by_user([0, 1])


def test_natural_draws_as_many_users_as_are_asked_for() -> None:
    users = [user for user in range(10) for _ in range(3)]
    chosen = set()
    for seed in range(5):
        clients = by_user(users, seed, num_clients=4).clients
        held = tuple(int(np.flatnonzero(clients == client)[0]) // 3 for client in range(4))
        assert np.bincount(clients + 1).tolist() == [18, 3, 3, 3, 3]
        assert list(held) == sorted(held)
        chosen.add(held)
    assert len(chosen) > 1


def test_similarity_deals_sorted_blocks_and_random_shares() -> None:
    held = dealt(rules.Similarity(6, similarity=0), [2, 0, 1] * 4)  # 12 examples, 2 each
    assert held.tolist() == [[2, 0, 0], [2, 0, 0], [0, 2, 0], [0, 2, 0], [0, 0, 2], [0, 0, 2]]
    held = dealt(rules.Similarity(4, similarity=1), [0, 1] * 200)
    assert held.sum(axis=1).tolist() == [100] * 4
    # 50 ± 5 of each class by the hypergeometric distribution (50 · 50 · 300 / 399)^0.5 / 10 = 4.3.
    assert (np.abs(held - 50) < 22).all()
    # Half of 40 sorted: clients 0 and 1 get 5 zeros each, 2 and 3 five ones, plus 5 random examples each.
    held = dealt(rules.Similarity(4, similarity=0.5), [0, 1] * 20)
    assert held.sum(axis=1).tolist() == [10] * 4
    assert held.sum(axis=0).tolist() == [20, 20]
    assert held[0, 0] >= 4  # the sorted half has 20 examples, at least 4 zeros among its first 5
    assert dealt(rules.Similarity(3, similarity=0.5), [0, 1] * 5).sum(axis=1).tolist() == [4, 3, 3]


def test_pathological_deterministic_as_flwr_datasets() -> None:
    # Client k holds classes k and k + 1 mod 3; every class has 6 examples and two holders.
    held = dealt(rules.Pathological(3, 2, "deterministic"), [0, 1, 2] * 6)
    assert held.tolist() == [[3, 3, 0], [0, 3, 3], [3, 0, 3]]
    labels = [0] * 7 + [1] * 11 + [2] * 5 + [3] * 8
    options = {"num_classes_per_partition": 2, "class_assignment_mode": "deterministic"}
    expected = as_flower(PathologicalPartitioner(5, "label", **options), labels)
    np.testing.assert_array_equal(dealt(rules.Pathological(5, 2, "deterministic"), labels), expected)
    assert dealt(rules.Pathological(1, 1, "deterministic"), [0, 1, 0, 1]).tolist() == [[2, 0]]  # nobody's 1


def test_pathological_gives_so_many_classes_and_its_own_first() -> None:
    held = dealt(rules.Pathological(8, 2), [0, 1, 2, 3] * 30) > 0
    assert held.sum(axis=1).tolist() == [2] * 8
    assert all(held[client, client % 4] for client in range(8))
    held = dealt(rules.Pathological(8, 3, "random"), [0, 1, 2, 3] * 30) > 0
    assert held.sum(axis=1).tolist() == [3] * 8


# -- Dirichlet draws -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
@pytest.mark.parametrize("self_balancing", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_by_class_draws_what_flwr_datasets_draws(seed: int, self_balancing: bool) -> None:
    options = {"alpha": 0.4, "min_partition_size": 3, "shuffle": False, "seed": seed}
    flower = DirichletPartitioner(6, "label", self_balancing=self_balancing, **options)
    expected = as_flower(flower, [0] * 40 + [1] * 60 + [2] * 50)
    rule = rules.Dirichlet(6, 0.4, min_samples=3, self_balancing=self_balancing)
    ours = rules.counts_by_class(np.array([40, 60, 50]), rule, draws(seed))
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("self_balancing", [False, True])
def test_by_class_finds_minima_that_whole_draws_hardly_meet(self_balancing: bool) -> None:
    # The setting of Clust-PSI-PFL on Fashion-MNIST: one whole draw in twenty thousand would do.
    rule = rules.Dirichlet(100, 0.05, min_samples=10, self_balancing=self_balancing)
    counts = rules.counts_by_class(np.full(10, 7000), rule, draws())
    assert counts.sum(axis=0).tolist() == [7000] * 10
    assert counts.sum(axis=1).min() >= 10


def test_redrawing_classes_gives_what_repeating_whole_draws_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three classes of 1000 over 4 clients with at least 400 each, which one whole draw in four gives: the
    # size of the largest client under both, in 400 draws of each.
    source, repeated = draws(1), []
    while len(repeated) < 400:
        sizes = (1000 * source.dirichlet(np.full(4, 0.5), size=3)).sum(axis=0)
        if sizes.min() >= 400:
            repeated.append(sizes.max())
    monkeypatch.setattr(rules, "_WHOLE_DRAWS", 1)
    thousands, rule = np.full(3, 1000), rules.Dirichlet(4, 0.5, min_samples=400)
    largest = [rules.counts_by_class(thousands, rule, draws(seed)).sum(axis=1).max() for seed in range(400)]
    assert np.mean(largest) == pytest.approx(np.mean(repeated), abs=4 * np.std(repeated) * (2 / 400) ** 0.5)
    assert np.std(largest) == pytest.approx(np.std(repeated), rel=0.2)


def test_by_class_refuses_what_no_draw_gives() -> None:
    # One class and alpha 0.001: nearly everything goes to one of ten clients, in every draw.
    message = r"each of 10 clients 2 examples, .*with fewer .* alpha 0\.001; raise"
    with pytest.raises(ValueError, match=message):
        rules.counts_by_class(np.array([20]), rules.Dirichlet(10, 0.001), draws())
    with pytest.raises(ValueError, match="at most the 20 examples, got 3 times 10"):
        rules.counts_by_class(np.array([20]), rules.Dirichlet(10, 1.0, min_samples=3), draws())


def test_sizes_by_class_are_about_even_and_equal_sizes_exact() -> None:
    # 8 and 12 examples over 4 clients: 2 and 3 each, or one more or less by rounding.
    counts = dealt(rules.Dirichlet(4, alpha=1e9), [0] * 8 + [1] * 12)
    assert counts.sum() == 20
    assert (np.abs(counts - [2, 3]) <= 1).all()
    counts = dealt(rules.Dirichlet(4, alpha=0.3, equal_sizes=True), [0] * 9 + [1] * 9 + [2] * 5)
    assert counts.sum(axis=1).tolist() == [5, 5, 5, 5]  # 23 = 4 · 5 + 3
    fewer = rules.Dirichlet(4, alpha=0.3, equal_sizes=True, samples_per_client=3)
    assert dealt(fewer, [0] * 9 + [1] * 14).sum(axis=1).tolist() == [3, 3, 3, 3]


def test_equal_sizes_mix_as_the_whole_or_hold_one_class() -> None:
    # 5 examples each, 8 of 20 of class 0: 5 · 0.4 = 2 and 5 · 0.6 = 3.
    counts = dealt(rules.Dirichlet(4, alpha=1e12, equal_sizes=True), [0] * 8 + [1] * 12)
    assert counts.tolist() == [[2, 3]] * 4
    counts = dealt(rules.Dirichlet(4, alpha=1e-6, equal_sizes=True), [0, 1, 2, 3] * 10)
    assert sorted(counts.tolist(), reverse=True) == (10 * np.eye(4, dtype=int)).tolist()


def test_alpha_of_equal_sizes_is_the_sum_of_the_parameters() -> None:
    # For shares ~ Dir(alpha·p) with C even classes, E sum_c q_c^2 = (alpha/C + 1) / (alpha + 1): here 0.55.
    # (Were alpha the parameter of each class, it would be (1 + 1) / (10 + 1) = 0.18.) Only a fortieth of the
    # examples is used, so that what is left stays as mixed as the whole; the standard error is 0.015.
    counts = rules.counts_by_client(np.full(10, 40_000), np.full(250, 1.0), 40, draws())
    assert ((counts / 40) ** 2).sum(axis=1).mean() == pytest.approx(0.55, abs=0.05)


def test_the_last_clients_are_as_mixed_as_the_first() -> None:
    # alpha 1000 over 100 classes, all examples used: about 5 per class, for every client.
    counts = rules.counts_by_client(np.full(100, 500), np.full(100, 1000.0), 500, draws())
    assert counts.sum(axis=0).tolist() == [500] * 100
    assert (counts > 0).sum(axis=1).min() >= 90


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
    assert rules.client_size(np.array(class_sizes), np.array(alphas, dtype=float), None) == expected


def test_client_size_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="between 1 and 12, the share of 2 clients in 24 examples, got 13"):
        rules.client_size(np.array([12, 12]), np.array([0.0, 1.0]), 13)
    # 3 · 7 = 21 of 24 examples, but all of class 1, which has 20.
    with pytest.raises(ValueError, match="3 one-class clients share class 1 of 20 examples, got 7"):
        rules.client_size(np.array([4, 20]), np.zeros(3), 7)


def test_one_class_clients_get_one_class_and_the_others_their_mix() -> None:
    counts = rules.counts_by_client(np.array([12, 12]), np.array([1e12, 0.0, 1e12, 0.0]), 6, draws())
    assert counts[0].tolist() == counts[2].tolist() == [3, 3]
    assert sorted(counts[[1, 3]].tolist()) == [[0, 6], [6, 0]]
    counts = rules.counts_by_client(np.array([6, 0, 6]), np.array([0.5, 0.0]), 4, draws())
    assert counts.sum(axis=1).tolist() == [4, 4]
    assert not counts[:, 1].any()  # a class without examples


# -- Known groups --------------------------------------------------------------------------------------------

LABELS = [0, 1] * 12


def test_heterogeneity_by_hand() -> None:
    # 12 examples of each class. One-class clients: one per class. 6 examples each: 12 / (1 + 2 · 1/2).
    partitioner = rules.Heterogeneity(4, groups=[2, 2], alphas=[1e12, 0])
    found, held = assigned(partitioner, LABELS), dealt(partitioner, LABELS).tolist()
    assert found.groups.tolist() == [0, 0, 1, 1]
    assert held[:2] == [[3, 3], [3, 3]]
    assert sorted(held[2:]) == [[0, 6], [6, 0]]
    assert found.shifts == ()
    smaller = rules.Heterogeneity(4, groups=[1, 3], alphas=[0, 0.5], samples_per_client=4)
    assert dealt(smaller, LABELS).sum(axis=1).tolist() == [4] * 4


def test_one_class_clients_leave_others_their_skew_and_their_mix() -> None:
    # 6 examples of each of three classes, clients of 3. The one-class client takes 3 of one class, the even
    # one 1 of each: 2, 5 and 5 are left. The skewed one has 3 of its class, or both of the first one's.
    for seed in range(9):
        counts = rules.counts_by_client(np.full(3, 6), np.array([1e12, 1e-9, 0]), 3, draws(seed))
        even, skewed, single = counts.tolist()
        assert even == [1, 1, 1]
        assert sorted(single) == [0, 0, 3]
        assert max(skewed) == (2 if skewed[single.index(3)] else 3)


def test_domains_in_order_with_their_strengths() -> None:
    shares = {"clean": 0.4, "noise": 0.2, "blur": 0.2, "rotation": 0.1, "invert": 0.1}
    found = assigned(rules.Domains(10, **shares, noise_std=0.3, blur_sigma=1.5), LABELS)
    assert found.groups.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 4]
    kinds = (None, Noise(0.3), Blur(1.5), Rotate(90.0), Invert())
    assert found.shifts == tuple(kinds[group] for group in found.groups)
    assert np.bincount(found.clients, minlength=10).sum() == 24
    found = assigned(rules.Domains(4, clean=0.5, noise=0.0, blur=0.5), LABELS)
    assert found.groups.tolist() == [0, 0, 1, 1]  # a domain without clients is no group
    assert found.shifts == (None, None, Blur(2.0), Blur(2.0))


def test_domains_lie_over_a_shuffled_base() -> None:
    # Sorted, clients 0 and 1 would hold zeros only; the sets of examples stay, who holds them is drawn.
    domains = rules.Domains(4, clean=0.5, noise=0.5, base=rules.Similarity(9, similarity=0))
    held = [dealt(domains, LABELS, seed).tolist() for seed in range(12)]
    assert all(sorted(each) == [[0, 6], [0, 6], [6, 0], [6, 0]] for each in held)
    assert len(set(map(str, held))) > 1
    users = [5] * 10 + [6] * 12 + [7]  # a column of the base
    over_users = rules.Domains(2, clean=0.5, invert=0.5, base=rules.Natural())
    found = assigned(over_users, [0] * 23, natural=users)
    assert sorted(np.bincount(found.clients[found.clients >= 0])) == [10, 12]
    assert found.left_out == {7: 1}


def test_conventions_group_and_relabel() -> None:
    found = assigned(rules.Conventions(3, groups=[2, 1]), LABELS)
    assert found.groups.tolist() == [0, 0, 1]
    assert found.shifts == (None, None, Relabel((1, 0)))  # two classes have one other convention
    assert np.bincount(found.clients).tolist() == [8, 8, 8]
    sizes = np.bincount(assigned(rules.Conventions(4, groups=[2, 2], alpha=0.2), LABELS).clients)
    assert sizes.sum() == 24
    assert len(set(sizes.tolist())) > 1  # over Dirichlet
    flipped = assigned(rules.FlippedFeatures(4, [3, 1], most=7), [0, 1] * 20)
    assert (flipped.groups.tolist(), flipped.shifts) == ([0, 0, 0, 1], (None, None, None, FlipLabels(7)))
    assert np.bincount(flipped.clients).tolist() == [10] * 4


def test_conventions_of_amounts_turn_one_group_round() -> None:
    amounts = Amounts(0.0, 10.0, (5.0,))
    examples = rules.Examples(np.array(LABELS), 2, NotImplemented, target=amounts)
    found = rules.Conventions(3, groups=[2, 1]).assignment(examples, 0)
    assert found.shifts == (None, None, Opposite(to_text(amounts)))
    with pytest.raises(ValueError, match="groups must be at most two for amounts, .* got 3 groups"):
        rules.Conventions(3, groups=[1, 1, 1]).assignment(examples, 0)


def test_no_two_groups_agree_on_any_class() -> None:
    names = rules.conventions(4, 6, draws())
    assert names[0].tolist() == list(range(6))
    assert (np.sort(names, axis=1) == np.arange(6)).all()
    assert (np.sort(names, axis=0)[1:] != np.sort(names, axis=0)[:-1]).all()


def test_conventions_by_hand() -> None:
    # In the circle 2 → 0 → 1 → 2, group 1 calls each class by the next one's name.
    class Circle:
        def permutation(self, size: int) -> np.ndarray:
            return np.array([2, 0, 1])

    assert rules.conventions(2, 3, Circle()).tolist() == [[0, 1, 2], [1, 2, 0]]  # type: ignore[arg-type]
