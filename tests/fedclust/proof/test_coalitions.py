import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.proof.coalitions import (
    Arm,
    Choice,
    Fit,
    Scores,
    _standard_errors,
    at_own_shares,
    balance,
    choose,
    coalitions,
    fit_of,
    folds,
    harmful_sites,
    partners,
    ranking,
    turned_sites,
    ways,
)


def test_all_coalitions_of_few_sites_and_some_of_more() -> None:
    assert coalitions(3) == ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))
    assert len(coalitions(5)) == 2**5 - 1
    listed = coalitions(6, [(3, 1), (5,)])
    assert listed[0] == tuple(range(6))
    assert listed[7] == (1, 3)
    assert [len(each) for each in listed] == [6, *[5] * 6, 2, *[1] * 6]


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(0, 5))
def test_folds_are_even_and_never_divide_a_person(persons: list[int], seed: int) -> None:
    drawn = folds(len(persons), np.random.default_rng(seed), np.array(persons, dtype=np.int64))
    of = [
        {int(fold) for fold, other in zip(drawn, persons, strict=True) if other == each}
        for each in set(persons)
    ]
    assert all(len(each) == 1 for each in of)
    sizes = np.bincount([next(iter(each)) for each in of], minlength=5)
    assert sizes.max() - sizes.min() <= 1


def test_means_and_products_give_every_paired_standard_error() -> None:
    brier = np.random.default_rng(0).uniform(0, 2, (3, 50))
    scores = Scores.of(brier)
    assert scores.possible()
    for one in range(3):
        for other in range(3):
            each = brier[one] - brier[other]
            mean, error = scores.difference(one, other)
            assert mean == pytest.approx(each.mean())
            assert error == pytest.approx(each.std(ddof=1) / math.sqrt(50), abs=1e-7)


def test_numbers_that_no_rows_have_are_impossible() -> None:
    # A mean of 1 has a mean square of at least 1.
    unknown = np.array([0.5]), np.array([1.0]), np.full(2, 0.5), np.ones(2)
    means = np.array([1.0, 0.0])
    assert not Scores(10, means, np.array([[0.5, 0.0], [0.0, 0.0]]), *unknown).possible()
    assert not Scores(10, means, np.array([[1.0, 0.3], [0.0, 0.0]]), *unknown).possible()
    # A variance of -1.5e-6 may be rounding where two arms are, one of -2.5e-6 not.
    for variance, possible in ((-1.5e-6, True), (-2.5e-6, False)):
        assert Scores(10, np.zeros(2), np.diag([variance, 0.0]), *unknown).possible() is possible


def scores_of(*columns: tuple[float, float]) -> Scores:
    """Scores of 100 rows for arms with these means: ± a width around them, neighbours independent."""
    signs = [np.resize([1, -1], 100), np.repeat([1, -1], 50), np.tile(np.repeat([1, -1], 5), 10)]
    return Scores.of(np.array([mean + width * signs[at % 3] for at, (mean, width) in enumerate(columns)]))


EVERYONE, PRIOR = Arm(0, False), Arm(0, True)
ALL, PAIR, ALONE = (0, 1, 2), (0, 1), (0,)
BAD = [(0.9, 0.3)] * 2


@pytest.mark.parametrize(
    ("columns", "chosen", "everyone"),
    [
        # Standard errors of differences: widths of 0.3 give √(0.09 + 0.09)/√99 = 0.043. For four arms besides
        # everyone's two, 2.3 % are 0.57 % each: 2.58 standard errors with 99 degrees of freedom.
        ([(0.38, 0.3), (0.40, 0.3), (0.40, 0.3), (0.30, 0.3)], PRIOR, PRIOR),  # 0.10 is 2.3 of them
        ([(0.38, 0.3), (0.40, 0.3), (0.40, 0.3), (0.28, 0.3)], Arm(1, True), PRIOR),  # 0.12 is 2.8
        # Corrected is 0.07, 1.6 of them, worse than plain.
        ([(0.33, 0.3), (0.40, 0.3), (0.36, 0.3), (0.40, 0.3)], EVERYONE, EVERYONE),
        # Two sites' model as it is is best, corrected it is within one standard error, or 2.3 of them worse.
        ([(0.60, 0.3), (0.60, 0.3), (0.30, 0.3), (0.31, 0.3)], Arm(1, True), PRIOR),
        ([(0.60, 0.3), (0.60, 0.3), (0.30, 0.3), (0.40, 0.3)], Arm(1, False), PRIOR),
    ],
)
def test_a_site_leaves_by_a_corrected_test_and_chooses_within_one_error(columns, chosen, everyone) -> None:
    found = choose([ALL, PAIR, ALONE], scores_of(*columns, *BAD))
    assert (found.arm, found.everyone) == (chosen, everyone)


