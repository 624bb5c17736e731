"""Known groups, every client alone, and centralised training of one model and of one per group."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.data.arrays import from_arrays
from fedclust.federation import FederationError, RunFailed
from fedclust.selection import LeastSampled, Uniform
from fedclust.strategies import Centralised, CentralisedGroups, ClusteredStrategy, Local
from fedclust.support.rng import draw, generator
from tests.strategies.helpers import weights_of

KNOWN = ["strategy=known_groups", "rounds=1", "compare=[]", "proof=false", "training.steps=1"]
GROUPS = np.array([0, 1, 0, 1])


def test_clients_without_groups_are_refused_before_round_1(tmp_path) -> None:
    with pytest.raises(FederationError, match="must have clients of known groups, this partition names none"):
        fedclust.run([*KNOWN, "partition=iid", f"output_dir={tmp_path}/run"])
    assert [path.read_text() for path in tmp_path.glob("run/rounds.jsonl")] in ([], [""])


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_everyone_trains_alone_in_every_round(started, num_nodes: int) -> None:
    strategy = started(Local(participation=0.5), 2, num_nodes)
    assert strategy.assignment.tolist() == [0, 1, 2, 3, 4, 5]
    # Client k adds k in each of two rounds.
    assert weights_of(strategy) == [0, 2, 4, 6, 8, 10]


def test_a_client_that_fails_keeps_its_model(started) -> None:
    strategy = started(Local(), 2, error=lambda *asked: "gone" if asked == (3, 2) else None)
    assert weights_of(strategy) == [0, 2, 4, 3, 8, 10]
    assert strategy.run.failed_replies == 1


# -- Centralised training -------------------------------------------------------------------------------

SIZES = [7, 20, 33, 12]


def _rows(draws: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    return draws.normal(size=(size, 4)).astype(np.float32), draws.integers(0, 3, size)


def _clients() -> list[tuple[tuple[np.ndarray, np.ndarray], ...]]:
    draws = np.random.default_rng(0)
    return [(_rows(draws, size), _rows(draws, 3), _rows(draws, 5)) for size in SIZES]


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def _run(strategy: ClusteredStrategy, clients, network=None, batch_size=8, **changes) -> fedclust.Result:
    training = fedclust.LocalTraining(learning_rate=0.3, batch_size=batch_size, mode="sequential", **changes)
    network = network or _network()
    return fedclust.simulate(strategy, network, clients, rounds=3, training=training, num_classes=3)


def test_it_is_one_client_with_everyones_rows() -> None:
    clients = _clients()
    pooled = tuple(
        tuple(np.concatenate([parts[part][side] for parts in clients]) for side in (0, 1))
        for part in range(3)
    )
    found = _run(Centralised(), clients, epochs=2).model_for(3).state_dict()
    alone = _run(ClusteredStrategy(), [pooled], epochs=2).model_for(0).state_dict()
    for name, value in alone.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


class Watched(ClusteredStrategy):
    """Keeps who answered for each cluster, and of how many examples and steps."""

    def after_round(self, clusters, replies, federation):
        told = [(reply.client, reply.cluster, reply.num_examples, len(reply.losses)) for reply in replies]
        seen.append(sorted(told))
        return super().after_round(clusters, replies, federation)


class Together(Watched, Centralised):
    """All clients' rows."""


class ByGroup(Watched, CentralisedGroups):
    """The rows of each known group."""


seen: list[list[tuple[int, int, int, int]]] = []


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"epochs": 2}, 18),  # all 72 rows in 9 batches of 8, twice
        # Two batches: 7 + 7, 8 + 8, 8 + 8 and 8 + 4 are 58 samples, which 8 batches of 8 hold.
        ({"steps": 2, "epochs": None}, 8),
        # Five batches: 5 · 7; 8 + 8 + 4, 8 + 8; 8 + 8 + 8 + 8 + 1; 8 + 4, 8 + 4, 8: 35 + 36 + 33 + 32 = 136
        # samples, which is once all 72 in 9 batches, and 64 in 8.
        ({"steps": 5, "epochs": None}, 17),
    ],
)
def test_a_round_sees_as_many_samples_as_its_cohort_would(options, steps: int) -> None:
    seen.clear()
    result = _run(Together(), _clients(), **options)
    assert seen == [[(0, 0, 72, steps)]] * 3
    assert result.assignment.tolist() == [0] * 4


