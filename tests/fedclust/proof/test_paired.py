import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.integrate import quad

from fedclust.proof.paired import (
    BETS,
    Evidence,
    compare,
    counted,
    evidence,
    hall,
    holm,
    inverse_hall,
    least_gain,
    moments,
    most_rows,
    num_set_aside,
    p_value,
    pooled,
    possible,
    unlikely,
    unseen,
)

unhurried = settings(max_examples=50, deadline=None)


def upper_tail(t: float, degrees: float) -> float:
    """Integrate Student's density, as in any textbook, from t upwards."""
    constant = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    return quad(lambda x: constant * (1 + x * x / degrees) ** (-(degrees + 1) / 2), t, math.inf)[0]


# -- What a client reports ----------------------------------------------------------------------------------


def test_twelve_numbers_as_a_slow_loop_has_them() -> None:
    rows, margin = [0.6, -1.5, 0.0, 2.0], 0.2
    found = evidence(np.array(rows), [margin])
    count, sums = 0, [0.0] * 3
    bets = [0.0] * 8
    fair = 0.5 + margin / 4
    for d in rows:
        count += 1
        for power in (1, 2, 3):
            sums[power - 1] += d**power
        for place, bet in enumerate((0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.4, 1.9)):
            bets[place] += math.log(1 + bet / (2 * fair) * ((d + 2) / 4 - fair))
    assert found.count == count
    np.testing.assert_allclose(found.sums, sums)
    np.testing.assert_allclose(found.log_wealth, [bets])
    assert found.mean == pytest.approx(1.1 / 4)


def test_a_client_without_rows_has_no_evidence() -> None:
    found = evidence(np.zeros(0))
    assert (found.count, found.sums.tolist(), found.log_wealth.tolist()) == (0, [0] * 3, [[0] * 8])
    assert math.isnan(found.mean)


def test_evidence_adds_up() -> None:
    draws = np.random.default_rng(0).uniform(-2, 2, 30)
    whole = evidence(draws, [0.1])
    parts = pooled([evidence(part, [0.1]) for part in np.split(draws, [3, 3, 20])])
    assert parts.count == 30
    np.testing.assert_allclose(parts.sums, whole.sums)
    np.testing.assert_allclose(parts.log_wealth, whole.log_wealth)
    assert pooled([]).count == 0
    # Bets on other margins cannot be added up.
    assert pooled([evidence(draws, [0.1]), evidence(draws, [])]).log_wealth.shape == (0, 8)


def test_how_many_rows_count() -> None:
    # Three times the median of 2, 10, 12 and 400, which is 11; clients without rows are left out.
    assert most_rows(np.array([2, 10, 0, 12, 400, 0])) == 33
    assert most_rows(np.array([1])) == 3
    assert most_rows(np.zeros(4)) == most_rows(np.zeros(0)) == 1
    # Of few, each up to that. Of ten, one is set aside: the others' largest, 40, is between 15 and 30.
    assert counted(np.array([2, 10, 0, 12, 400]), 3.0).tolist() == [2, 10, 0, 12, 33]
    assert counted(np.array([*[10] * 8, 40, 400]), 3.0).tolist() == [*[10] * 8, 30, 30]
    assert counted(np.array([*[10] * 8, 20, 400]), 3.0).tolist() == [*[10] * 8, 20, 20]
    assert counted(np.array([*[10] * 9, 400]), 3.0).tolist() == [*[10] * 9, 15]
    assert counted(np.array([1, 400]), None).tolist() == [1, 400]
    assert counted(np.zeros(3, dtype=int), 3.0).tolist() == [0, 0, 0]


# -- What rows there may be ---------------------------------------------------------------------------------


DIFFERENCES = arrays(np.float64, st.integers(0, 12), elements=st.floats(-1, 1))


@unhurried
@given(DIFFERENCES, st.sampled_from([1.0, 2.0]), st.floats(-1, 1))
def test_what_rows_give_is_possible(rows: np.ndarray, limit: float, margin: float) -> None:
    assert possible(evidence(limit * rows, [limit * margin], limit), [limit * margin], limit)


