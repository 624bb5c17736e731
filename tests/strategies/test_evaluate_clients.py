"""A sample of clients evaluates: the same figures as of all, for the clients of the sample."""

import tracemalloc

import numpy as np
import pytest

from fedclust.federation.run import evaluation_sample
from fedclust.strategies import ClusteredStrategy, Local
from tests.strategies.helpers import weights_of

CLIENTS, ROUNDS = 9, 4


def _measured(toy, watch, faulty=(), **options):
    """Run with clients of whom some have a loss on their test part that is not finite, whatever the model."""
    strategy, figures = ClusteredStrategy(seed=3, **options), []

    class Watch(type(watch)):
        def round(self, record):
            super().round(record)
            figures.append({name: values.copy() for name, values in strategy.measured.figures.items()})

    strategy.observer = Watch()
    clients = toy(num_clients=CLIENTS, test_loss=lambda client, _: np.nan if client in faulty else 0.0)
    strategy.start(clients.grid(2), toy.model(), num_rounds=ROUNDS)
    return strategy.observer.rounds, figures, weights_of(strategy)


@pytest.mark.parametrize("asked", [4, 0.4])
def test_sampled_figures_are_those_of_all_for_the_sampled_clients(toy, watch, asked) -> None:
    rounds, sampled, _ = _measured(toy, watch, evaluate_clients=asked)
    whole_rounds, whole, _ = _measured(toy, watch)
    for number in range(1, ROUNDS):
        chosen = np.asarray(evaluation_sample(asked, CLIENTS, 3, number, range(CLIENTS)))
        assert len(chosen) == 4  # 0.4 · 9 = 3.6, rounded up
        others = np.setdiff1d(np.arange(CLIENTS), chosen)
        for name, values in whole[number - 1].items():
            np.testing.assert_array_equal(sampled[number - 1][name][chosen], values[chosen])
            assert np.isnan(sampled[number - 1][name][others]).all()
        # A toy client i has accuracy 1 / (i + 1).
        line = rounds[number - 1]
        assert line["mean_client_accuracy"] == pytest.approx(np.mean(1 / (chosen + 1)))
        assert line["evaluated_clients"] == 4
    # After the last round all evaluate.
    assert "evaluated_clients" not in rounds[-1]
    assert rounds[-1]["mean_client_accuracy"] == whole_rounds[-1]["mean_client_accuracy"]
    for name, values in whole[-1].items():
        np.testing.assert_array_equal(sampled[-1][name], values)
    # Who evaluates changes nothing of training.
    assert [line["loss"] for line in rounds] == [line["loss"] for line in whole_rounds]


def test_a_client_that_evaluates_alone_does_not_take_a_model_back_from_the_others(toy, watch) -> None:
    (alone,) = np.asarray(evaluation_sample(1, CLIENTS, 3, 2, range(CLIENTS))).tolist()
    rounds, _, weights = _measured(toy, watch, {alone}, evaluate_clients=1)
    assert weights == _measured(toy, watch, evaluate_clients=1)[2]
    assert not any("went_back" in record for record in rounds)
    # It is named instead, and nobody has an accuracy in that round.
    assert [(each["client"], each["phase"]) for each in rounds[1]["failures"]] == [(alone, "evaluate")]
    assert rounds[1]["evaluated_clients"] == 0
    assert "global_accuracy" not in rounds[1]


def test_two_of_two_sampled_clients_take_a_model_back(toy, watch) -> None:
    pair = set(np.asarray(evaluation_sample(2, CLIENTS, 3, 2, range(CLIENTS))).tolist())
    rounds, *_ = _measured(toy, watch, pair, evaluate_clients=2)
    assert rounds[1]["went_back"][0]["clients"] == CLIENTS
    assert rounds[1]["failures"] == []


def test_a_client_alone_in_its_cluster_may_take_its_model_back(toy, watch) -> None:
    strategy = Local(seed=3, evaluate_clients=1)
    strategy.observer = watch
    (alone,) = np.asarray(evaluation_sample(1, CLIENTS, 3, 2, range(CLIENTS))).tolist()
    clients = toy(num_clients=CLIENTS, test_loss=lambda client, _: np.nan if client == alone else 0.0)
    strategy.start(clients.grid(), toy.model(), num_rounds=2)
    assert [each["cluster"] for each in watch.rounds[1]["went_back"]] == [alone]


class Enough(Exception):
    """Ends a run."""


def _peak(toy, watch, strategy, num_clients) -> int:
    """Return the bytes that a run takes at most until its first round has ended."""
    peaks: list[int] = []

    class Watch(type(watch)):
        def round(self, record):
            peaks.append(tracemalloc.get_traced_memory()[1])
            raise Enough

    strategy.observer = Watch()
    grid, model = toy(num_clients=num_clients).grid(), toy.model()
    tracemalloc.start()
    try:
        with pytest.raises(Enough):
            strategy.start(grid, model, num_rounds=2)
    finally:
        tracemalloc.stop()
    return peaks[0]


def test_nothing_of_a_round_grows_with_the_square_of_the_clients(toy, watch) -> None:
    small, large = (
        _peak(toy, watch, ClusteredStrategy(participation=20 / number, evaluate_clients=20), number)
        for number in (200, 800)
    )
    assert large < 4 * small  # of four times as many clients
    assert large - small < 800**2 / 4  # a truth value for each pair would be four times as much
