from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.feddrift import distances, drifted, merged
from tests.strategies.helpers import agglomerations


def test_drift_is_a_rise_of_the_least_loss_by_more_than_delta() -> None:
    losses = np.array([[0.5, 0.75], [0.5, 0.25], [np.inf, np.inf], [9.0, 9.0]])
    # 0.5 is 0.25 above 0.25, which is δ itself; 0.25 is none above 0.25; of the last nothing is known.
    before = np.array([0.25, 0.25, 1.0, np.nan])
    assert drifted(losses, before, 0.25).tolist() == [False, False, True, False]
    assert drifted(losses, before, 0.2).tolist() == [True, False, True, False]


@pytest.mark.filterwarnings("error")
@given(
    arrays(float, (5, 3), elements=st.floats(0, 8)),
    arrays(int, 5, elements=st.integers(-1, 2)),
    arrays(int, 5, elements=st.integers(1, 9)),
)
def test_distances_are_those_of_a_literal_loop(losses, assignment, rows) -> None:
    found = distances(losses, assignment, rows)
    for i, j in product(range(3), repeat=2):

        def loss(model: int, cluster: int) -> float:
            members = [client for client in range(5) if assignment[client] == cluster]
            return np.average([losses[client, model] for client in members], weights=rows[members])

        if i == j:
            assert found[i, j] == 0
        elif {i, j} <= set(assignment.tolist()):
            apart = max(loss(i, j) - loss(i, i), loss(j, i) - loss(j, j), 0)
            assert found[i, j] == pytest.approx(apart)
        else:
            assert found[i, j] == np.inf


def test_a_model_without_a_finite_loss_is_far_from_all() -> None:
    losses = np.array([[0.5, np.inf], [0.5, 0.5]])
    assert distances(losses, np.array([0, 1]), np.array([1, 1]))[0, 1] > 1e200


@given(arrays(float, (4, 4), elements=st.sampled_from([0.01, 0.04, 0.09, 0.11, 0.5, np.inf])))
def test_models_merge_by_the_largest_distance_while_it_is_within_delta(far) -> None:
    far = np.maximum(far, far.T)
    np.fill_diagonal(far, 0)
    groups = merged(far, 0.1)
    found = {tuple(np.flatnonzero(groups == group).tolist()) for group in groups}
    alone = {(model,) for model in range(4)}
    apart = lambda i, j: far[i, j]  # noqa: E731
    assert found in agglomerations(apart, alone, "complete", lambda _, closest: closest > 0.1)
