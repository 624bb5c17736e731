import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.clust_psi_pfl.predicted_error import choose, error_ratio


def test_error_ratio_of_two_pairs_with_one_class_each() -> None:
    # N_c = 20, q = 1/2, B(q) = e^{ln 2} − 1 = 1. Cluster 0: a = (20.5, 0.5), π = (41/42, 1/42),
    # H = −(41/42) ln(41/42) − (1/42) ln(1/42) = 0.11251642, B = 0.11909057.
    # Scarcity: all examples of class 0: √(20.5/20.5) = 1. R = 0.11909057 on every client.
    counts = np.array([[10, 0], [10, 0], [0, 10], [0, 10]])
    entropy = -41 / 42 * math.log(41 / 42) - 1 / 42 * math.log(1 / 42)
    assert error_ratio(counts, np.array([0, 0, 1, 1])) == pytest.approx(math.exp(entropy) - 1)
    assert error_ratio(counts, np.array([0, 0, 1, 1])) == pytest.approx(0.1191, abs=1e-4)


def test_error_ratio_of_alike_clients_is_what_scarcity_costs() -> None:
    # Two alike clients apart: a = (10.5, 10.5) of (20.5, 20.5), B the same: R = √(20.5/10.5) = 1.397.
    counts = np.array([[10, 10], [10, 10]])
    assert error_ratio(counts, np.array([0, 1])) == pytest.approx(math.sqrt(20.5 / 10.5))


@given(arrays(np.int64, (6, 4), elements=st.integers(0, 50)), arrays(np.int64, 6, elements=st.integers(0, 2)))
def test_error_ratio_matches_a_literal_loop(counts: np.ndarray, labels: np.ndarray) -> None:
    counts[:, 0] += 1
    counts[0, 1] += 1  # two classes at least
    total = counts.sum(axis=0)
    q = [n / total.sum() for n in total]

    def breadth(weights: list[float]) -> float:
        whole = math.fsum(weights)
        return math.exp(-math.fsum(w / whole * math.log(w / whole) for w in weights if w)) - 1

    ratios = []
    for i in range(6):
        a = [q[c] + math.fsum(counts[j, c] for j in range(6) if labels[j] == labels[i]) for c in range(4)]
        parts = [
            counts[i, c] / counts[i].sum() * math.sqrt((total[c] + q[c]) / a[c]) for c in range(4) if total[c]
        ]
        ratios.append(breadth(a) / breadth(q) * math.fsum(parts))
    assert error_ratio(counts, labels) == pytest.approx(math.fsum(ratios) / 6)


@given(arrays(np.int64, (6, 4), elements=st.integers(0, 50)))
def test_error_ratio_of_one_cluster_is_one(counts: np.ndarray) -> None:
    counts[:, 0] += 1
    assert error_ratio(counts, np.zeros(6, dtype=np.int64)) == pytest.approx(1.0)


def test_choice() -> None:
    assert choose({2: 0.5, 3: 0.4, 4: 0.6}) == 3
    assert choose({2: 0.4, 3: 0.4}) == 2  # the smallest of equals
    assert choose({2: 0.7, 3: 0.8}) == 1  # not below 0.7
    assert choose({2: 0.7, 3: 0.8}, 0.75) == 2
    assert choose({}) == 1