def test_two_standard_errors_are_shared_by_all_arms() -> None:
    assert _standard_errors(1, 10**7) == pytest.approx(2.0, abs=1e-5)
    share = NormalDist().cdf(-2.0) / 14
    assert _standard_errors(14, 10**7) == pytest.approx(-NormalDist().inv_cdf(share), abs=1e-5)
    # Student's t with 2 degrees of freedom: P(T < −t) = 1/2 − t/(2 √(2 + t²)).
    t = _standard_errors(1, 3)
    assert 0.5 - t / (2 * math.sqrt(2 + t * t)) == pytest.approx(NormalDist().cdf(-2.0))


def test_of_equal_arms_the_larger_coalition_is_chosen() -> None:
    columns = [(0.6, 0.3), (0.6, 0.3), (0.5, 0.3), (0.31, 0.3), (0.5, 0.3), (0.3, 0.3)]
    assert choose([ALL, PAIR, ALONE], scores_of(*columns)).arm == Arm(1, True)


def test_alone_nothing_is_corrected_and_of_everyones_arms_the_one_that_stands_is_chosen() -> None:
    columns = [(0.6, 0.3), (0.6, 0.3), (0.3, 0.3), (0.3, 0.3)]
    assert choose([ALL, ALONE], scores_of(*columns)).arm == Arm(1, False)
    # Corrected is 0.044 worse than plain, 1.03 of √(0.09 + 0.09)/√99. The last arm is 0.003 better than plain
    # in every row, so the site leaves. The third is best, all are within √(0.09 + 0.36)/√99 = 0.067 of it.
    columns = [(0.388, 0.3), (0.432, 0.3), (0.38, 0.6), (0.385, 0.3)]
    assert choose([ALL, PAIR], scores_of(*columns)) == Choice(EVERYONE, EVERYONE)


def test_errors_of_few_events_are_less_certain() -> None:
    # 100 rows, better alone by 0.1 ± 0.398 a row: 0.1·√99/0.398 = 2.5 errors. Of two tests at 2.275 % in
    # all, Student's quantile at 1.1375 % is 2.31 with 99 degrees of freedom and 2.74 with 9.
    alone = 0.4 + 0.398 * np.tile([1.0, -1.0], 50)
    doubtful = Scores.of(np.stack([np.full(100, 0.5)] * 2 + [alone] * 2))
    leaves = [choose([(0, 1), (0,)], doubtful, informing=rows).arm.coalition for rows in (None, 100, 10)]
    assert leaves == [1, 1, 0]


def test_nothing_is_chosen_without_rows() -> None:
    few = Scores.of(np.array([[1.0] * 7, [1.0] * 7, [0.0] * 7, [0.0] * 7]))
    assert choose([ALL, ALONE], few) == choose([ALL, ALONE], None) == Choice(EVERYONE, EVERYONE)
    assert choose([ALL, PAIR, ALONE], None, apart=[2]).arm == Arm(1, False)


@pytest.mark.parametrize(
    ("auc", "chosen"),
    [
        # The site alone has 0.80, all errors are 0.05. The pair has much the best score.
        ([0.80, 0.76, 0.80], Arm(1, True)),
        ([0.80, 0.74, 0.80], EVERYONE),  # the pair's is lower by 1.2 errors, and alone is no better
        ([0.71, 0.74, 0.80], EVERYONE),  # everyone's by 1.8: it stands
        ([0.69, 0.74, 0.80], Arm(2, False)),  # by 2.2
        ([0.69, 0.76, 0.80], Arm(1, True)),
    ],
)
def test_what_orders_rows_worse_than_alone_is_not_chosen(auc, chosen) -> None:
    columns = [(0.5, 0.3), (0.6, 0.3), (0.3, 0.3), (0.3, 0.3), (0.55, 0.3), (0.55, 0.3)]
    scores = replace(scores_of(*columns), auc=np.array(auc), auc_error=np.array([0.05, 0.05, 0.0]))
    assert choose([ALL, PAIR, ALONE], scores).arm == chosen


