from itertools import product

import numpy as np
import pytest

from fedclust.metrics.ranks import critical_difference, friedman, mean_ranks, sign_flip


def test_ranks_by_hand() -> None:
    # Row 1 ranks 1, 2, 3; row 2: the first two share ranks 1 and 2, so 1.5 each; row 3: 3, 1, 2.
    scores = [[0.9, 0.8, 0.7], [0.5, 0.5, 0.1], [0.1, 0.3, 0.2]]
    np.testing.assert_allclose(mean_ranks(scores), [(1 + 1.5 + 3) / 3, (2 + 1.5 + 1) / 3, (3 + 3 + 2) / 3])


# Demšar (2006), Table 5 (a): q at 0.05 is 1.960 for 2 methods, 2.343 for 3, 2.728 for 5 and 3.164 for 10.
@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_difference_with_the_papers_table(methods: int, quantile: float) -> None:
    expected = quantile * np.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(expected, abs=2e-3)


def test_the_papers_example() -> None:
    # Section 3.2.2: four classifiers on 14 data sets, CD = 2.569 √(4 · 5 / (6 · 14)) = 1.25.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_friedman_sees_a_method_that_always_wins() -> None:
    draws = np.random.default_rng(0)
    scores = draws.normal(0, 1, (20, 4))
    assert friedman(scores) > 0.05
    scores[:, 2] += 5
    # It ranks first on all 20: chi2_F = 12N/(k(k+1)) (sum R^2 - k(k+1)^2/4), at least as if the others tied.
    assert friedman(scores) < 1e-5
    assert mean_ranks(scores)[2] == 1
    assert friedman(np.ones((5, 3))) == 1


@pytest.mark.parametrize(
    ("scores", "rule"), [([0.1, 0.2], "have shape"), ([[np.nan, 1]], "be finite"), (np.zeros((0, 3)), "have")]
)
def test_scores_that_cannot_be_ranked_are_refused(scores: object, rule: str) -> None:
    with pytest.raises(ValueError, match=f"scores must {rule}"):
        mean_ranks(scores)


def test_arguments_out_of_range_are_refused() -> None:
    for arguments in ((1, 3), (3, 0)):
        with pytest.raises(ValueError, match=r"^(num_methods|num_federations) must be "):
            critical_difference(*arguments)
    with pytest.raises(ValueError, match="two federations and three methods"):
        friedman([[0.1, 0.2]])


@pytest.mark.parametrize(
    "differences", [[1.0, 2.0, 3.0], [0.1, 0.2, -0.05, 0.3, 0.2], [0.0, 0.0], [0.5], [1, -2]]
)
def test_sign_flips_against_all_of_them(differences: list[float]) -> None:
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=len(differences))]
    share = np.mean([each >= abs(sum(differences)) - 1e-12 for each in sums])
    assert sign_flip(differences) == share


def test_many_seeds_are_drawn_the_same_way_each_time() -> None:
    differences = np.linspace(-0.1, 0.3, 20)
    # The mean is 0.1, of 20 with sample deviation 0.125: t = 3.6, which is rare.
    assert 0 < sign_flip(differences) == sign_flip(differences) < 0.01
    for wrong in ([], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="differences must"):
            sign_flip(wrong)
