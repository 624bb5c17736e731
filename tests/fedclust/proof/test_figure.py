import math

import numpy as np
import pytest
from scipy.stats import t as student

from fedclust.metrics.times import concordance_by_row
from fedclust.proof.figure import Rows, interval, margins, measure
from fedclust.proof.paired import BETS, evidence, hall, most_rows


def both(rows: np.ndarray, limit: float = 2.0, bets: bool = False) -> tuple:
    tried = margins(limit) if bets else []
    return evidence(rows, tried, limit), evidence(-rows, tried, limit), limit


def test_the_ends_of_an_interval_are_what_halls_test_just_allows() -> None:
    rows = np.repeat([-0.2, 1.0], [150, 50])
    low, high = interval(*both(rows))
    deviation, skewness = rows.std(), ((rows - rows.mean()) ** 3).mean() / rows.std() ** 3
    for end, sign in ((low, 1), (high, -1)):
        statistic = math.sqrt(200) * hall((rows.mean() - end) / deviation, skewness, 200)
        assert statistic == pytest.approx(sign * student.ppf(0.975, 199))
    assert rows.mean() - low < high - rows.mean()  # rare large gains may be missing, rare losses may not


def test_of_few_rows_the_interval_is_where_no_bet_is_won() -> None:
    rows = np.array([0.9, 1.1, 1.3, 0.8, 1.2] * 4)

    def won(margin: float, side: int) -> float:
        """Multiply what each bet makes of 1, row by row, and average."""
        fair, owned = (1 + margin / 2) / 2, []
        for bet in BETS:
            capital = 1.0
            for d in side * rows:
                capital *= 1 + bet / (2 * fair) * ((1 + d / 2) / 2 - fair)
            owned.append(capital)
        return sum(owned) / len(owned)

    low, high = interval(*both(rows, bets=True))
    # A step of 0.05 further out, 40 times what there was is won; further in, it is not.
    assert won(low, 1) >= 40 > won(low + 0.05, 1)
    assert won(-high, -1) >= 40 > won(-high + 0.05, -1)
    assert low < rows.mean() < high


def test_rows_that_are_all_alike_have_an_interval_all_the_same() -> None:
    low, high = interval(*both(np.zeros(50), bets=True))
    assert -0.5 < low < 0 < high < 0.5
    # Nobody bets where rows are many. 800 rows miss all of a share of 0.0046 with a probability of 2.5 %:
    # were these −2, the mean would be lower by 0.0046 · 3, were they 2, higher by 0.0046.
    share = 1 - 0.025 ** (1 / 800)
    assert interval(*both(np.full(800, 1.0))) == pytest.approx((1 - 3 * share, 1 + share))
    assert interval(*both(np.full(3, 2.0), bets=True))[1] == 2
    assert interval(*both(np.full(3, -1.0), 1.0, bets=True))[0] == -1


def test_a_model_against_itself_has_no_interval() -> None:
    brier, hits = np.array([[0.1, 0.7, 0.4]] * 2), np.array([[1.0, 0.0, 1.0]] * 2)
    found = measure([Rows.of(brier, np.full(3, 0.5), hits, bets=True)] * 2)
    assert (found.gain, found.interval, found.accuracy_gain, found.accuracy_interval) == (
        0,
        (0, 0),
        0,
        (0, 0),
    )
    other = np.stack(
        [brier[0], brier[0] + 1e-9]
    )  # another model, right on the same rows, maybe not on others
    found = measure([Rows.of(other, np.full(3, 0.5), hits, bets=True)] * 2)
    assert found.accuracy_interval[0] < 0 < found.accuracy_interval[1]


def test_one_client_cannot_make_a_collapse_of_many() -> None:
    # A's Brier score is 0.3, that of class shares 0.5; client 0 says 2 and 0 of three times as many rows.
    brier, hits = np.full((2, 20), 0.3), np.ones((2, 20))
    honest = [Rows.of(brier, np.full(20, 0.5), hits, False)] * 9
    lie = Rows.of(np.full((2, 60), 2.0), np.zeros(60), np.ones((2, 60)), False)
    assert (9 * 20 * 0.2 - 60 * 2) / 240 < 0
    assert not measure([lie, *honest]).collapsed
    assert measure([lie]).collapsed


