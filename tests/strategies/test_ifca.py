"""IFCA on clients whose loss is the distance of their number from the model."""

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg, FedAvgM
from torch import nn

from fedclust.aggregation.flower import FairAvg
from fedclust.clustering.ifca import Parameters
from fedclust.federation import Clusters, Federation, Reply, starting_models
from fedclust.messages.models import from_state
from fedclust.strategies import IFCA
from fedclust.strategies.ifca import Memory
from tests.strategies.helpers import Keeping, Weights, assert_same_models, at, kept, weight_of, weights_of

MODEL = from_state(Weights(0, 5).state_dict())


def _ifca(seed: int = 0, **parameters) -> IFCA:
    return IFCA(network=Weights(0, 5), parameters=Parameters(**parameters), seed=seed)


def _move(client: int, server_round: int) -> float:
    return 0.1 * client - 0.05 * server_round


def _clusters(*values: float, clients: int = 6, cluster: int = 0) -> Clusters:
    models = [from_state({"w": torch.full((2,), value)}) for value in values]
    return Clusters(np.full(clients, cluster), tuple(models), Memory(np.zeros(clients, dtype=bool)))


def _literally(models: list[float], clients: int, rounds: range) -> list[float]:
    """IFCA, Algorithm 1, with the toy's arithmetic: loss |i − w|, training adds a number, n_i = i + 1."""
    for number in rounds:
        sums, samples = [0.0] * len(models), [0] * len(models)
        for client in range(clients):
            losses = [abs(client - model) for model in models]
            chosen = losses.index(min(losses))
            sums[chosen] += (client + 1) * (models[chosen] + _move(client, number))
            samples[chosen] += client + 1
        models = [s / n if n else model for s, n, model in zip(sums, samples, models, strict=True)]
    return models


def test_rounds_are_those_of_algorithm_1(started) -> None:
    strategy = started(_ifca(4, num_clusters=3), 5, 2, move=_move, model=MODEL)
    drawn = [weight_of(model) for model in starting_models(Weights(0, 5), MODEL, 3, seed=4)]
    assert len(set(drawn)) == 3
    np.testing.assert_allclose(weights_of(strategy), _literally(drawn, 6, range(1, 6)), rtol=1e-5)


def test_only_the_cohort_chooses_before_a_round_and_everybody_before_an_evaluation(toy) -> None:
    strategy, federation = _ifca(), Federation(toy().grid())
    clusters = _clusters(0.0, 5.0)
    # Clients 3, 4, 5 are nearer to 5; 3 is not asked and stays.
    asked = strategy.before_round(clusters, np.array([1, 4, 5]), at(1, federation))
    assert asked.assignment.tolist() == [0, 0, 0, 0, 1, 1]
    assert strategy.before_evaluation(clusters, at(1, federation)).assignment.tolist() == [0, 0, 0, 1, 1, 1]


def test_who_chose_before_an_evaluation_is_not_asked_again_until_the_models_have_changed(toy) -> None:
    failing: set[int] = {5}
    strategy = _ifca()
    federation = Federation(toy(error=lambda client, _: "busy" if client in failing else None).grid())
    clusters = strategy.before_evaluation(_clusters(0.0, 5.0), at(1, federation))
    assert [failure["client"] for failure in federation.take_failures()] == [5]
    failing.update(range(6))  # now each question fails, and is noticed
    again = strategy.before_round(clusters, np.array([1, 4, 5]), at(2, federation))
    assert [failure["client"] for failure in federation.take_failures()] == [5]
    assert again.assignment.tolist() == [0, 0, 0, 1, 1, 0]
    strategy.before_evaluation(strategy.after_round(again, [], at(2, federation)), federation)
    assert len(federation.take_failures()) == 6


def test_a_cluster_that_nobody_chose_keeps_its_model(toy) -> None:
    strategy = _ifca()
    strategy.begin = lambda *_: _clusters(2.0, 99.0)
    strategy.start(toy(move=lambda *_: 1.0).grid(), MODEL, num_rounds=2)
    assert weights_of(strategy) == [4.0, 99.0]
    assert strategy.assignment.tolist() == [0] * 6


RESTARTS = {"num_clusters": 2, "restarts": 3, "restart_rounds": 2}


def test_the_best_of_three_starts_goes_on(started, toy, watch) -> None:
    federation = toy(move=_move)
    strategy = started(_ifca(2, **RESTARTS), 8, 2, clients=federation, model=MODEL)
    drawn = [weight_of(model) for model in starting_models(Weights(0, 5), MODEL, 6, seed=2)]
    starts = [
        _literally(drawn[2 * start : 2 * start + 2], 6, range(2 * start + 1, 2 * start + 3))
        for start in range(3)
    ]
    losses = [np.mean([min(abs(i - model) for model in start) for i in range(6)]) for start in starts]
    best = int(np.argmin(losses))
    assert best != 2  # not just the last one
    told = watch.rounds[5]["strategy"]
    assert told["start"] == best
    np.testing.assert_allclose(told["start_losses"], losses, rtol=1e-5)
    assert len(strategy.clusters.models) == 2
    np.testing.assert_allclose(weights_of(strategy), _literally(starts[best], 6, range(7, 9)), rtol=1e-5)
    assert strategy.findings(strategy.clusters).summary["start"] == best
    assert [len(record["cluster_sizes"]) for record in watch.rounds] == [6] * 5 + [2] * 3


