"""FeSEM on clients that add a number to the model."""

from functools import partial

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam

from fedclust.strategies import FeSEM
from tests.strategies.helpers import weights_of

FIRST = {0: 1.0, 1: 2.0, 2: 11.0, 3: 12.0}


def _move(client: int, server_round: int) -> float:
    if server_round == 1:
        return FIRST[client]
    return 8.0 if (client, server_round) == (1, 2) else 0.0


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_a_first_grouping_and_an_em_step(toy, started, watch, num_nodes: int) -> None:
    federation = toy(num_clients=4, move=_move)
    strategy = started(FeSEM(), 2, num_nodes, clients=federation)
    # Round 1, all from 0: models 1, 2 and 11, 12. Centres (1·1 + 2·2)/3 = 5/3 and (3·11 + 4·12)/7 = 81/7.
    assert watch.assignments[1] == (1, [0, 0, 1, 1], "models went to the nearest centres")
    starts = {client: start for client, number, start in federation.trained if number == 2}
    np.testing.assert_allclose([starts[client] for client in range(4)], [5 / 3, 5 / 3, 81 / 7, 81 / 7])
    # Round 2: client 1 gets to 5/3 + 8 = 29/3, which is 8 from 5/3 and 1.9 from 81/7; the others stay.
    # Centres: 5/3 of client 0; (2·29/3 + 3·81/7 + 4·81/7)/9 = (58/3 + 81)/9 = 301/27.
    assert watch.assignments[2][:2] == (2, [0, 1, 1, 1])
    np.testing.assert_allclose(weights_of(strategy), [5 / 3, 301 / 27], rtol=1e-6)


def test_rounds_are_those_of_a_literal_loop(started) -> None:
    """All clients take part; E-step, M-step, local training, as the paper has them."""

    def move(client: int, number: int) -> float:
        return {0: -3.0, 1: 3.0}[client % 2] if number == 1 else 1.5 * np.sin(7 * client + number)

    strategy = started(FeSEM(participation=1.0), 5, num_clients=8, move=move)
    local = [move(client, 1) for client in range(8)]
    centres = [-3.0, 3.0]  # two points: k-means has nothing to choose
    for number in range(2, 7):
        belongs = [0 if abs(w - centres[0]) <= abs(w - centres[1]) else 1 for w in local]
        for centre in (0, 1):
            members = [client for client in range(8) if belongs[client] == centre]
            if members:
                weights = [client + 1 for client in members]
                centres[centre] = float(np.average([local[client] for client in members], weights=weights))
        local = [centres[belongs[client]] + move(client, number) for client in range(8)]
    np.testing.assert_array_equal(strategy.assignment, belongs)
    np.testing.assert_allclose(weights_of(strategy), centres, rtol=1e-5)


def test_round_one_is_everybodys_and_a_client_that_fails_stays(started, watch) -> None:
    gone = {"error": lambda client, r: "gone" if client == 3 and r else None}
    started(FeSEM(participation=0.5), 2, num_clients=4, move=_move, **gone)
    assert watch.rounds[0]["cohort"] == [0, 1, 2, 3]
    assert len(watch.rounds[1]["cohort"]) < 4
    assert watch.assignments[1][1] == [0, 0, 1, 0]


def test_a_server_optimiser_moves_a_centre_that_nobody_started_from(started) -> None:
    optimiser = partial(FedAdam, eta=0.1, min_train_nodes=1, min_available_nodes=1)
    strategy = started(FeSEM(aggregator=optimiser), 1, num_clients=4, move=_move)
    # In round 1 all start from centre 0. Adam's first step: m = (1 − β₁)Δ = 0.1 Δ, v = (1 − β₂)Δ² = 0.01 Δ²,
    # times the bias correction √(1 − β₂)/(1 − β₁) if there is one: 0.1 in the direction of Δ, for both.
    first, second = weights_of(strategy)
    assert 0.05 < first < 0.15
    assert second == pytest.approx(first, rel=0.01)