@pytest.mark.parametrize(
    ("balanced", "chosen"),
    [
        # The site alone has 0.70, all errors are 0.05. The corrected pair has the best score by far.
        ([0.7, 0.7, 0.7, 0.7], Arm(1, True)),
        ([0.7, 0.7, 0.7, 0.66], Arm(1, True)),  # lower by 0.8 errors
        ([0.7, 0.7, 0.7, 0.64], PRIOR),  # by 1.2; and no other arm is shown to be better
        ([0.7, 0.69, 0.7, 0.64], EVERYONE),  # the correction costs balance that the site alone has
        ([0.68, 0.69, 0.7, 0.64], PRIOR),  # or that the plain arm has not, either
        ([0.9, 0.71, 0.7, 0.64], PRIOR),
        ([0.5, 0.5, 0.5, 0.66], Arm(1, True)),
    ],
)
def test_what_is_less_balanced_than_alone_is_not_chosen(balanced, chosen) -> None:
    columns = [(0.5, 0.3), (0.5, 0.3), (0.45, 0.3), (0.3, 0.3), (0.5, 0.3), (0.5, 0.3)]
    values, error = np.array([*balanced, 0.7, 0.7]), np.array([0.05, 0.05, 0.05, 0.05, 0.0, 0.0])
    scores = replace(scores_of(*columns), balanced=values, balanced_error=error)
    assert choose([ALL, PAIR, ALONE], scores).arm == chosen


def test_balance_is_a_mean_over_classes_with_rows() -> None:
    labels = np.array([0] * 4 + [1] * 2 + [2])  # one row of class 2: left out
    right = np.array([[1, 1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]], dtype=bool)
    balanced, error = balance(right, labels)
    assert balanced.tolist() == [0.625, 0.75, 0.0]
    # The first less the second: 0, 0, 1, 0 and 0, −1. Their sample variances are 1/4 and 1/2, so that of half
    # the sum of their means is (1/16 + 1/4)/4.
    assert error[:2].tolist() == [pytest.approx(math.sqrt(5 / 64)), 0.0]
    nothing = balance(right[:, :5], labels[:5])
    assert (nothing[0].tolist(), nothing[1].tolist()) == ([0.5] * 3, [1.0] * 3)


def test_nobody_trains_with_whom_it_is_kept_apart_from() -> None:
    columns = [(0.3, 0.3), (0.31, 0.3), (0.5, 0.3), (0.45, 0.3), *[(0.3, 0.3)] * 2, *[(0.55, 0.3)] * 2]
    listed = [ALL, PAIR, (0, 2), ALONE]
    assert choose(listed, scores_of(*columns)) == Choice(PRIOR, PRIOR)
    # Site 2 apart, everyone is the pair, and no other arm is better by 0.1 times 1/0.043.
    assert choose(listed, scores_of(*columns), apart=[2]) == Choice(Arm(1, True), Arm(1, True))
    found = choose(listed, scores_of(*columns), apart=[1, 2])
    assert (found.arm, found.everyone) == (Arm(3, False), EVERYONE)
    assert found.gain == pytest.approx(0.3 - 0.55)


def test_order_counts_within_folds() -> None:
    # Two folds. The first has its 1 above one of its two 0s, the second all pairs in order, its scores being
    # lower throughout: (1 + 2)/4 pairs. The site alone has them all.
    labels, fold = np.array([0, 0, 1, 0, 1, 1]), np.array([0, 0, 0, 1, 1, 1])
    scores = np.array([[5.0, 7.0, 6.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]])
    area, error = ranking(np.stack([0 * scores, scores], axis=2), labels, fold)
    assert area.tolist() == [0.75, 1.0]
    # What a row has in order, less 0.75 of its pairs, over 4: the ones 1 − 1.5, 1 − 0.75 and 1 − 0.75; the
    # noughts 1 − 0.75, 0 − 0.75 and 2 − 1.5. Their squares are 0.375 and 0.875, by 3/2 and 1/16.
    assert error[0] == pytest.approx(math.sqrt(1.25 * 1.5 / 16))
    assert error[1] == 0
    own = fit_of(np.stack([0 * scores[0], scores[0]], axis=1), labels, fold, within=True)
    # The variance without any order is n1 n0 (n1 + n0 + 1)/12 = 2/3 in each fold, over 4².
    assert (own.right, own.error) == (0.75, pytest.approx(math.sqrt(4 / 3) / 4))


