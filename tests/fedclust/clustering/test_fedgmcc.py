from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.clustering import curve_fitting, fedgmcc
from fedclust.clustering.curve_fitting import Chains, Fitting, chain_mean, draw_inputs
from fedclust.typing import State
from tests.fedclust.clustering.chains import literal_round, mlp, one, seeded


def fitting(num_inputs: int, **parameters) -> Fitting:
    return Fitting(mlp(), draw_inputs(num_inputs, (4,), seeded()), fedgmcc.Parameters(**parameters), seeded())


def trained(data_seed: int, convention: tuple[int, ...] = (0, 1, 2)) -> State:
    """Learn which of the first three inputs is largest, under one naming of the classes."""
    draws = seeded(99)  # the initial model is common
    state = {name: 0.5 * torch.randn(w.shape, generator=draws) for name, w in mlp().state_dict().items()}
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


@pytest.fixture(scope="module")
def clients() -> State:
    """Five clients: 0, 2 and 4 name the classes one way, 1 and 3 another."""
    return stacked([trained(seed, (0, 1, 2) if seed % 2 == 0 else (1, 2, 0)) for seed in range(5)])


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_connection_passes_through_others() -> None:
    # 0 - 3 and 3 - 1 are connected, 0 - 1 is not; 2 and 4 are connected to each other only; 5 is alone.
    pairs = np.stack(np.triu_indices(6, 1), axis=1)
    connected = np.array([pair in ([0, 3], [1, 3], [2, 4]) for pair in pairs.tolist()])
    np.testing.assert_array_equal(fedgmcc.components(pairs, connected, 6), [0, 0, 1, 0, 1, 2])
    np.testing.assert_array_equal(fedgmcc.components(pairs, np.zeros(15, dtype=bool), 6), range(6))
    np.testing.assert_array_equal(fedgmcc.components(np.zeros((0, 2), int), np.zeros(0, bool), 1), [0])


def test_steepest_slope_is_central_and_never_across_the_bend() -> None:
    # Points 0, 1/4, 1/2, 3/4, 1. Slopes at 1/4 and 3/4: (0.2 - 0) * 2 and (0.5 - 0.2) * 2. At the bend it
    # would be (1.3 - 0.1) * 2, and between neighbours up to (1.3 - 0.2) * 4.
    np.testing.assert_allclose(fedgmcc.steepest(np.array([[0.0, 0.1, 0.2, 1.3, 0.5]])), [0.6])
    # (0.2 - 1) * 2 = -1.6 and 0.6: the fall counts only where a slope has no sign.
    falling = np.array([[1.0, 0.1, 0.2, 1.3, 0.5], [0.9, 0.8, 0.5, 0.4, 0.4], [0.0] * 5])
    np.testing.assert_allclose(fedgmcc.steepest(falling), [0.6, -0.2, 0.0], atol=1e-12)
    np.testing.assert_allclose(fedgmcc.steepest(falling, absolute=True), [1.6, 0.8, 0.0])


