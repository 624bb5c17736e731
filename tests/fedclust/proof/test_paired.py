import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad

from fedclust.proof import Difference, brier_scores, compare, difference, holm, p_values, statistic

unhurried = settings(max_examples=50, deadline=None)


def upper_tail(t: float, degrees: float) -> float:
    """Integrate Student's density, as in any textbook, from t upwards."""
    constant = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    return quad(lambda x: constant * (1 + x * x / degrees) ** (-(degrees + 1) / 2), t, math.inf)[0]


def of_rows(rows: np.ndarray) -> np.ndarray:
    """P-value of each comparison of differences, shape (comparisons, clients, rows)."""
    count = np.full(rows.shape[:-1], float(rows.shape[-1]))
    return p_values(statistic(rows.mean(axis=-1), rows.var(axis=-1, ddof=1), count))


def test_two_clients_with_two_rows_each() -> None:
    # Rows 0.2, 0.4 and 0.0, 0.2: means 0.3 and 0.1, variances 0.02, so v = 0.02 / 2 = 0.01 each.
    # D = 0.2; standard error sqrt(0.02) / 2; t = 0.4 / sqrt(0.02) = sqrt(8).
    # Degrees of freedom 0.02² / (0.01² / 1 + 0.01² / 1) = 2, where the tail is 1/2 - t / (2 sqrt(2 + t²))
    # = 1/2 - sqrt(8) / (2 sqrt(10)), and the 97.5 % point is 4.302653 (any table).
    found = compare([0.3, 0.1], [0.02, 0.02], [2, 2])
    assert found.gain == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(math.sqrt(0.02) / 2)
    assert found.degrees_of_freedom == pytest.approx(2)
    assert found.p_value == pytest.approx(0.5 - math.sqrt(8) / (2 * math.sqrt(10)))
    half = 4.302653 * math.sqrt(0.02) / 2
    assert found.interval == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)
    assert (found.num_clients, found.better_for, found.abstained) == (2, 2, ())


@pytest.mark.parametrize(
    ("told", "gain", "standard_error", "degrees", "better_for"),
    [
        # v = 0.04 / 3 and 0.02 / 2 = 0.01; sum 7 / 300. Degrees of freedom, times 300²:
        # 7² / (4² / 2 + 3² / 1) = 49 / 17. D = (0.3 - 0.1) / 2 = 0.1.
        (([0.3, -0.1], [0.04, 0.02], [3, 2]), 0.1, math.sqrt(7 / 300) / 2, 49 / 17, 1),
        # One client, as in the usual paired t-test. Rows 0.1, 0.3, 0.5: mean 0.3, variance 0.04.
        (([0.3], [0.04], [3]), 0.3, math.sqrt(0.04 / 3), 2, 1),
        # v = 0 and 0.01: D = 0.2, standard error 0.1 / 2, degrees of freedom those of the second client.
        (([0.3, 0.1], [0.0, 0.02], [2, 2]), 0.2, 0.05, 1, 2),
    ],
)
def test_clients_of_different_size_and_spread(
    told: tuple[list, ...], gain: float, standard_error: float, degrees: float, better_for: int
) -> None:
    found = compare(*told)
    assert found.gain == pytest.approx(gain)
    assert found.standard_error == pytest.approx(standard_error)
    assert found.degrees_of_freedom == pytest.approx(degrees)
    assert found.p_value == pytest.approx(upper_tail(gain / standard_error, degrees))
    assert found.better_for == better_for


def test_a_client_with_fewer_than_two_rows_does_not_vote_and_is_named() -> None:
    found = compare([0.3, 2.0, 0.1, np.nan], [0.02, 0.0, 0.02, np.nan], [2, 1, 2, 0])
    without = compare([0.3, 0.1], [0.02, 0.02], [2, 2])
    assert found.abstained == (1, 3)
    assert (found.gain, found.interval, found.p_value) == (without.gain, without.interval, without.p_value)
    assert found.num_clients == 2


@pytest.mark.parametrize("clients", [0, 3])
def test_nobody_votes(clients: int) -> None:
    found = compare(np.zeros(clients), np.zeros(clients), np.ones(clients))
    assert (found.num_clients, found.p_value, found.better_for) == (0, 1.0, 0)
    assert math.isnan(found.gain)
    assert math.isnan(found.interval[0])
    assert found.abstained == tuple(range(clients))


