"""Models that train beside the clusters', and what is remembered of trials."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from fedclust.federation import Clusters, Federation
from fedclust.federation.run import Round, Run
from fedclust.layers.beside import TRIAL, aggregate_beside, train_beside
from fedclust.strategies import ClusteredStrategy

FEW = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


def model(weight: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.full(2, weight, dtype=np.float32))})


def momentum() -> Strategy:
    return FedAvgM(server_momentum=0.9, **FEW)


def train(federation: Federation, models: list, clients: dict[int, int], *aggregators: Strategy, at: int = 4):
    """Train models for a round; return each one's first weight, and how many clients trained."""
    now = Round(at, Clusters.of([0], model(0)))
    run = Run(federation, momentum, model(0), now, server_round=at - 1)
    each = aggregators or tuple(FedAvg(**FEW) for _ in models)
    replies = train_beside(run, models, each, clients, shared_means=True)
    models[:] = aggregate_beside(run, models, each, replies, shared_means=True)
    return [float(each["w"].numpy()[0]) for each in models], len(replies)


def test_each_model_is_the_mean_of_its_own_clients(toy) -> None:
    toys = toy()
    # Client k adds k and has k + 1 samples: (0 * 1 + 1 * 2) / 3, and 10 + 2.
    found, trained = train(Federation(toys.grid(num_nodes=2)), [model(0), model(10)], {0: 0, 1: 0, 2: 1})
    np.testing.assert_allclose(found, [2 / 3, 12.0], rtol=1e-6)
    assert trained == 3
    # In the round of the cluster's own model, so on the same batches.
    assert sorted(toys.trained) == [(0, 4, 0.0), (1, 4, 0.0), (2, 4, 10.0)]


def test_a_failing_client_costs_its_own_part_only(toy) -> None:
    federation = Federation(toy(error=lambda client, _: "gone" if client in (1, 2) else None).grid())
    # Client 3 alone trains the first; nobody the second, so it stays.
    assert train(federation, [model(0), model(10)], {1: 0, 3: 0, 2: 1}) == ([3.0, 10.0], 1)
    failures = [(each["client"], each["phase"]) for each in federation.take_failures()]
    assert failures == [(1, TRIAL), (2, TRIAL)]
    assert train(federation, [model(1)], {}) == ([1.0], 0)


def test_server_momentum_goes_on_from_round_to_round(toy) -> None:
    # As a strategy of its own trains the same clients: two rounds of FedAvgM.
    federation, own, models = Federation(toy().grid()), momentum(), [toy.model()]
    for server_round in (1, 2):
        train(federation, models, dict.fromkeys(range(6), 0), own, at=server_round)
    whole = ClusteredStrategy(aggregator=momentum)
    whole.start(toy().grid(), toy.model(), 2)
    np.testing.assert_array_equal(models[0]["w"].numpy(), whole.clusters.models[0]["w"].numpy())
