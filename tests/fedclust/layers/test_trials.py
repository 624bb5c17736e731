from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from fedclust.clustering.loss_traces import Trace
from fedclust.federation import Clusters, Federation
from fedclust.federation.run import Run
from fedclust.layers.trials import TRIAL, Trainee, Trial, TrialMemory, train_beside
from fedclust.messages.packer import pack, unpack
from fedclust.strategies import ClusteredStrategy


def model(weight: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.full(2, weight, dtype=np.float32))})


def fedavg() -> Strategy:
    return FedAvg(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)


def fedavgm() -> Strategy:
    return FedAvgM(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1, server_momentum=0.9)


def train(
    federation: Federation,
    trainees: list[Trainee],
    clients: dict[int, int],
    make: Callable[[], Strategy] = fedavg,
    server_round: int = 4,
) -> tuple[tuple[Trainee, ...], int]:
    run = Run(federation, Clusters.of([0], model(0)), make, model(0), server_round=server_round - 1)
    return train_beside(run, trainees, clients, shared_means=True)


def test_each_model_is_the_mean_of_its_own_clients(toy) -> None:
    toys = toy()
    federation = Federation(toys.grid(num_nodes=2))
    after, trained = train(federation, [Trainee(model(0)), Trainee(model(10))], {0: 0, 1: 0, 2: 1})
    # Client k adds k and has k + 1 samples: (0 * 1 + 1 * 2) / 3, and 10 + 2.
    weights = [float(each.model["w"].numpy()[0]) for each in after]
    np.testing.assert_allclose(weights, [2 / 3, 12.0], rtol=1e-6)
    assert trained == 3
    # In the round of the cluster's own model, so on the same batches.
    assert sorted(toys.trained) == [(0, 4, 0.0), (1, 4, 0.0), (2, 4, 10.0)]


def test_a_failing_client_costs_its_own_part_only(toy) -> None:
    federation = Federation(toy(error=lambda client, _: "gone" if client in (1, 2) else None).grid())
    after, trained = train(federation, [Trainee(model(0)), Trainee(model(10))], {1: 0, 3: 0, 2: 1})
    assert float(after[0].model["w"].numpy()[0]) == 3.0  # client 3 alone
    assert float(after[1].model["w"].numpy()[0]) == 10.0  # nobody: it stays
    assert trained == 1
    failures = [(each["client"], each["phase"]) for each in federation.take_failures()]
    assert failures == [(1, TRIAL), (2, TRIAL)]


def test_nobody_to_train_changes_nothing(toy) -> None:
    trainee = Trainee(model(1))
    assert train(Federation(toy().grid()), [trainee], {}) == ((trainee,), 0)


def test_server_momentum_is_kept_from_round_to_round(toy) -> None:
    # As a strategy of its own trains the same clients: two rounds of FedAvgM.
    federation = Federation(toy().grid())
    one = [Trainee(toy.model())]
    remembered = []
    for server_round in (1, 2):
        one, _ = train(federation, list(one), dict.fromkeys(range(6), 0), fedavgm, server_round)
        remembered.append(one[0].optimiser)
    whole = ClusteredStrategy(aggregator=fedavgm)
    whole.start(toy().grid(), toy.model(), 2)
    np.testing.assert_array_equal(one[0].model["w"].numpy(), whole.clusters.models[0]["w"].numpy())
    assert remembered[0].keys() == remembered[1].keys()
    assert "momentum_vector" in remembered[0]


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_an_aggregator_remembers_is_not_changed_by_later_rounds(toy, rounds: int) -> None:
    federation = Federation(toy().grid())
    (first,), _ = train(federation, [Trainee(toy.model())], {3: 0}, fedavgm)
    kept = [array.copy() for array in first.optimiser["momentum_vector"]]
    trainees = (first,)
    for _ in range(rounds):
        trainees, _ = train(federation, list(trainees), {3: 0}, fedavgm)
    np.testing.assert_array_equal(first.optimiser["momentum_vector"], kept)


def test_memory_comes_back_from_a_checkpoint() -> None:
    weights = ArrayRecord({"layer/w": Array(np.arange(3, dtype=np.float32))})
    part = Trainee(weights, {"m_t": {"layer/w": np.ones(3)}, "current_round": 2, "empty": {}})
    labels = np.array([0, 1, -1, 0])
    trial = Trial(1, "update", labels, (part, Trainee(weights)), 2, 5, 0.0125, 1, 9, 77, {"gain": 0.1})
    trace = Trace(np.arange(4)).recorded(np.array([1, 3]), np.array([0.5, -0.5]))
    memory = TrialMemory(
        (trace,), 2, (trial,), ({"kept": False, "why": "no gain"},), 31, 1000, 500, {"labels": [2, 7]}
    )
    again = unpack(TrialMemory, pack(memory))
    assert (again.looks, again.spent, again.bytes_down, again.bytes_up) == (2, 31, 1000, 500)
    assert list(again.history) == list(memory.history)
    assert {name: list(each) for name, each in again.alone.items()} == {"labels": [2, 7]}
    assert again.traces[0].positions[0].tolist() == [1, 3]
    (other,) = again.trials
    assert other.entry() == trial.entry()
    assert other.entry()["sizes"] == [2, 1]  # the unknown client is in neither
    assert (other.proposals, other.level) == (5, 0.0125)
    np.testing.assert_array_equal(other.labels, labels)
    np.testing.assert_array_equal(other.parts[1].model["layer/w"].numpy(), [0, 1, 2])
    assert other.parts[0].optimiser.keys() == part.optimiser.keys()
    np.testing.assert_array_equal(other.parts[0].optimiser["m_t"]["layer/w"], np.ones(3))
    assert again.by_cluster() == {1: [other]}