def test_equal_models_are_not_better() -> None:
    found = compare([0.0, 0.0], [0.0, 0.0], [5, 5])
    assert (found.gain, found.interval, found.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_without_any_variance_hoeffding_bounds_the_error() -> None:
    # Every row of both clients differs by 1: sum of 1/n is 1/4 + 1/4, over m² = 4 that is 1/8.
    # P(D >= 1) <= exp(-2 * 1 / (16 / 8)) = exp(-1); half width sqrt(ln 40 * 16 / 8 / 2) = 1.92.
    found = compare([1.0, 1.0], [0.0, 0.0], [4, 4])
    assert found.p_value == pytest.approx(math.exp(-1))
    assert found.interval == pytest.approx((1 - math.sqrt(math.log(40)), 2.0))
    assert compare([-1.0, -1.0], [0.0, 0.0], [4, 4]).p_value == 1.0
    assert compare([1.0] * 10, [0.0] * 10, [10] * 10).p_value == pytest.approx(math.exp(-12.5))


def test_tiny_variances_neither_vanish_nor_overflow() -> None:
    # Scaling all differences by 1e-160 (variances by 1e-320) changes no ratio.
    tiny = compare(np.array([0.3, 0.1]) * 1e-150, np.array([0.02, 0.02]) * 1e-300, [2, 2])
    assert tiny.p_value == pytest.approx(0.5 - math.sqrt(8) / (2 * math.sqrt(10)))


client = st.tuples(st.floats(-2, 2), st.just(0.0) | st.floats(1e-9, 4), st.integers(2, 30))


@unhurried
@given(st.lists(client, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_numbering_makes_no_difference_and_sides_mirror(clients: list, random: object) -> None:
    mean, variance, count = map(np.array, zip(*clients, strict=True))
    order = np.array(random.sample(range(len(clients)), len(clients)))  # type: ignore[attr-defined]
    found, other = compare(mean, variance, count), compare(mean[order], variance[order], count[order])
    assert other.p_value == pytest.approx(found.p_value, abs=1e-9)
    assert other.interval == pytest.approx(found.interval, abs=1e-9)
    mirrored = compare(-mean, variance, count)
    assert mirrored.interval == pytest.approx((-found.interval[1], -found.interval[0]))
    if variance.any():
        assert mirrored.p_value + found.p_value == pytest.approx(1)
    assert found.interval[0] <= found.gain <= found.interval[1]
    # A 90 % interval above 0 and a one-sided p-value below 5 % are the same statement.
    if variance.any() and abs(found.p_value - 0.05) > 1e-9:
        assert (compare(mean, variance, count, confidence=0.9).interval[0] > 0) == (found.p_value < 0.05)


def test_the_three_numbers_are_enough() -> None:
    draws = np.random.default_rng(0)
    a, b = draws.uniform(0, 2, (3, 6)), draws.uniform(0, 2, (3, 6))
    told = [difference(*scores) for scores in zip(a, b, strict=True)]
    found = compare([d.mean for d in told], [d.variance for d in told], [d.count for d in told])
    assert found.gain == pytest.approx((a - b).mean())
    assert found.p_value == pytest.approx(float(of_rows((a - b)[None])[0]))


@pytest.mark.parametrize(("clients", "rows"), [(2, 8), (2, 40), (10, 5), (30, 12)])
def test_error_rate_under_no_difference(clients: int, rows: int) -> None:
    # Clients gain and lose by up to 0.2, 0 on average, and differ in spread: the model is no better for
    # all. In 10,000 draws at a level of 5 % the rejections' standard deviation is 0.2 %.
    draws = np.random.default_rng(1)
    centre = np.linspace(-0.2, 0.2, clients)[:, None]
    spread = np.linspace(0.2, 1.0, clients)[:, None]
    differences = centre + spread * draws.uniform(-1, 1, (10_000, clients, rows))
    rejected = (of_rows(differences) <= 0.05).mean()
    assert 0.04 <= rejected <= 0.06


def test_holm() -> None:
    # In order 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04, and none is below the
    # one before it.
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03, 0.02]), [0.06, 0.04, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])
    np.testing.assert_allclose(holm([0.03]), [0.03])
    assert holm([]).shape == (0,)


