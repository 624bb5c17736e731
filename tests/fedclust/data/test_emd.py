"""Feature skew on two points of a line, where the earth mover's distance is arithmetic."""

import numpy as np
import pytest

from fedclust.data import emd
from fedclust.data.emd import EmdKMeans, earth_movers_distance, mix
from fedclust.data.partitioners import Examples

CENTROIDS = np.array([[0.0], [10.0]])


def on_two_points(partitioner: EmdKMeans, size: int = 20) -> tuple[np.ndarray, float]:
    """Return each example's client, and their mean distance."""
    features = np.repeat([[0.0], [10.0]], size, axis=0)
    examples = Examples(np.zeros(2 * size, int), 1, lambda: features)
    clients = partitioner.assignment(examples).clients
    return clients, earth_movers_distance(clients, np.repeat([0, 1], size), CENTROIDS)[0]


def test_distance_by_hand() -> None:
    # Client 0 holds 4 examples at 0, client 1 one at 0 and three at 10; the whole is 5/8 and 3/8.
    # Client 0 moves 3/8 of its mass by 10, client 1 moves 3/4 − 3/8 = 3/8 by 10: the mean is 3.75.
    clients = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    bins = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    mean, shares = earth_movers_distance(clients, bins, CENTROIDS)
    assert mean == pytest.approx(3.75)
    assert shares.tolist() == [[1, 0], [0.25, 0.75]]


def test_distance_weighs_clients_by_size() -> None:
    # Client 0: one example at 10; client 1: three at 0; the whole: 3/4 at 0. They move 3/4 and 1/4 of their
    # mass by 10: (7.5 + 3 · 2.5) / 4.
    mean, _ = earth_movers_distance(np.array([0, 1, 1, 1]), np.array([1, 0, 0, 0]), CENTROIDS)
    assert mean == pytest.approx(3.75)


def test_the_whole_target_is_the_k_means_partition() -> None:
    clients, distance = on_two_points(EmdKMeans(2, target=1.0, bins=2))
    assert len(set(clients[:20])) == len(set(clients[20:])) == 1
    assert distance == pytest.approx(5.0)  # half of each client's mass by 10


@pytest.mark.parametrize(("target", "relative"), [(0.5, True), (2.5, False)])
def test_mixing_comes_down_to_the_target(target: float, relative: bool) -> None:
    clients, distance = on_two_points(EmdKMeans(2, target=target, relative=relative, bins=2))
    assert np.bincount(clients).tolist() == [20, 20]
    # A sweep exchanges two of 20 examples at most, which changes the distance by 1 at most.
    assert 1.5 <= distance <= 2.5


def test_without_the_test_of_normality_the_first_partition_at_the_target_is_used(monkeypatch) -> None:
    monkeypatch.setattr(emd, "_pairs_look_normal", None)
    assert on_two_points(EmdKMeans(2, target=0.5, bins=2, normality=False))[1] <= 2.5


def test_mixing_keeps_sizes_and_brings_the_farthest_nearer() -> None:
    features = np.concatenate([np.zeros((30, 1)), np.full((20, 1), 1.0), np.full((10, 1), 50.0)])
    clients = np.repeat([0, 1, 2], [30, 20, 10])
    mixed = mix(clients, features, 0.5, np.random.default_rng(0))
    assert np.bincount(mixed).tolist() == [30, 20, 10]
    assert features[mixed == 2].mean() < 50
    assert clients.tolist() == np.repeat([0, 1, 2], [30, 20, 10]).tolist()


def test_where_distances_are_not_normal_the_partition_at_the_target_is_used(monkeypatch) -> None:
    monkeypatch.setattr(emd, "_pairs_look_normal", lambda shares, centroids: False)
    with pytest.warns(UserWarning, match=r"not normally distributed .* from 2\.5 to 2\.375"):
        assert on_two_points(EmdKMeans(2, target=0.5, bins=2))[1] <= 2.5


def test_distances_of_pairs_are_tested() -> None:
    even = np.array([[1.0, 0.0], [0.9, 0.1], [0.55, 0.45], [0.2, 0.8], [0.0, 1.0]])
    assert emd._pairs_look_normal(even, CENTROIDS)
    # Nine clients at one point and one at the other: 36 distances of 0 and 9 of 10.
    outlier = np.array([[1.0, 0.0]] * 9 + [[0.0, 1.0]])
    assert not emd._pairs_look_normal(outlier, CENTROIDS)


def test_targets_that_cannot_be_met_are_refused() -> None:
    with pytest.raises(ValueError, match="at most the k-means clusters' 5, got 6"):
        on_two_points(EmdKMeans(2, target=6.0, relative=False, bins=2))
    # With 21 examples at each point a client is never half and half: 0.5 / 21 of it is 10 away.
    with pytest.raises(ValueError, match=r"that mixing reaches, got 0\.01: it is still .* after 200 sweeps"):
        on_two_points(EmdKMeans(2, target=0.01, relative=False, bins=2), 21)
    with pytest.raises(ValueError, match="at least min_samples examples, 21, got a k-means cluster of 20"):
        on_two_points(EmdKMeans(2, target=0.5, bins=2, min_samples=21))


def test_one_client_holds_everything() -> None:
    # Its distance to all examples is 0 up to rounding, on either side of 0.
    for size in range(3, 12):
        features = np.random.default_rng(size).normal(size=(size, 3))
        examples = Examples(np.zeros(size, int), 1, lambda features=features: features)
        assert not EmdKMeans(1, target=0.5).assignment(examples).clients.any()