def test_of_a_share_of_the_clients_as_many_as_these_have() -> None:
    seen.clear()
    _run(Together(participation=0.5, seed=0), _clients(), epochs=1)
    # Two of the four, drawn as for one model for all; ceil((7 + 20) / 8) = 4 and so on.
    drawn = [draw(np.arange(4), 2, generator(0, "sample", number, 0)) for number in (1, 2, 3)]
    expected = [-(-sum(SIZES[client] for client in pair) // 8) for pair in drawn]
    assert [steps for ((_, _, _, steps),) in seen] == expected


def test_a_node_that_pools_nothing_ends_the_run(toy) -> None:
    with pytest.raises(RunFailed, match=r"round 1: .* the rows of all 6 clients, a node used those of 1"):
        Centralised().start(toy().grid(), toy.model(), num_rounds=1)


def test_its_own_model_serves_whatever_was_shown() -> None:
    draws = np.random.default_rng(1)
    clients = [(_rows(draws, 40), _rows(draws, 10), _rows(draws, 10)) for _ in range(4)]
    training = fedclust.LocalTraining(learning_rate=0.3, batch_size=8, epochs=1)
    result = fedclust.simulate(
        Centralised(), _network(), clients, rounds=2, training=training, proof=True, serve="best"
    )
    assert result.summary["serve"] == "cluster"
    assert set(result.clients["served"]) == {"cluster"}
    # centralised_groups has the same sentence, and does form groups: it is told them.
    assert result.verdict["text"] == "No groups to test: centralised looks for none"


def test_a_policy_that_goes_by_turns_draws_the_cohorts_of_one_model_for_all() -> None:
    drawn: dict[type, list[list[int]]] = {}

    class Turns(ClusteredStrategy):
        def after_round(self, clusters, replies, federation):
            drawn.setdefault(type(self), []).append(federation.turns.tolist())
            return super().after_round(clusters, replies, federation)

    class Pooled(Turns, Centralised):
        pass

    for kind in (Turns, Pooled):
        _run(kind(participation=0.5, selection=LeastSampled()), _clients(), epochs=1)
    assert drawn[Pooled] == drawn[Turns]
    assert [sum(turns) for turns in drawn[Pooled]] == [2, 4, 6]  # two of the four in each round


class Nobody(Uniform):
    """Finds nobody in round 2, as a policy does that asks and gets no answer."""

    def select(self, candidates, size, generator):
        return super().select(candidates, 0 if candidates.server_round == 2 else size, generator)


def test_nobody_trains_where_the_policy_finds_nobody() -> None:
    seen.clear()
    result = _run(Together(participation=0.5, selection=Nobody()), _clients(), epochs=1)
    assert [len(replies) for replies in seen] == [1, 0, 1]
    assert result.rounds["cohort"].map(len).tolist() == [1, 0, 1]


# -- Of each known group --------------------------------------------------------------------------------


def _linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def test_each_group_is_one_model_trained_on_its_rows_as_one_batch() -> None:
    clients = _clients()
    grouped = dataclasses.replace(from_arrays(clients, num_classes=3), groups=GROUPS)
    seen.clear()
    result = _run(ByGroup(), grouped, _linear(), batch_size=100, epochs=2)
    # Clients 0 and 2 have 7 + 33 = 40 rows, clients 1 and 3 have 20 + 12 = 32: one batch each, two epochs.
    assert seen == [[(0, 0, 40, 2), (1, 1, 32, 2)]] * 3
    assert result.assignment.tolist() == [0, 1, 0, 1]
    for group in (0, 1):
        rows = [clients[one][0] for one in np.flatnonzero(group == GROUPS)]
        inputs, labels = (torch.from_numpy(np.concatenate(side)) for side in zip(*rows, strict=True))
        model = _linear()  # plain gradient descent on all rows of the group, 3 rounds of 2 epochs
        descent = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(6):
            descent.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            descent.step()
        found = result.model_for(group).state_dict()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