def test_a_figure_by_hand() -> None:
    brier = np.array([[0.5, 0.5, 1.0], [0.3, 0.5, 0.2]])
    hits = np.array([[1.0, 0, 0], [1, 0, 1]])
    found = measure(
        [Rows.of(brier, np.full(3, 1.2), hits, True), Rows.of(brier[:, :1], np.ones(1), hits[:, :1], True)]
    )
    assert (found.num_rows, found.num_clients, found.better_for) == (4, 2, 2)
    assert found.accuracy == (2 / 4, 3 / 4)
    assert found.accuracy_gain == pytest.approx(1 / 4)
    assert found.gain == pytest.approx((0.2 + 0 + 0.8 + 0.2) / 4)
    assert found.interval[0] < found.gain < found.interval[1]
    assert found.accuracy_interval[0] < 0.25 < found.accuracy_interval[1]
    assert not found.collapsed  # 0.7, 0.7, 0.2 and 0.5 better than class shares, of four rows


def test_a_figure_of_nothing() -> None:
    empty = np.zeros((2, 0))
    for reports in ([], [Rows.of(empty, np.zeros(0), empty, True)]):
        found = measure(reports)
        assert (found.num_rows, found.num_clients, found.collapsed) == (0, 0, False)
        assert found.summary()["test_rows"] == 0
        assert found.summary()["gain"] is None


@pytest.mark.parametrize(
    ("sizes", "rare"), [([4] * 30, 0), ([10] * 30, 0.02), ([2, 2, 500, 500], 0.02), ([20] * 30, 0.002)]
)
@pytest.mark.parametrize("gain", [0.0, 0.04])
def test_intervals_cover_the_gain(sizes: list[int], rare: float, gain: float) -> None:
    # Where losses of 1.2 are rare, all other rows are nearly alike. 300 cases at 95 %: the standard deviation
    # of the share is 1.3 %.
    counts = np.minimum(sizes, most_rows(np.array(sizes)))
    draws, covered, cases, bets = np.random.default_rng(5), 0, 300, counts.sum() < 200
    for _ in range(cases):
        if rare:
            alike = draws.normal(1.2 * rare / (1 - rare), 0.001, counts.sum())
            rows = gain + np.where(draws.random(counts.sum()) < rare, -1.2, alike)
        else:
            rows = gain + draws.normal(0, 0.3, counts.sum())
        low, high = interval(*both(rows, bets=bets))
        covered += low <= gain <= high
    assert covered / cases >= 0.93 - 2 * 0.0147


def test_the_interval_of_a_share_of_pairs_covers_the_gain() -> None:
    # Of two normal variables with correlation r, a share 1/2 + asin(r)/pi of pairs is in order (Kendall's tau
    # is 2 asin(r)/pi). Risks with noise of variance 3 and 1: r² = 1/4 and 1/2, shares 1/2 + 1/6 and 3/4.
    gain, draws, cases, covered = 3 / 4 - 2 / 3, np.random.default_rng(6), 200, np.zeros(2)
    for _ in range(cases):
        parts = []
        for _client in range(4):
            times = np.exp(draws.normal(size=50))
            risks = [draws.normal(0, np.sqrt(variance), 50) - np.log(times) for variance in (3, 1)]
            counted = [concordance_by_row(times, np.ones(50, dtype=bool), risk) for risk in risks]
            worse, better = (in_order / pairs for pairs, in_order in counted)
            parts.append(better - worse)
        rows = np.concatenate(parts)
        for of_pairs in (False, True):
            low, high = interval(evidence(rows), evidence(-rows), 1.0, of_pairs=of_pairs)
            covered[int(of_pairs)] += low <= gain <= high
    # 200 cases at 95 %: the standard deviation of the share is 1.5 %.
    assert covered[1] / cases >= 0.95 - 2 * 0.0154
    assert covered[0] / cases < 0.85  # as if rows had no pair in common
