"""FedSoft on clients that add a number to the model and say which centre fits how many of their rows."""

from functools import partial

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvgM, FedProx

from fedclust.clustering.fedsoft import Parameters
from fedclust.messages.models import from_state
from fedclust.strategies import FedSoft
from tests.strategies.helpers import Weights, weight_of, weights_of

MODEL = from_state(Weights(10, 10).state_dict())


def _move(client: int, server_round: int) -> float:
    return client - 0.5 * server_round


def _soft(**parameters) -> FedSoft:
    return FedSoft(network=Weights(10, 10), parameters=Parameters(**parameters))


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_rounds_are_those_of_a_literal_loop(started, toy, num_nodes: int) -> None:
    wins = {0: [4, 0], 1: [3, 1], 2: [2, 2], 3: [0, 4]}
    federation = toy(num_clients=4, move=_move, wins=wins.get)
    strategy = started(_soft(sigma=0.1, proximal=0.25), 3, num_nodes, clients=federation, model=MODEL)
    # Client 0: 1 and 0.1, over 1.1; client 1: 3/4, 1/4; client 2: 1/2, 1/2; client 3 as 0 turned round.
    u = np.array([[10 / 11, 1 / 11], [0.75, 0.25], [0.5, 0.5], [1 / 11, 10 / 11]])
    samples = np.array([1, 2, 3, 4])
    centres, own = [0.0, 10.0], np.zeros(4)
    for number in (1, 2, 3):
        starts = [sum(u[k, s] * centres[s] for s in (0, 1)) for k in range(4)]
        trained = {k: begin for k, r, begin in federation.trained if r == number}
        np.testing.assert_allclose([trained[k] for k in range(4)], starts, rtol=1e-5)
        own = np.array([starts[k] + _move(k, number) for k in range(4)])
        centres = [np.average(own, weights=u[:, s] * samples) for s in (0, 1)]
    np.testing.assert_allclose(weights_of(strategy), own, rtol=1e-5)
    found = [weight_of(model) for model in strategy.clusters.memory.centres]
    np.testing.assert_allclose(found, centres, rtol=1e-5)
    assert federation.proximal == {0.25}
    columns = strategy.findings(strategy.clusters).clients
    np.testing.assert_allclose(columns["importance_0"], u[:, 0])
    assert columns["centre"].tolist() == [0, 0, 0, 1]


def test_weights_are_measured_every_so_many_rounds_and_kept_in_between(toy) -> None:
    asked = []

    def wins(client: int) -> list[int]:
        asked.append(client)
        return [1, 0] if len(asked) <= 6 else [0, 1]

    strategy = _soft(interval=3, sigma=0.0)
    weights = []
    after = strategy.after_round

    def after_round(*values):
        weights.append(values[0].memory.importance[0].tolist())
        return after(*values)

    strategy.after_round = after_round
    strategy.start(toy(wins=wins).grid(), MODEL, num_rounds=4)
    assert weights == [[1.0, 0.0]] * 3 + [[0.0, 1.0]]
    assert len(asked) == 12


def test_who_has_not_trained_is_served_the_middle_of_its_centres_the_others_their_own(
    started, toy, watch
) -> None:
    served = {}
    clients = {"num_clients": 4, "move": lambda *_: 100.0, "wins": lambda _: [3, 1]}
    federation = toy(**clients, accuracy=lambda client, weight: served.setdefault(client, weight) and 0.5)
    strategy = started(
        FedSoft(network=Weights(10, 10), participation=0.5), 1, clients=federation, model=MODEL
    )
    cohort = watch.rounds[0]["cohort"]
    assert len(cohort) == 2
    # All begin at 0.75·0 + 0.25·10 = 2.5 and get to 102.5, which both centres become.
    assert [served[client] for client in range(4)] == [102.5] * 4
    assert strategy.clusters.memory.trained.tolist() == [client in cohort for client in range(4)]


def test_a_centre_that_nobody_has_weight_for_stays(started) -> None:
    strategy = started(_soft(sigma=0.0), 2, move=lambda *_: 1.0, wins=lambda _: [5, 0], model=MODEL)
    assert [weight_of(model) for model in strategy.clusters.memory.centres] == [2.0, 10.0]


def test_a_client_that_cannot_measure_keeps_its_weights(started, toy) -> None:
    federation = toy(wins=lambda _: [1, 0], error=lambda client, r: "busy" if (client, r) == (2, 0) else None)
    strategy = started(_soft(sigma=0.0), 1, clients=federation, model=MODEL)
    weights = strategy.clusters.memory.importance
    assert weights[2].tolist() == [0.5, 0.5]
    assert weights[3].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("aggregator", [FedAvgM, FedProx])
def test_other_aggregators_are_refused(aggregator: type) -> None:
    name = aggregator.__name__.lower()
    with pytest.raises(ValueError, match=f"aggregator must be fedavg with FedSoft, .*, got {name}"):
        FedSoft(network=Weights(10, 10), aggregator=partial(aggregator, min_train_nodes=1))
