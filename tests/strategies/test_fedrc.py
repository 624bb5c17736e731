"""FedRC on a linear layer, against a literal loop over rows."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.clustering.fedrc import Parameters
from fedclust.data.arrays import from_arrays
from fedclust.federation import Clusters, Federation, Reply, starting_models
from fedclust.messages.coalitions import ALL_ROWS, name_of
from fedclust.messages.models import from_state
from fedclust.strategies import FedRC
from fedclust.strategies.fedrc import Memory
from tests.strategies.helpers import at

RATE, ROUNDS, MODELS, CLASSES = 0.5, 3, 2, 3
HOW = fedclust.LocalTraining(learning_rate=RATE, batch_size=100, epochs=1)  # one step on all rows


@cache
def _network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2, CLASSES)


def _rows(num_clients: int = 5):
    draws, parts = np.random.default_rng(0), []
    for client in range(num_clients):
        pairs = []
        for n in (8 + 3 * client, 0, 4):
            inputs = draws.normal(size=(n, 2)).astype("f4")
            labels = (inputs[:, 0] > 0).astype(int) + (inputs[:, 1] > 0.5)
            pairs.append((inputs, (labels + (client >= 3)) % CLASSES))
        parts.append(tuple(pairs))
    return from_arrays(parts, num_classes=CLASSES)


def _run(strategy, rows, rounds: int = ROUNDS, seed: int = 0):
    options = {"personal": "none", "training": HOW, "seed": seed}
    return fedclust.simulate(strategy, _network(), rows, rounds=rounds, **options)


def _arrays(model) -> tuple[np.ndarray, np.ndarray]:
    return model["weight"].numpy().astype(float), model["bias"].numpy().astype(float)


def _chances(model, x: np.ndarray) -> np.ndarray:
    logits = model[0] @ x + model[1]
    return np.exp(logits) / np.exp(logits).sum()


def _literal(rows, rounds: int):
    start = from_state(_network().state_dict())
    models = [_arrays(each) for each in starting_models(_network(), start, MODELS, 0)]
    number = len(rows.train)
    omega = np.full((number, MODELS), 1 / MODELS)
    of_label = np.full((MODELS, CLASSES), 1 / CLASSES)
    for _ in range(rounds):
        sums = np.zeros((MODELS, CLASSES))
        trained = [[] for _ in range(MODELS)]
        new = omega.copy()
        for client, own in enumerate(rows.train):
            x, y = rows.inputs[own].numpy().astype(float), rows.labels[own].numpy()
            gamma = np.zeros((len(own), MODELS))
            for j in range(len(own)):
                for k in range(MODELS):
                    gamma[j, k] = omega[client, k] * _chances(models[k], x[j])[y[j]] / of_label[k, y[j]]
                gamma[j] /= gamma[j].sum()
                sums[:, y[j]] += gamma[j]
            new[client] = gamma.mean(axis=0)
            for k, (weight, bias) in enumerate(models):
                slope, shift = np.zeros_like(weight), np.zeros_like(bias)
                for j in range(len(own)):
                    wrong = _chances(models[k], x[j]) - np.eye(CLASSES)[y[j]]
                    slope += gamma[j, k] * np.outer(wrong, x[j]) / len(own)
                    shift += gamma[j, k] * wrong / len(own)
                trained[k].append((weight - RATE * slope, bias - RATE * shift))
        sizes = [len(own) for own in rows.train]
        models = [
            tuple(np.average([each[part] for each in of], axis=0, weights=sizes) for part in (0, 1))
            for of in trained
        ]
        omega, of_label = new, sums / sums.sum(axis=1, keepdims=True)
    return models, omega


@pytest.mark.parametrize("rounds", [1, ROUNDS])
def test_rounds_are_those_of_a_literal_loop(rounds: int) -> None:
    rows = _rows()
    result = _run(FedRC(network=_network(), parameters=Parameters(MODELS)), rows, rounds)
    models, omega = _literal(rows, rounds)
    found = result.clients[[f"share_{place}" for place in range(MODELS)]].to_numpy()
    np.testing.assert_allclose(found, omega, rtol=1e-4)
    assert len(set(omega.argmax(axis=1).tolist())) == MODELS
    for client, cluster in enumerate(result.assignment.tolist()):
        weight, bias = models[omega[client].argmax()]
        served = result.model_of(cluster)
        np.testing.assert_allclose(served.weight.detach(), weight, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(served.bias.detach(), bias, rtol=1e-4, atol=1e-6)


def test_one_model_is_fedavg_s() -> None:
    rows = _rows()
    one = _run(FedRC(network=_network(), parameters=Parameters(1)), rows).model_of(0)
    other = _run("fedavg", rows).model_of(0)
    torch.testing.assert_close(one.weight, other.weight)
    torch.testing.assert_close(one.bias, other.bias)


def test_nothing_is_known_of_newcomers() -> None:
    strategy = FedRC(network=_network(), parameters=Parameters(MODELS))
    memory = Memory(np.ones((2, MODELS, CLASSES)), np.zeros((2, MODELS)), np.zeros((MODELS, CLASSES)))
    model = from_state(_network().state_dict())
    clusters = Clusters(np.array([0, 1]), (model, model), memory.updated())
    grown = strategy.grown(clusters, np.array([1]))
    assert grown.sums[2].tolist() == [[0.0] * CLASSES] * MODELS
    assert grown.mixture.tolist() == [[0.5, 0.5]] * 3
    np.testing.assert_array_equal(grown.label_shares, clusters.memory.label_shares)


def test_an_update_of_another_model_that_is_too_long_or_not_finite_is_left_out(toy) -> None:
    """Of each client's own model the longest update is 1, so another's may be 30."""
    start = toy.model()
    federation = at(1, Federation(toy().grid()))
    clusters = Clusters(np.array([0, 0]), (start, start), None)
    moved = lambda by: from_state({"w": torch.tensor([by, 0.0])})  # noqa: E731
    own = Reply(0, 0, start, moved(1.0), 3, 0.5, np.ones(1))
    for by, kept in ((30.0, True), (30.1, False), (float("nan"), False)):
        reply = replace(own, arms={name_of(1, ALL_ROWS): moved(by)})
        found = FedRC(network=_network()).entering(clusters, [reply], federation)
        assert [each.cluster for each in found] == [0, 1][: 1 + kept]
        assert len(federation.take_failures()) == 1 - kept
    assert FedRC(network=_network()).entering(clusters, [own], federation) == [own]
