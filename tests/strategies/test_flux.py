"""FLUX on a small network, and when it clusters."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.clients import descriptors
from fedclust.clients.node import node_of_objects
from fedclust.clustering import flux
from fedclust.clustering.flux import Parameters
from fedclust.data.arrays import from_arrays
from fedclust.data.targets import Amounts, Times
from fedclust.federation import Clusters
from fedclust.messages.descriptors import Descriptor, DescriptorQuestion
from fedclust.messages.models import from_state
from fedclust.strategies import FLUX
from fedclust.strategies.flux import Memory

ROUNDS, CLASSES = 6, 3
HOW = fedclust.LocalTraining(learning_rate=0.3, batch_size=10, epochs=2)


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def _parts(number: int, first: int = 0):
    """Make clients whose inputs are turned round from the fourth on, so that latent features differ."""
    parts = []
    for client in range(first, first + number):
        draws, pairs = np.random.default_rng(client), []
        for n in (30, 0, 10):
            labels = draws.integers(0, CLASSES, n)
            inputs = np.eye(CLASSES, 4)[labels] + 0.2 * draws.normal(size=(n, 4))
            pairs.append(((inputs[:, ::-1] if client % 6 >= 3 else inputs).astype("f4").copy(), labels))
        parts.append(tuple(pairs))
    return parts


def _run(strategy: FLUX, rounds: int = ROUNDS):
    rows = from_arrays(_parts(6), num_classes=CLASSES)
    options = {"training": HOW, "personal": "none", "seed": 1}
    return rows, fedclust.simulate(strategy, _network(), rows, rounds=rounds, **options)


def test_clients_are_clustered_once_the_accuracy_on_their_rows_gains_little() -> None:
    _, result = _run(FLUX(parameters=Parameters(min_gain=1.0)))
    assert not {*result.assignment[:3].tolist()} & {*result.assignment[3:].tolist()}
    assert len(result.summary["accuracies"]) == 3  # after rounds 1, 2 and 3: any gain is below 1
    _, result = _run(FLUX(parameters=Parameters(min_gain=1.0, min_rounds=5)))
    assert len(result.summary["accuracies"]) == 5
    _, result = _run(FLUX(parameters=Parameters(min_gain=1.0, min_rounds=6)))
    assert result.num_clusters == 1  # there is no seventh round
    assert FLUX(parameters=Parameters(min_rounds=6)).cautions(6, 7) == []
    (said,) = FLUX(parameters=Parameters(min_rounds=6)).cautions(6, 6)
    assert said.startswith("clusters are formed after round 6 ")
    assert said.endswith(" at the earliest, and there are 6")


def test_what_clients_report_is_of_the_model_so_far() -> None:
    rows, first = _run(FLUX(parameters=Parameters(min_gain=0.0, min_rounds=9)), 1)
    model = first.model_of(0)
    right = total = 0
    for own in rows.train:
        guesses = model(rows.inputs[own]).argmax(dim=1)
        right, total = right + int((guesses == rows.labels[own]).sum()), total + len(own)
    _, second = _run(FLUX(parameters=Parameters(min_gain=0.0, min_rounds=9)), 2)
    assert second.summary["accuracies"] == [right / total]


def test_what_the_last_layer_is_given_are_the_latent_features() -> None:
    rows, network = from_arrays(_parts(2), num_classes=CLASSES), _network()
    node = node_of_objects(rows, network, HOW, seed=0, device="cpu")
    question = DescriptorQuestion(from_state(network.state_dict()), CLASSES)
    answers, errors = descriptors.descriptors(node, {0: question, 1: question})
    assert errors == {}
    axes = flux.noise_axes(5, CLASSES)[0]
    for client, answer in answers.items():
        own = rows.train[client]
        latent = network[:2](rows.inputs[own]).detach().double().numpy()
        assert answer.most == latent.max()
        for place, kept in enumerate(
            [rows.labels[own] >= 0, *(rows.labels[own] == c for c in range(CLASSES))]
        ):
            points = np.array([[float(axis @ row) for axis in axes] for row in latent[kept.numpy()]])
            np.testing.assert_allclose(answer.moments[2 * place], points.mean(axis=0))
            np.testing.assert_allclose(answer.moments[2 * place + 1], points.std(axis=0))


def test_newcomers_go_where_latent_features_are_alike_whatever_their_labels() -> None:
    """Clients 6 to 11 are like 0 to 5, with other labels."""
    late = [tuple((x, (y + 1) % CLASSES) for x, y in part) for part in _parts(6, first=6)]
    rows, network = from_arrays(_parts(6) + late, num_classes=CLASSES), _network()
    node = node_of_objects(rows, network, HOW, seed=0, device="cpu")
    model = from_state(network.state_dict())
    described = SimpleNamespace(num_classes=CLASSES)

    def ask(question, clients):
        answers, _ = descriptors.descriptors(node, dict.fromkeys(clients, question))
        return SimpleNamespace(replies=answers)

    failed: list[int] = []
    facts = {"describe": lambda: described, "ask": ask, "server_round": 4}
    federation = SimpleNamespace(**facts, failed=lambda client, *_: failed.append(client))
    strategy = FLUX(parameters=Parameters(min_gain=1.0))
    memory = Memory(np.array([0.5, 0.6]))
    before = Clusters(np.zeros(6, dtype=int), (model,), memory)
    clusters = strategy.before_round(before, np.arange(6), federation)
    groups = [{*clusters.assignment[:3].tolist()}, {*clusters.assignment[3:].tolist()}]
    assert not groups[0] & groups[1]  # few rows: some clients are apart
    placed = strategy.place(clusters, range(6, 12), 4, federation)
    assert all(placed[client].cluster in groups[client >= 9] for client in range(6, 12))
    # One that names another width, alone among newcomers, is not described by the groups' axes.
    federation.ask = lambda question, clients: SimpleNamespace(
        replies={each: replace(one, width=2) for each, one in ask(question, clients).replies.items()}
    )
    strategy.place(clusters, [6], 4, federation)
    assert failed == [6]


@pytest.mark.parametrize("personal", ["fedper", "ditto"])
def test_clients_that_keep_layers_are_clustered(personal: str) -> None:
    rows = from_arrays(_parts(6), num_classes=CLASSES)
    strategy = FLUX(parameters=Parameters(min_gain=1.0))
    result = fedclust.simulate(
        strategy, _network(), rows, rounds=ROUNDS, training=HOW, personal=personal, seed=1
    )
    assert result.rounds["failures"].tolist() == [[]] * ROUNDS
    assert not {*result.assignment[:3].tolist()} & {*result.assignment[3:].tolist()}


def test_each_position_of_a_row_is_described() -> None:
    draws = np.random.default_rng(0)
    inputs, labels = draws.normal(size=(12, 2, 4)).astype("f4"), draws.integers(0, CLASSES, (12, 2))
    rows, network = from_arrays([(inputs, labels)], num_classes=CLASSES), _network()
    node = node_of_objects(rows, network, HOW, seed=0, device="cpu")
    question = DescriptorQuestion(from_state(network.state_dict()), CLASSES)
    found, errors = descriptors.descriptors(node, {0: question})
    assert errors == {}
    own = rows.train[0]
    latent = network[:2](rows.inputs[own]).detach().double().numpy()
    points = latent.reshape(-1, 5) @ flux.noise_axes(5, CLASSES)[0].T
    np.testing.assert_allclose(found[0].moments[0], points.mean(axis=0))
    here = points[rows.labels[own].numpy().ravel() == 1]
    np.testing.assert_allclose(found[0].moments[4], here.mean(axis=0))
    # A row counts for the share of its positions, so that no more are right than there are rows.
    hits = (network(rows.inputs[own]).argmax(-1) == rows.labels[own]).sum().item()
    assert (found[0].right, found[0].num_examples) == (hits // 2, len(own))


@pytest.mark.parametrize(
    ("target", "values", "bins"),
    [
        # An output of 0 is the amount 5, and 4 and 6 are within a fifth of the range.
        (Amounts(0, 10, (5,)), [1, 4, 6, 9], [0, 0, 1, 1]),
        # Rows of equal risk are half right. Two bins of each interval, without and with the event.
        (Times((10,), 90), [[5, 0], [6, 0], [20, 1], [30, 1]], [0, 0, 3, 3]),
    ],
)
def test_of_amounts_and_times_the_bins_are_described_and_hits_are_right(target, values, bins) -> None:
    inputs = np.random.default_rng(0).normal(size=(4, 4)).astype("f4")
    part = inputs, np.array(values, dtype="f4")
    rows = from_arrays([(part, None, part)], target=target)
    network = nn.Linear(4, rows.num_outputs)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    node = node_of_objects(rows, network, HOW, seed=0, device="cpu")
    question = DescriptorQuestion(from_state(network.state_dict()), rows.num_classes)
    found, errors = descriptors.descriptors(node, {0: question})
    assert errors == {}
    assert (found[0].right, found[0].num_examples) == (2, 4)
    points = inputs.astype(float) @ flux.noise_axes(4, rows.num_classes)[0].T
    for each in set(bins):
        here = points[np.array(bins) == each]
        np.testing.assert_allclose(found[0].moments[2 + 2 * each], here.mean(axis=0))


def test_a_client_that_does_not_answer_or_of_another_width_goes_with_the_largest_cluster(toy) -> None:
    failed = []

    def ask(question, clients):
        means = {0: 0.0, 1: 0.1, 2: 0.2, 3: 9.0, 4: 9.1}
        answers = {
            client: Descriptor(np.array([[mean], [1.0], [mean], [1.0]]), 3, 1.0, 1, 2)
            for client, mean in means.items()
        }
        answers[5] = replace(answers[4], width=4)
        return SimpleNamespace(replies=answers)

    federation = SimpleNamespace(
        describe=lambda: SimpleNamespace(num_classes=1),
        ask=ask,
        server_round=4,
        failed=lambda client, *_: failed.append(client),
    )
    clusters = Clusters(np.zeros(7, dtype=int), (toy.model(),), Memory(np.array([0.5, 0.5])))
    found = FLUX().before_round(clusters, np.arange(7), federation)
    assert found.assignment.tolist() == [0, 0, 0, 1, 1, 0, 0]
    assert failed == [5]