def test_rows_next_to_a_margin_of_the_ends_are_possible() -> None:
    # 21 rows of −2 but for 10⁻⁹ to 10⁻¹⁵, as of models that are certain: their mean is rounded.
    for off in 10.0 ** -np.arange(9, 16):
        for rows in (np.full(21, -2 + off), -2 + off * np.arange(21) / 21):
            assert possible(evidence(rows, [-2.0]), [-2.0])


HONEST = evidence(np.array([0.5, -0.2, 0.1]))


@pytest.mark.parametrize(
    ("count", "sums", "bets"),
    [
        (0, [0.1, 0, 0], 0.0),  # no rows have no sums
        (3, [6.1, 12.4, 25], 0.0),  # a mean above 2
        (3, [3.0, 2.9, 3.0], 0.0),  # squares below those of equal rows, 3 · 1²
        (3, [0.0, 12.1, 0.0], 0.0),  # squares above 3 · 2²
        (3, [0.0, 3.0, 6.0], 0.0),  # mean 0 and squares 1: E(2 − d)(1 + d)² = 2 − 3·0 ... − E d³ >= 0
        (3, [0.0, 3.0, -6.0], 0.0),
        (3, HONEST.sums, 0.2),  # more won than the same bet on three rows at their mean
        (3, HONEST.sums, -3.0),  # more lost than by rows of −2 and 2 with that mean
    ],
)
def test_what_no_rows_give_is_not(count: int, sums: list[float], bets: float) -> None:
    assert possible(HONEST)
    wealth = HONEST.log_wealth + bets
    assert not possible(Evidence(count, np.array(sums, dtype=float), wealth))


# -- The test -----------------------------------------------------------------------------------------------


def test_moments_by_hand() -> None:
    # 0, 0, 0, 1: mean 1/4, variance 3/16, third central moment (3·(−1/4)³ + (3/4)³)/4 = 3/32.
    mean, deviation, skewness = moments(evidence(np.array([0.0, 0.0, 0.0, 1.0])))
    assert (mean, deviation) == (0.25, pytest.approx(math.sqrt(3) / 4))
    assert skewness == pytest.approx(3 / 32 / (3 / 16) ** 1.5)
    # Sevenths are not exact in binary: rows that are alike have no deviation all the same.
    assert moments(evidence(np.full(7, 1 / 7)))[1:] == (0, 0)


def test_halls_transformation_by_hand() -> None:
    # W = 0.2, g = 1.5, N = 100: 0.2 + 1.5·0.04/3 + 2.25·0.008/27 + 1.5/600 = 0.2 + 0.02 + 0.00066… + 0.0025.
    assert hall(0.2, 1.5, 100) == pytest.approx(0.2 + 0.02 + 0.018 / 27 + 0.0025)
    assert hall(0.2, 0.0, 100) == 0.2


@unhurried
@given(st.floats(-2, 2), st.floats(-4, 4), st.integers(100, 10_000))
def test_the_inverse_of_halls_transformation(ratio: float, skewness: float, count: int) -> None:
    assert inverse_hall(hall(ratio, skewness, count), skewness, count) == pytest.approx(ratio, abs=1e-5)


def test_from_120_rows_on_the_test_is_halls() -> None:
    # 90 rows of −0.2 and 30 of 1: mean 0.1, variance 0.75·0.09 + 0.25·0.81 = 0.27, third central moment
    # 0.75·(−0.3)³ + 0.25·0.9³ = 0.162. Margin 0.02: W = 0.08/√0.27.
    found = evidence(np.repeat([-0.2, 1.0], [90, 30]), [0.02])
    ratio, skewness = 0.08 / math.sqrt(0.27), 0.162 / 0.27**1.5
    q = ratio + skewness * ratio**2 / 3 + skewness**2 * ratio**3 / 27 + skewness / 720
    assert p_value(found, 0.02) == pytest.approx(upper_tail(math.sqrt(120) * q, 119))


