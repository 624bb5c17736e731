"""FedGMCC's cSGD0 and cSGD1: a centralised model per way of labelling."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.data.arrays import from_arrays
from fedclust.federation import FederationError, RunFailed
from fedclust.strategies import Centralised, CentralisedGroups

SIZES = [7, 20, 33, 12]
GROUPS = np.array([0, 1, 0, 1])
TRAINING = fedclust.LocalTraining(learning_rate=0.3, batch_size=100, epochs=2, mode="sequential")

Rows = tuple[np.ndarray, np.ndarray]


def _rows(draws: np.random.Generator, size: int) -> Rows:
    return draws.normal(size=(size, 4)).astype(np.float32), draws.integers(0, 3, size)


def _clients() -> list[tuple[Rows, ...]]:
    draws = np.random.default_rng(0)
    return [(_rows(draws, size), _rows(draws, 3), _rows(draws, 5)) for size in SIZES]


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def _run(strategy, clients) -> fedclust.Result:
    return fedclust.simulate(strategy, _network(), clients, rounds=3, training=TRAINING, num_classes=3)


class Watched(CentralisedGroups):
    """Keeps who answered for each group, and of how many examples and steps."""

    def after_round(self, clusters, replies, server_round, federation):
        seen.append(
            sorted((reply.client, reply.cluster, reply.num_examples, len(reply.losses)) for reply in replies)
        )
        return super().after_round(clusters, replies, server_round, federation)


seen: list[list[tuple[int, int, int, int]]] = []


def test_each_group_is_one_model_trained_on_its_rows_as_one_batch() -> None:
    clients = _clients()
    grouped = dataclasses.replace(from_arrays(clients, num_classes=3), groups=GROUPS)
    seen.clear()
    result = _run(Watched(), grouped)
    # Clients 0 and 2 have 7 + 33 = 40 rows, clients 1 and 3 have 20 + 12 = 32: one batch each, two epochs.
    assert seen == [[(0, 0, 40, 2), (1, 1, 32, 2)]] * 3
    assert result.assignment.tolist() == [0, 1, 0, 1]
    for group in (0, 1):
        inputs, labels = (
            torch.from_numpy(
                np.concatenate([clients[one][0][side] for one in np.flatnonzero(group == GROUPS)])
            )
            for side in (0, 1)
        )
        model = _network()  # plain gradient descent on all rows of the group, 3 rounds of 2 epochs
        for _ in range(6):
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.3 * parameter.grad
        found = result.model_for(group).state_dict()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_with_one_group_it_is_centralised_training() -> None:
    data = from_arrays(_clients(), num_classes=3)
    together = _run(CentralisedGroups(), dataclasses.replace(data, groups=np.zeros(4, int)))
    for name, value in _run(Centralised(), data).model_for(1).state_dict().items():
        torch.testing.assert_close(together.model_for(1).state_dict()[name], value, rtol=0, atol=0)


def test_clients_without_groups_are_refused() -> None:
    with pytest.raises(FederationError, match="centralised_groups must have clients of known groups"):
        _run(CentralisedGroups(), _clients())


def test_a_node_that_pools_nothing_ends_the_run(toy, monkeypatch) -> None:
    federation = toy()
    monkeypatch.setattr(
        "fedclust.strategies.centralised.known_clusters",
        lambda federation, model, name: fedclust.federation.Clusters.of(np.repeat([0, 1], 3), model),
    )
    with pytest.raises(RunFailed, match=r"the rows of all 3 clients, a node used those of 1"):
        CentralisedGroups().start(federation.grid(), federation.model(), num_rounds=1)
