import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from fedclust.clustering.haccs import draw, groups, hellinger, weights


def test_hellinger_by_hand() -> None:
    # Shares (1, 0), (1/2, 1/2) and (0, 1). H² is 1 − Σ √(p q): 1 − √½ = 0.29289 between neighbours.
    distances = hellinger(np.array([[4, 0], [3, 3], [0, 1]]))
    near = np.sqrt(1 - np.sqrt(0.5))
    np.testing.assert_allclose(distances, [[0, near, 1], [near, 0, near], [1, near, 0]], atol=1e-12)


def test_two_groups_of_histograms_and_one_client_alone() -> None:
    # Shares (½, ½) and (0.6, 0.4) are √(1 − √0.3 − √0.2) = 0.071 apart, groups 1. The last client has a
    # quarter of each class: √(1 − 2·√⅛) = 0.541 from (½, ½), √(1 − √0.15 − √0.1) = 0.545 from (0.6, 0.4).
    counts = np.array([[5, 5, 0, 0], [6, 4, 0, 0], [0, 0, 5, 5], [4, 6, 0, 0], [0, 0, 4, 6], [5, 5, 5, 5]])
    assert groups(counts, 0.25).tolist() == [0, 0, 1, 0, 1, 2]


def test_one_distance_decides_who_are_neighbours() -> None:
    # The three of test_hellinger_by_hand: neighbours are 0.541 apart.
    counts = np.array([[4, 0], [3, 3], [0, 1]])
    assert groups(counts, 0.55).tolist() == [0, 0, 0]
    assert sorted(groups(counts, 0.53).tolist()) == [0, 1, 2]


def test_equal_histograms_are_one_group_and_a_single_client_is_one() -> None:
    assert groups(np.full((5, 3), 7), 0.25).tolist() == [0] * 5
    assert groups(np.array([[1, 2]]), 0.25).tolist() == [0]


@pytest.mark.parametrize("num_groups", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_label_groups_are_found(num_groups: int, seed: int) -> None:
    # Ten classes dealt out to the groups; 30 clients with 48 samples each, drawn from their group's classes.
    shares = np.eye(num_groups).repeat(10 // num_groups, axis=1) * num_groups / 10
    truth = np.arange(30) % num_groups
    draws = np.random.default_rng(seed)
    counts = np.stack([draws.multinomial(48, shares[group]) for group in truth])
    assert adjusted_rand_score(truth, groups(counts, 0.25)) == 1


def test_weights_by_hand() -> None:
    labels, losses = np.array([0, 0, 1]), np.array([1.0, 3.0, 6.0])
    # Mean losses 2 and 6, shares 1/4 and 3/4.
    assert weights(labels, losses, None, 0.95) == {0: 0.25, 1: 0.75}
    # Mean latencies 1 and 4, so speeds 1 − 1/4 and 1 − 4/4: 0.6·0.25 + 0.4·0.75 and 0.6·0.75 + 0.
    found = weights(labels, losses, np.array([0.5, 1.5, 4.0]), 0.6)
    assert found == {0: pytest.approx(0.45), 1: pytest.approx(0.45)}
    assert weights(labels, np.zeros(3), None, 0.95) == {0: 0.5, 1: 0.5}


def test_groups_are_drawn_by_weight_and_their_fastest_taken() -> None:
    clients, labels = np.array([2, 3, 5, 7]), np.array([0, 0, 1, 1])
    losses, seconds = np.array([1.0, 1.0, 3.0, 3.0]), np.array([9.0, 2.0, 4.0, 1.0])
    generator = np.random.default_rng(0)
    first = np.concatenate([draw(clients, labels, losses, seconds, 1.0, 1, generator) for _ in range(2000)])
    # ρ = 1: by loss alone, 1/4 and 3/4, sd 0.0097; in each group the fastest, 3 and 7.
    assert set(first.tolist()) == {3, 7}
    assert abs((first == 7).mean() - 0.75) < 0.05
    # Where a group is used up, the other one is drawn.
    assert draw(clients, labels, losses, seconds, 1.0, 3, generator).tolist() in ([2, 3, 7], [3, 5, 7])
    assert draw(clients, labels, losses, seconds, 1.0, 9, generator).tolist() == [2, 3, 5, 7]


def test_without_latencies_everyone_in_a_group_is_equally_likely() -> None:
    generator = np.random.default_rng(0)
    clients, labels, losses = np.arange(3), np.array([0, 0, 1]), np.array([1.0, 3.0, 2.0])
    drawn = np.concatenate([draw(clients, labels, losses, None, 0.95, 1, generator) for _ in range(4000)])
    # Both groups have mean loss 2: 1/4, 1/4 and 1/2, sd at most 0.008.
    np.testing.assert_allclose(np.bincount(drawn) / 4000, [0.25, 0.25, 0.5], atol=0.04)


def test_a_group_of_weight_zero_comes_last() -> None:
    # Losses 0 and 2: the first group has no share, but is drawn once the other one is used up.
    generator = np.random.default_rng(0)
    labels, losses = np.array([0, 1, 1]), np.array([0.0, 2.0, 2.0])
    for _ in range(20):
        assert draw(np.arange(3), labels, losses, None, 1.0, 2, generator).tolist() == [1, 2]
    assert draw(np.arange(3), labels, losses, None, 1.0, 3, generator).tolist() == [0, 1, 2]


def test_nobody_there_is_nobody_drawn() -> None:
    nobody = np.zeros(0, dtype=np.int64)
    drawn = draw(nobody, nobody, np.zeros(0), None, 0.95, 3, np.random.default_rng(0))
    assert drawn.shape == (0,)
    assert drawn.dtype == np.int64


def test_a_loss_below_0_counts_as_0() -> None:
    losses = np.array([-3.0, 1.0, 1.0])
    assert weights(np.array([0, 1, 1]), losses, None, 1.0) == {0: 0.0, 1: 1.0}
    assert draw(np.arange(3), np.array([0, 1, 1]), losses, None, 1.0, 3, np.random.default_rng(0)).size == 3
