"""Figures over all clients' test rows, against hand-worked values and scikit-learn on the rows themselves."""

from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from numpy.typing import ArrayLike
from scipy.stats import binomtest
from sklearn.metrics import brier_score_loss, confusion_matrix, f1_score, recall_score, roc_auc_score

from fedclust import metrics
from fedclust.metrics import decisions, intervals, outcomes, pooled_auc, pooled_confusion, pooled_macro_f1


def of(labels: ArrayLike, probabilities: ArrayLike, precision: type = np.float32) -> metrics.Outcomes:
    chances = np.asarray(probabilities, dtype=precision)
    return outcomes(np.asarray(labels, dtype=int), chances.argmax(axis=1), chances)


def test_scores_that_share_a_bin_count_one_half() -> None:
    # Equal scores: one of the two pairs is a tie, the other right.
    assert pooled_auc([of([0, 0, 1], [[0.5, 0.5], [0.9, 0.1], [0.5, 0.5]])]) == pytest.approx(3 / 4)


def test_certain_and_impossible_are_the_ends() -> None:
    assert pooled_auc([of([0, 1, 1], [[1.0, 0.0], [0.0, 1.0], [1e-3, 0.999]])]) == 1.0
    assert pooled_auc([of([0, 1], [[1.0, 0.0], [1.0, 0.0]])]) == 0.5


def test_what_has_no_figure() -> None:
    assert np.isnan(pooled_macro_f1([]))
    assert np.isnan(pooled_auc([]))
    assert np.isnan(pooled_auc([of([1, 1], [[0.5, 0.5], [0.2, 0.8]])]))
    empty = outcomes(np.zeros(0, int), np.zeros(0, int), np.zeros((0, 3)))
    assert np.isnan(pooled_macro_f1([empty]))
    assert np.isnan(pooled_auc([empty]))


@pytest.mark.parametrize(
    "figure", [pooled_macro_f1, pooled_auc, pooled_confusion, lambda clients: decisions([clients])]
)
def test_clients_of_different_numbers_of_classes_are_refused(figure) -> None:
    two, three = of([0], [[0.9, 0.1]]), of([2], [[0.2, 0.2, 0.6]])
    for clients in ([two, three], [three, two]):
        with pytest.raises(ValueError, match="^clients must have the same number of classes, got 2, 3$"):
            figure(clients)


def test_a_model_that_diverged_has_f1_but_no_auc() -> None:
    broken = outcomes(np.array([0, 1]), np.array([0, 0]), np.full((2, 2), np.nan))
    assert pooled_macro_f1([broken]) == pytest.approx((2 / 3 + 0) / 2)
    assert np.isnan(pooled_auc([of([0, 1], [[0.9, 0.1], [0.8, 0.2]]), broken]))


SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), SIZES, st.sampled_from([0.1, 1.0, 8.0]))
def test_the_same_as_on_the_rows_themselves(seed: int, classes: int, sizes: list[int], spread: float) -> None:
    draws = np.random.default_rng(seed)
    clients, rows = [], []
    for size in sizes:
        labels = draws.integers(0, classes, size)
        logits = spread * draws.normal(size=(size, classes))
        logits[np.arange(size), labels] += spread
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        rows.append((labels, chances.astype(np.float32)))
        clients.append(of(labels, chances))
    labels, chances = (np.concatenate(part) for part in zip(*rows, strict=True))
    assume(len(labels))
    held = np.unique(np.concatenate([labels, chances.argmax(axis=1)]))
    f1 = f1_score(labels, chances.argmax(axis=1), labels=held, average="macro")
    assert pooled_macro_f1(clients) == pytest.approx(f1)
    areas, shared = [], []
    for label in range(classes):
        own, others = chances[labels == label, label], chances[labels != label, label]
        if len(own) and len(others):
            areas.append(roc_auc_score(labels == label, chances[:, label]))
            # Wrong at most by half the chance that both lie within a bin's width, 41 / 4096 of a logit.
            gaps = np.abs(np.subtract.outer(logit(own), logit(others)))
            shared.append(np.mean(gaps <= 41 / metrics.NUM_BINS) / 2)
    if areas:
        assert abs(pooled_auc(clients) - np.mean(areas)) <= np.mean(shared) + 1e-12


