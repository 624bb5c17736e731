"""Updates that are finite and of no use: capped, or taken back with the aggregator's state."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvgM

from fedclust.federation import Clusters, Federation
from fedclust.strategies import ClusteredStrategy
from fedclust.typing import IntArray
from tests.strategies.helpers import Keeping, kept

FEW = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}
ATTACKER = 4


def _model(*values: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype=np.float32))})


# -- The cap --------------------------------------------------------------------------------------------


def test_rows_that_a_client_does_not_have_do_not_make_its_model_the_mean(started, toy) -> None:
    # Five clients move by 1 with one example each; the sixth says to have a million and moves by −3. Its pull
    # counts for ten: 10 / (1 · 3) = 3 examples, and (5 · 1 − 3 · 3) / (5 + 3) is −0.5; without a limit it
    # were −3. Nobody asked how many rows there are, so the cap on them does nothing.
    clients = toy(
        move=lambda client, number: -3.0 if client == ATTACKER else 1.0,
        num_examples=lambda client: 10**6 if client == ATTACKER else 1,
    )
    for nodes in (1, 6):  # whoever shares a node
        found = {}
        for caps in ((10.0, None), (10.0, 3.0), (None, 3.0), (None, None)):
            strategy = ClusteredStrategy(update_pull_cap=caps[0], row_cap=caps[1])
            started(strategy, 1, nodes, clients=clients)
            found[caps] = strategy.clusters.models[0]["w"].numpy() - toy.model()["w"].numpy()
        np.testing.assert_allclose(found[10.0, None], -0.5, atol=1e-6)
        np.testing.assert_allclose(found[10.0, 3.0], -0.5, atol=1e-6)
        np.testing.assert_allclose(found[None, 3.0], -3.0, atol=1e-4)
        np.testing.assert_allclose(found[None, None], -3.0, atol=1e-4)


def test_rows_count_for_at_most_three_times_the_median_clients(started, toy) -> None:
    # Five clients with one row each move by 1; another says to have a million and moves by −1. It counts for
    # three: (5 · 1 − 3 · 1) / (5 + 3) = 0.25; for five by its pull alone: (5 − 5) / 10 = 0; else for all.
    clients = toy(
        move=lambda client, number: -1.0 if client == ATTACKER else 1.0,
        num_examples=lambda client: 10**6 if client == ATTACKER else 1,
        counts=lambda client: [10**6 if client == ATTACKER else 1, 0],
    )
    for nodes in (1, 6):
        for caps, moved in (
            ({"row_cap": 3.0}, 0.25),
            ({"update_pull_cap": 5.0}, 0.0),
            ({}, -1.0),
        ):
            federation = Federation(grid := clients.grid(nodes))
            federation.describe()
            strategy = ClusteredStrategy(**caps)
            strategy.start(grid, toy.model(), num_rounds=1, federation=federation)
            found = strategy.clusters.models[0]["w"].numpy() - toy.model()["w"].numpy()
            np.testing.assert_allclose(found, moved, atol=1e-4)


@pytest.mark.parametrize("cap", [1, 0.5, -3, float("nan"), float("inf"), True, "ten"])
def test_a_cap_that_is_none(cap) -> None:
    for name in ("update_norm_cap", "update_pull_cap", "row_cap"):
        with pytest.raises(ValueError, match=f"{name} must be > 1 and finite or None"):
            ClusteredStrategy(**{name: cap})


# -- Going back -----------------------------------------------------------------------------------------


class Breaks(FedAvgM):
    """FedAvgM that makes a model of no use in one round or all, when its momentum is already spoilt."""

    def __init__(self, server_round: int | None, value: float) -> None:
        super().__init__(**FEW, server_learning_rate=1.0, server_momentum=0.5)
        self.breaks_in, self.value = server_round, value

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if self.breaks_in in (server_round, None):
            self.momentum_vector = [np.full(2, 1e20)]
            arrays = _model(self.value, self.value)
        return arrays, metrics


def test_an_aggregate_that_is_not_finite_is_taken_back(started, watch) -> None:
    strategy = started(ClusteredStrategy(aggregator=lambda: Breaks(2, np.inf)), 3, move=lambda *_: 1.0)
    # Everyone moves by 1; momentum 1/2. Round 1: v = -1, model 1. Round 2 is taken back. Round 3 goes on from
    # v = -1: v = -1/2 - 1 = -1.5, model 2.5; with the spoilt momentum it would be 1e20.
    assert strategy.clusters.models[0]["w"].numpy().tolist() == [2.5, 2.5]
    assert [record["failures"] for record in watch.rounds] == [[], [], []]
    assert ["went_back" in record for record in watch.rounds] == [False, True, False]
    (told,) = watch.rounds[1]["went_back"]
    assert (told["cluster"], told["clients"], told["in_a_row"]) == (0, 6, 1)
    assert told["reason"] == "Breaks made a model that is not finite from 6 finite replies"


class Swapping(ClusteredStrategy):
    """Two clusters, of models 0 and 50, whose clients change places before round 2."""

    def begin(self, federation: Federation, model: ArrayRecord) -> Clusters:
        return Clusters(np.arange(federation.num_clients) % 2, (_model(0.0, 0.0), _model(50.0, 50.0)))

    def before_round(self, clusters: Clusters, cohort: IntArray, federation: Federation) -> Clusters:
        if federation.server_round != 2:
            return clusters
        return dataclasses.replace(clusters, assignment=1 - clusters.assignment)


def test_a_cluster_keeps_its_model_if_no_next_one_can_be_made_whoever_has_come(started, watch) -> None:
    strategy = started(Swapping(aggregator=lambda: Breaks(2, np.inf)), 2, move=lambda *_: 1.0)
    assert [model["w"].numpy().tolist() for model in strategy.clusters.models] == [[1.0, 1.0], [51.0, 51.0]]
    assert sorted(each["cluster"] for each in watch.rounds[1]["went_back"]) == [0, 1]


def test_a_model_whose_loss_is_not_finite_is_taken_back_and_nobody_is_blamed(started, toy, watch) -> None:
    clients = toy(move=lambda *_: 1.0, test_loss=lambda _, weight: float("nan") if weight > 100 else 0.5)
    strategy = started(ClusteredStrategy(aggregator=lambda: Breaks(2, 1e6)), 3, clients=clients)
    assert strategy.clusters.models[0]["w"].numpy().tolist() == [2.5, 2.5]  # as above
    assert [record["failures"] for record in watch.rounds] == [[], [], []]
    assert watch.rounds[1]["went_back"][0]["reason"] == "the loss of its new model is not finite"
    assert "global_accuracy" not in watch.rounds[1]  # what was measured of a model that is gone


def test_where_rounds_are_not_evaluated_the_next_training_tells(started, toy, watch) -> None:
    clients = toy(move=lambda *_: 1.0)
    clients.error = lambda client, number: "non-finite loss at step 1" if number == 3 and client else None
    strategy = started(
        ClusteredStrategy(aggregator=lambda: Breaks(2, 1e6), evaluate_every=4), 4, clients=clients
    )
    # Round 2's model of 1e6 goes in round 3, with client 0's update to it; round 4 goes on from round 1's.
    assert strategy.clusters.models[0]["w"].numpy().tolist() == [2.5, 2.5]
    assert [record["failures"] for record in watch.rounds] == [[], [], [], []]
    assert watch.rounds[2]["went_back"][0]["reason"] == "the loss of its model was not finite"


def _resumed(
    make: Callable[[], ClusteredStrategy], clients, folder: Path, after: int, rounds: int
) -> tuple[ClusteredStrategy, list[dict], list[dict]]:
    """Run and keep a checkpoint, go on from it; return that run, its rounds, and the whole one's."""
    whole, again = make(), make()
    seen, other = Keeping(whole, folder, after), Keeping(again, folder)
    whole.start(clients.grid(), clients.model(), num_rounds=rounds)
    again.start(clients.grid(), clients.model(), num_rounds=rounds, resume=kept(folder, after))
    return again, other.rounds, seen.rounds


