import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from fedclust.proof.scores import brier_scores, hits


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((2, 3)), np.zeros(3, int)), r"must have shape \(3, classes\), got \(2, 3"),
        ((np.zeros(3), np.zeros((), int)), r"labels must have shape \(rows\), got \(\)"),
        ((np.zeros((1, 3)), np.array([3])), r"labels must be in \[0, 3\), got 3"),
        ((np.zeros((1, 3)), np.array([-1])), r"labels must be in \[0, 3\), got -1"),
        ((np.array([[np.nan, 0]]), np.array([0])), "logits must be finite, got nan"),
        ((np.zeros((1, 3)), np.array([0]), np.zeros(2)), r"must have shape \(3\), got \(2,\)"),
        ((np.zeros((1, 2)), np.array([0]), [np.inf, 0]), "log_prior_shift must be finite or -inf"),
        ((np.zeros((1, 2)), np.array([0]), [-np.inf] * 2), "shift must be finite or -inf"),
    ],
)
def test_bad_numbers_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        brier_scores(*arguments)


def test_brier_score_is_the_squared_distance_to_what_happened() -> None:
    # Logits ln 1, ln 2, ln 5 are probabilities 1/8, 2/8, 5/8. If class 2 happened:
    # (1/8)² + (2/8)² + (3/8)² = 14/64; if class 0 did: (7/8)² + (2/8)² + (5/8)² = 78/64.
    logits = np.log([[1.0, 2.0, 5.0], [1.0, 2.0, 5.0]])
    np.testing.assert_allclose(brier_scores(logits, np.array([2, 0])), [14 / 64, 78 / 64])


def test_certain_predictions_score_0_and_2_however_large_the_logits() -> None:
    logits = np.array([[1e4, 0.0], [1e4, 0.0]])
    np.testing.assert_array_equal(brier_scores(logits, np.array([0, 1])), [0.0, 2.0])


def test_the_prior_shift_multiplies_the_odds() -> None:
    # Even odds times 3 are probabilities 3/4 and 1/4: (1/4)² + (1/4)² = 1/8.
    np.testing.assert_allclose(brier_scores(np.zeros((1, 2)), np.array([0]), [math.log(3), 0.0]), [1 / 8])
    # A class that cannot be leaves the others: (1/2)² + (1/2)² of classes 0 and 1.
    np.testing.assert_allclose(brier_scores(np.zeros((1, 3)), np.array([1]), [0.0, 0.0, -np.inf]), [1 / 2])


def test_a_row_with_positions_scores_their_mean() -> None:
    # Two positions with even odds, each (1/2)² + (1/2)² = 1/2, beside two that are certain: one right, one
    # wrong, (0 + 2) / 2 = 1.
    logits = np.array([[[0.0, 0.0], [0.0, 0.0]], [[1e4, 0.0], [1e4, 0.0]]])
    np.testing.assert_allclose(brier_scores(logits, np.array([[0, 1], [0, 1]])), [0.5, 1.0])


@settings(max_examples=50)
@given(arrays(np.float64, (5, 4), elements=st.floats(-50, 50)), st.floats(-100, 100))
def test_scores_are_in_range_and_ignore_what_all_logits_share(logits: np.ndarray, shared: float) -> None:
    labels = np.array([0, 1, 2, 3, 0])
    scores = brier_scores(logits, labels)
    assert ((scores >= 0) & (scores <= 2 + 1e-12)).all()
    np.testing.assert_allclose(brier_scores(logits + shared, labels), scores, atol=1e-9)
    np.testing.assert_allclose(brier_scores(logits, labels, np.full(4, shared)), scores, atol=1e-9)


def test_hits_are_of_the_corrected_prediction() -> None:
    logits = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert hits(logits, np.array([0, 0]), np.zeros(2)).tolist() == [1, 0]
    assert hits(logits, np.array([0, 0]), np.array([0.0, -5.0])).tolist() == [1, 1]
    assert hits(logits[None], np.array([[0, 0]]), np.zeros(2)).tolist() == [0.5]  # a row of two positions
