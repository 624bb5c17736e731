from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvgM, FedMedian

from fedclust.clustering.loss_traces import Parameters
from fedclust.strategies import FedGWCTraces
from fedclust.support.rng import generator
from tests.strategies.helpers import Keeping, kept

QUICK = Parameters(sweeps=(5, 10), max_clusters=2)


def _planted(client: int, server_round: int) -> list[float]:
    """Losses of the first 10 clients go one way in a round, those of the others the other way."""
    way = generator(0, "way", server_round).normal(scale=0.3) * (1 if client < 10 else -1)
    noise = generator(0, "noise", server_round, client).normal(scale=0.05, size=3)
    return list(np.square(np.maximum(1.5 + way + noise, 0.05)))


def _alike(seed: int, client: int, server_round: int) -> list[float]:
    """Each client has a constant of its own, and a random reaction to each round."""
    own, strength = generator(seed, "own", client).normal(scale=0.2, size=2)
    roots = 1.5 + own + strength * generator(seed, "way", server_round).normal()
    roots += generator(seed, "noise", server_round, client).normal(scale=0.05, size=3)
    return list(np.square(np.maximum(roots, 0.05)))


def test_clients_whose_losses_take_another_course_become_a_cluster(started, watch) -> None:
    strategy = started(FedGWCTraces(participation=1.0), 20, 2, num_clients=16, losses=_planted)
    # Sweeps are single rounds: tested after 5 + 1, confirmed one later.
    assert watch.assignments[1] == (7, [0] * 10 + [1] * 6, "cluster 0 split in 2")
    assert len(watch.assignments) == 2
    assert [record["strategy"]["0"].get("split") for record in watch.rounds[4:8]] == [None, False, True, None]
    assert watch.rounds[5]["strategy"]["0"]["proposed"] == 2
    assert watch.rounds[6]["strategy"]["0"]["agreement"] == 1.0
    found = strategy.findings(strategy.clusters)
    assert found.summary["split_rounds"] == [7]
    assert found.summary["largest_separation"] > 1
    # Rounds 2 to 7 of 16 clients; the part is the cluster that each went to.
    rows = found.arrays["loss_trace_cluster_0_round_7"]
    assert rows.shape == (6 * 16, 4)
    np.testing.assert_array_equal(np.unique(rows[:, 0]), np.arange(2, 8))
    np.testing.assert_array_equal(rows[:, 3], rows[:, 1] >= 10)
    came = found.arrays["separations"]
    assert came[came[:, 4] == 1][:, :3].tolist() == [[6, 0, 2]]
    assert came[came[:, 4] == 2][:, :3].tolist() == [[7, 0, 2]]


def _mean(clients) -> float:
    """Average what toy clients add to the model, client c with c + 1 samples adds c."""
    return sum(client * (client + 1) for client in clients) / sum(client + 1 for client in clients)


def _starts(federation) -> list[float]:
    """List the models that clients started round 2 from."""
    return [*{start for _, server_round, start in federation.trained if server_round == 2}]


@pytest.mark.parametrize("num_nodes", [1, 3])
def test_an_undecided_cluster_trains_the_mean_of_three_and_serves_the_mean_of_all(
    started, toy, watch, num_nodes: int
) -> None:
    served: list[float] = []
    federation = toy(accuracy=lambda _, weight: served.append(weight) or 0.5)
    strategy = started(FedGWCTraces(participation=1.0), 2, num_nodes, clients=federation)
    first, second = (record["strategy"]["0"]["probe"] for record in watch.rounds)
    assert len(first) == len(second) == 3
    # All: (0·1 + 1·2 + 2·3 + 3·4 + 4·5 + 5·6) / 21 = 70 / 21.
    np.testing.assert_allclose(served[:6], 70 / 21, rtol=1e-6)
    np.testing.assert_allclose(_starts(federation), [_mean(first)], rtol=1e-6)
    np.testing.assert_allclose(served[6:], _mean(first) + 70 / 21, rtol=1e-6)
    np.testing.assert_allclose(strategy.clusters.models[0]["w"].numpy(), _mean(first) + 70 / 21, rtol=1e-6)


def test_with_a_server_optimiser_training_starts_from_another_model_than_the_served_one(
    started, toy, watch
) -> None:
    federation = toy()
    half = partial(FedAvgM, server_learning_rate=0.5, min_train_nodes=1, min_available_nodes=1)
    strategy = started(FedGWCTraces(participation=1.0, aggregator=half), 2, clients=federation)
    probe = watch.rounds[0]["strategy"]["0"]["probe"]
    # Half the way to the mean of all, 35/21; from there as far as the mean of three is from that of all.
    begun = 35 / 21 + _mean(probe) - 70 / 21
    np.testing.assert_allclose(_starts(federation), [begun], rtol=1e-5)
    # What it takes for the model before the round is 35/21, not what was trained.
    np.testing.assert_allclose(
        strategy.clusters.models[0]["w"].numpy(), 35 / 21 + 0.5 * (begun + 70 / 21 - 35 / 21), rtol=1e-5
    )


