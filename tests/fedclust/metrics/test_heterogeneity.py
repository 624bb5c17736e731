import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance_nd

from fedclust.metrics import earth_movers, hellinger, jensen_shannon, label_shares, weighted_psi


def test_shares_add_up_to_one_on_every_client() -> None:
    np.testing.assert_array_equal(label_shares(np.array([[1, 3], [0, 5]])), [[0.25, 0.75], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.ones(3), r"counts must have shape \(clients, classes\), got \(3,\)"),
        (np.ones((0, 3)), r"counts must have shape \(clients, classes\), got \(0, 3\)"),
        (np.array([[1, -2]]), r"counts must be finite and >= 0, got -2\.0"),
        (np.array([[1, np.nan]]), "counts must be finite and >= 0, got nan"),
        (np.array([[1, 2], [0, 0]]), "counts must have an example on every client, got none on client 1"),
    ],
)
def test_counts_that_are_none_are_refused(counts: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        label_shares(counts)


Distance = Callable[[np.ndarray], float]

bounded: list[Distance] = [hellinger, jensen_shannon, earth_movers]
all_distances: list[Distance] = [*bounded, weighted_psi]

unhurried = settings(max_examples=50, deadline=None)  # a busy machine is no failure
counts_of_clients = arrays(np.int64, (4, 3), elements=st.integers(0, 30)).map(
    lambda counts: counts + np.array([1, 0, 0])
)

# Client 0 has class 0 alone, client 1 both: P = (3/4, 1/4), and client 1 weighs as much as client 0.
TWO = np.array([[4, 0], [2, 2]])


def test_hellinger_of_two_clients() -> None:
    # Client 0: 1 - sqrt(3/4) = 0.13397460, root 0.36602540.
    # Client 1: 1 - (sqrt(3/8) + sqrt(1/8)) = 0.03407417, root 0.18459191.
    assert hellinger(TWO) == pytest.approx((0.36602540 + 0.18459191) / 2)


def test_jensen_shannon_of_two_clients() -> None:
    # Client 0, middle (7/8, 1/8): [log2(8/7) + 3/4 log2(6/7) + 1/4 log2 2] / 2.
    first = (math.log2(8 / 7) + 3 / 4 * math.log2(6 / 7) + 1 / 4) / 2
    # Client 1, middle (5/8, 3/8): [1/2 log2(4/5) + 1/2 log2(4/3) + 3/4 log2(6/5) + 1/4 log2(2/3)] / 2.
    second = (
        math.log2(4 / 5) / 2 + math.log2(4 / 3) / 2 + 3 / 4 * math.log2(6 / 5) + math.log2(2 / 3) / 4
    ) / 2
    assert jensen_shannon(TWO) == pytest.approx((math.sqrt(first) + math.sqrt(second)) / 2)


def test_earth_movers_of_two_clients() -> None:
    # Either client would have to exchange a quarter of its examples.
    assert earth_movers(TWO) == pytest.approx(0.25)


def test_weighted_psi_of_two_clients() -> None:
    # Client 0: (3/4 - 1) ln(3/4) + (1/4 - 1e-4) ln(2500); client 1: 1/4 ln(3/2) - 1/4 ln(1/2) = 1/4 ln 3.
    first = -0.25 * math.log(0.75) + (0.25 - 1e-4) * math.log(2500)
    assert weighted_psi(TWO) == pytest.approx((first + 0.25 * math.log(3)) / 2)


def test_lower_bound_of_shares_is_an_argument() -> None:
    first = -0.25 * math.log(0.75) + (0.25 - 0.01) * math.log(25)
    assert weighted_psi(TWO, epsilon=0.01) == pytest.approx((first + 0.25 * math.log(3)) / 2)


@unhurried
@given(counts_of_clients)
def test_jensen_shannon_is_a_weighted_mean_of_scipys(counts: np.ndarray) -> None:
    everyone = counts.sum(axis=0) / counts.sum()
    distances = [jensenshannon(row / row.sum(), everyone, base=2) for row in counts]
    expected = np.average(np.nan_to_num(distances), weights=counts.sum(axis=1))
    assert jensen_shannon(counts) == pytest.approx(expected, abs=1e-7)


@settings(max_examples=10, deadline=None)
@given(counts_of_clients)
def test_earth_movers_solves_the_transport_problem(counts: np.ndarray) -> None:
    # Corners of a simplex are equally far from each other, at a distance of sqrt(2).
    corners = np.eye(3) / math.sqrt(2)
    everyone = counts.sum(axis=0) / counts.sum()
    distances = [wasserstein_distance_nd(corners, corners, row / row.sum(), everyone) for row in counts]
    assert earth_movers(counts) == pytest.approx(np.average(distances, weights=counts.sum(axis=1)), abs=1e-7)


@pytest.mark.parametrize("distance", all_distances)
def test_larger_clients_weigh_more(distance: Distance) -> None:
    # Splitting a client into two of its distribution changes nothing.
    whole = distance(np.array([[8, 4], [1, 3]]))
    assert distance(np.array([[2, 1], [6, 3], [1, 3]])) == pytest.approx(whole)


@pytest.mark.parametrize("distance", all_distances)
def test_clients_of_one_distribution_are_not_apart(distance: Distance) -> None:
    counts = np.arange(1, 40)[:, None] * np.array([[1, 2, 4, 0, 7]])
    assert distance(counts) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("distance", bounded)
def test_one_class_per_client_is_the_far_end(distance: Distance) -> None:
    # With many classes a client shares next to nothing with the federation.
    assert distance(np.eye(1000)) > 0.96


def test_lower_bound_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon must be in"):
        weighted_psi(TWO, epsilon=0.0)