def logit(chances: np.ndarray) -> np.ndarray:
    # As far as the bins reach: beyond, scores share one.
    exact = chances.astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(exact) - np.log1p(-exact), -24, 17)


def test_share_weighted_accuracy_by_hand() -> None:
    # Shares 0.9 and 0.1; of 2 and 4 test rows 1 and 4 are right: (0.9·1 + 0.1·4) / (0.9·2 + 0.1·4).
    # The plain accuracy is 5/6, the balanced one 3/4.
    # Second client: trains on class 1 only, of which it has no test row.
    figures = metrics.share_weighted_accuracy(
        np.array([[9, 1], [0, 5]]), np.array([[1, 4], [2, 0]]), np.array([[2, 4], [3, 0]])
    )
    np.testing.assert_allclose(figures, [1.3 / 2.2, np.nan])


def test_refusals() -> None:
    one, two = np.zeros((1, 2), int), np.ones((1, 2), int)
    with pytest.raises(ValueError, match=r"test_counts must have shape \(1, 2\), got \(2, 2\)"):
        metrics.share_weighted_accuracy(one, one, np.zeros((2, 2), int))
    with pytest.raises(ValueError, match="hits must be at most test_counts, got 1 more"):
        metrics.share_weighted_accuracy(two, two, one)
    with pytest.raises(ValueError, match=r"probabilities must have shape \(2, classes\), got \(3, 2\)"):
        outcomes(np.zeros(2, int), np.zeros(2, int), np.zeros((3, 2)))


counted = partial(of, precision=np.float64)


def test_sensitivity_and_specificity_as_worked_out_by_hand() -> None:
    # Of 10 ill 8 are found, of 90 well 81 are not taken for ill: 8/10, 81/90; for well the other way round.
    sensitivity, specificity = metrics.rates([90, 10], [83, 17], [81, 8])
    np.testing.assert_allclose(sensitivity, [0.9, 0.8])
    np.testing.assert_allclose(specificity, [0.8, 0.9])
    # Nobody has class 2, and every row is of class 0 for the last.
    sensitivity, specificity = metrics.rates([[5, 0]], [[4, 1]], [[4, 0]])
    np.testing.assert_array_equal(sensitivity, [[0.8, np.nan]])
    np.testing.assert_array_equal(specificity, [[np.nan, 0.8]])


