from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.clove import Parameters, assign, cluster, match, times_kept


def test_vectors_that_are_alike_form_a_cluster_where_one_model_is_the_best_for_all() -> None:
    # Model 0 is everybody's best; in model 1's loss two groups come apart.
    losses = np.array([[1.0, 2.0], [1.1, 2.1], [1.0, 5.0], [1.1, 5.1], [1.05, 2.05]])
    labels = cluster(losses, Parameters(), seed=0)
    assert labels[0] == labels[1] == labels[4] != labels[2] == labels[3]
    # Sums: clients 0, 1, 4 have 3.15 and 6.15; clients 2, 3 have 2.1 and 10.1.
    # 0, 1, 4 with model 1 and 2, 3 with model 0: 6.15 + 2.1 = 8.25; the other way 3.15 + 10.1 = 13.25.
    np.testing.assert_array_equal(assign(losses, Parameters(), seed=0), [1, 1, 0, 0, 1])


def test_matching_takes_the_smallest_sum_not_the_first_best() -> None:
    # 1 + 10 = 11 if cluster 0 takes its best, 2 + 1 = 3 otherwise.
    np.testing.assert_array_equal(match(np.array([[1.0, 2.0], [1.0, 10.0]]), np.array([0, 1])), [1, 0])


@settings(max_examples=25, deadline=None)
@given(arrays(float, (6, 3), elements=st.floats(0, 10)))
def test_no_other_matching_has_a_smaller_sum(losses: np.ndarray) -> None:
    labels = np.array([0, 1, 2, 0, 1, 2])

    def total(models) -> float:
        return sum(losses[client, models[labels[client]]] for client in range(6))

    assert total(match(losses, labels)) == pytest.approx(min(map(total, permutations(range(3)))))


def test_fewer_different_vectors_than_clusters_make_fewer_clusters() -> None:
    losses = np.array([[2.0, 1.0, 3.0]] * 4)
    np.testing.assert_array_equal(cluster(losses, Parameters(num_clusters=3), seed=0), [0, 0, 0, 0])
    np.testing.assert_array_equal(assign(losses, Parameters(num_clusters=3), seed=0), [1, 1, 1, 1])


def test_a_client_that_changes_its_model_counts_from_one_again() -> None:
    # Client 0 stays (2 + 1), client 1 moves, client 2 is clustered for the first time, to where it waited.
    kept = times_kept(np.array([2, 5, 0]), np.array([0, 0, 0]), np.array([0, 1, 0]))
    np.testing.assert_array_equal(kept, [3, 1, 1])
