"""Times: intervals, hazards, likelihoods and scores, against literal loops."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import fedclust
from fedclust.data.targets import Times
from fedclust.data.targets.times import TimeWords

TIMES = Times((10.0, 20.0, 40.0), last=80.0)


def rows(seed: int, size: int = 50) -> np.ndarray:
    """Draw times, some of them cuts, and events."""
    draws = np.random.default_rng(seed)
    times = np.where(
        draws.random(size) < 0.2, draws.choice([10.0, 20.0, 40.0], size), draws.exponential(30, size)
    )
    return np.stack([times, draws.integers(0, 2, size)], axis=1)


ENDS = [0.0, 10.0, 20.0, 40.0, 80.0]


def literal(time: float, event: float, ends: list[float] = ENDS) -> list[tuple[int, int]]:
    """List the intervals that a row was at risk in, and whether the event happened there."""
    found = []
    for place, (start, end) in enumerate(pairwise(ends)):
        last = place == len(ends) - 2
        if time > end and not last:
            found.append((place, 0))  # it survived the interval
        elif event:
            found.append((place, 1))
            break
        else:
            if time >= (start + end) / 2:
                found.append((place, 0))  # it was observed for half of it
            break
    return found


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_intervals_at_risk_as_in_a_literal_loop(kind: str) -> None:
    values = rows(2)
    given = torch.from_numpy(values) if kind == "tensor" else values
    at_risk, happened = (np.asarray(each) for each in TIMES.observed(given))
    for row, (time, event) in enumerate(values):
        found = literal(time, event)
        assert np.flatnonzero(at_risk[row]).tolist() == [place for place, _ in found]
        assert np.flatnonzero(happened[row]).tolist() == [place for place, came in found if came]


@pytest.mark.parametrize("base", [(), (-1.0, 0.5, 0.0, 2.0)])
def test_loss_and_score_as_in_a_literal_loop(base: tuple[float, ...]) -> None:
    target = Times(TIMES.cuts, TIMES.last, base)
    values, outputs = rows(3), np.random.default_rng(4).normal(size=(50, 4))
    losses = target.loss(torch.from_numpy(outputs), torch.from_numpy(values)).numpy()
    scores = target.scores(outputs, values)
    for row, (time, event) in enumerate(values):
        loss = score = 0.0
        logits = outputs[row] + (base or 0)
        hazards = (1 / (1 + np.exp(-logits))).tolist()
        for place, came in literal(time, event):
            loss -= math.log(hazards[place] if came else 1 - hazards[place])
        for place, came in literal(time, event):
            score += (min(hazards[place], 1 / 3) - came) ** 2 - 4 / 9 * came
        assert losses[row] == pytest.approx(2 * loss)  # J/2
        assert scores[row] == pytest.approx(2 * score / (5 / 9 + 3 / 9))


def test_intervals_are_scored_in_four_pairs() -> None:
    ends = [0.0, *np.arange(10.0, 80.0, 10.0), 80.0]
    target, values = Times(tuple(ends[1:-1]), 80.0), rows(5)
    outputs = np.random.default_rng(6).normal(-2, 1, size=(50, 8))
    hazards = 1 / (1 + np.exp(-outputs))
    pairs = 1 - (1 - hazards[:, ::2]) * (1 - hazards[:, 1::2])
    merged = Times(tuple(ends[2:-1:2]), 80.0).scores(np.log(pairs / (1 - pairs)), values)
    np.testing.assert_allclose(target.scores(outputs, values), merged)


def test_survival_by_hand() -> None:
    # Hazards 1/2, 1/4, 1/4 and 1/2.
    outputs = np.log(np.array([[1.0, 1 / 3, 1 / 3, 1.0]]))
    found = TIMES.survival(outputs, [0, 5, 10, 30, 40, 80, 200])
    ends = [1, math.sqrt(1 / 2), 1 / 2, 1 / 2 * 3 / 4 * math.sqrt(3 / 4), 1 / 2 * 9 / 16, 9 / 64, 9 / 64]
    np.testing.assert_allclose(found[0], ends)
    assert TIMES.risks(outputs) == pytest.approx(-np.mean([1 / 2, 3 / 8, 9 / 32, 9 / 64]))


def test_intervals_have_equal_numbers_of_events() -> None:
    draws = np.random.default_rng(6)
    values = np.stack([draws.exponential(30, 4000), draws.random(4000) < 0.5], axis=1)
    target = Times.agreed(values)
    events = np.bincount(target.bins(values)[values[:, 1] > 0] // 2)
    assert len(events) == 8
    assert np.ptp(events) <= 2
    # A network that returns 0 predicts the hazards: events, and h more, over rows at risk and one more, where
    # h is the hazard of all intervals together.
    at_risk, happened = (each.sum(axis=0) for each in target.observed(values))
    wanted = (happened + happened.sum() / at_risk.sum()) / (at_risk + 1)
    np.testing.assert_allclose(target.hazards(np.zeros((1, 8)))[0], wanted)


def test_without_an_event_nothing_can_be_agreed() -> None:
    with pytest.raises(ValueError, match="events must happen to some rows, all 5 are censored"):
        Times.agreed(np.stack([np.arange(1.0, 6.0), np.zeros(5)], axis=1))


@pytest.mark.parametrize("censored", [0.2, 0.6, 0.9])
def test_the_score_is_proper_whatever_the_censoring(censored: float) -> None:
    """The true hazards have the lowest mean score, and those of a wrong model a higher one."""
    draws = np.random.default_rng(8)
    size, scale = 60_000, 40.0
    inputs = draws.normal(size=size)
    events = scale * np.exp(-0.7 * inputs) * draws.exponential(size=size)
    bound = np.quantile(events, 1 - censored) if censored > 0.5 else np.quantile(events, 0.95)
    limits = bound * draws.exponential(size=size) if censored > 0.5 else draws.exponential(3 * scale, size)
    values = np.stack([np.minimum(events, limits), events <= limits], axis=1)
    target = replace(Times.agreed(values), base=())
    widths = np.diff([0.0, *target.cuts, target.last])

    def outputs(slope: float) -> np.ndarray:
        gone = np.minimum(widths * np.exp(slope * inputs)[:, None] / scale, 30)
        return np.log(np.expm1(gone))  # the logit of 1 − exp(−gone)

    true = target.scores(outputs(0.7), values).mean()
    for slope in (0.4, 1.0, 0.0, -0.7):
        assert target.scores(outputs(slope), values).mean() > true


@pytest.mark.parametrize("events", [1, 3])
def test_few_events_in_order_have_the_error_of_chance(events: int) -> None:
    # A share of pairs that is uniform has the variance 1/12. Leaving out rows finds no error: all are
    # in order, or without the only event there is no pair.
    values = np.stack([np.arange(1.0, 21.0), np.arange(20) < events], axis=1)
    outputs = np.tile(-np.arange(20.0)[:, None] / 10, 4)
    (scores,) = TIMES.measured(np.array([20]), np.zeros(20), values, [outputs], 8, full=True)
    assert scores.figures["concordance"] == 1
    assert scores.figures["concordance_error"] == pytest.approx((1 / 12 / events) ** 0.5)


def test_a_correction_is_the_root_of_its_likelihood() -> None:
    values, outputs = rows(9, 200), np.random.default_rng(10).normal(size=(200, 4))
    found = TIMES.correction(outputs, values)
    assert np.ptp(found) == 0
    at_risk, happened = TIMES.observed(values)

    def minus_log_posterior(delta: float) -> float:
        logits = outputs[at_risk] + delta
        return float(np.logaddexp(0, logits).sum() - logits[happened[at_risk]].sum() + delta**2 / 2)

    grid = np.linspace(found[0] - 1, found[0] + 1, 2001)
    assert grid[np.argmin([minus_log_posterior(each) for each in grid])] == pytest.approx(
        found[0], abs=1.1e-3
    )


def test_who_codes_events_the_other_way_is_named() -> None:
    words = TimeWords()
    few, many = [90, 10], [10, 90]
    assert words.miscoded(np.array([few, few, few])) == {}
    assert [*words.miscoded(np.array([few, many, few]))] == [1]
    assert [*words.miscoded(np.array([few, many, few, many, few]))] == [1, 3]
    # Of two nobody knows which; a share near one half, or of few rows, shows nothing.
    assert words.miscoded(np.array([few, many])) == {}
    assert words.miscoded(np.array([few, [45, 55], few])) == {}
    assert words.miscoded(np.array([few, [0, 2], few])) == {}


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([9, 0, 9, 0], "None of its training rows had the event, too few to choose by."),
        ([9, 2, 9, 2], "Only 4 of its training rows had the event, too few to choose by."),
        ([9, 2, 9, 3], ""),
        ([0, 0, 0, 0], ""),  # it has not stated how many
    ],
)
def test_a_site_with_fewer_than_five_events_does_not_choose(counts: list[int], text: str) -> None:
    assert TimeWords().few(np.array(counts)) == text


def test_honest_sites_are_not_named_as_miscoded() -> None:
    draws, words, named = np.random.default_rng(12), TimeWords(), 0
    for _ in range(200):
        rows_of = draws.integers(30, 300, 6)
        events = draws.binomial(rows_of, draws.uniform(0.05, 0.45))
        named += bool(words.miscoded(np.stack([rows_of - events, events], axis=1)))
    assert named <= 10  # 5 % of 200


def test_a_federation_learns_times() -> None:
    draws, clients = np.random.default_rng(13), []
    for _ in range(6):
        inputs = draws.normal(size=(200, 3)).astype(np.float32)
        times = 50 * draws.exponential(size=200) * np.exp(-inputs[:, 0])
        limits = draws.exponential(150, 200)
        clients.append(
            (inputs, np.stack([np.minimum(times, limits) + 1e-3, times <= limits], 1).astype(np.float32))
        )
    training = fedclust.LocalTraining(learning_rate=0.2, batch_size=32, steps=8)
    result = fedclust.simulate("fedavg", torch.nn.Linear(3, 8), clients, rounds=15, training=training)
    best = concordance_of_truth(clients)
    assert result.summary["concordance"] > best - 0.04


def concordance_of_truth(clients: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the concordance of the true risk."""
    from fedclust.metrics.times import concordance

    return float(np.mean([concordance(y[:, 0], y[:, 1], x[:, 0]) for x, y in clients]))


