import dataclasses
from functools import partial

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedProx, Result

from fedclust.federation import Clusters, Federation
from fedclust.grids.client_grid import WrappedGrid
from fedclust.messages.models import split_models
from fedclust.strategies import ClusteredStrategy
from tests.strategies.helpers import weights_of

NO_MINIMA = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
HALF = partial(FedAvgM, server_momentum=0.5, **NO_MINIMA)


class TwoHalves(ClusteredStrategy):
    """The first half of the clients in one cluster, the others in another."""

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        return Clusters.of(np.arange(federation.num_clients) >= federation.num_clients // 2, model)


def test_one_cluster_is_fedavg(toy, watch) -> None:
    strategy = ClusteredStrategy()
    strategy.observer = watch
    result = strategy.start(toy(num_clients=3).grid(), toy.model(), num_rounds=2)
    # Clients add 0, 1, 2 and weigh 1, 2, 3: a round adds (0 + 2 + 6) / 6 = 4/3.
    np.testing.assert_allclose(weights_of(strategy), [8 / 3], rtol=1e-6)
    np.testing.assert_allclose(split_models(result.arrays)[0]["w"].numpy(), [8 / 3] * 2, rtol=1e-6)
    first = watch.rounds[0]
    # Mean losses are 1, 1.5, 2 with weights 1, 2, 3: (1 + 3 + 6) / 6.
    assert first["loss"] == pytest.approx(10 / 6)
    assert first["cohort"] == [0, 1, 2]
    assert (first["num_clusters"], first["cluster_sizes"], first["failures"]) == (1, [3], [])
    # Accuracies 1, 1/2, 1/3 with weights 1, 2, 3.
    assert first["global_accuracy"] == pytest.approx((1 + 1 + 1) / 6)
    assert first["mean_client_accuracy"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert watch.assignments == [(0, [0, 0, 0], "before round 1")]


def test_clusters_are_federations_of_their_own(started) -> None:
    strategy = started(TwoHalves(), 3, 2, num_clients=4)
    # 0 and 1 weigh 1 and 2: 2/3 a round. 2 and 3 weigh 3 and 4: (6 + 12) / 7 a round.
    np.testing.assert_allclose(weights_of(strategy), [3 * 2 / 3, 3 * 18 / 7], rtol=1e-6)


def test_a_share_of_each_cluster_takes_part(started, watch) -> None:
    started(TwoHalves(participation=0.5, seed=1), 20, num_clients=8)
    cohorts = [record["cohort"] for record in watch.rounds]
    assert all(sum(client < 4 for client in cohort) == 2 for cohort in cohorts)
    assert all(sum(client >= 4 for client in cohort) == 2 for cohort in cohorts)
    assert set().union(*cohorts) == set(range(8))


# -- Aggregators ----------------------------------------------------------------------------------------


def test_momentum_is_kept_per_cluster(started) -> None:
    strategy = started(TwoHalves(aggregator=HALF), 2, num_clients=4)
    # A round's mean moves by g = 2/3; velocities are g and 1.5 g, so w = 2.5 g. The other: g = 18/7.
    np.testing.assert_allclose(weights_of(strategy), [2.5 * 2 / 3, 2.5 * 18 / 7], rtol=1e-6)


def test_the_proximal_weight_reaches_the_clients(toy) -> None:
    federation = toy(num_clients=3)
    ClusteredStrategy(aggregator=partial(FedProx, proximal_mu=0.25, **NO_MINIMA)).start(
        federation.grid(), toy.model(), num_rounds=1
    )
    assert federation.proximal == {0.25}


# -- Splits ---------------------------------------------------------------------------------------------


class SplitsTwice(ClusteredStrategy):
    """Splits all clients by parity after round 1, and the odd ones again after round 2."""

    def after_round(self, clusters, replies, federation) -> Clusters:
        if federation.server_round == 1:
            return clusters.split(0, clusters.members(0) % 2, "parity")
        if federation.server_round == 2:
            return clusters.split(1, (clusters.members(1) > 3).astype(np.int64), "size")
        return clusters


def test_two_splits_keep_every_client_once(started, watch) -> None:
    strategy = started(SplitsTwice(), 3, num_clients=8)
    members = [strategy.clusters.members(cluster).tolist() for cluster in range(3)]
    assert members == [[0, 2, 4, 6], [1, 3], [5, 7]]
    assert watch.assignments == [
        (0, [0] * 8, "before round 1"),
        (1, [0, 1] * 4, "parity"),
        (2, [0, 1, 0, 1, 0, 2, 0, 2], "size"),
    ]
    assert [record["cluster_sizes"] for record in watch.rounds] == [[4, 4], [4, 2, 2], [4, 2, 2]]


@pytest.mark.parametrize("shown", [False, True])
def test_all_models_are_in_the_result_and_shown_to_who_evaluates_them(toy, shown: bool) -> None:
    seen: list[list[int]] = []

    def look(_: int, arrays: ArrayRecord) -> None:
        seen.append(sorted(split_models(arrays)))

    evaluate = look if shown else None
    started = SplitsTwice().start(toy(num_clients=8).grid(), toy.model(), 3, evaluate_fn=evaluate)
    # One model at the start, two after the cut of round 1, three after that of round 2.
    assert seen == ([[0], [0, 1], [0, 1, 2], [0, 1, 2]] if shown else [])
    assert sorted(split_models(started.arrays)) == [0, 1, 2]


def test_should_stop_ends_the_run_after_a_round(toy) -> None:
    seen: list[tuple[int, list[int], list[int]]] = []

    def stop(number: int, result: Result) -> bool:
        seen.append((number, sorted(split_models(result.arrays)), sorted(result.train_metrics_clientapp)))
        return number == 2

    strategy = SplitsTwice()
    ended = strategy.start(toy(num_clients=8).grid(), toy.model(), 3, should_stop=stop)
    # Cuts after rounds 1 and 2, as above.
    assert seen == [(1, [0, 1], [1]), (2, [0, 1, 2], [1, 2])]
    assert strategy.run.server_round == 2
    assert sorted(ended.evaluate_metrics_clientapp) == [1, 2]
    assert sorted(split_models(ended.arrays)) == [0, 1, 2]


class EmptiesTheFirst(ClusteredStrategy):
    """Moves all clients to the second of two clusters after round 1."""

    def after_round(self, clusters, replies, federation) -> Clusters:
        everyone = np.ones(clusters.num_clients, dtype=np.int64)
        return Clusters(everyone, clusters.models[:1] * 2, reason="moved")


def test_a_cluster_counts_where_it_has_clients(started, watch) -> None:
    started(EmptiesTheFirst(), 2)
    assert [record["num_clusters"] for record in watch.rounds] == [1, 1]
    assert [record["cluster_sizes"] for record in watch.rounds] == [[0, 6], [0, 6]]


def test_children_start_from_the_parents_model_and_momentum(started) -> None:
    clients = {"num_clients": 8, "move": lambda client, _: 1.0 + client % 2, "num_examples": lambda _: 1}
    strategy = started(SplitsTwice(aggregator=HALF), 2, **clients)
    # Round 1, all: mean move 1.5, velocity 1.5, w 1.5. Round 2, each with velocity 0.5 * 1.5 + move:
    # even 0.75 + 1, odd 0.75 + 2.
    np.testing.assert_allclose(weights_of(strategy), [1.5 + 1.75, 1.5 + 2.75, 1.5 + 2.75])


# -- Failures -------------------------------------------------------------------------------------------


def test_a_failing_client_costs_its_reply_and_is_named(started, watch) -> None:
    full = {"error": lambda client, r: "disk full" if (client, r) == (2, 1) else None}
    strategy = started(ClusteredStrategy(), 2, num_clients=3, **full)
    assert watch.rounds[0]["failures"] == [{"client": 2, "phase": "train", "reason": "disk full"}]
    assert watch.rounds[1]["failures"] == []
    assert strategy.run.failed_replies == 1
    # Round 1: (0 + 2) / 3 without client 2; round 2 adds 4/3.
    np.testing.assert_allclose(weights_of(strategy), [2 / 3 + 4 / 3], rtol=1e-6)


def test_a_cluster_without_replies_keeps_its_model(started, watch) -> None:
    strategy = started(TwoHalves(), 1, num_clients=4, error=lambda client, _: "down" if client < 2 else None)
    np.testing.assert_allclose(weights_of(strategy), [0.0, 18 / 7], rtol=1e-6)
    assert len(watch.rounds[0]["failures"]) == 2


def test_all_clients_failing_does_not_end_the_run(started, watch) -> None:
    strategy = started(ClusteredStrategy(), 2, error=lambda *_: "down")
    assert [record["loss"] for record in watch.rounds] == [None, None]
    assert strategy.run.failed_replies == 12


# -- Evaluation and arguments ---------------------------------------------------------------------------


def test_evaluated_every_so_often_and_at_the_end(started, watch) -> None:
    with pytest.raises(ValueError, match="evaluate_every must be >= 1, got 0"):
        ClusteredStrategy(evaluate_every=0)
    started(ClusteredStrategy(evaluate_every=3), 7)
    evaluated = [record["round"] for record in watch.rounds if "global_accuracy" in record]
    assert evaluated == [3, 6, 7]


def test_a_hook_that_returns_no_clusters_is_named(started) -> None:
    forgetful, rule = TwoHalves(), "hooks of TwoHalves must return Clusters, one of round 1 returned None"
    forgetful.after_round = lambda *_: None
    with pytest.raises(TypeError, match=rule):
        started(forgetful, 1)


def test_a_hook_that_forgets_a_client_is_named(started) -> None:
    class Forgetful(ClusteredStrategy):
        def after_round(self, clusters, replies, federation) -> Clusters:
            return Clusters.of(clusters.assignment[1:], clusters.models[0])

    with pytest.raises(ValueError, match="^Forgetful must assign all 3 clients, round 1 assigns 2$"):
        started(Forgetful(), 1, num_clients=3)


def test_a_cluster_may_be_given_its_aggregator(started) -> None:
    class Given(ClusteredStrategy):
        """Split once; the second part goes on with a momentum of its own."""

        def after_round(self, clusters, replies, federation):
            if federation.server_round > 1:
                return clusters
            split = clusters.split(0, np.array([0, 0, 0, 1, 1, 1]))
            given = self.make_aggregator()
            given.momentum_vector = [np.full(2, 7.0)]
            return dataclasses.replace(split, aggregators=(split.aggregators[0], given))

    strategy = started(Given(aggregator=HALF), 1)
    first, second = (aggregator.momentum_vector for aggregator in strategy.clusters.aggregators)
    assert second[0].tolist() == [7.0, 7.0]
    assert first is None or not np.array_equal(first[0], second[0])


class AsksFirst:
    """Chooses of each cluster's clients only those who say that they are free: all but client 2."""

    def select(self, candidates, size, generator) -> np.ndarray:
        return candidates.clients[candidates.clients != 2][:size]


def test_a_policy_that_asks_is_asked_about_a_client_alone_in_its_cluster(started, watch) -> None:
    alone = ClusteredStrategy(selection=AsksFirst())
    alone.begin = lambda _, model: Clusters.of(np.arange(3), model)
    started(alone, 1, num_clients=3)
    assert [record["cohort"] for record in watch.rounds] == [[0, 1]]


class Noting(WrappedGrid):
    """A grid that notes the settings in messages, by kind."""

    def __init__(self, grid) -> None:
        super().__init__(grid)
        self.settings: dict[str, dict] = {}

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            if "config" in message.content:
                self.settings[message.metadata.message_type] = dict(message.content["config"])
        return super().send_and_receive(messages, timeout=timeout)


class Adding(FedAvg):
    """An aggregator of a user's own, with a setting of its own."""

    def configure_train(self, server_round, arrays, config, grid):
        config["decay"] = 0.9
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("aggregator", [FedAvg, Adding])
def test_settings_of_the_users_own_reach_the_clients(toy, aggregator) -> None:
    own, grid = {"lr": 0.5, "server-round": 99}, Noting(toy(num_clients=3).grid())
    config = {"train_config": ConfigRecord(own), "evaluate_config": ConfigRecord(own)}
    strategy = ClusteredStrategy(aggregator=lambda: aggregator(min_train_nodes=1, min_available_nodes=1))
    strategy.start(grid, toy.model(), num_rounds=1, **config)
    for kind in ("train", "evaluate"):
        assert grid.settings[kind]["lr"] == 0.5
        assert grid.settings[kind]["server-round"] == 1  # ours are not the user's to change
    assert grid.settings["train"].get("decay") == (0.9 if aggregator is Adding else None)


def test_everybody_evaluates_in_full_after_the_last_round_alone(toy, watch) -> None:
    grid, full = Noting(toy(num_clients=3).grid()), []
    strategy = ClusteredStrategy(evaluate_clients=1)
    strategy.observer = watch

    def note(*_: object) -> bool:
        full.append(bool(grid.settings["evaluate"].get("full-metrics")))
        return False

    strategy.start(grid, toy.model(), num_rounds=2, should_stop=note)
    assert full == [False, True]
    assert [record.get("evaluated_clients") for record in watch.rounds] == [1, None]