def test_a_resumed_run_goes_back_to_what_the_round_before_the_checkpoint_found(toy, tmp_path: Path) -> None:
    clients = toy(move=lambda *_: 1.0)
    clients.error = lambda client, number: "non-finite loss at step 1" if number == 3 and client else None
    options = {"aggregator": lambda: Breaks(2, 1e6), "evaluate_every": 4}
    resumed, rounds, whole = _resumed(
        lambda: ClusteredStrategy(**options), clients, tmp_path, after=2, rounds=4
    )
    # As two tests above: the checkpoint's model is 1e6, and the resumed run has round 1's and its momentum.
    assert resumed.clusters.models[0]["w"].numpy().tolist() == [2.5, 2.5]
    assert rounds == whole[2:]


def test_a_resumed_run_counts_on_how_often_a_cluster_went_back(toy, tmp_path: Path) -> None:
    clients, options = toy(move=lambda *_: 1.0), {"aggregator": lambda: Breaks(None, np.inf)}
    _, rounds, whole = _resumed(lambda: ClusteredStrategy(**options), clients, tmp_path, after=1, rounds=3)
    assert [each["went_back"][0]["in_a_row"] for each in rounds] == [2, 3]
    assert rounds == whole[1:]


def test_one_client_cannot_send_a_cluster_back(started, toy, watch) -> None:
    lost = {(2, 2): "non-finite loss at step 1"}
    failing = {"error": lambda client, number: lost.get((client, number)), "move": lambda *_: 1.0}
    clients = toy(**failing, test_loss=lambda client, _: float("inf") if client == 3 else 0.5)
    strategy = started(ClusteredStrategy(), 2, clients=clients)
    assert strategy.clusters.models[0]["w"].numpy().tolist() == [2.0, 2.0]
    assert not any("went_back" in record for record in watch.rounds)
    blamed = [[(each["client"], each["phase"]) for each in record["failures"]] for record in watch.rounds]
    assert blamed == [[(3, "evaluate")], [(2, "train"), (3, "evaluate")]]


@pytest.mark.parametrize(("pull", "means"), [(5, False), (None, True)])
def test_where_pulls_have_a_cap_nodes_send_each_clients_model(pull, means, started) -> None:
    # Of a mean the server could not tell whose weight to lower.
    strategy = started(ClusteredStrategy(update_pull_cap=pull), 1)
    assert strategy.takes_means(strategy.make_aggregator()) is means
