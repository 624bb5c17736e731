"""A sample of clients evaluates: the same figures as of all, for the clients of the sample."""

import tracemalloc

import numpy as np
import pytest

from fedclust.federation.evaluations import evaluation_sample
from fedclust.personal import NoLayer
from fedclust.privacy import ClientDP
from fedclust.privacy.checks import check_strategy
from fedclust.strategies import ClusteredStrategy, FedGWCTraces, fedgwc_traces

CLIENTS, ROUNDS = 9, 4


def _measured(toy, watch, **options):
    strategy, figures, seen = ClusteredStrategy(seed=3, **options), [], type(watch)()

    class Watch(type(watch)):
        def round(self, record):
            super().round(record)
            figures.append({name: values.copy() for name, values in strategy.measured.figures.items()})

    strategy.observer = seen = Watch()
    strategy.start(toy(num_clients=CLIENTS).grid(2), toy.model(), num_rounds=ROUNDS)
    return seen.rounds, figures


@pytest.mark.parametrize("asked", [4, 0.4])
def test_sampled_figures_are_those_of_all_for_the_sampled_clients(toy, watch, asked) -> None:
    rounds, sampled = _measured(toy, watch, evaluate_clients=asked)
    whole_rounds, whole = _measured(toy, watch)
    for number in range(1, ROUNDS):
        chosen = np.asarray(evaluation_sample(asked, CLIENTS, 3, number))
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


def test_noise_for_the_mean_over_all_clients_is_not_for_a_sample() -> None:
    with pytest.raises(ValueError, match="evaluate_clients must be null with privacy=client_dp"):
        check_strategy(ClientDP(), "fedavg", ClusteredStrategy(evaluate_clients=5), NoLayer())


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


@pytest.mark.parametrize("kind", [ClusteredStrategy, FedGWCTraces])
def test_nothing_of_a_round_grows_with_the_square_of_the_clients(toy, watch, kind, monkeypatch) -> None:
    # Up to 2,000 clients FedGWC keeps a matrix of all pairs for the plots; here up to one.
    monkeypatch.setattr(fedgwc_traces, "_MOST_CLIENTS", 1)
    small, large = (
        _peak(toy, watch, kind(participation=20 / number, evaluate_clients=20), number)
        for number in (200, 800)
    )
    assert large < 4 * small  # of four times as many clients
    assert large - small < 800**2 / 4  # a truth value for each pair would be four times as much