def test_a_loss_that_no_row_shows_may_be_there() -> None:
    # 150 rows of 0.05 ± 0.02 and a margin of 0.01: Hall's test alone is sure, t = 0.04/0.02 · √150 = 24. But
    # were one row in 51 a loss of 2 (0.04/2.05), the mean would be the margin, and 150 rows would miss all
    # of these with a probability of 0.052; half of it counts.
    found = evidence(0.05 + np.tile([-0.02, 0.02], 75), [0.01])
    assert p_value(found, 0.01) == pytest.approx((1 - 0.04 / 2.05) ** 150 / 2)
    assert unseen(0.25, 0.0, 2, 1.0) == pytest.approx(0.8**2)  # 0.25/1.25 of the rows
    assert unseen(-0.1, 0.0, 300) == unseen(-2.0, 0.0, 300) == 1


def test_below_120_rows_it_is_a_bet() -> None:
    # Rows 2, 2, 0 and −2 at a margin of 0: each bet λ becomes (1 + λ/2)²·1·(1 − λ/2) of what it was.
    found = evidence(np.array([2.0, 2.0, 0.0, -2.0]))
    owned = sum((1 + bet / 2) ** 2 * (1 - bet / 2) for bet in BETS) / 8
    assert p_value(found) == pytest.approx(min(1, 1 / owned))
    # Ten rows of 1, half of the largest gain.
    sure = evidence(np.full(10, 1.0))
    assert p_value(sure) == pytest.approx(8 / sum((1 + bet / 4) ** 10 for bet in BETS))
    assert p_value(evidence(np.full(10, -2.0))) == 1
    assert p_value(evidence(np.zeros(50))) == 1
    assert p_value(evidence(np.zeros(0))) == 1


def test_one_row_votes() -> None:
    # (1 + λ/4) on average over the bets: 1 + 4.87/32.
    assert compare([evidence(np.array([1.0]))]).p_value == pytest.approx(1 / (1 + sum(BETS) / 32))


def test_differences_of_full_size_are_counted() -> None:
    # Three or more of four, each with a chance of 1/2: (4 + 1)/16; with one of 3/5 at a margin of 0.4.
    rows = evidence(np.array([2.0, -2.0, 2.0, 2.0]))
    assert p_value(rows) == pytest.approx(5 / 16)
    assert p_value(rows, 0.4) == pytest.approx(4 * 0.6**3 * 0.4 + 0.6**4)
    assert p_value(evidence(np.full(10, 2.0))) == pytest.approx(1 / 2**10)


def test_rows_that_are_all_alike_are_bet_on_however_many() -> None:
    # 200 rows of 0.02, x − m = 0.005.
    found = evidence(np.full(200, 0.02))
    owned = sum((1 + bet * 0.005) ** 200 for bet in BETS) / 8
    assert p_value(found) == pytest.approx(1 / owned)


def test_what_is_owned_never_overflows() -> None:
    assert 0 < p_value(evidence(np.full(5000, 1.99))) < 1e-300


def test_a_comparison_by_hand() -> None:
    found = compare([evidence(np.array(rows)) for rows in ([0.5, 0.3], [-0.2], [])])
    assert (found.num_clients, found.better_for, found.num_rows) == (2, 1, 3)
    assert found.gain == pytest.approx(0.2)
    assert found.p_value == found.p_value_of_others == p_value(evidence(np.array([0.5, 0.3, -0.2])))
    # Deviations 0.3, 0.1 and −0.4 from the mean of 0.2: a variance of 0.26/3 over three rows.
    assert found.error == found.error_of_others == pytest.approx(np.sqrt(0.26 / 3 / 3))
    assert found.exceeds(0.2 - 0.17)
    assert not found.exceeds(0.2 - 0.16)
    numbers = {"voted": 2, "rows": 3, "better_for": 1, "gain_error": found.error}
    assert found.figures() == {**numbers, "gain": found.gain, "p_value": found.p_value}


