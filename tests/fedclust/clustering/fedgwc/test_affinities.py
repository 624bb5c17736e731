import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.fedgwc import Parameters, affinity, affinity_of, start

# What the authors' released code compares.
COLUMNS = Parameters(kernel_width=0.1, initial="uniform", compare="columns")

unhurried = settings(max_examples=50, deadline=None)  # a busy machine is no failure

matrices = st.integers(1, 12).flatmap(
    lambda size: arrays(np.float64, (size, size), elements=st.floats(0, 1, width=32))
)


def literal_affinity(matrix: np.ndarray, kernel_width: float) -> np.ndarray:
    size = len(matrix)
    result = np.ones((size, size))
    for k in range(size):
        for j in range(size):
            others = [i for i in range(size) if i not in (k, j)]
            squared = sum((matrix[k, i] - matrix[j, i]) ** 2 for i in others)
            result[k, j] = math.exp(-kernel_width * squared)
    return result


def test_affinity_leaves_out_the_two_clients_themselves() -> None:
    # Of rows 0 and 1 only column 2 counts: (0.5 - 0.1)² = 0.16; of 0 and 2 column 1: (0.2 - 0.8)² = 0.36;
    # of 1 and 2 column 0: (0.3 - 0.7)² = 0.16.
    matrix = np.array([[0.9, 0.2, 0.5], [0.3, 0.9, 0.1], [0.7, 0.8, 0.9]])
    near, far = math.exp(-0.32), math.exp(-0.72)
    np.testing.assert_allclose(affinity(matrix, 2.0), [[1, near, far], [near, 1, near], [far, near, 1]])


@unhurried
@given(matrices, st.sampled_from([0.1, 0.5, 4.0]))
def test_affinity_matches_a_literal_loop(matrix: np.ndarray, kernel_width: float) -> None:
    np.testing.assert_allclose(
        affinity(matrix, kernel_width), literal_affinity(matrix, kernel_width), atol=1e-12
    )


@pytest.mark.parametrize("size", [2, 3, 39, 40, 300])
def test_affinity_is_symmetric_in_the_unit_interval_with_diagonal_one(size: int) -> None:
    result = affinity(np.random.default_rng(size).random((size, size)), 0.5)
    np.testing.assert_array_equal(result, result.T)
    assert result.min() >= 0
    assert result.max() <= 1
    np.testing.assert_array_equal(result.diagonal(), 1.0)


def test_affinity_at_forty_clients_matches_a_literal_loop() -> None:
    matrix = np.random.default_rng(0).random((40, 40))
    np.testing.assert_allclose(affinity(matrix, 0.5), literal_affinity(matrix, 0.5), rtol=1e-11)


def test_clients_perceived_alike_are_never_more_than_affine() -> None:
    # Equal rows: what rounding leaves of the distance may be below 0, which would give more than 1.
    result = affinity(np.tile(np.random.default_rng(1).random(50), (50, 1)), 4.0)
    assert result.max() <= 1
    # Row k is row j, so the clients' own entries p_k and P_jk cancel as well.
    np.testing.assert_allclose(result, 1.0)


def test_one_and_two_clients_are_affine() -> None:
    np.testing.assert_array_equal(affinity(np.array([[0.7]]), 0.5), 1.0)
    np.testing.assert_allclose(affinity(np.array([[0.7, 0.1], [0.9, 0.3]]), 0.5), 1.0)  # no other clients


@unhurried
@given(matrices, st.randoms())
def test_permuting_clients_permutes_affinity(matrix: np.ndarray, random: Any) -> None:
    order = random.sample(range(len(matrix)), len(matrix))
    permuted = affinity(matrix[np.ix_(order, order)], 0.5)
    np.testing.assert_allclose(permuted, affinity(matrix, 0.5)[np.ix_(order, order)], atol=1e-12)


def test_affinity_refuses_what_is_not_square() -> None:
    with pytest.raises(ValueError, match=r"interaction must be square, got shape \(2, 3\)"):
        affinity(np.zeros((2, 3)), 0.5)


def test_affinity_refuses_kernel_width() -> None:
    with pytest.raises(ValueError, match=r"kernel_width must be > 0, got 0\.0"):
        affinity(np.zeros((2, 2)), 0.0)


def test_released_code_compares_scaled_columns() -> None:
    matrix = np.random.default_rng(2).random((6, 6)) / 36
    scaled = (matrix - matrix.min()) / (matrix.max() - matrix.min())
    state = start(np.arange(6), COLUMNS).with_cohort(np.arange(6), matrix, np.zeros(6), 0.0)
    np.testing.assert_allclose(affinity_of(state, COLUMNS), literal_affinity(scaled.T, 0.1), rtol=1e-11)


def test_a_constant_matrix_needs_no_scaling() -> None:
    np.testing.assert_allclose(affinity_of(start(np.arange(4), COLUMNS), COLUMNS), 1.0)
