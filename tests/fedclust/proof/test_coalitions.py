import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedclust.proof.coalitions import (
    Arm,
    Choice,
    Fit,
    Scores,
    choose,
    coalitions,
    fit_of,
    folds,
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
    assert not Scores(10, np.array([1.0, 0.0]), np.array([[0.5, 0.0], [0.0, 0.0]])).possible()
    assert not Scores(10, np.array([1.0, 0.0]), np.array([[1.0, 0.3], [0.0, 0.0]])).possible()
    # A variance of -1.5e-6 may be rounding where two arms are, one of -2.5e-6 not.
    for variance, possible in ((-1.5e-6, True), (-2.5e-6, False)):
        assert Scores(10, np.zeros(2), np.diag([variance, 0.0])).possible() is possible


def scores_of(*columns: tuple[float, float]) -> Scores:
    """Scores of 100 rows for arms with these means: ± a width around them, all independent of each other."""
    signs = [np.resize([1, -1], 100), np.repeat([1, -1], 50), np.tile(np.repeat([1, -1], 5), 10)]
    return Scores.of(np.array([mean + width * signs[at % 3] for at, (mean, width) in enumerate(columns)]))


EVERYONE, PRIOR = Arm(0, False), Arm(0, True)


@pytest.mark.parametrize(
    ("columns", "chosen", "everyone"),
    [
        # Standard errors of differences: widths of 0.3 give √(0.09 + 0.09)/√99 = 0.043.
        ([(0.38, 0.3), (0.40, 0.3), (0.40, 0.3), (0.33, 0.3)], PRIOR, PRIOR),  # 0.07 is 1.6 of them
        ([(0.38, 0.3), (0.40, 0.3), (0.40, 0.3), (0.30, 0.3)], Arm(1, True), PRIOR),  # 0.10 is 2.3
        # Corrected is 0.07, 1.6 of them, worse than plain.
        ([(0.33, 0.3), (0.40, 0.3), (0.36, 0.3), (0.40, 0.3)], EVERYONE, EVERYONE),
        # Two sites' model as it is is best, corrected it is within one standard error, or 2.3 of them worse.
        ([(0.60, 0.3), (0.60, 0.3), (0.30, 0.3), (0.31, 0.3)], Arm(1, True), PRIOR),
        ([(0.60, 0.3), (0.60, 0.3), (0.30, 0.3), (0.40, 0.3)], Arm(1, False), PRIOR),
    ],
)
def test_a_site_leaves_at_two_standard_errors_and_chooses_within_one(columns, chosen, everyone) -> None:
    found = choose([3, 2], scores_of(*columns))
    assert (found.arm, found.everyone) == (chosen, everyone)


def test_of_equal_arms_the_larger_coalition_is_chosen() -> None:
    columns = [(0.6, 0.3), (0.6, 0.3), (0.5, 0.3), (0.31, 0.3), (0.5, 0.3), (0.3, 0.3)]
    assert choose([3, 2, 1], scores_of(*columns)).arm == Arm(1, True)


def test_alone_nothing_is_corrected_and_of_everyones_arms_the_one_that_stands_is_chosen() -> None:
    columns = [(0.6, 0.3), (0.6, 0.3), (0.3, 0.3), (0.3, 0.3)]
    assert choose([3, 1], scores_of(*columns)).arm == Arm(1, False)
    # Corrected is 0.044 worse than plain, 1.03 of √(0.09 + 0.09)/√99. The last arm is 0.003 better than plain
    # in every row, so the site leaves. The third is best, all are within √(0.09 + 0.36)/√99 = 0.067 of it.
    columns = [(0.388, 0.3), (0.432, 0.3), (0.38, 0.6), (0.385, 0.3)]
    assert choose([3, 2], scores_of(*columns)) == Choice(EVERYONE, EVERYONE)


def test_nothing_is_chosen_without_rows() -> None:
    few = Scores.of(np.array([[1.0] * 7, [1.0] * 7, [0.0] * 7, [0.0] * 7]))
    assert choose([2, 1], few) == choose([2, 1], None) == Choice(EVERYONE, EVERYONE)


def test_two_classes_fit_by_the_area_under_the_curve() -> None:
    logits = np.array([[0, 1], [0, 2], [0, 3], [0, 4]], dtype=float)
    # Of the four pairs of a 1 with a 0, three are in order: 2 > 1, 4 > 1, 4 > 3. Under no order the area's
    # variance is (n + 1)/(12 n1 n0) = 5/48.
    found = fit_of(logits, np.array([0, 1, 0, 1]), np.arange(4))
    assert (found.right, found.by_chance, found.error) == (0.75, 0.5, pytest.approx(math.sqrt(5 / 48)))
    assert (found.renaming, found.renaming_error) == (-0.5, pytest.approx(2 * math.sqrt(5 / 48)))
    assert fit_of(logits, np.zeros(4, dtype=int), np.arange(4)) == Fit()
    assert fit_of(logits[:0], np.zeros(0, dtype=int), np.arange(0)) == Fit()


def test_more_classes_fit_by_the_best_renaming_found_on_other_rows() -> None:
    labels, fold = np.tile([0, 1, 2], 30), np.arange(90) % 5
    found = fit_of(np.eye(3)[(labels + 1) % 3], labels, fold)
    assert (found.right, found.by_chance, found.renaming) == (0.0, pytest.approx(1 / 3), 1.0)
    assert found.names == (2, 0, 1)
    noise = np.random.default_rng(1).normal(size=(200, 10))
    gains = [fit_of(np.roll(noise, by, 0), np.arange(200) % 10, np.arange(200) % 5) for by in range(40)]
    # The best renaming of noise on the rows that it was found on gains 0.07; here it must gain nothing.
    assert abs(np.mean([each.renaming for each in gains])) < 0.02


def crossed(areas: list[list[float]], error: float = 0.05) -> np.ndarray:
    """A cross-site matrix of areas under the curve with one standard error."""
    return np.array([[[each, 0.5, error, 1 - 2 * each, 2 * error] for each in row] for row in areas])


def test_the_site_that_most_models_have_the_wrong_way_round_is_named() -> None:
    nan = math.nan
    turned = crossed([[nan, 0.2, 0.3], [0.2, nan, 0.8], [0.3, 0.9, nan]])
    assert turned_sites(turned) == [0]
    wrong, right = ways(turned)
    assert wrong[:, 0].tolist() == [False, True, True]
    assert right[:, 1].tolist() == [False, False, True]
    assert turned_sites(crossed([[nan, 0.2], [0.3, nan]])) == [0, 1]
    assert turned_sites(crossed([[nan, 0.45, 0.7], [0.6, nan, 0.7], [0.5, 0.42, nan]])) == []
