"""Robust aggregators, ours and Flower's, against literal loops."""

from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum, Strategy

from fedclust.aggregation.flower import aggregate
from fedclust.aggregation.robust_rules import (
    Bulyan,
    GeometricMedian,
    MultiKrum,
    allowed_attackers,
    geometric_median,
)
from fedclust.messages.codec import encode
from fedclust.messages.replies import Reply
from fedclust.messages.training import TrainAnswer
from fedclust.support.flower import assume_identity

FEW = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
Rows = Sequence[Sequence[float]]


def _model(row: Sequence[float]) -> ArrayRecord:
    first, rest = np.array(row[:1]), np.array([row[1:]])  # two arrays of different shapes
    return ArrayRecord({"bias": Array(first), "weight": Array(rest)})


def _aggregated(aggregator: Strategy, rows: Rows, samples: Sequence[int] | None = None) -> list[float]:
    assume_identity()
    replies = []
    for client, row in enumerate(rows):
        asked = Message(RecordDict(), dst_node_id=client, message_type="train")
        number = 1 if samples is None else samples[client]
        model, losses = _model(row), np.ones(1)
        message = Message(encode(TrainAnswer(0, model, number, losses)), reply_to=asked)
        replies.append(Reply(client, 0, model, model, number, 1.0, losses, message))
    start = _model([0.0] * len(rows[0]))
    made = aggregate(aggregator, 1, start, replies, frozenset(), shared_means=False)
    return [*made["bias"].numpy().tolist(), *made["weight"].numpy()[0].tolist()]


def _random(number: int, seed: int = 0, width: int = 4) -> list[list[float]]:
    return np.random.default_rng(seed).normal(size=(number, width)).tolist()


def _score(rows: Rows, one: int, attackers: int) -> float:
    """Krum's score, as its paper writes it."""
    others = np.delete(rows, one, axis=0)
    apart = sorted(((others - rows[one]) ** 2).sum(axis=1))
    return sum(apart[: max(1, len(rows) - attackers - 2)])


def _best(rows: Rows, attackers: int, number: int) -> list[int]:
    return sorted(range(len(rows)), key=lambda one: _score(rows, one, attackers))[:number]


@pytest.mark.parametrize(("number", "attackers"), [(7, 2), (9, 3), (12, 1), (3, 0)])
def test_krum_and_multikrum(number: int, attackers: int) -> None:
    rows = _random(number, seed=number)
    (best,) = _best(rows, attackers, 1)
    assert _aggregated(Krum(num_malicious_nodes=attackers, **FEW), rows) == pytest.approx(rows[best])
    chosen = [rows[one] for one in _best(rows, attackers, number - attackers - 2)]
    found = _aggregated(MultiKrum(num_malicious_nodes=attackers, **FEW), rows)
    np.testing.assert_allclose(found, np.mean(chosen, axis=0))


def test_multikrum_weights_those_that_it_selects_by_samples() -> None:
    # f = 1 of 5: two are selected. The nearest pair is 0 and 1: (0·1 + 1·3)/4.
    rows = [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0], [9.0, 9.0], [-6.0, -6.0]]
    found = _aggregated(MultiKrum(num_malicious_nodes=1, **FEW), rows, [1, 3, 100, 100, 100])
    # Scores of two neighbours each, in units of 2: 1 + 25, 1 + 16, 16 + 16, 16 + 64, 36 + 49.
    assert found == pytest.approx([0.75, 0.75])


def test_krum_tells_models_apart_that_are_long_and_alike() -> None:
    # 1e4 + a step of 1/64: squares of 1e8 in float32 are 8 apart, so products cannot tell them.
    rows = (1e4 + np.array([[0, 0], [1, 1], [2, 2], [3, 3], [40, 40]]) / 64).tolist()
    # Of 5 with f = 1 the two with the smallest sums of 2 distances (in steps, squared): 1+4, 1+1, 1+1, 1+4.
    found = _aggregated(MultiKrum(num_malicious_nodes=1, **FEW), rows)
    assert found == pytest.approx([1e4 + 1.5 / 64] * 2, abs=1e-9)


