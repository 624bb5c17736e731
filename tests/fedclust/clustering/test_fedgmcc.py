from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.clustering import curve_fitting
from fedclust.clustering.curve_fitting import Chains, Fitting, chain_mean, draw_inputs
from fedclust.clustering.fedgmcc import Parameters, budget, connect, link, next_percentile
from fedclust.typing import State
from tests.fedclust.clustering.chains import mlp, one, seeded


def fitting(num_inputs: int, **parameters: Any) -> Fitting:
    return Fitting(mlp(), draw_inputs(num_inputs, (4,), seeded()), Parameters(**parameters), seeded())


def trained(data_seed: int, convention: tuple[int, ...] = (0, 1, 2)) -> State:
    """Learn which of the first three inputs is largest, under one naming of the classes."""
    draws = seeded(99)  # the initial model is common
    state = {
        name: 0.5 * torch.randn(tensor.shape, generator=draws) for name, tensor in mlp().state_dict().items()
    }
    network = mlp()
    network.load_state_dict(state)
    inputs = torch.rand(256, 4, generator=seeded(data_seed))
    labels = torch.tensor(convention)[inputs[:, :3].argmax(dim=1)]
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def stacked(models: list[State]) -> State:
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def matrix_of(n: int, scores: dict[tuple[int, int], float], other: float = 9.0) -> np.ndarray:
    matrix = np.full((n, n), other)
    np.fill_diagonal(matrix, 0)
    for (k, m), score in scores.items():
        matrix[k, m] = matrix[m, k] = score
    return matrix


@pytest.fixture(scope="module")
def clients() -> State:
    """Five clients: 0, 2 and 4 name the classes one way, 1 and 3 another."""
    return stacked([trained(seed, (0, 1, 2) if seed % 2 == 0 else (1, 2, 0)) for seed in range(5)])


def test_connection_passes_through_others() -> None:
    # 0 - 3 and 3 - 1 are connected, 0 - 1 is not; 2 and 4 are connected to each other only; 5 is alone.
    scores = matrix_of(6, {(0, 3): 1.0, (1, 3): 2.0, (2, 4): 0.5})
    np.testing.assert_array_equal(connect(scores, 2.0), [0, 0, 1, 0, 1, 2])
    np.testing.assert_array_equal(connect(scores, np.nextafter(2.0, 0)), [0, 1, 2, 0, 2, 3])
    np.testing.assert_array_equal(connect(scores, 0.1), range(6))


@pytest.mark.parametrize(("score", "budget"), [(np.nan, 5.0), (np.inf, 5.0), (np.inf, np.inf)])
def test_scores_that_are_no_numbers_connect_nothing_whatever_the_budget(score: float, budget: float) -> None:
    np.testing.assert_array_equal(connect(matrix_of(2, {(0, 1): score}), budget), [0, 1])


def test_linkage_groups_the_others_as_without_the_model_that_overflows() -> None:
    pairs = {(0, 2): 1.0, (0, 4): 1.2, (2, 4): 0.9, (1, 3): 1.1}
    healthy = matrix_of(5, pairs, other=2.5)
    scores = np.full((6, 6), np.inf)
    scores[:5, :5] = healthy
    scores[5, 5] = 0
    labels, silhouettes = link(scores, min_silhouette=0.5)
    np.testing.assert_array_equal(labels, [0, 1, 0, 1, 0, 2])
    assert silhouettes == link(healthy, 0.5)[1]
    # If the other models stay together without it, they also do with it.
    np.testing.assert_array_equal(link(scores, min_silhouette=0.99)[0], [0, 0, 0, 0, 0, 1])


def test_linkage_keeps_a_pair_of_infinite_score_apart() -> None:
    # 0 and 2 are no match, though both are near 1, and all silhouettes are below the bound. Average linkage
    # joins 0 and 1 first, at 1.0.
    scores = matrix_of(3, {(0, 1): 1.0, (1, 2): 1.1, (0, 2): np.inf})
    np.testing.assert_array_equal(link(scores, min_silhouette=1.0)[0], [0, 0, 1])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_models_that_all_overflow_stay_alone(n: int) -> None:
    labels, silhouettes = link(matrix_of(n, {}, other=np.inf), min_silhouette=0.5)
    np.testing.assert_array_equal(labels, range(n))
    assert silhouettes == {}