@pytest.mark.parametrize(("count", "deviation"), [(400, 0.5), (100, 0.5), (30, 0.2)])
def test_the_least_gain_is_where_a_test_begins_to_pass(count: int, deviation: float) -> None:
    least = least_gain(deviation / np.sqrt(count), count, level=0.05, margin=0.01)
    halves = np.tile([-deviation, deviation], count // 2)
    found = [compare([evidence(halves + least * times, [0.01])], 0.01).p_value for times in (0.98, 1.02)]
    assert found[0] > 0.05 > found[1]


def test_nobody_votes() -> None:
    for reports in ([], [evidence(np.zeros(0))] * 3):
        found = compare(reports)
        assert (found.num_clients, found.p_value, found.better_for, found.gains) == (0, 1.0, 0, False)
        assert not found.exceeds(-2)
        assert found.least_gain(0.05) == 2.0
        assert found.figures() == {
            "voted": 0,
            "rows": 0,
            "gain": None,
            "gain_error": None,
            "p_value": 1.0,
            "better_for": 0,
        }


def test_without_the_most_and_the_least_favourable_votes() -> None:
    assert [num_set_aside(number) for number in (1, 9, 10, 19, 20, 30)] == [0, 0, 1, 1, 2, 3]
    rows = [np.full(20, mean) + np.tile([-0.1, 0.1], 10) for mean in np.linspace(-0.04, 0.05, 10)]
    found = compare([evidence(each) for each in rows], margin=0.0)
    others = evidence(np.concatenate(rows[1:-1]))
    assert found.gain == pytest.approx(0.005)
    assert found.gain_of_others == pytest.approx(0.005)
    assert found.p_value_of_others == pytest.approx(p_value(others))
    whole = p_value(evidence(np.concatenate(rows)))
    assert found.p_value == pytest.approx(max(whole, p_value(others)))
    # 8 · 12 rows that are left of 120 are tested as the 120 are, by Hall's transformation.
    short = [evidence(each[:12]) for each in rows]
    assert compare(short).p_value_of_others == p_value(pooled(short[1:-1]), enough=True)


def symmetric(draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return draws.normal(0, 0.3, shape).clip(-2, 2)


def skewed(draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """In two rows of a hundred a loss of 1.2, else a gain; 0 on average."""
    return np.where(draws.random(shape) < 0.02, -1.2, 0.024 / 0.98)


def nearly_alike(draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """In one row of two hundred a loss of 2, else a gain of 0.01 that hardly varies; 0 on average."""
    return np.where(draws.random(shape) < 0.005, -2.0, draws.normal(0.01 / 0.995, 0.01, shape))


SIZES = {"30 × 4": [4] * 30, "2 with 500s": [2] * 3 + [500] * 3, "6 × 5": [5] * 6, "3 sites": [30, 130, 261]}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("rows", "most"), [(symmetric, 0.06), (skewed, 0.10), (nearly_alike, 0.10)])
def test_the_level_is_held(rows: Callable, most: float, sizes: str) -> None:
    # 400 cases: at a level of 5 % the standard deviation of the share is 1.1 %, at 10 % it is 1.5 %.
    counts, wrong, cases = np.array(SIZES[sizes]), 0, 400
    counts = np.minimum(counts, most_rows(counts))
    draws = np.random.default_rng(3)
    for _ in range(cases):
        drawn = np.split(rows(draws, (counts.sum(),)), np.cumsum(counts)[:-1])
        wrong += compare([evidence(each) for each in drawn]).p_value <= 0.05
    assert wrong / cases <= most + 2 * math.sqrt(most * (1 - most) / cases)


def test_the_margin_is_no_gain() -> None:
    draws, wrong = np.random.default_rng(4), 0
    for _ in range(300):
        rows = 0.1 + symmetric(draws, (10, 15))
        wrong += compare([evidence(each, [0.1]) for each in rows], 0.1).p_value <= 0.05
    assert wrong / 300 <= 0.08


# -- Several tests ------------------------------------------------------------------------------------------


def test_holm() -> None:
    # In order 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1 is 0.04, 0.06, 0.06, 0.04, and none is below the
    # one before it.
    np.testing.assert_allclose(holm([0.04, 0.01, 0.03, 0.02]), [0.06, 0.04, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.6, 0.9]), [1.0, 1.0])
    np.testing.assert_allclose(holm([0.03]), [0.03])
    assert holm([]).shape == (0,)


REFUSED = [
    (evidence, (np.array([2.5]),), r"differences must be in \[-2.0+1, 2.0+1\], got 2.5"),
    (evidence, (np.array([np.nan]),), "differences must be in .*, got nan"),
    (evidence, (np.zeros((2, 2)),), r"differences must have shape \(rows\), got \(2, 2\)"),
    (evidence, (np.zeros(2), [3.0]), "margins must be .*, got"),
    (holm, ([0.5, 1.5],), r"p_values must be in \[0, 1\], got 1.5"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), REFUSED)
def test_bad_numbers_are_refused(function: Callable[..., object], arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*arguments)


# -- Votes that the others' rows make unlikely ---------------------------------------------------------------


def literal_unlikely(rows: list[list[float]]) -> list[int]:
    """Find them by a loop over rows, as the docstring of `unlikely` has it."""
    means = [sum(each) / len(each) for each in rows]
    ordered = sorted(means)
    middle = len(ordered) // 2
    centre = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    nearest = sorted(range(len(rows)), key=lambda place: abs(means[place] - centre))
    nearest = nearest[: len(rows) - len(rows) // 3]
    of_near = [d for place in nearest for d in rows[place]]
    variance = (sum((d - centre) ** 2 for d in of_near) + 3 * 4) / (len(of_near) + 3)
    farthest, found = max(abs(means[place] - centre) for place in nearest), []
    for place, mean in enumerate(means):
        t = abs(mean - centre) - 4 * farthest
        if abs(mean - centre) <= 1 or t <= 0:
            continue
        u = 2 * t / variance
        if math.exp(-len(rows[place]) * variance / 4 * ((1 + u) * math.log(1 + u) - u)) <= 0.001:
            found.append(place)
    return found


@pytest.mark.parametrize("value", [-2.0, 2.0, -1.2])
@pytest.mark.parametrize("count", [1, 3, 4, 8, 20])
@pytest.mark.parametrize("liars", [1, 3])
def test_unlikely_votes_as_a_slow_loop_finds_them(value: float, count: int, liars: int) -> None:
    draws = np.random.default_rng(count)
    rows = [np.clip(draws.normal(0.1, 0.3, 20), -2, 2).tolist() for _ in range(20)]
    rows = [*rows[:7], *[[value] * count] * liars, *rows[7:]]
    expected = literal_unlikely(rows)
    assert unlikely([evidence(np.array(each), []) for each in rows]) == expected
    if count in (1, 20):  # what is to be found at all
        assert expected == ([*range(7, 7 + liars)] if count == 20 else [])


def test_how_many_rows_a_vote_needs_to_be_unlikely() -> None:
    # Nine of 100 rows of 0: centre 0, of the core's 7 · 100 rows v = 12/703 = 0.01707, farthest 0. For a
    # vote of −2 b = t = 2: u = 4/v = 234.3, and ((1 + u)ln(1 + u) − u)·v/4, which is
    # (235.3·5.4610 − 234.3)·0.0042674 = 4.483, for each of its rows: e^−4.483 = 0.011 of one, e^−8.97 =
    # 0.00013 of two.
    honest = [evidence(np.zeros(100))] * 9
    assert unlikely([*honest, evidence(np.full(1, -2.0))]) == []
    assert unlikely([*honest, evidence(np.full(2, -2.0))]) == [9]
    assert unlikely([*honest, evidence(np.full(100, -1.0))]) == []  # no farther than half of all there is
    assert unlikely([*honest, evidence(np.full(100, -1.01))]) == [9]
    assert unlikely([*honest[1:], evidence(np.full(100, -2.0))]) == []  # nine votes are too few to judge
    assert unlikely([*honest[1:], evidence(np.zeros(0)), evidence(np.full(100, -2.0))]) == []


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 50])
@pytest.mark.parametrize(
    "draw",
    [
        lambda draws, rows: draws.normal(0.02, 0.3, rows),
        lambda draws, rows: np.where(draws.random(rows) < 0.02, -1.5, 0.02),  # rare losses
        lambda draws, rows: np.where(draws.random(rows) < 0.1, 2.0, 0.001),
        lambda draws, rows: draws.normal(0, 0.3) + draws.normal(0, 0.3, rows),  # clients that differ
    ],
    ids=["normal", "rare losses", "rare gains", "clients that differ"],
)
def test_no_honest_vote_is_unlikely(draw: Callable[..., np.ndarray], rows: int) -> None:
    draws = np.random.default_rng(rows)
    for _ in range(100):
        votes = [evidence(np.clip(draw(draws, rows), -2, 2), []) for _ in range(30)]
        assert unlikely(votes) == []