@pytest.mark.parametrize(("number", "attackers"), [(7, 1), (11, 2), (13, 2), (5, 0)])
def test_bulyan(number: int, attackers: int) -> None:
    rows = _random(number, seed=100 + number)
    left, chosen = list(range(number)), []
    while len(chosen) < number - 2 * attackers:
        rest = [rows[one] for one in left]
        chosen.append(left.pop(_best(rest, attackers, 1)[0]))
    expected = []
    for values in zip(*(rows[one] for one in chosen), strict=True):
        middle = float(np.median(values))
        nearest = sorted(values, key=lambda value: abs(value - middle))[: number - 4 * attackers]
        expected.append(sum(nearest) / len(nearest))
    assert _aggregated(Bulyan(num_malicious_nodes=attackers, **FEW), rows) == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.1, 0.2, 0.4])
def test_trimmed_mean_and_median(beta: float) -> None:
    rows = _random(11, seed=5)
    cut, ordered = int(beta * 11), np.sort(rows, axis=0)
    kept = ordered[cut : 11 - cut]
    np.testing.assert_allclose(_aggregated(FedTrimmedAvg(beta=beta, **FEW), rows), sum(kept) / len(kept))
    np.testing.assert_allclose(_aggregated(FedMedian(**FEW), rows), ordered[5])


def test_geometric_median_by_hand() -> None:
    # The Fermat point of a triangle with angles of 120 degrees from it: the centre of an equilateral one.
    corners = [(1.0, 0.0), (-0.5, 3**0.5 / 2), (-0.5, -(3**0.5) / 2)]
    np.testing.assert_allclose(geometric_median(np.array(corners)), [0, 0], atol=1e-4)
    # Of a convex quadrangle, where the diagonals cross.
    np.testing.assert_allclose(geometric_median(np.array([(0, 0), (4, 4), (0, 2), (2, 0)])), 1, atol=1e-3)
    # Where a point has more than half of the weight, that point.
    np.testing.assert_allclose(geometric_median(np.array([[3.0], [3.0], [50.0]])), [3], atol=1e-4)


@pytest.mark.parametrize("liars", [1, 2, 3])
@pytest.mark.parametrize("far", [10.0, 1e6, 1e30])
def test_fewer_than_half_cannot_take_it_away(liars: int, far: float) -> None:
    # Seven models within 1 of 0; the others anywhere: none of the rules leaves the cube of the honest by far.
    honest = np.random.default_rng(0).uniform(-1, 1, size=(15 - liars, 4)).tolist()
    rows = [*honest, *[[far, -far, far, far]] * liars]
    counting = [rule(num_malicious_nodes=liars, **FEW) for rule in (MultiKrum, Bulyan)]
    for aggregator in (GeometricMedian(**FEW), *counting):
        assert np.abs(_aggregated(aggregator, rows)).max() < 1.5


def test_the_attackers_that_small_clusters_allow() -> None:
    # 2f + 3 <= n and 4f + 3 <= n.
    assert [allowed_attackers(n, 3, 2) for n in (1, 3, 4, 5, 7, 9, 30)] == [0, 0, 0, 1, 2, 3, 3]
    assert [allowed_attackers(n, 3, 4) for n in (1, 3, 6, 7, 11, 15, 30)] == [0, 0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("rule", [MultiKrum, Bulyan, GeometricMedian])
def test_small_clusters_still_move(rule: type, number: int, caplog: pytest.LogCaptureFixture) -> None:
    options = {} if rule is GeometricMedian else {"num_malicious_nodes": 2}
    rows = [[1.0 + client, 2.0 + client] for client in range(number)]
    with caplog.at_level("INFO", logger="fedclust"):
        found = _aggregated(rule(**options, **FEW), rows)
    assert 1 <= found[0] <= number  # between the least and the largest
    assert found[1] == pytest.approx(found[0] + 1)
    if options:
        allowed = allowed_attackers(number, 2, rule.replies_each)
        said = [each.message for each in caplog.records if each.name.startswith("fedclust")]
        assert said == [
            f"round 1: {rule.__name__} allows for {allowed} attackers instead of 2 among {number} replies"
        ]


def test_samples_have_no_influence_on_bulyan_and_the_geometric_median() -> None:
    rows = _random(7, seed=3)
    for make in (lambda: Bulyan(num_malicious_nodes=1, **FEW), lambda: GeometricMedian(**FEW)):
        assert _aggregated(make(), rows, [1] * 7) == _aggregated(make(), rows, [1, 10**9, 1, 5, 7, 1, 1])
