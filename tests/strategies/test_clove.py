"""CLoVE on clients whose loss is the distance of their number from the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from fedclust.clustering.clove import Parameters
from fedclust.federation import Clusters, Federation
from fedclust.messages.models import from_state
from fedclust.strategies import CLoVE
from tests.strategies.helpers import Weights, at, weights_of

ALL_ROUNDS = Parameters(num_starts=10, stable_rounds=None)
TWO_ROUNDS = Parameters(num_starts=10, clustering_rounds=2, stable_rounds=None)


def _model(value: float) -> ArrayRecord:
    return from_state({"w": torch.full((2,), value)})


def test_everybody_is_clustered_by_all_losses_not_by_the_smallest(toy) -> None:
    # Losses |i − w| under models at 9 and 20: (9, 20), (8, 19), (7, 18), (6, 17), (5, 16), (4, 15). Model 0
    # has everybody's smallest; the vectors lie on a line, of which k-means makes two halves.
    strategy = CLoVE(network=Weights(10, 10), parameters=ALL_ROUNDS)
    federation = Federation(toy(num_clients=6).grid(2))
    clusters = Clusters(np.zeros(6, dtype=int), (_model(9.0), _model(20.0)))
    found = strategy.before_round(clusters, np.array([0]), at(1, federation)).assignment
    assert len(set(found[:3])) == len(set(found[3:])) == 1
    assert found[0] != found[5]


def test_rounds_are_those_of_a_literal_loop(toy) -> None:
    strategy = CLoVE(network=Weights(10, 10), parameters=TWO_ROUNDS, seed=1)
    federation = toy(num_clients=6, move=lambda client, number: 0.5 * client - number)
    strategy.start(federation.grid(2), _model(0.0), num_rounds=4)
    models = [0.0, 10.0]
    for number in range(1, 5):
        # The best split in two of the loss vectors (|i − w_0|, |i − w_1|), by trying all cuts.
        if number <= 2:
            vectors = np.abs(np.arange(6)[:, np.newaxis] - np.array(models))
            masks = [np.arange(6) >= first for first in range(1, 6)]
            spread = [
                sum(np.square(vectors[part] - vectors[part].mean(axis=0)).sum() for part in (mask, ~mask))
                for mask in masks
            ]
            mask = masks[int(np.argmin(spread))]
            ways = mask.astype(int), (~mask).astype(int)
            belongs = min(ways, key=lambda way: vectors[np.arange(6), way].sum())
        for model in (0, 1):
            members = [client for client in range(6) if belongs[client] == model]
            moved = [models[model] + 0.5 * client - number for client in members]
            models[model] = float(np.average(moved, weights=[client + 1 for client in members]))
    np.testing.assert_array_equal(strategy.assignment, belongs)
    np.testing.assert_allclose(weights_of(strategy), models, rtol=1e-5)


def test_after_the_clustering_rounds_nobody_is_asked(toy) -> None:
    strategy = CLoVE(network=Weights(10, 10), parameters=TWO_ROUNDS)
    federation = Federation(toy(error=lambda *_: "asked").grid())
    clusters = Clusters(np.array([0, 1] * 3), (_model(0.0), _model(1.0)))
    for number, asked in ((2, 6), (3, 0)):
        kept = strategy.before_round(clusters, np.arange(6), at(number, federation))
        assert kept.assignment.tolist() == [0, 1] * 3  # nobody answered
        assert len(federation.take_failures()) == asked


def test_a_client_that_fails_stays(toy) -> None:
    strategy = CLoVE(network=Weights(10, 10), parameters=ALL_ROUNDS)
    federation = Federation(toy(error=lambda client, _: "busy" if client == 5 else None).grid())
    clusters = Clusters(np.zeros(6, dtype=int), (_model(0.0), _model(4.0)))
    found = strategy.before_round(clusters, np.arange(6), at(1, federation))
    assert found.assignment.tolist() == [0, 0, 1, 1, 1, 0]


def _begun(toy, stable_rounds: int) -> tuple[CLoVE, Federation, Clusters]:
    parameters = Parameters(num_starts=10, stable_rounds=stable_rounds)
    strategy, federation = CLoVE(network=Weights(10, 10), parameters=parameters), Federation(toy().grid(2))
    return strategy, federation, strategy.begin(federation, _model(0.0))


def test_clustering_ends_once_nobody_has_changed_for_the_rounds_it_takes(toy) -> None:
    # Models at 0 and 10 never move: rounds 2 and 3 find the groups of round 1. In round 4 nobody is asked.
    strategy, federation, clusters = _begun(toy, stable_rounds=3)
    for number, kept in ((1, 1), (2, 2), (3, 3)):
        clusters = strategy.before_round(clusters, np.arange(6), at(number, federation))
        np.testing.assert_array_equal(clusters.memory, [kept] * 6)
    silent = Federation(toy(num_clients=6, error=lambda *_: "asked").grid())
    assert strategy.before_round(clusters, np.arange(6), at(4, silent)) is clusters
    assert silent.take_failures() == []


def test_clustering_ends_though_a_client_has_left(toy, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy, federation, clusters = _begun(toy, stable_rounds=1)
    left = replace(clusters, memory=np.array([1, 1, 1, 1, 1, 0]))  # client 5 was never clustered
    assert strategy.before_round(left, np.arange(6), at(2, federation)) is not left
    monkeypatch.setattr(federation.clients, "online", lambda: {0, 1, 2, 3, 4})
    assert strategy.before_round(left, np.arange(5), at(2, federation)) is left


def test_a_newcomer_makes_clustering_start_again(toy) -> None:
    strategy, federation, clusters = _begun(toy, stable_rounds=1)
    clusters = strategy.before_round(clusters, np.arange(6), at(1, federation))
    np.testing.assert_array_equal(strategy.grown(clusters, np.array([0])), [*[1] * 6, 0])