def test_brier_score_and_calibration_error_of_two_classes_by_hand() -> None:
    # Class 1 has probability 0.9 for 4 rows, of which 3 are of it, and 0.2 for 6 rows, of which 2 are.
    p = np.array([0.9] * 4 + [0.2] * 6)
    labels = [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    found = decisions([[counted(labels, np.column_stack([1 - p, p]))]])
    # Of class 1: ((3·0.1² + 0.9²) + (2·0.8² + 4·0.2²)) / 10 = (0.84 + 1.44) / 10, and as much of class 0.
    assert found.brier[0] == pytest.approx(2 * 0.228, abs=0.003)
    # |4·0.9 − 3| + |6·0.2 − 2| = 0.6 + 0.8, of 10 rows; the other class's intervals mirror these
    assert found.calibration_error[0] == pytest.approx(0.14, abs=0.00125)
    assert found.rows[0] == 10


def test_three_classes_on_two_sites_are_those_of_the_pooled_rows_by_hand() -> None:
    sure, torn = [0.8, 0.1, 0.1], [0.5, 0.3, 0.2]
    north, south = counted([0, 1], [sure, torn]), counted([0], [torn])
    found = decisions([[north, south]])
    # sure and right: 0.04 + 0.01 + 0.01 = 0.06; torn, of class 1: 0.25 + 0.49 + 0.04 = 0.78;
    # torn, of class 0: 0.25 + 0.09 + 0.04 = 0.38
    assert found.brier[0] == pytest.approx((0.06 + 0.78 + 0.38) / 3, abs=0.002)
    # Class 0: |0.8 − 1| + |1.0 − 1|; class 1: 0.1 + |0.6 − 1|; class 2: |0.1| + |0.4|; 3 rows, 3 classes.
    # (0.2 and 0.3 are in one interval of 1/15 each, 0.1 in another.)
    assert found.calibration_error[0] == pytest.approx((0.2 + 0.5 + 0.5) / 9, abs=0.002)
    np.testing.assert_array_equal(found.sensitivity, [[1, 0, np.nan]])
    np.testing.assert_array_equal(found.specificity, [[0, 1, 1]])
    assert pooled_confusion([north, south]).tolist() == [[2, 0, 0], [1, 0, 0], [0, 0, 0]]


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_counts_give_the_figures_of_scikit_learn(seed, num_classes) -> None:
    draw = np.random.default_rng(seed)
    labels = np.append(np.arange(num_classes), draw.integers(0, num_classes, 60))
    chances = draw.dirichlet(np.ones(num_classes), len(labels))
    where = draw.integers(0, 3, len(labels))
    clients = [counted(labels[where == client], chances[where == client]) for client in range(3)]
    found = decisions([clients])
    predicted = chances.argmax(1)
    np.testing.assert_allclose(found.sensitivity[0], recall_score(labels, predicted, average=None))
    for label in range(num_classes):
        others = recall_score(labels != label, predicted != label)
        assert found.specificity[0, label] == pytest.approx(others)
    np.testing.assert_array_equal(pooled_confusion(clients), confusion_matrix(labels, predicted))
    one_hot = np.eye(num_classes)[labels]
    by_hand = ((chances - one_hot) ** 2).sum(1).mean()
    assert found.brier[0] == pytest.approx(by_hand, abs=0.005)
    if num_classes == 2:
        assert found.brier[0] == pytest.approx(2 * brier_score_loss(labels, chances[:, 1]), abs=0.003)


@pytest.mark.parametrize(("hits", "rows"), [(0, 33), (33, 33), (1, 1), (7, 20), (580, 1000), (0, 1)])
def test_wilsons_interval_is_that_of_scipy(hits: int, rows: int) -> None:
    for confidence in (0.95, 0.8):
        wanted = binomtest(hits, rows).proportion_ci(confidence, method="wilson")
        np.testing.assert_allclose(metrics.wilson(hits, rows, confidence), wanted, atol=1e-12)


def test_each_group_is_computed_as_if_alone() -> None:
    draw = np.random.default_rng(3)
    clients = [counted(draw.integers(0, 3, rows), draw.dirichlet(np.ones(3), rows)) for rows in (7, 1, 0, 40)]
    broken = counted([0, 1], [[np.nan, 0, 0], [0.2, 0.3, 0.5]])
    groups = [clients[:2], [clients[2]], [clients[3], broken], [clients[3]]]
    together = decisions(groups)
    for place, group in enumerate(groups):
        for name, value in vars(decisions([group])).items():
            np.testing.assert_array_equal(getattr(together, name)[place], value[0])
    assert np.isnan(together.brier).tolist() == [False, True, True, False]
    assert np.isnan(together.calibration_error).tolist() == [False, True, True, False]
    table = np.stack([(each.there, each.predicted, each.hits) for each in clients], axis=1)
    for found, one in zip(zip(*intervals(*table), strict=True), table.swapaxes(0, 1), strict=True):
        for interval, alone in zip(found, intervals(*one), strict=True):
            np.testing.assert_array_equal(interval, alone)


def test_intervals_of_each_class_against_the_rest() -> None:
    # 60 rows of class 0, of which 50 are right; 30 of class 1, of which 24 are.
    accuracy, sensitivity, specificity = intervals([60, 30], [56, 34], [50, 24])
    counts = zip((74, 50, 24, 24, 50), (90, 60, 30, 30, 60), strict=True)
    for found, (hits, rows) in zip((accuracy, *sensitivity, *specificity), counts, strict=True):
        np.testing.assert_allclose(found, binomtest(hits, rows).proportion_ci(method="wilson"))


def test_what_cannot_be_known_is_nan() -> None:
    nothing = counted([], np.zeros((0, 2)))
    found = decisions([[nothing]])
    assert np.isnan([found.brier[0], found.calibration_error[0], *found.sensitivity[0]]).all()
    assert all(np.isnan(each).all() for each in intervals([0, 0], [0, 0], [0, 0]))
    broken = counted([0, 1], [[np.nan, np.nan], [0.4, 0.6]])
    found = decisions([[broken]])
    assert np.isnan(found.brier[0])
    assert found.rows[0] == 2