@pytest.mark.parametrize("n", [1, 2])
def test_few_models_connect_or_not(n: int) -> None:
    np.testing.assert_array_equal(connect(np.ones((n, n)), 1.0), [0] * n)
    np.testing.assert_array_equal(connect(np.ones((n, n)), 0.5), range(n))


def test_linkage_finds_groups_and_a_lone_model() -> None:
    pairs = {(0, 2): 1.0, (0, 4): 1.2, (2, 4): 0.9, (1, 3): 1.1}
    labels, silhouettes = link(matrix_of(6, pairs), min_silhouette=0.5)
    np.testing.assert_array_equal(labels, [0, 1, 0, 1, 0, 2])
    assert max(silhouettes, key=silhouettes.__getitem__) == 3
    assert list(silhouettes) == [2, 3, 4, 5]


def test_linkage_needs_a_clear_silhouette() -> None:
    # Two pairs at 1, the rest at 2: silhouette (2 - 1) / 2 = 0.5 for each model.
    scores = matrix_of(4, {(0, 1): 1.0, (2, 3): 1.0}, other=2.0)
    np.testing.assert_array_equal(link(scores, 0.5)[0], [0, 0, 1, 1])
    np.testing.assert_array_equal(link(scores, 0.51)[0], [0, 0, 0, 0])
    assert link(scores, 0.5)[1][2] == pytest.approx(0.5)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_equally_far_models_are_one_cluster(n: int) -> None:
    labels, silhouettes = link(matrix_of(n, {}), min_silhouette=0.5)
    np.testing.assert_array_equal(labels, [0] * n)
    assert all(score == 0 for score in silhouettes.values())


def test_cluster_models_are_means_of_chain_means() -> None:
    draws = np.random.default_rng(0)
    pairs = np.stack(np.triu_indices(5, 1), axis=1)
    models = {"w": torch.tensor(draws.normal(size=(5, 2, 3))), "steps": torch.tensor([1, 2, 4, 8, 16])}
    bends = {"w": torch.tensor(draws.normal(size=(10, 2, 3))), "steps": torch.zeros(10, dtype=torch.int64)}
    chains = Chains(pairs, bends, np.zeros((5, 5)), np.zeros(10))
    labels = np.array([0, 1, 0, 0, 2])
    connected = np.array([list(pair) in ([0, 2], [2, 3], [0, 1], [1, 4]) for pair in pairs])
    result = curve_fitting.cluster_models(models, chains, connected, labels)
    # Cluster 0: pairs (0, 2) and (2, 3); (0, 3) is not connected, and pairs across clusters never count.
    rows = [pairs.tolist().index(pair) for pair in ([0, 2], [2, 3])]
    expected = (
        chain_mean(models["w"][0], models["w"][2], bends["w"][rows[0]])
        + chain_mean(models["w"][2], models["w"][3], bends["w"][rows[1]])
    ) / 2
    torch.testing.assert_close(result["w"][0], expected)
    torch.testing.assert_close(result["w"][1:], models["w"][[1, 4]], rtol=0, atol=0)
    # Cluster 0 has 1, 4 and 8 steps; those alone keep their own.
    assert result["steps"].tolist() == [8, 2, 16]
    assert result["steps"].dtype == torch.int64


def test_permuted_models_are_joined_better_by_the_chain_than_by_the_line() -> None:
    first = trained(0)
    order = torch.randperm(16, generator=seeded(1))
    second = {name: first[name][order] for name in ("0.weight", "0.bias")}
    second = {**first, **second, "2.weight": first["2.weight"][:, order]}
    models, bent = stacked([first, second]), fitting(512, steps=200)
    chains = curve_fitting.fit_pairs(bent, models)
    _, curve, line = curve_fitting.profile(bent, models, chains, [0])
    # Both are the same function, so L is 0 at both ends; the line between them leaves it.
    np.testing.assert_allclose(line[0, [0, -1]], 0, atol=1e-9)
    assert line.max() > 0.1
    assert curve.max() < 0.5 * line.max()
    assert curve.mean() < 0.3 * line.mean()
    straight = curve_fitting.fit_pairs(fitting(512, steps=0), models)
    assert chains.scores[0, 1] < 0.5 * straight.scores[0, 1]