def test_two_rows_of_a_class_are_enough_for_an_order() -> None:
    labels, fold = np.array([0, 0, 0, 1, 1]), np.zeros(5, dtype=int)
    scores = np.array([[0.0, 1.0, 2.0, 1.5, 3.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    area, error = ranking(np.stack([0 * scores, scores], axis=2), labels, fold)
    assert area.tolist() == [pytest.approx(5 / 6), 1.0]
    # Rows' pairs in order less 5/6 of them: -1/2 and 1/2 of the ones; 1/3, 1/3 and -2/3 of the noughts.
    assert error[0] == pytest.approx(math.sqrt(2 * 0.5 + 1.5 * 6 / 9) / 6)


def test_the_error_of_a_difference_of_areas_is_that_over_samples() -> None:
    draws, areas, errors = np.random.default_rng(0), [], []
    for _ in range(300):
        labels, fold = np.repeat([0, 1], [40, 20]), np.tile(np.arange(5), 12)
        scores = draws.normal(size=60) + 0.8 * labels
        both = np.stack([scores, scores + draws.normal(size=60)])
        found, error = ranking(np.stack([0 * both, both], axis=2)[..., ::-1][::-1], 1 - labels, fold)
        areas.append(found[0] - found[1])
        errors.append(error[0])
    assert np.std(areas) == pytest.approx(np.mean(errors), rel=0.15)


def test_order_of_more_classes_is_a_mean_over_classes_with_rows() -> None:
    draws = np.random.default_rng(1)
    logits, labels, fold = draws.normal(size=(2, 30, 4)), np.resize([0, 1, 2], 30), np.arange(30) % 2
    labels[0], labels[3] = 3, 2  # one row of class 3: left out
    expected = []
    for label in (0, 1, 2):
        odds = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        pairs = [
            (one, other)
            for one in range(30)
            for other in range(30)
            if labels[one] == label != labels[other] and fold[one] == fold[other]
        ]
        right = [[odds[arm, one, label] > odds[arm, other, label] for one, other in pairs] for arm in (0, 1)]
        expected.append(np.mean(right, axis=1))
    np.testing.assert_allclose(ranking(logits, labels, fold)[0], np.mean(expected, axis=0))


@pytest.mark.parametrize(
    ("labels", "fold"),
    [([0, 0, 0, 1], [0, 0, 0, 0]), ([0, 0, 1, 1], [0, 0, 1, 1]), ([], []), ([0, 0], [0, 1])],
)
def test_where_no_order_can_be_measured_nothing_is_known(labels, fold) -> None:
    logits = np.zeros((2, len(labels), 2))
    area, error = ranking(logits, np.array(labels, dtype=int), np.array(fold, dtype=int))
    assert (area.tolist(), error.tolist()) == ([0.5, 0.5], [1.0, 1.0])
    if len(labels) == 4 and fold[3]:
        assert fit_of(logits[0], np.array(labels), np.array(fold), within=True) == Fit()


def test_two_classes_fit_by_the_area_under_the_curve() -> None:
    logits = np.array([[0, 1], [0, 2], [0, 3], [0, 4]], dtype=float)
    # Of the four pairs of a 1 with a 0, three are in order: 2 > 1, 4 > 1, 4 > 3. Under no order the area's
    # variance is (n + 1)/(12 n1 n0) = 5/48.
    found = fit_of(logits, np.array([0, 1, 0, 1]), np.arange(4))
    assert (found.right, found.by_chance, found.error) == (0.75, 0.5, pytest.approx(math.sqrt(5 / 48)))
    assert (found.renaming, found.renaming_error) == (-0.5, pytest.approx(2 * math.sqrt(5 / 48)))
    assert fit_of(logits, np.zeros(4, dtype=int), np.arange(4)) == Fit()
    assert (Fit.width(2), Fit.width(3)) == (5, 14)
    assert fit_of(logits[:0], np.zeros(0, dtype=int), np.arange(0)) == Fit()


def test_more_classes_fit_by_the_best_renaming_found_on_other_rows() -> None:
    labels, fold = np.tile([0, 1, 2], 30), np.arange(90) % 5
    found = fit_of(np.eye(3)[(labels + 1) % 3], labels, fold)
    assert (found.right, found.by_chance, found.renaming) == (0.0, pytest.approx(1 / 3), 1.0)
    assert (found.names, found.gains) == ((2, 0, 1), (1.0, 1.0, 1.0))
    assert found.gain_errors == pytest.approx([1 / 30] * 3)  # 30 rows agree: one in 30 may not
    # Right for 3 of 6, 1 of 2 and 1 of 2 rows; by chance for 0.6·0.3 + 0.2·0.5 + 0.2·0.2 of all.
    predicted, actual = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2]), np.repeat([0, 1, 2], [6, 2, 2])
    predicted[9] = 1
    half = fit_of(np.eye(3)[predicted], actual, np.arange(10) % 5)
    assert (half.right, half.by_chance) == (0.5, pytest.approx(0.6 * 0.3 + 0.2 * 0.5 + 0.2 * 0.2))
    assert half.error == pytest.approx(math.sqrt(0.25 / 10))
    assert Fit.unknown(3) == fit_of(np.eye(3), np.zeros(3, dtype=int), np.arange(3))
    assert len(Fit.unknown(3).values) == 14
    # A model that never names a class that there is: no row is right, nor expected to be.
    never = fit_of(np.eye(3)[np.full(40, 2)], np.arange(40) % 2, np.arange(40) % 5)
    assert (never.right, never.by_chance, never.error) == (0.0, 0.0, pytest.approx(1 / 40))
    noise = np.random.default_rng(1).normal(size=(200, 10))
    gains = [fit_of(np.roll(noise, by, 0), np.arange(200) % 10, np.arange(200) % 5) for by in range(40)]
    # The best renaming of noise on the rows that it was found on gains 0.07; here it must gain nothing.
    assert abs(np.mean([each.renaming for each in gains])) < 0.02


def areas_of(areas: list[list[float]], error: float = 0.05) -> np.ndarray:
    """A cross-site matrix of areas under the curve with one standard error, cross-fitted on the diagonal."""
    return np.array([[[each, 0.5, error, 1 - 2 * each, 2 * error] for each in row] for row in areas])


def test_the_site_that_most_models_have_the_wrong_way_round_is_named() -> None:
    turned = areas_of([[0.9, 0.2, 0.3], [0.2, 0.9, 0.8], [0.3, 0.9, 0.9]])
    (together,) = areas_of([[0.2, 0.4, 0.6]])
    assert turned_sites(turned, together) == [0]
    wrong, right = ways(turned)
    assert wrong[:, 0].tolist() == [False, True, True]
    assert right[:, 1].tolist() == [False, False, True]
    assert partners(turned, [0]).tolist() == [[True, False, False], [False, True, True], [False, True, True]]
    # Two sites: nobody knows which.
    two = areas_of([[0.9, 0.2], [0.3, 0.9]])
    assert turned_sites(two, two[[1, 0], [0, 1]]) == [0, 1]
    for other in (0.2, 0.6):  # one of the two is enough
        two[1, 0] = areas_of([[other]])[0, 0]
        assert partners(two, [0, 1]).tolist() == np.eye(2).astype(bool).tolist()
    near = areas_of([[0.9, 0.45, 0.7], [0.6, 0.9, 0.7], [0.5, 0.42, 0.9]])
    assert turned_sites(near, near[0]) == []


def test_only_the_site_with_the_largest_majority_is_named_where_that_explains_the_others() -> None:
    # Site 0 is turned. At site 1 nobody but site 0 has a say, at site 2 its model is as good as none.
    matrix = areas_of([[0.9, 0.3, 0.5], [0.3, 0.9, 0.55], [0.3, 0.55, 0.9]])
    (together,) = areas_of([[0.2, 0.3, 0.5]])
    assert turned_sites(matrix, together) == [0]
    # Three against three: all are named, and each may train with its own half.
    halves = areas_of([[0.9 if (j < 3) == (k < 3) else 0.1 for k in range(6)] for j in range(6)])
    assert turned_sites(halves, halves[5, [0, 1, 2, 0, 1, 2]]) == list(range(6))
    assert partners(halves, range(6))[4].tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize(
    ("own", "together", "named"),
    [
        # One level for three sites: of 0.05 both ways, the surest is to have 0.0083 each way, 2.39 errors.
        ([0.9] * 3, [0.38, 0.5, 0.5], [0]),  # 2.40 errors
        ([0.9] * 3, [0.381, 0.5, 0.5], []),  # 2.38
        # Site 1 is sure, the right way: the next is to have 0.0125, 2.24 errors.
        ([0.9] * 3, [0.387, 0.7, 0.5], [0]),
        ([0.9] * 3, [0.389, 0.7, 0.5], []),
        ([0.9] * 3, [0.3, 0.5, 0.5], [0]),
        ([0.9, 0.5, 0.9], [0.3, 0.5, 0.5], [0]),
        ([0.9, 0.5, 0.5], [0.3, 0.5, 0.5], []),  # models that have learnt nothing accuse nobody
    ],
)
def test_a_finding_needs_its_share_of_the_level_and_a_model_that_has_learnt(own, together, named) -> None:
    matrix = areas_of([[own[0], 0.5, 0.5], [0.3, own[1], 0.5], [0.3, 0.5, own[2]]])
    assert turned_sites(matrix, areas_of([together])[0]) == named


@pytest.mark.parametrize(("error", "named"), [(0.25, []), (0.26, [0])])
def test_a_site_whose_rows_suffice_for_no_test_has_no_share_of_the_level(error, named) -> None:
    # At best 0.5/0.25 = 2 errors, 4.6 % both ways, or 1.92 errors, 5.5 %. Without site 2, and site 1 sure,
    # site 0 is to have 1.96 errors; with it, 2.24. It has 2.
    matrix = areas_of([[0.9, 0.5, 0.5], [0.3, 0.9, 0.5], [0.3, 0.5, 0.9]])
    (together,) = areas_of([[0.4, 0.9, 0.5]])
    together[2, [2, 4]] = error, 2 * error
    assert turned_sites(matrix, together) == named


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("number", [3, 6])
def test_labels_at_random_accuse_somebody_in_one_run_of_twenty_at_most(number, learnt) -> None:
    draws, accused = np.random.default_rng(number), 0
    for _ in range(400):
        areas = 0.5 + 0.05 * draws.normal(size=(number + 1, number))
        # As bad as can be: what all others' models say together is what each of them says.
        areas[:-1] = (areas[-1] + areas[:-1]) / 2
        np.fill_diagonal(areas, 0.9 if learnt else 0.5 + 0.05 * draws.normal(size=number))
        fits = areas_of(areas.tolist())
        accused += bool(turned_sites(fits[:-1], fits[-1]))
    assert accused <= 0.05 * 400


def test_renaming_is_measured_at_the_shares_of_the_model_s_own_site() -> None:
    draws, sites, classes = np.random.default_rng(3), range(4), range(3)
    counts = draws.integers(1, 50, (4, 3))
    fits = draws.uniform(0.1, 1, (4, 4, 14))
    together = draws.uniform(0.1, 1, (4, 14))

    def literal(numbers: np.ndarray, site: int) -> tuple[float, float]:
        shares = [counts[site, each] / counts[site].sum() for each in classes]
        variance = sum((shares[each] * numbers[11 + each]) ** 2 for each in classes)
        return sum(shares[each] * numbers[8 + each] for each in classes), math.sqrt(variance)

    found, of_all = at_own_shares(fits, together, counts)
    for site in sites:
        for model in sites:
            np.testing.assert_allclose(found[model, site, 3:5], literal(fits[model, site], model))
        others = [literal(together[site], other) for other in sites if other != site]
        least = min(others, key=lambda each: each[0] / each[1])
        np.testing.assert_allclose(of_all[site, 3:5], least)
    for before, made in ((fits, found), (together, of_all)):  # nothing else changes
        np.testing.assert_array_equal(np.delete(before, [3, 4], -1), np.delete(made, [3, 4], -1))
    two = fits[..., :5]
    assert at_own_shares(two, two[0], counts[:, :2])[0] is two


@pytest.mark.parametrize(("turned", "alpha"), [(False, 0.3), (True, 50.0)])
def test_sites_that_have_mostly_other_classes_are_not_accused(turned: bool, alpha: float) -> None:
    # Three normal classes a deviation and a half apart, and the best model for each of five sites' shares.
    draws, middles, named, naive = np.random.default_rng(5), np.array([-1.5, 0.0, 1.5]), [], []
    for _ in range(40):
        counts = np.stack([draws.multinomial(60, draws.dirichlet([alpha] * 3)) for _ in range(5)])
        prior = np.log((counts + 0.5) / (counts + 0.5).sum(axis=1, keepdims=True))
        fits = np.zeros((5, 5, Fit.width(3)))
        together = np.zeros(fits.shape[1:])
        for site in range(5):
            labels = np.repeat(np.arange(3), counts[site])
            truth = 2 - labels if turned and not site else labels
            inputs = middles[truth] + draws.normal(size=60)
            likely = -((inputs[:, None] - middles) ** 2) / 2
            fold, others = np.arange(60) % 5, [each for each in range(5) if each != site]
            for model in range(5):
                own = likely[:, ::-1] if turned and not model else likely
                fits[model, site] = fit_of(own + prior[model], labels, fold).values
            together[site] = fit_of(likely + prior[others].mean(axis=0), labels, fold).values
        named.append(turned_sites(*at_own_shares(fits, together, counts)))
        naive.append(turned_sites(fits, together))
    if turned:
        assert sum(each == [0] for each in named) >= 0.9 * 40
    else:
        assert sum(map(bool, named)) <= 0.05 * 40
    assert sum(map(bool, naive)) > 0.2 * 40


def scores_with(costs: dict[int, dict[int, float]], rows: int = 100) -> dict[int, Scores]:
    """Scores of four sites, 0.4 and what each other site in the coalition costs, with widths of 0.3."""
    found = {}
    for site in range(4):
        own = [each for each in coalitions(4) if site in each]
        means = [0.4 + sum(costs.get(site, {}).get(other, 0.0) for other in each) for each in own]
        found[site] = scores_of(*((mean, 0.3) for mean in means for _ in range(2)))
        found[site] = replace(found[site], count=rows)
    return found


def test_a_site_is_named_that_costs_most_of_the_others_clearly_more_than_a_tenth() -> None:
    # The first arm's signs and the third's correlate by 0.2: the error of their difference is
    # √(2 · 0.09 · 0.8)/√99 = 0.0381. For four sites, and two of three that must be harmed, 5 % are 0.05/4/2 =
    # 0.625 %: 2.498 errors above 0.1 are 0.1953.
    listed = coalitions(4)
    for cost, named in ((0.194, []), (0.197, [3])):
        assert harmful_sites(listed, scores_with({site: {3: cost} for site in range(3)})) == named
        assert harmful_sites(listed, scores_with({site: {3: cost} for site in range(2)})) == named
    # One site accuses nobody, whatever it reports, nor do two with fewer than eight rows.
    assert harmful_sites(listed, scores_with({0: {3: 1.0}})) == []
    assert harmful_sites(listed, scores_with({0: {3: 1.0}, 1: {3: 1.0}}, rows=7)) == []
    # Of two sites, it is unknown which harms the other.
    both = scores_of((1.0, 0.3), (1.0, 0.3), (0.0, 0.3), (0.0, 0.3))
    assert harmful_sites(coalitions(2), {0: both, 1: both}) == []


def test_none_is_named_where_sites_are_of_two_kinds() -> None:
    kinds = {0: {2: 0.3, 3: 0.3}, 1: {2: 0.3, 3: 0.3}, 2: {0: 0.3, 1: 0.3}, 3: {0: 0.3, 1: 0.3}}
    assert harmful_sites(coalitions(4), scores_with(kinds)) == []
    one_sided = {site: kinds[site] for site in (0, 1)}  # each costs 0.3, the other one stays
    assert harmful_sites(coalitions(4), scores_with(one_sided)) == []


def test_nobody_trains_with_a_harmful_site() -> None:
    fine = np.tile([0.9, 0.5, 0.1, -0.8, 0.2], (3, 3, 1))
    may = [[True, False, True], [False, True, False], [True, False, True]]
    assert partners(fine, turned=[], harmful=[1]).tolist() == may


def test_sites_that_did_not_answer_are_not_named() -> None:
    nothing = np.full((3, 3, 5), np.nan)
    assert turned_sites(nothing, nothing[0]) == []
    assert partners(nothing, []).all()
