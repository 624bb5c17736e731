"""Concordance, survival curves and Brier scores of times, against literal loops and other libraries."""

import numpy as np
import pytest

from fedclust.metrics.times import (
    concordance,
    concordance_by_row,
    integrated_brier,
    kaplan_meier,
    life_table,
    survival_at,
)


def rows(seed: int, size: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw times with ties, events, and risks with ties."""
    draws = np.random.default_rng(seed)
    times = draws.integers(1, 15, size).astype(float)
    return times, draws.integers(0, 2, size), draws.normal(size=size).round(1)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pairs_as_in_a_literal_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times, events, risks = rows(seed)
    pairs, concordant = np.zeros(len(times)), np.zeros(len(times))
    for one in range(len(times)):
        for other in range(len(times)):
            sooner = times[one] < times[other] or (times[one] == times[other] and not events[other])
            if one == other or not events[one] or not sooner:
                continue
            share = 1.0 if risks[one] > risks[other] else 0.5 * (risks[one] == risks[other])
            for row in (one, other):
                pairs[row] += 1
                concordant[row] += share
    for block in (1 << 22, 70):  # all at once, and one event at a time
        monkeypatch.setattr("fedclust.metrics.times._BLOCK", block)
        found = concordance_by_row(times, events, risks)
        np.testing.assert_array_equal(found, [pairs, concordant])
    assert concordance(times, events, risks) == pytest.approx(concordant.sum() / pairs.sum())


def test_concordance_without_pairs_is_unknown() -> None:
    assert np.isnan(concordance([1, 2], [0, 0], [0.1, 0.2]))  # nobody had the event
    assert np.isnan(concordance([], [], []))


def test_survival_of_a_group_by_hand() -> None:
    # Freireich's remission times (1963) under 6-MP, as in every textbook: 21 patients, 9 events.
    times = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    events = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    at, survival, errors = kaplan_meier(times, events)
    # 18/21, then 16/17, 14/15, 11/12, 10/11, 6/7 and 5/6 of it.
    factors = {6: 18 / 21, 7: 16 / 17, 10: 14 / 15, 13: 11 / 12, 16: 10 / 11, 22: 6 / 7, 23: 5 / 6}
    left = 1.0
    for moment, factor in factors.items():
        left *= factor
        assert survival_at(at, survival, moment) == pytest.approx(left)
    # Greenwood at 7: S·√(3/(21·18) + 1/(17·16)).
    expected = (18 / 21) * (16 / 17) * np.sqrt(3 / (21 * 18) + 1 / (17 * 16))
    assert errors[at == 7].item() == pytest.approx(expected)
    assert survival_at(at, survival, [0.0, 5.9]).tolist() == [1.0, 1.0]


def test_brier_score_by_hand() -> None:
    # Three rows: an event at 2, censored at 3, an event at 5. Of those still there after 2, one of two is
    # censored at 3: G(t) is 1 before 3 and 1/2 from then on.
    survival = np.array([[0.4, 0.2], [0.8, 0.6], [0.9, 0.7]])
    at_one = ((1 - 0.4) ** 2 + (1 - 0.8) ** 2 + (1 - 0.9) ** 2) / 3
    at_four = (0.2**2 + 0 + (1 - 0.7) ** 2 / 0.5) / 3
    found = integrated_brier([2, 3, 5], [1, 0, 1], survival, [1, 4])
    assert found == pytest.approx((at_one + at_four) / 2)


def test_a_brier_score_is_at_most_1() -> None:
    # At 1 an event, and two of the three others are censored: G is 1/3, and both wrong predictions count 3 of
    # 4 rows. If all others are censored, G is 0, and nothing counts.
    wrong = [[1.0, 1.0]] * 3 + [[0.0, 0.0]]
    assert integrated_brier([1, 1, 1, 9], [1, 0, 0, 1], wrong, [2, 3]) == 1.0
    assert integrated_brier([1, 1], [1, 0], [[0.5, 0.5]] * 2, [2, 3]) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"events": [1, 2]}, "events must be 0 or 1, got 2"),
        ({"times": [1.0, np.inf]}, "times must be finite"),
        ({"risks": [0.0, np.nan]}, "risks must be finite"),
    ],
)
def test_what_is_no_time_or_event(change: dict[str, list], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        concordance(**{"times": [1.0, 2.0], "events": [1, 0], "risks": [0.0, 1.0]} | change)
    with pytest.raises(ValueError, match="moments must be at least 2 increasing times"):
        integrated_brier([1, 2], [1, 1], [[0.5, 0.5]] * 2, [2, 2])
    with pytest.raises(ValueError, match="survival must have shape"):
        integrated_brier([], [], np.zeros((0, 2)), [2, 3])


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_as_other_libraries(seed: int) -> None:
    survival = pytest.importorskip("sksurv.metrics", reason="scikit-survival is not installed")
    lifelines = pytest.importorskip("lifelines", reason="lifelines is not installed")
    times, events, risks = rows(seed, 200)
    theirs = survival.concordance_index_censored(events.astype(bool), times, risks)[0]
    assert concordance(times, events, risks) == pytest.approx(theirs, abs=1e-6)
    curve = lifelines.KaplanMeierFitter().fit(times, events).survival_function_.iloc[1:, 0]
    np.testing.assert_allclose(kaplan_meier(times, events)[1], curve, atol=1e-6)
    observed = np.array(list(zip(events.astype(bool), times, strict=True)), dtype=[("e", bool), ("t", float)])
    moments = np.arange(2.0, 12.0, 2.0)
    chances = np.sort(np.random.default_rng(seed).random((200, len(moments))))[:, ::-1]
    theirs = survival.integrated_brier_score(observed, observed, chances, moments)
    assert integrated_brier(times, events, chances, moments) == pytest.approx(theirs, abs=1e-6)


def test_a_life_table_counts_half_of_the_censored_as_at_risk() -> None:
    survival, errors, at_risk = life_table([3, 4, 0], [2, 6, 5])
    # 20 rows, 3 of 19 exposed; of the 15 left 4 of 12; nobody of the last 5, of whom 2.5 are exposed
    np.testing.assert_allclose(survival, [16 / 19, 16 / 19 * 8 / 12, 16 / 19 * 8 / 12])
    variance = 3 / (19 * 16) + 4 / (12 * 8)
    np.testing.assert_allclose(errors[:2], [16 / 19 * (3 / (19 * 16)) ** 0.5, survival[1] * variance**0.5])
    assert at_risk.tolist() == [20, 15, 5]


def test_a_life_table_without_censored_rows_is_kaplan_and_meier_s() -> None:
    times = np.repeat([5.0, 15.0, 30.0], [4, 2, 3])
    _, survival, errors = kaplan_meier(times, np.ones(9))
    found = life_table([4, 2, 3], [0, 0, 0])
    np.testing.assert_allclose(found[0], survival)
    np.testing.assert_allclose(found[1], errors)


def test_where_nobody_is_at_risk_the_survival_stays() -> None:
    assert life_table([1, 0], [1, 0])[0].tolist() == [pytest.approx(1 / 3)] * 2  # 1 − 1/1.5