def test_a_run_resumed_while_starts_are_tried_is_the_same(toy, tmp_path: Path) -> None:
    def make() -> IFCA:
        momentum = partial(FedAvgM, server_momentum=0.5, min_train_nodes=1, min_available_nodes=1)
        options = {"participation": 0.6, "seed": 2, "aggregator": momentum}
        return IFCA(network=Weights(0, 5), parameters=Parameters(**RESTARTS), **options)

    whole = make()
    Keeping(whole, tmp_path, 3, 5, 6)
    whole.start(toy(move=_move).grid(), MODEL, num_rounds=8)
    for after in (3, 5, 6):  # inside a start, before the choice, after it
        resumed = make()
        resumed.start(toy(move=_move).grid(2), MODEL, 8, resume=kept(tmp_path, after))
        assert_same_models(whole, resumed)
        np.testing.assert_array_equal(whole.assignment, resumed.assignment)
        assert resumed.findings(resumed.clusters).summary == whole.findings(whole.clusters).summary


def test_the_kept_start_keeps_its_aggregators_memory(toy) -> None:
    strategy = _ifca(num_clusters=2, restarts=3, restart_rounds=1)
    # Start 1's models, at 0 and 4, are the nearest to clients 0 to 5.
    before = dataclasses.replace(_clusters(9, 9, 0, 4, 9, 9), aggregators=tuple(FedAvg() for _ in range(6)))
    clusters = strategy.after_round(before, [], at(3, Federation(toy().grid())))
    assert clusters.aggregators == before.aggregators[2:4]
    assert [weight_of(model) for model in clusters.models] == [0.0, 4.0]
    assert clusters.assignment.tolist() == [0, 0, 0, 1, 1, 1]  # client 2 is as far from both


def test_a_run_does_not_stop_before_a_start_is_chosen() -> None:
    tried, alone = _ifca(**RESTARTS), _ifca()
    assert [tried.settled(_clusters(0.0), number) for number in (2, 5, 6)] == [False, False, True]
    assert alone.settled(_clusters(0.0), 1)


def test_a_run_that_ends_before_the_choice_is_warned_of() -> None:
    strategy = _ifca(**RESTARTS)
    assert strategy.cautions(6, rounds=6) == []
    assert strategy.cautions(6, rounds=5) == [
        "3 starts of 2 rounds each take 6 rounds, the run has 5: it ends before the best start is chosen"
    ]


@pytest.mark.parametrize("shared", [False, True])
def test_models_begin_as_drawn_or_with_the_first_ones_layers(toy, shared: bool) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = from_state(network.state_dict())
    strategy = IFCA(network=network, parameters=Parameters(shared_layers=shared, restarts=2))
    first, second, third, _ = strategy.begin(Federation(toy().grid()), model).models
    for name in model:
        np.testing.assert_array_equal(first[name].numpy(), model[name].numpy())
        same = np.array_equal(first[name].numpy(), second[name].numpy())
        assert same == (shared and name.startswith("0."))
        assert not np.array_equal(first[name].numpy(), third[name].numpy())  # another start


@pytest.mark.parametrize(("aggregator", "shared"), [(FairAvg, 2), (FedAvg, 22 / 7)])
def test_layers_are_shared_as_the_aggregator_weighs_clients(toy, aggregator: type, shared: float) -> None:
    """The shared layer is the mean over everybody of one model each; the last layer is not shared."""
    strategy = IFCA(network=Weights(0, 5), parameters=Parameters(shared_layers=True), aggregator=aggregator)
    clusters = _clusters(0.0, 6.0)
    # Four clients of cluster 0 and two of cluster 1: (4 · 0 + 2 · 6) / 6 = 2; by samples 6 · (5 + 6) / 21.
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    replies = [
        Reply(client, int(client > 3), MODEL, MODEL, client + 1, 1.0, np.ones(1), message)
        for client in range(6)
    ]
    strategy.network = nn.Sequential(Weights(0, 5), Weights(0, 5))
    named = [ArrayRecord({"0.w": model["w"], "1.w": model["w"]}) for model in clusters.models]
    changed = strategy.after_round(
        dataclasses.replace(clusters, models=tuple(named)), replies, at(1, Federation(toy().grid()))
    )
    for model, own in zip(changed.models, (0, 6), strict=True):
        np.testing.assert_allclose(model["0.w"].numpy(), [shared, shared], rtol=1e-6)
        np.testing.assert_array_equal(model["1.w"].numpy(), [own, own])