@pytest.mark.parametrize(
    "options",
    [{"parameters": Parameters(probe=None)}, {"aggregator": partial(FedMedian, min_available_nodes=1)}],
    ids=["off", "median"],
)
def test_without_a_probe_the_served_model_is_trained(started, toy, watch, options) -> None:
    federation = toy(move=lambda *_: 1.0)
    strategy = started(FedGWCTraces(participation=1.0, **options), 3, clients=federation)
    assert {(number, start) for _, number, start in federation.trained} == {(1, 0), (2, 1), (3, 2)}
    assert not any("probe" in record["strategy"]["0"] for record in watch.rounds)
    # What goes round a median is said; what was asked for is not.
    cautions = strategy.cautions(30, 130)
    assert ("FedMedian is not a weighted mean" in " ".join(cautions)) == ("aggregator" in options)


@pytest.mark.parametrize(("lost", "left"), [(0, 3), (1, 2), (2, 0), (3, 0)])
def test_a_probe_is_of_two_at_least(started, toy, watch, lost: int, left: int) -> None:
    drawn = generator(0, "probe", 1, 0).choice(np.arange(6), 3, replace=False)[:lost].tolist()
    federation = toy(error=lambda client, server_round: "down" if client in drawn else None)
    started(FedGWCTraces(participation=1.0), 2, clients=federation)
    probe = watch.rounds[0]["strategy"]["0"].get("probe", [])
    assert len(probe) == left
    assert not set(probe) & set(drawn)
    expected = _mean(probe or set(range(6)) - set(drawn))
    np.testing.assert_allclose(_starts(federation), [expected], rtol=1e-6)


def test_probing_ends_with_the_last_test(started, watch) -> None:
    started(FedGWCTraces(participation=1.0, parameters=QUICK), 14, num_clients=12, losses=partial(_alike, 0))
    probed = [record["round"] for record in watch.rounds if "probe" in record["strategy"]["0"]]
    # Tests after 5 + 1 and 10 + 1 rounds; the probe made in round 10 is the last that is trained.
    assert probed == list(range(1, 11))
    assert watch.rounds[-1]["strategy"]["0"]["settled"]


@pytest.mark.parametrize("after", [3, 6, 7])
def test_a_run_goes_on_from_before_a_proposal_is_confirmed(toy, tmp_path: Path, after: int) -> None:
    runs = []
    for resume in (False, True):
        strategy = FedGWCTraces(participation=1.0)
        Keeping(strategy, tmp_path, 0 if resume else after)
        federation = toy(num_clients=16, losses=_planted)
        state = kept(tmp_path, after) if resume else None
        strategy.start(federation.grid(1 + 2 * resume), toy.model(), num_rounds=9, resume=state)
        runs.append(strategy)
    whole, resumed = runs
    assert whole.assignment.tolist() == [0] * 10 + [1] * 6
    assert resumed.observer.rounds == whole.observer.rounds[after:]
    found, again = (strategy.findings(strategy.clusters) for strategy in runs)
    assert found.summary == again.summary
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])


def test_weights_and_interaction_are_the_papers(started, toy) -> None:
    # Losses 1, 2, 3: rewards exp(-1/2), 1, exp(-1/2) by Eq. 1; alpha is 1/2 if all clients take part.
    federation = toy(num_clients=3, losses=lambda client, _: [1.0 + client] * 2)
    strategy = started(FedGWCTraces(participation=1.0), 2, clients=federation)
    found = strategy.findings(strategy.clusters)
    rewards = np.array([0.60653066, 1.0, 0.60653066])
    np.testing.assert_allclose(found.clients["gaussian_weight"], 0.75 * rewards)
    np.testing.assert_allclose(found.arrays["interaction"], 0.75 * np.tile(rewards[:, None], 3))
    np.testing.assert_array_equal(np.diag(found.arrays["affinity"]), np.ones(3))


def test_no_matrices_above_2000_clients(started) -> None:
    strategy = started(FedGWCTraces(participation=0.001), 1, num_clients=2001)
    found = strategy.findings(strategy.clusters)
    assert not {"interaction", "affinity"} & set(found.arrays)
    assert (found.clients["gaussian_weight"] > 0).sum() == 3
