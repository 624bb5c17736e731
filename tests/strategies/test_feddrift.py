"""FedDrift on clients whose loss of a model is how far its weight is from their concept, which changes."""

from itertools import combinations

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAvg

from fedclust.clustering.feddrift import Parameters
from fedclust.federation import Clusters, Federation
from fedclust.messages.evaluation import Losses
from fedclust.messages.models import from_state
from fedclust.strategies import FedDrift
from fedclust.strategies.feddrift import Memory
from tests.strategies.helpers import at, weights_of

CONCEPTS = {0: [0, 0, 0, 0, 0], 5: [0, 0, 8, 8, 0], 9: [0, 0, 8, 0, 8], 13: [4, 0, 4, 0, 8]}
"""What each client's weight should be from some round on, but for what makes clients differ a little."""


def _concept(client: int, server_round: int) -> float:
    return CONCEPTS[max(start for start in CONCEPTS if start <= server_round)][client] + client / 16


def _clients(toy):
    """Return toys that train to their concept at once; they are asked for losses before they train."""
    number = [1]  # the round that they train in next

    class Drifting(toy):
        def _losses(self, client, asked):
            weights = [float(model["w"].numpy()[0]) for model in asked.models]
            return Losses(np.array([abs(_concept(client, number[0]) - weight) for weight in weights]), None)

        def _train(self, client, asked):
            number[0] = asked.server_round + 1
            start = float(asked.arrays["w"].numpy()[0])
            self.move = lambda client, server_round: _concept(client, server_round) - start
            return super()._train(client, asked)

    return Drifting(num_clients=5, num_examples=lambda client: [1, 1, 1, 3, 1][client])


def _drifting(**parameters) -> FedDrift:
    # Toys jump to a new concept in one round, which looks like an attack.
    options = {"participation": 1.0, "update_norm_cap": None}
    return FedDrift(parameters=Parameters(interval=2, delta=0.5, **parameters), **options)


def test_drifted_clients_go_on_alone_and_are_merged_a_step_later(started, toy, watch) -> None:
    strategy = started(_drifting(), 10, clients=_clients(toy))
    found = [(number, assignment) for number, assignment, _ in watch.assignments]
    # Steps begin in rounds 3, 5, 7 and 9; the first has nothing to compare with.
    assert found == [
        (0, [0, 0, 0, 0, 0]),
        (5, [0, 0, 1, 2, 0]),  # 8 is new: a model each
        (7, [0, 0, 1, 1, 0]),  # 8 + 2/16 and 8 + 3/16 are within 0.5
        (9, [0, 0, 1, 0, 1]),  # nothing is new: the clients change models
    ]
    # In round 9 clients 0, 1 and 3 train, of 1, 1 and 3 rows, and clients 2 and 4, of one each.
    expected = [(0 + 1 / 16 + 3 * 3 / 16) / 5, 8 + (2 / 16 + 4 / 16) / 2]
    np.testing.assert_allclose(weights_of(strategy), expected, rtol=1e-6)


def test_a_new_model_has_an_aggregator_of_its_own_where_others_merge_in_the_same_step(toy) -> None:
    # Losses are |client − weight|. Models 0 and 1 are within 2, model 2 is not; client 7 has lost its own.
    models = [from_state({"w": torch.full((2,), weight)}) for weight in (0.0, 1.0, 3.0)]
    memory, before = Memory(np.array([np.nan] * 7 + [0.0])), tuple(FedAvg() for _ in range(3))
    clusters = Clusters(np.array([0, 1, 1, 2, 2, 2, 2, 2]), models, memory, before)
    strategy = FedDrift(parameters=Parameters(interval=1, delta=2.0))
    federation = Federation(toy(num_clients=8, num_examples=lambda _: 1).grid())
    found = strategy.before_round(clusters, np.arange(8), at(2, federation))
    assert found.assignment.tolist() == [0, 0, 0, 1, 1, 1, 1, 2]
    assert found.aggregators[:2] == (before[0], before[2])
    assert len(found.aggregators) == 3
    assert found.aggregators[2] not in before


def test_who_does_not_answer_stays_and_newcomers_have_no_loss_before(started, toy) -> None:
    clients = _clients(toy)
    clients.error = lambda client, number: "busy" if client == 3 and number == 0 else None
    strategy = started(
        FedDrift(parameters=Parameters(interval=2, delta=0.5), participation=1.0), 6, clients=clients
    )
    assert strategy.assignment.tolist() == [0, 0, 1, 0, 0]
    memory = strategy.clusters.memory.losses
    assert np.isnan(memory).tolist() == [False, False, False, True, False]
    grown = strategy.grown(strategy.clusters, np.array([0, 1])).losses
    np.testing.assert_array_equal(grown, [*memory, np.nan, np.nan])


def _losses_on(losses, home, rows) -> dict[tuple[int, int], float]:
    """Return the mean loss of each model (first) on the rows of each cluster's clients."""
    found = {}
    for cluster in set(home):
        members = [client for client in range(5) if home[client] == cluster]
        total = sum(rows[client] for client in members)
        for model in range(len(losses[0])):
            found[model, cluster] = sum(rows[c] * losses[c][model] for c in members) / total
    return found


@pytest.mark.parametrize("eager", [False, True])
def test_steps_are_those_of_a_literal_loop(started, toy, eager: bool) -> None:
    strategy = started(_drifting(eager=eager), 16, clients=_clients(toy))
    rows, delta = [1, 1, 1, 3, 1], 0.5
    models, home, before = [0.0], [0] * 5, [float("nan")] * 5
    for number in range(1, 17):
        concept = [_concept(client, number) for client in range(5)]
        if number > 1 and number % 2:
            known = len(models)
            losses = [[abs(concept[client] - weight) for weight in models] for client in range(5)]
            new = []
            for client in range(5):
                least = min(losses[client])
                home[client] = losses[client].index(least)
                if least - before[client] > delta:
                    if not (eager and new):
                        models.append(models[home[client]])
                    home[client] = len(models) - 1
                    new.append(client)
                before[client] = least

            while not eager:
                filled = [model for model in range(known) if model in home]
                on = _losses_on(losses, home, rows)
                close = [
                    (i, j)
                    for i, j in combinations(filled, 2)
                    if max(on[i, j] - on[i, i], on[j, i] - on[j, j], 0) <= delta
                ]
                if not close:
                    break
                (i, j), known = close[0], known - 1
                weights = [sum(rows[c] for c in range(5) if home[c] == each) for each in (i, j)]
                models[i] = float(np.average([models[i], models[j]], weights=weights))
                del models[j]
                home = [i if h == j else h - (h > j) for h in home]
                losses = [[*each[:j], *each[j + 1 :]] for each in losses]
        for model in set(home):
            members = [client for client in range(5) if home[client] == model]
            models[model] = float(
                np.average([concept[c] for c in members], weights=[rows[c] for c in members])
            )
    assert strategy.assignment.tolist() == home
    assert len(models) == 3
    np.testing.assert_allclose(weights_of(strategy), models, rtol=1e-5)
