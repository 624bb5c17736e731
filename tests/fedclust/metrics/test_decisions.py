import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, confusion_matrix, recall_score

from fedclust.metrics import outcomes
from fedclust.metrics.decisions import decisions, intervals, pooled_confusion, rates


def counted(labels, probabilities):
    probabilities = np.asarray(probabilities, dtype=float)
    return outcomes(np.asarray(labels, dtype=int), probabilities.argmax(1), probabilities)


def test_sensitivity_and_specificity_as_worked_out_by_hand() -> None:
    # Of 10 ill 8 are found, of 90 well 81 are not taken for ill: 8/10, 81/90; for well the other way round.
    sensitivity, specificity = rates([90, 10], [83, 17], [81, 8])
    np.testing.assert_allclose(sensitivity, [0.9, 0.8])
    np.testing.assert_allclose(specificity, [0.8, 0.9])
    # Nobody has class 2, and every row is of class 0 for the last.
    sensitivity, specificity = rates([[5, 0]], [[4, 1]], [[4, 0]])
    np.testing.assert_array_equal(sensitivity, [[0.8, np.nan]])
    np.testing.assert_array_equal(specificity, [[np.nan, 0.8]])


def test_brier_score_and_calibration_error_of_two_classes_by_hand() -> None:
    # Class 1 has probability 0.9 for 4 rows, of which 3 are of it, and 0.2 for 6 rows, of which 2 are.
    p = np.array([0.9] * 4 + [0.2] * 6)
    labels = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    found = decisions([counted(labels, np.column_stack([1 - p, p]))])
    # ((3·0.1² + 0.9²) + (2·0.8² + 4·0.2²)) / 10 = (0.84 + 1.44) / 10
    assert found.brier == pytest.approx(0.228, abs=0.0015)
    # |4·0.9 − 3| + |6·0.2 − 2| = 0.6 + 0.8, of 10 rows; the other class's intervals mirror these
    assert found.calibration_error == pytest.approx(0.14, abs=0.00125)
    assert found.rows == 10


def test_three_classes_on_two_sites_are_those_of_the_pooled_rows_by_hand() -> None:
    sure, torn = [0.8, 0.1, 0.1], [0.5, 0.3, 0.2]
    north, south = counted([0, 1], [sure, torn]), counted([0], [torn])
    found = decisions([north, south])
    # sure and right: 0.04 + 0.01 + 0.01 = 0.06; torn, of class 1: 0.25 + 0.49 + 0.04 = 0.78;
    # torn, of class 0: 0.25 + 0.09 + 0.04 = 0.38
    assert found.brier == pytest.approx((0.06 + 0.78 + 0.38) / 3, abs=0.002)
    # Class 0: |0.8 − 1| + |1.0 − 1|; class 1: 0.1 + |0.6 − 1|; class 2: |0.1| + |0.4|; 3 rows, 3 classes.
    # (0.2 and 0.3 are in one interval of 1/15 each, 0.1 in another.)
    assert found.calibration_error == pytest.approx((0.2 + 0.5 + 0.5) / 9, abs=0.002)
    np.testing.assert_array_equal(found.sensitivity, [1, 0, np.nan])
    np.testing.assert_array_equal(found.specificity, [0, 1, 1])
    assert pooled_confusion([north, south]).tolist() == [[2, 0, 0], [1, 0, 0], [0, 0, 0]]


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_counts_give_the_figures_of_scikit_learn(seed, num_classes) -> None:
    draw = np.random.default_rng(seed)
    labels = np.append(np.arange(num_classes), draw.integers(0, num_classes, 60))
    chances = draw.dirichlet(np.ones(num_classes), len(labels))
    where = draw.integers(0, 3, len(labels))
    clients = [counted(labels[where == client], chances[where == client]) for client in range(3)]
    found = decisions(clients)
    predicted = chances.argmax(1)
    np.testing.assert_allclose(found.sensitivity, recall_score(labels, predicted, average=None))
    for label in range(num_classes):
        others = recall_score(labels != label, predicted != label)
        assert found.specificity[label] == pytest.approx(others)
    np.testing.assert_array_equal(pooled_confusion(clients), confusion_matrix(labels, predicted))
    one_hot = np.eye(num_classes)[labels]
    by_hand = ((chances - one_hot) ** 2).sum(1).mean() / (2 if num_classes == 2 else 1)
    assert found.brier == pytest.approx(by_hand, abs=0.005)
    if num_classes == 2:
        assert found.brier == pytest.approx(brier_score_loss(labels, chances[:, 1]), abs=0.0015)


def test_intervals_are_those_of_a_bootstrap_over_rows() -> None:
    """The slow way: rows drawn one by one."""
    labels = np.repeat([0, 0, 1, 1], [50, 10, 6, 24])
    predicted = np.repeat([0, 1, 0, 1], [50, 10, 6, 24])
    there, said = np.bincount(labels), np.bincount(predicted)
    hits = np.bincount(labels[labels == predicted])
    accuracy, sensitivity, specificity = intervals(there, said, hits, np.random.default_rng(1))
    draw = np.random.default_rng(2)
    slow = []
    for _ in range(4_000):
        rows = draw.integers(0, len(labels), len(labels))
        y, z = labels[rows], predicted[rows]
        slow.append(((y == z).mean(), (z[y == 1] == 1).mean(), (z[y == 0] == 0).mean()))
    low, high = np.quantile(slow, [0.025, 0.975], axis=0)
    # 90 rows: accuracy moves in steps of 0.011, sensitivity in steps of 0.033.
    np.testing.assert_allclose(accuracy, [low[0], high[0]], atol=0.015)
    np.testing.assert_allclose(sensitivity[1], [low[1], high[1]], atol=0.035)
    np.testing.assert_allclose(specificity[1], [low[2], high[2]], atol=0.02)
    np.testing.assert_allclose(sensitivity[0], [low[2], high[2]], atol=0.02)
    again = intervals(there, said, hits, np.random.default_rng(1))
    np.testing.assert_array_equal(again[1], sensitivity)


def test_what_cannot_be_known_is_nan() -> None:
    nothing = counted([], np.zeros((0, 2)))
    found = decisions([nothing])
    assert np.isnan([found.brier, found.calibration_error, *found.sensitivity]).all()
    assert all(np.isnan(each).all() for each in intervals([0, 0], [0, 0], [0, 0], np.random.default_rng(0)))
    broken = counted([0, 1], [[np.nan, np.nan], [0.4, 0.6]])
    found = decisions([broken])
    assert np.isnan(found.brier)
    assert found.rows == 2
    with pytest.raises(ValueError, match="one number of classes"):
        decisions([nothing, counted([0], [[1.0, 0.0, 0.0]])])