def test_a_group_s_survival_is_that_of_its_counts() -> None:
    counts = np.array([2, 3, 6, 4, 5, 0, 1, 1])  # censored rows and events of each interval
    found = replace(TIMES, unit="days").survival_of(counts)
    first, second = 1 - 3 / 21, (1 - 3 / 21) * (1 - 4 / 14)  # 22 and 17 rows, of whom 2 and 6 are censored
    np.testing.assert_allclose(found.at, [0, 10, 20, 40])
    np.testing.assert_allclose(found.survival, [1, first, second, second])
    assert found.at_risk.tolist() == [22, 17, 7, 2]
    error = (3 / (21 * 18)) ** 0.5  # of the logarithm of the first; of minus its logarithm, divided by that
    reach = 1.959964 * error / -math.log(first)
    np.testing.assert_allclose(found.low[1], first ** math.exp(reach))
    np.testing.assert_allclose(found.high[1], first ** math.exp(-reach))
    assert (found.low[0], found.high[0], found.unit) == (1, 1, "days")


@pytest.mark.parametrize("moments", [None, [5.0, 20.0, 500.0]])
def test_survival_is_predicted_by_tensors_as_by_arrays(moments: list[float] | None) -> None:
    target = replace(TIMES, base=(0.5, -1.0, 0.0, 2.0))
    outputs = np.random.default_rng(2).normal(size=(6, 4))
    found, expected = target.predictions(torch.from_numpy(outputs), moments).numpy(), []
    for row in outputs:
        hazards = [1 / (1 + math.exp(-(each + base))) for each, base in zip(row, target.base, strict=True)]
        survival = []
        for moment in [10.0, 20.0, 40.0, 80.0] if moments is None else moments:
            kept = 1.0
            for hazard, (start, end) in zip(hazards, pairwise(ENDS), strict=True):
                kept *= (1 - hazard) ** min(1.0, max(0.0, (moment - start) / (end - start)))
            survival.append(kept)
        expected.append(survival)
    np.testing.assert_allclose(found, expected)
    for wrong in ([0.0], [np.inf], 30, "30", ["a"]):
        with pytest.raises(ValueError, match="times must be numbers > 0, at least one, got"):
            target.table(torch.from_numpy(outputs), (), wrong)


@pytest.mark.parametrize("events", [[365.0] * 4, [364.0, 365.0, 365.0, 365.0]])
def test_events_that_all_happen_at_the_end_are_refused_in_words_of_the_data(events: list[float]) -> None:
    # Of 8 rows of which 4 have ended at 365, 97.5 % have ended by then. The first eighth of the events is at
    # 365, or at 364 + 3/8 of the way to the next one, 364.375, which is early enough.
    rows = np.array([[time, 1.0] for time in events] + [[20.0 * k, 0.0] for k in range(1, 5)])
    if events[0] < 365:
        assert Times.agreed(rows).cuts == (364.375, 364.75)
        return
    rule = (
        "^events must happen before 365, by when 97.5 % of all rows have ended, got them from about 365 on$"
    )
    with pytest.raises(ValueError, match=rule):
        Times.agreed(rows)