def test_step_finds_the_groups_and_averages_them(clients: State) -> None:
    whole = fitting(256)
    after, outcome = curve_fitting.step(50.0, whole, clients)
    np.testing.assert_array_equal(outcome.labels, [0, 1, 0, 1, 0])
    assert after == 50.0
    assert outcome.epsilon is None
    assert outcome.silhouettes[2] == max(outcome.silhouettes.values()) > 0.5
    first, second = outcome.labels[outcome.chains.pairs].T
    np.testing.assert_array_equal(outcome.connected, first == second)
    row = outcome.chains.pairs.tolist().index([1, 3])
    for name, tensor in one(outcome.models, 1).items():
        expected = chain_mean(clients[name][1], clients[name][3], outcome.chains.bends[name][row])
        torch.testing.assert_close(tensor, expected)
    # Each cluster's model still knows its own naming of the classes.
    truth = whole.inputs[:, :3].argmax(dim=1)
    for cluster, convention in enumerate(([0, 1, 2], [1, 2, 0])):
        model = mlp()
        model.load_state_dict(one(outcome.models, cluster))
        assert (model(whole.inputs).argmax(dim=1) == torch.tensor(convention)[truth]).float().mean() > 0.9


@pytest.mark.parametrize("grouping", ["linkage", "components"])
@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_a_model_that_overflows_joins_no_other(grouping: Any, value: float, clients: State) -> None:
    # Three like clients, of which the last overflows: its weights, or the outputs that they make.
    models = {name: tensor[[0, 2, 4]].clone() for name, tensor in clients.items()}
    models["2.weight"][2] *= value
    models["0.weight"][2] *= value
    _, outcome = curve_fitting.step(95.0, fitting(64, grouping=grouping), models)
    healthy = {name: tensor[:2] for name, tensor in models.items()}
    _, expected = curve_fitting.step(95.0, fitting(64, grouping=grouping), healthy)
    np.testing.assert_array_equal(outcome.labels, [*expected.labels, outcome.labels[:2].max() + 1])
    assert outcome.epsilon == expected.epsilon
    for cluster in range(int(expected.labels.max()) + 1):
        torch.testing.assert_close(one(outcome.models, cluster), one(expected.models, cluster))
    torch.testing.assert_close(one(outcome.models, -1), one(models, 2), equal_nan=True)


def test_the_budget_is_a_percentile_of_the_finite_losses() -> None:
    # The median of 1, 2 and 4 is 2; the 75th percentile lies halfway between 2 and 4.
    losses = np.array([4.0, np.inf, 1.0, 2.0])
    assert budget(losses, 50.0) == 2.0
    assert budget(losses, 75.0) == 3.0
    assert budget(np.array([np.inf]), 50.0) == budget(np.array([]), 50.0) == 0.0


def test_the_percentile_rises_after_several_clusters_and_falls_after_one() -> None:
    assert next_percentile(50.0, 2, 5.0) == 55.0
    assert next_percentile(50.0, 1, 5.0) == 45.0
    assert next_percentile(93.0, 3, 5.0) == 95.0
    assert next_percentile(7.0, 1, 5.0) == 5.0


@pytest.mark.parametrize("percentile", [5.0, 50.0, 95.0])
def test_components_compare_slopes_with_a_percentile_of_losses(percentile: float, clients: State) -> None:
    how = {"grouping": "components", "targets": "later", "steps": 5}
    chains = curve_fitting.fit_pairs(fitting(64, **how), clients)
    after, outcome = curve_fitting.step(percentile, fitting(64, **how), clients)
    assert outcome.epsilon == np.percentile(chains.losses, percentile)
    np.testing.assert_array_equal(outcome.connected, chains.scores[np.triu_indices(5, 1)] <= outcome.epsilon)
    np.testing.assert_array_equal(outcome.labels, connect(chains.scores, outcome.epsilon))
    several = outcome.labels.max() > 0
    assert after == min(max(percentile + (5 if several else -5), 5.0), 95.0)
    assert outcome.silhouettes == {}