@pytest.mark.parametrize("connect", ["budget", "slope", "absolute_slope"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", range(5))
def test_a_chain_that_overflows_anywhere_has_an_infinite_score(connect, value, place) -> None:
    distances = np.zeros((2, 5))
    distances[0, place] = value
    np.testing.assert_array_equal(fedgmcc.scores(distances, connect), [np.inf, 0.0])
    np.testing.assert_array_equal(fedgmcc.scores(np.full((1, 5), value), connect), [np.inf])


def test_what_is_the_same_in_all_models_of_a_cluster_stays_to_the_bit() -> None:
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    frozen, bends = torch.full((3, 1), 0.1), torch.full((3, 1), 0.1)
    chains = Chains(pairs, {"w": bends}, np.zeros((3, 5)))
    assert (0.1 + 0.1 + 0.1) / 3 != 0.1  # what rounding makes of such a mean
    made = curve_fitting.cluster_models({"w": frozen}, chains, np.ones(3, bool), np.zeros(3, int))
    assert torch.equal(made["w"], frozen[:1])


def test_cluster_models_are_means_of_chain_means() -> None:
    draws = np.random.default_rng(0)
    pairs = np.stack(np.triu_indices(5, 1), axis=1)
    models = {"w": torch.tensor(draws.normal(size=(5, 2, 3))), "steps": torch.tensor([1, 2, 4, 8, 16])}
    bends = {"w": torch.tensor(draws.normal(size=(10, 2, 3))), "steps": torch.zeros(10, dtype=torch.int64)}
    chains = Chains(pairs, bends, np.zeros((10, 5)))
    labels = np.array([0, 1, 0, 0, 2])
    connected = np.array([list(pair) in ([0, 2], [2, 3]) for pair in pairs])
    result = curve_fitting.cluster_models(models, chains, connected, labels)
    # Cluster 0: pairs (0, 2) and (2, 3); (0, 3) is not connected.
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
    models = stacked([first, second])
    curve, line = (
        curve_fitting.fit_pairs(fitting(512, steps=steps, num_points=21), models).distances[0]
        for steps in (200, 0)
    )
    # Both are the same function, so L is 0 at both ends; the line between them leaves it.
    np.testing.assert_allclose(line[[0, -1]], 0, atol=1e-9)
    assert line.max() > 0.1
    assert curve.max() < 0.5 * line.max()
    assert curve.mean() < 0.3 * line.mean()
    assert fedgmcc.steepest(curve, absolute=True) < 0.5 * fedgmcc.steepest(line, absolute=True)


@pytest.mark.parametrize("percentile", [5.0, 50.0, 90.0])
@pytest.mark.parametrize("connect", ["budget", "slope", "absolute_slope"])
def test_a_round_is_the_literal_loop(connect: fedgmcc.Connect, percentile: float, clients: State) -> None:
    """Fit, ε, the three readings, components and averages, of four clients in double precision."""
    models = {name: tensor[:4].double() for name, tensor in clients.items()}
    whole = fitting(32, steps=4, batch_size=8, num_points=7, connect=connect)
    whole = replace(whole, network=mlp().double(), inputs=whole.inputs.double())
    clusters, averaged, epsilon, moved = literal_round(whole, models, percentile, seed=7)
    after, outcome = curve_fitting.step(percentile, replace(whole, generator=seeded(7)), models)
    found = [set(np.flatnonzero(outcome.labels == each)) for each in range(outcome.labels.max() + 1)]
    assert found == clusters
    assert outcome.epsilon == pytest.approx(epsilon, abs=1e-12)
    assert after == moved
    for cluster, expected in enumerate(averaged):
        for name, tensor in one(outcome.models, cluster).items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-12, rtol=1e-9)


def test_the_budget_finds_the_groups_and_averages_them(clients: State) -> None:
    # Of ten pairs four are within a group: (0, 2), (0, 4), (2, 4) and (1, 3). The 34th percentile lies
    # between the fourth and the fifth loss.
    whole = fitting(256, learning_rate=0.5)
    after, outcome = curve_fitting.step(34.0, whole, clients)
    np.testing.assert_array_equal(outcome.labels, [0, 1, 0, 1, 0])
    assert after == 39.0
    first, second = outcome.labels[outcome.chains.pairs].T
    np.testing.assert_array_equal(outcome.connected, first == second)
    # Each cluster's model still knows its own naming of the classes.
    truth = whole.inputs[:, :3].argmax(dim=1)
    for cluster, convention in enumerate(([0, 1, 2], [1, 2, 0])):
        model = mlp()
        model.load_state_dict(one(outcome.models, cluster))
        assert (model(whole.inputs).argmax(dim=1) == torch.tensor(convention)[truth]).float().mean() > 0.9


@pytest.mark.parametrize("connect", ["budget", "slope", "absolute_slope"])
@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_a_model_that_overflows_joins_no_other(connect, value, clients) -> None:
    # Three like clients, of which the last overflows: its weights, or the outputs that they make.
    models = {name: tensor[[0, 2, 4]].clone() for name, tensor in clients.items()}
    models["2.weight"][2] *= value
    models["0.weight"][2] *= value
    _, outcome = curve_fitting.step(95.0, fitting(64, connect=connect), models)
    healthy = {name: tensor[:2] for name, tensor in models.items()}
    _, expected = curve_fitting.step(95.0, fitting(64, connect=connect), healthy)
    np.testing.assert_array_equal(outcome.labels, [*expected.labels, outcome.labels[:2].max() + 1])
    assert outcome.epsilon == expected.epsilon
    for cluster in range(int(expected.labels.max()) + 1):
        torch.testing.assert_close(one(outcome.models, cluster), one(expected.models, cluster))
    torch.testing.assert_close(one(outcome.models, -1), one(models, 2), equal_nan=True)


def test_the_budget_is_a_percentile_of_the_finite_losses() -> None:
    # The median of 1, 2 and 4 is 2; the 75th percentile lies halfway between 2 and 4.
    losses = np.array([4.0, np.inf, 1.0, 2.0])
    assert fedgmcc.budget(losses, 50.0) == 2.0
    assert fedgmcc.budget(losses, 75.0) == 3.0
    assert fedgmcc.budget(np.array([np.inf]), 50.0) == fedgmcc.budget(np.array([]), 50.0) == 0.0


def test_the_percentile_rises_after_several_clusters_and_falls_after_one() -> None:
    assert fedgmcc.next_percentile(50.0, 2, 5.0) == 55.0
    assert fedgmcc.next_percentile(50.0, 1, 5.0) == 45.0
    assert fedgmcc.next_percentile(93.0, 3, 5.0) == 95.0
    assert fedgmcc.next_percentile(7.0, 1, 5.0) == 5.0