@unhurried
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_steps_reject(values: list[float]) -> None:
    """The procedure as Holm states it: go on while the i-th smallest is at most level / (m - i + 1)."""
    rejected = set()
    for i, index in enumerate(np.argsort(values, kind="stable")):
        if values[index] * (len(values) - i) > 0.05:
            break
        rejected.add(int(index))
    assert set(np.flatnonzero(holm(values) <= 0.05).tolist()) == rejected


REFUSED = [
    (compare, ([0.1], [0.1, 0.1], [2, 2]), r"variance must have shape \(1\), got \(2,\)"),
    (compare, ([2.5], [0.1], [2]), r"mean must be in \[-2.0+1, 2.0+1\], got 2.5"),
    (compare, ([np.nan], [0.1], [2]), r"mean must be in .*, got nan"),
    (compare, ([0.1], [-0.1], [2]), "variance must be >= 0 and finite, got -0.1"),
    (compare, ([0.1], [np.inf], [2]), "variance must be >= 0 and finite, got inf"),
    (compare, ([0.1], [0.1], [-1]), "count must be finite and >= 0, got -1"),
    (partial(compare, confidence=1), ([0.1], [0.1], [2]), r"confidence must be in \(0, 1\), got 1"),
    (partial(compare, set_aside=1), ([0.1] * 2, [0.1] * 2, [2] * 2), "less than half of 2 votes, got 1"),
    (holm, ([0.5, 1.5],), r"p_values must be in \[0, 1\], got 1.5"),
    (brier_scores, (np.zeros((2, 3)), np.zeros(3, int)), r"must have shape \(3, classes\), got \(2, 3"),
    (brier_scores, (np.zeros(3), np.zeros((), int)), r"labels must have shape \(rows\), got \(\)"),
    (brier_scores, (np.zeros((1, 3)), np.array([3])), r"labels must be in \[0, 3\), got 3"),
    (brier_scores, (np.zeros((1, 3)), np.array([-1])), r"labels must be in \[0, 3\), got -1"),
    (brier_scores, (np.array([[np.nan, 0]]), np.array([0])), "logits must be finite, got nan"),
    (brier_scores, (np.zeros((1, 3)), np.array([0]), np.zeros(2)), r"must have shape \(3\), got \(2,\)"),
    (brier_scores, (np.zeros((1, 2)), np.array([0]), [np.inf, 0]), "log_prior_shift must be finite or -inf"),
    (brier_scores, (np.zeros((1, 2)), np.array([0]), [-np.inf] * 2), "shift must be finite or -inf"),
    (difference, (np.zeros(1), np.array([2.5])), r"scores_b must be in \[0, 2.0+1\], got 2.5"),
    (difference, (np.array([np.nan]), np.zeros(1)), r"scores_a must be in .*, got nan"),
    (difference, (np.zeros(1), np.zeros(2)), r"scores_b must have shape \(1\), got \(2,\)"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), REFUSED)
def test_bad_numbers_are_refused(function: Callable[..., object], arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*arguments)


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


@unhurried
@given(arrays(np.float64, (5, 4), elements=st.floats(-50, 50)), st.floats(-100, 100))
def test_scores_are_in_range_and_ignore_what_all_logits_share(logits: np.ndarray, shared: float) -> None:
    labels = np.array([0, 1, 2, 3, 0])
    scores = brier_scores(logits, labels)
    assert ((scores >= 0) & (scores <= 2 + 1e-12)).all()
    np.testing.assert_allclose(brier_scores(logits + shared, labels), scores, atol=1e-9)
    np.testing.assert_allclose(brier_scores(logits, labels, np.full(4, shared)), scores, atol=1e-9)


def test_few_rows_have_no_variance() -> None:
    assert difference(np.zeros(0), np.zeros(0)) == Difference(0.0, 0.0, 0)
    assert difference(np.array([0.5]), np.array([0.25])) == Difference(0.25, 0.0, 1)


def test_equal_differences_have_no_variance_at_all() -> None:
    # 0.1 * 3 - 0.1 is not exact in binary; the mean of seven of them is off by a bit.
    assert difference(np.full(7, 0.1 * 3), np.full(7, 0.1)).variance == 0
