import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.clustering.fedrc import class_sums, label_shares, mixtures, responsibilities


def test_a_row_belongs_to_the_model_that_knows_more_than_how_often_its_rows_have_the_label() -> None:
    # P(y | x): 0.6 and 0.4; ω: ½ each; P(y): 0.9 and 0.2. Ratios 2/3 and 2, so 1/4 and 3/4.
    losses = -np.log([[0.6], [0.4]])
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    gamma = responsibilities(losses, np.array([0]), np.array([0.5, 0.5]), shares)
    np.testing.assert_allclose(gamma, [[0.25], [0.75]])


def test_models_without_a_finite_loss_or_a_share_are_responsible_for_nothing() -> None:
    losses, even = np.array([[np.nan, 1.0], [np.inf, 2.0], [0.5, 3.0]]), np.full((3, 2), 0.5)
    gamma = responsibilities(losses, np.array([0, 1]), np.array([0.5, 0.5, 0.0]), even)
    # Row 0: only the third fits, which has no share, so the shares stand. Row 1: e⁻¹ against e⁻².
    part = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(gamma, [[0.5, part], [0.5, 1 - part], [0, 0]])


def test_positions_share_a_row_and_a_client_without_rows_is_an_even_mixture() -> None:
    gamma = np.array([[0.25, 1.0], [0.75, 0.0]])
    sums = class_sums(gamma, np.array([[0, 1], [1, 1]]), 3)
    np.testing.assert_allclose(sums, [[0.125, 1.125, 0], [0.375, 0.375, 0]])
    both = np.stack([sums, np.zeros_like(sums)])
    np.testing.assert_allclose(mixtures(both), [[1.25 / 2, 0.75 / 2], [0.5, 0.5]])
    # Of 1.25 and 0.75; nobody has class 2, which counts as 1e-8 rows.
    expected = [[0.125, 1.125, 1e-8], [0.375, 0.375, 1e-8]]
    np.testing.assert_allclose(label_shares(both), np.divide(expected, np.sum(expected, 1, keepdims=True)))


def test_of_positions_the_mean_logarithm_counts() -> None:
    shares = np.array([[0.9, 0.1], [0.5, 0.5]])
    gamma = responsibilities(np.zeros((2, 1)), np.array([[0, 1]]), np.array([0.5, 0.5]), shares)
    # 1/√0.09 = 10/3 against 2, so 5/8 and 3/8.
    np.testing.assert_allclose(gamma, [[0.625], [0.375]])


@pytest.mark.filterwarnings("error")
@given(
    arrays(float, (3, 5), elements=st.floats(0, 30)),
    arrays(int, 5, elements=st.integers(0, 3)),
    arrays(float, 3, elements=st.floats(0.01, 1)),
    arrays(float, (3, 4), elements=st.floats(0.01, 1)),
)
def test_responsibilities_are_those_of_a_literal_loop(losses, labels, mixture, shares) -> None:
    gamma = responsibilities(losses, labels, mixture, shares)
    for row, label in enumerate(labels):
        weight = [
            mixture[k] * math.exp(-losses[k, row] + losses[:, row].min()) / shares[k, label] for k in range(3)
        ]
        np.testing.assert_allclose(gamma[:, row], np.divide(weight, sum(weight)), atol=1e-12)
    sums = class_sums(gamma, labels, 4)
    np.testing.assert_allclose(sums.sum(axis=0), np.bincount(labels, minlength=4))
    np.testing.assert_allclose(mixtures(sums[np.newaxis])[0], gamma.mean(axis=1))
