"""Anybody's ClientApp: a model of one matrix; a node's data is the matrix that it wants."""

import importlib
import io
import logging
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedProx
from rich.console import Console
from torch import nn

from fedclust import reporting
from fedclust.federation import FederationError
from fedclust.grids.local_grid import FIRST_NODE_ID, LocalGrid
from fedclust.results import SavedRun, print_report
from fedclust.results.outcome import Outcome
from fedclust.selection import HACCS
from fedclust.strategies import (
    CFL,
    FECFL,
    FLHC,
    FMCL,
    IFCA,
    PACFL,
    Auto,
    ClusteredStrategy,
    ClustPSIPFL,
    FedClustWeights,
    FedGMCC,
    FedGWC,
    FeSEM,
    Local,
)
from fedclust.support.reasons import RunFailed

WANTED = np.array([[1.0, 0.0], [-1.0, 0.0]])  # of even and of odd nodes
Change = Callable[[RecordDict, Message, int], None]


def weights(model: ArrayRecord) -> np.ndarray:
    """Return the only row of a model's only matrix."""
    ((row,),) = model.to_numpy_ndarrays()
    return row


class Apart:
    """Nodes that want different models; node k has k + 1 rows, and walks half of the way to its model.

    Attributes
    ----------
    asked
        The type and the config of each message, by node.
    """

    def __init__(self, num_nodes: int, change: Change = lambda *_: None, *, alike: bool = False) -> None:
        self.asked: list[tuple[int, str, Mapping[str, object]]] = []
        app = ClientApp()

        def answer(message: Message, context: Context) -> Message:
            node, kind = int(context.node_config["partition-id"]), message.metadata.message_type
            self.asked.append((node, kind, dict(message.content["config"])))
            model = weights(message.content["arrays"])
            wanted = np.zeros(2) if alike else WANTED[node % 2] + [0.0, 0.01 * node]
            metrics: dict[str, float] = {"num-examples": node + 1}
            content = RecordDict()
            if kind == "train":
                content["arrays"] = ArrayRecord([(model + wanted)[None] / 2])
            else:
                metrics["eval_loss"] = float(np.square(model - wanted).sum())
            content["metrics"] = MetricRecord(metrics)
            change(content, message, node)
            return Message(content, reply_to=message)

        app.train()(answer)
        app.evaluate()(answer)
        self.app, self.grid = app, LocalGrid(app, {}, num_nodes)

    def start(self, strategy: ClusteredStrategy, num_rounds: int, **settings: object) -> Outcome:
        """Run a strategy from the model 0."""
        return strategy.start(self.grid, ArrayRecord([np.zeros((1, 2))]), num_rounds, **settings)


def test_one_model_for_all_is_the_mean_by_rows() -> None:
    apart = Apart(2)
    result = apart.start(
        ClusteredStrategy(), 1, train_config=ConfigRecord({"lr": 0.1}), evaluate_config=ConfigRecord({"n": 2})
    )
    # Half of the way from 0: (0.5, 0) with one row and (-0.5, 0.005) with two.
    model = weights(result.models[0])
    np.testing.assert_allclose(model, [(0.5 - 2 * 0.5) / 3, 2 * 0.005 / 3])
    assert result.assignment.tolist() == [0, 0]
    assert result.nodes == [FIRST_NODE_ID, FIRST_NODE_ID + 1]
    # The clients' losses, by rows: 1 and 2.
    losses = [np.square(model - wanted).sum() for wanted in ([1.0, 0.0], [-1.0, 0.01])]
    assert result.rounds[0]["test_loss"] == pytest.approx((losses[0] + 2 * losses[1]) / 3)
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == pytest.approx(np.mean(losses))
    # Nothing but what Flower's strategies send.
    kinds = [(kind, config) for _, kind, config in apart.asked[::2]]
    assert kinds == [
        ("train", {"lr": 0.1, "server-round": 1}),
        ("evaluate", {"n": 2, "server-round": 1}),
    ]


GROUPED = [
    Auto(parameters=Auto.parameters_type(warmup=2, probation=2)),
    CFL(parameters=CFL.parameters_type(relative=True, eps_1=0.9, eps_2=0.1, min_rounds=1)),
    FLHC(parameters=FLHC.parameters_type(rounds=2)),
    FeSEM(),
    FedClustWeights(),
]


@pytest.mark.parametrize("strategy", GROUPED, ids=lambda each: type(each).__name__)
def test_clients_that_contradict_each_other_are_parted(strategy: ClusteredStrategy) -> None:
    result = Apart(10).start(strategy, 8)
    parity = np.arange(10) % 2
    for cluster in np.unique(result.assignment):
        assert len({*parity[result.assignment == cluster]}) == 1  # CFL may cut further
    assert result.verdict is not None
    assert result.verdict.grouped
    assert "10 of 10 clients" in result.verdict.text
    for client, cluster in enumerate(result.assignment):
        model = weights(result.models[cluster])
        assert np.sign(model[0]) == np.sign(WANTED[client % 2][0])


@pytest.mark.parametrize("strategy", GROUPED, ids=lambda each: type(each).__name__)
def test_clients_are_told_the_same_where_only_their_updates_are_wanted(strategy: ClusteredStrategy) -> None:
    apart, told = Apart(4), {"lr": 0.1, "proximal-mu": 0.5}
    fedprox = strategy.with_options(aggregator=lambda: FedProx(proximal_mu=0.5))
    apart.start(fedprox, 6, prove=False, train_config=ConfigRecord({"lr": 0.1}))
    trained = [config for _, kind, config in apart.asked if kind == "train"]
    assert trained == [{**told, "server-round": config["server-round"]} for config in trained]


def test_a_users_own_aggregator_gets_a_copy_of_the_settings_in_every_round() -> None:
    class Halves(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] /= 2 ** (server_round - 1)
            return super().configure_train(server_round, arrays, config, grid)

    apart = Apart(2)
    apart.start(ClusteredStrategy(aggregator=Halves), 3, train_config=ConfigRecord({"lr": 0.4}))
    rates = [config["lr"] for node, kind, config in apart.asked if (node, kind) == (0, "train")]
    assert rates == [0.4, 0.2, 0.1]


def test_everybody_alone_has_the_model_that_it_wants() -> None:
    result = Apart(3).start(Local(), 2)
    # Two steps of half of the way leave a quarter of it.
    models = [weights(result.models[cluster]) for cluster in result.assignment]
    np.testing.assert_allclose(models, [[0.75, 0.0], [-0.75, 0.0075], [0.75, 0.015]])


@pytest.mark.parametrize(
    ("nodes", "rounds", "why"),
    [
        (
            4,
            3,
            "rounds must be >= 5, 2 before the first look (strategy.parameters.warmup) and 3 on trial, got 3",
        ),
        (3, 5, "clients must be >= 4, for two groups (strategy.parameters.min_cluster_size), got 3"),
        (5, 5, "clients must be >= 6, each has one vote without compare_rows=True, got 5"),
        (6, 5, ""),
    ],
)
def test_a_run_that_can_find_no_groups_is_warned(
    nodes: int, rounds: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = Auto.parameters_type(warmup=2, probation=2, min_cluster_size=2)
    with caplog.at_level(logging.WARNING, "flwr"):
        Apart(nodes).start(Auto(parameters=parameters), rounds)
    assert caplog.messages == ([f"no groups can be found: {why}"] if why else [])


def test_clients_that_want_the_same_are_not_parted() -> None:
    result = Apart(10, alike=True).start(GROUPED[0], 8)
    assert result.assignment.tolist() == [0] * 10
    assert not result.verdict.grouped
    assert result.verdict.text.startswith("Train one model for all: ")


def test_no_verdict_where_the_losses_that_would_be_compared_have_chosen() -> None:
    class Choosy(ClusteredStrategy):
        def after_round(self, clusters, replies, federation):
            losses = federation.losses(clusters.models, [0])
            assert losses[0] == pytest.approx([0.25])  # of (0.5, 0), half of the way to (1, 0)
            return clusters

    result = Apart(1).start(Choosy(), 1, min_available_nodes=1)
    assert result.verdict.text.startswith("No verdict: Choosy's clients chose groups by the losses")


def test_a_model_that_has_diverged_is_the_last_choice_and_a_client_without_another_has_none() -> None:
    class Choosy(ClusteredStrategy):
        def after_round(self, clusters, replies, federation):
            lost = ArrayRecord([np.full((1, 2), math.nan)])
            # Of (0.5, 0), half of the way to (1, 0), the loss is 0.5² = 0.25; 0.25 + 0.25 + 1 is above it.
            assert federation.losses([*clusters.models, lost], [0])[0].tolist() == [0.25, 1.5]
            assert federation.losses([lost], [0]) == {}
            return clusters

    (line,) = Apart(1).start(Choosy(), 1, min_available_nodes=1, prove=False).rounds
    why = f"client 0 (node {FIRST_NODE_ID}): loss must be finite, got [nan]"
    assert [each["reason"] for each in line["failures"]] == [why]


# -- The results -----------------------------------------------------------------------------------------


def test_a_run_has_a_report_like_any_other(tmp_path: Path) -> None:
    def right(content: RecordDict, message: Message, node: int) -> None:
        if message.metadata.message_type == "evaluate":
            content["metrics"]["eval_acc"] = node / 10

    result = Apart(10, right).start(GROUPED[0], 8)
    folder = result.report(tmp_path / "run")
    run = SavedRun(folder)
    assert run.summary["assignment"] == [0, 1] * 5
    assert run.summary["verdict"]["text"] == result.verdict.text
    assert run.summary["mean_client_accuracy"] == pytest.approx(0.45)
    # Auto counts no client's rows for more than 1.7 times the median: the last client's 10 count as 9.
    assert run.summary["global_accuracy"] == pytest.approx(
        (sum(n * (n + 1) for n in range(9)) / 10 + 0.9 * 9) / 54
    )
    assert run.clients["name"].tolist() == [f"node {FIRST_NODE_ID + node}" for node in range(10)]
    assert run.clients["num_train"].tolist() == run.clients["num_test"].tolist() == [*range(1, 11)]
    assert [line["round"] for line in run.rounds] == [*range(1, 9)]
    assert [change["assignment"] for change in run.changes] == [[0] * 10, [0, 1] * 5]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert result.verdict.text.partition(": ")[0] in page
    assert "10 of 10" in page
    assert "Brier" not in page[page.index("<main") : page.index("</main>")]
    console = Console(file=io.StringIO(), width=200)
    print_report(run, console)
    assert "10 of 10" in console.file.getvalue()
    with pytest.raises(FileExistsError, match="output_dir must not hold another run"):
        result.report(folder)


def test_what_clients_measure_takes_no_name_of_a_run(tmp_path: Path) -> None:
    def named(content: RecordDict, message: Message, _: int) -> None:
        if message.metadata.message_type == "evaluate":
            content["metrics"].update({"failures": 3.0, "cluster": 7, "accuracy": 97.5, "f": math.inf})

    result = Apart(2, named).start(ClusteredStrategy(), 1)
    assert result.rounds[0]["failures"] == []
    assert result.evaluate_metrics_clientapp[1]["failures"] == 3.0
    assert "global_accuracy" not in result.rounds[0]  # 97.5 is no share
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 97.5
    run = SavedRun(result.report(tmp_path))
    assert run.clients["cluster"].tolist() == [0, 0]
    figures = {name: run.summary[name] for name in run.summary if name.startswith("own_")}
    assert figures.pop("own_eval_loss") == pytest.approx(result.evaluate_metrics_clientapp[1]["eval_loss"])
    assert figures == {"own_failures": 3.0, "own_cluster": 7.0, "own_f": None, "own_accuracy": 97.5}


def test_numbers_keep_their_names_and_every_client_that_has_one_counts() -> None:
    def quickstart(content: RecordDict, message: Message, node: int) -> None:
        if message.metadata.message_type == "evaluate":
            numbers: dict[str, float] = {"num-examples": node + 1, "loss": node + 1.0, "f1": 0.1 * (node + 1)}
            content["metrics"] = MetricRecord(numbers | ({"accuracy": 0.25 * node} if node else {}))

    result = Apart(3, quickstart).start(ClusteredStrategy(), 1)
    found = result.evaluate_metrics_clientapp[1]
    # Losses 1, 2, 3 and F1 0.1, 0.2, 0.3 of all; accuracies 0.25 and 0.5 of the last two, with 2 and 3 rows.
    assert found["loss"] == pytest.approx(2.0)
    assert found["f1"] == pytest.approx(0.2)
    assert found["accuracy"] == found["mean_client_accuracy"] == pytest.approx(0.375)
    assert found["global_accuracy"] == pytest.approx((2 * 0.25 + 3 * 0.5) / 5)
    assert found["test_loss"] == pytest.approx((1 * 1 + 2 * 2 + 3 * 3) / 6)
    assert result.summary["own_f1"] == pytest.approx(0.2)


# -- Faults -------------------------------------------------------------------------------------------------


def test_a_node_that_fails_costs_its_own_reply(caplog: pytest.LogCaptureFixture) -> None:
    def fail(content: RecordDict, message: Message, node: int) -> None:
        if node == 1 and message.metadata.message_type == "train":
            raise RuntimeError("disk full")

    with caplog.at_level(logging.WARNING, "flwr"):
        result = Apart(2, fail).start(ClusteredStrategy(), 1)
    np.testing.assert_allclose(weights(result.models[0]), [0.5, 0.0])
    (failure,) = result.rounds[0]["failures"]
    assert (failure["client"], failure["phase"]) == (1, "train")
    assert f"train: client 1 (node {FIRST_NODE_ID + 1}): RuntimeError: disk full" in caplog.text


def test_a_model_that_is_not_taken_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(content: RecordDict, message: Message, node: int) -> None:
        if message.metadata.message_type == "evaluate":
            content["metrics"] = MetricRecord({"num-examples": 1, "loss": math.nan})

    with caplog.at_level(logging.WARNING, "flwr"):
        result = Apart(2, broken).start(ClusteredStrategy(), 1)
    assert weights(result.models[0]).tolist() == [0.0, 0.0]  # the first model
    assert "cluster 0 went back to an earlier model: the loss of its new model is not finite" in caplog.text


class Trainings:
    """Makes some nodes fail to train once all nodes have trained some models."""

    def __init__(self, after: int, who: Callable[[int], bool] = lambda _: True) -> None:
        self._left, self._who = dict.fromkeys(range(10), after), who

    def __call__(self, content: RecordDict, message: Message, node: int) -> None:
        if message.metadata.message_type == "train":
            self._left[node] -= 1
            if self._left[node] < 0 and self._who(node):
                raise RuntimeError("disk full")


@pytest.mark.parametrize(("rounds", "last"), [(2, 2), (3, 3), (100, 3)])
def test_a_run_in_which_nobody_trains_has_no_result(rounds: int, last: int) -> None:
    why = f"in round {last} of {rounds}, no client was trained in any round: 4 of 4 clients: RuntimeError: d"
    with pytest.raises(RunFailed, match=why):
        Apart(4, Trainings(0)).start(GROUPED[0], rounds)


BEFORE_PROOF = 6 + 1  # in 6 rounds FLHC's clients train, and once more for their updates


def test_no_verdict_against_a_model_for_all_that_nobody_has_trained(caplog: pytest.LogCaptureFixture) -> None:
    flhc = FLHC(parameters=FLHC.parameters_type(rounds=2))
    with caplog.at_level(logging.WARNING, "flwr"):
        result = Apart(10, Trainings(BEFORE_PROOF + 2)).start(flhc, 6)
    assert result.verdict.text == (
        "No verdict: in round 3 nobody trained the one model for all: "
        "10 of 10 clients: RuntimeError: disk full"
    )
    assert not result.verdict.grouped
    assert result.assignment.tolist() == [0, 1] * 5
    assert result.summary["failed_replies"] == 10
    assert f"train: client 9 (node {FIRST_NODE_ID + 9}): RuntimeError: disk full" in caplog.text


def test_who_fails_to_train_the_model_for_all_is_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    flhc = FLHC(parameters=FLHC.parameters_type(rounds=2))
    with caplog.at_level(logging.WARNING, "flwr"):
        result = Apart(10, Trainings(BEFORE_PROOF, lambda node: node == 9)).start(flhc, 6)
    assert result.summary["failed_replies"] == 6
    named = f"one model for all, train: client 9 (node {FIRST_NODE_ID + 9}): RuntimeError: disk full"
    assert caplog.text.count(named) == 6
    assert "for 10 of 10 clients" in result.verdict.text


LACKS_LOSS = 'no metrics["loss"] in reply, add: metrics["loss"] = loss'


@pytest.mark.parametrize(
    ("kind", "record", "entries", "why"),
    [
        ("train", "arrays", [np.zeros((2, 2))], "array '0' must have shape (1, 2), got (2, 2)"),
        ("train", "arrays", [np.zeros((1, 2))] * 2, "arrays must be named ['0'], got ['0', '1']"),
        ("train", "arrays", [np.full((1, 2), math.nan)], "model must be finite, array '0' is not"),
        ("train", "arrays", [np.array([["a", "b"]])], "array '0' must hold numbers as float64 does, got <U1"),
        ("train", "metrics", {"num-examples": 0}, "num-examples must be in [1, 281474976710656], got 0"),
        ("train", "metrics", {"num-examples": 2.5}, "num-examples must be a whole number, got 2.5"),
        ("evaluate", "metrics", {"eval_loss": math.nan}, "loss must be finite, got nan"),
        ("evaluate", "metrics", {"eval_loss": 1e39}, "loss must be at most 3.40282e+38, got 1e+39"),
        ("evaluate", "metrics", {"eval_loss": [0.1]}, "eval_loss must be one number, got [0.1]"),
        ("evaluate", "metrics", {"own_loss": 0.1}, LACKS_LOSS),
    ],
)
@pytest.mark.parametrize("strategy", [ClusteredStrategy(), GROUPED[1]], ids=["FedAvg", "CFL"])
def test_what_cannot_be_used_costs_its_own_reply(
    kind: str, record: str, entries: Any, why: str, strategy: ClusteredStrategy
) -> None:
    def change(content: RecordDict, message: Message, node: int) -> None:
        if node == 1 and message.metadata.message_type == kind:
            if record == "arrays":
                content["arrays"] = ArrayRecord(entries)
            else:
                content["metrics"].update(entries)

    rounds = Apart(4, change).start(strategy, 2, prove=False).rounds
    failures = [each for line in rounds for each in line["failures"] if each["phase"] == kind]
    assert [each["client"] for each in failures] == [1, 1]
    assert all(why in each["reason"] for each in failures)
    assert all(math.isfinite(line["test_loss"]) for line in rounds)


def test_one_client_that_is_asked_alone_does_not_end_the_run() -> None:
    alone = ClusteredStrategy(participation=0.25)
    rounds = Apart(4, _without("metrics")).start(alone, 12).rounds
    failed = [line["cohort"] for line in rounds if line["failures"]]
    assert failed == [[1]] * len(failed) != []


def test_a_change_too_long_for_numbers_costs_its_own_reply() -> None:
    def change(content: RecordDict, message: Message, node: int) -> None:
        if node == 1 and message.metadata.message_type == "train":
            content["arrays"] = ArrayRecord([np.full((1, 2), 1e300)])

    (line,) = Apart(4, change).start(GROUPED[1], 1, prove=False).rounds
    why = f"client 1 (node {FIRST_NODE_ID + 1}), round 1: array '0' must have changed by at most 3.40282e+38"
    assert line["failures"] == [{"client": 1, "phase": "train", "reason": why}]


class Away(LocalGrid):
    """Nodes that are away in some rounds; 0 is what is asked before round 1."""

    def __init__(self, app: ClientApp, num_nodes: int, away: Mapping[int, Collection[int]]) -> None:
        super().__init__(app, {}, num_nodes)
        self._away, self._round = away, 0

    def get_node_ids(self) -> list[int]:
        gone = {FIRST_NODE_ID + node for node, rounds in self._away.items() if self._round in rounds}
        return [node for node in super().get_node_ids() if node not in gone]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent, there = [*messages], self.get_node_ids
        self._round = max([self._round, *(int(each.content["config"]["server-round"]) for each in sent)])
        arrive = [each for each in sent if each.metadata.dst_node_id in there()]
        return super().send_and_receive(arrive, timeout=timeout)


@pytest.mark.parametrize(
    ("away", "missing", "events", "voters"),
    [
        ({3: {3, 4}}, [3, 4], [(3, "left", [3]), (5, "back", [3])], 10),  # it comes back
        ({3: range(3, 99)}, range(3, 9), [(3, "left", [3])], 9),
        ({9: range(6)}, [], [(7, "joined", [9])], 9),  # it comes late, and is placed by its losses
        ({9: range(6), 8: range(2)}, [], [(3, "joined", [8]), (7, "joined", [9])], 8),  # more than needed
    ],
)
def test_nodes_that_come_and_go(away: Mapping[int, Collection[int]], missing, events, voters: int) -> None:
    apart = Apart(10)
    apart.grid = Away(apart.app, 10, away)
    result = apart.start(FeSEM(), 8, min_available_nodes=4)
    assert result.assignment.tolist() == [0, 1] * 5
    assert [line["round"] for line in result.rounds if line["failures"]] == [*missing]
    assert {each["reason"] for line in result.rounds for each in line["failures"]} <= {"no reply"}
    noted = [(line["round"], name, line[name]) for line in result.rounds for name in line if name in EVENTS]
    assert noted == events
    assert f"for {voters} of {voters} clients" in result.verdict.text


EVENTS = {"left", "back", "joined"}


def test_figures_of_a_former_round_say_so_and_who_left_when_it_measured_last() -> None:
    evaluations = iter(range(100))

    def change(content: RecordDict, message: Message, _: int) -> None:
        if message.metadata.message_type == "evaluate" and next(evaluations) >= 3 + 3 + 2:
            raise RuntimeError("no test rows left")

    apart = Apart(3, change)
    apart.grid = Away(apart.app, 3, {2: range(3, 99)})
    result = apart.start(ClusteredStrategy(), 5)
    # Three clients evaluate in rounds 1 and 2, two in round 3, and nobody can from then on.
    assert ["test_loss" in line for line in result.rounds] == [True, True, True, False, False]
    assert result.summary["figures_of_round"] == 3
    assert result.summary["left"] == [{"client": 2, "last_round": 2, "last_accuracy": None}]


def test_a_node_that_comes_late_and_cannot_evaluate_takes_part_without_a_vote() -> None:
    def change(content: RecordDict, message: Message, node: int) -> None:
        if node == 9 and message.metadata.message_type == "evaluate":
            raise RuntimeError("no rows yet")

    apart = Apart(10, change)
    apart.grid = Away(apart.app, 10, {9: range(4)})
    result = apart.start(FLHC(parameters=FLHC.parameters_type(rounds=2)), 8, min_available_nodes=9)
    # It joins in round 5. Its losses are unknown, so it is in the larger cluster, of 5 even nodes.
    assert [(line["round"], line["joined"]) for line in result.rounds if "joined" in line] == [(5, [9])]
    assert result.assignment.tolist() == [0, 1] * 4 + [0, 0]
    assert "for 9 of 9 clients" in result.verdict.text
    why = {(each["client"], each["reason"]) for line in result.rounds for each in line["failures"]}
    assert why == {(9, "RuntimeError: no rows yet")}


def test_rows_that_a_node_claims_count_up_to_the_cap() -> None:
    def claims(content: RecordDict, message: Message, node: int) -> None:
        if node == 2:
            content["metrics"]["num-examples"] = 10**14

    result = Apart(3, claims).start(ClusteredStrategy(row_cap=2.0), 1)
    # Twice the median client's two rows are four: (0.5, 0), (-0.5, 0.005) and (0.5, 0.01) by 1, 2 and 4 of 7.
    np.testing.assert_allclose(weights(result.models[0]), [1.5 / 7, 0.05 / 7])
    assert result.clients["num_train"].tolist() == [1, 2, 10**14]


@pytest.mark.parametrize("name", ["accuracy", "eval_acc"])
def test_of_accuracies_in_percent_none_is_a_share(name: str) -> None:
    percent = (97.0, 88.0, 93.0, 0.0)

    def measured(content: RecordDict, message: Message, node: int) -> None:
        if message.metadata.message_type == "evaluate":
            content["metrics"][name] = percent[node]

    result = Apart(4, measured).start(ClusteredStrategy(), 1)
    means = dict(result.evaluate_metrics_clientapp[1])
    assert means[name] == 69.5  # of (97 + 88 + 93 + 0) / 4
    assert result.clients[f"own_{name}"].tolist() == list(percent)
    assert result.clients["accuracy"].isna().all()
    assert ("accuracy" in means) == ("own_accuracy" in result.clients) == (name == "accuracy")
    assert "global_accuracy" not in result.rounds[0]


def test_a_node_that_comes_after_the_last_evaluation_has_no_figures() -> None:
    apart = Apart(4)
    apart.grid = Away(apart.app, 4, {3: range(2)})
    stops = {"should_stop": lambda number, _: number == 3, "min_available_nodes": 3}
    result = apart.start(ClusteredStrategy(evaluate_every=2), 9, **stops)
    assert result.rounds[-1]["joined"] == [3]
    assert result.clients["num_test"].tolist() == [1, 2, 3, 0]
    assert result.summary["num_clients"] == 4


def test_who_was_placed_by_its_losses_does_not_vote() -> None:
    apart = Apart(10)
    apart.grid = Away(apart.app, 10, {9: range(3)})
    result = apart.start(GROUPED[0], 8, min_available_nodes=9)
    assert [line["round"] for line in result.rounds if "joined" in line] == [4]  # during the trial
    assert result.assignment.tolist() == [0, 1] * 5
    assert "for 9 of 9 clients" in result.verdict.text


def _without(record: str, key: str | None = None) -> Change:
    def change(content: RecordDict, message: Message, node: int) -> None:
        if node == 1 and message.metadata.message_type == ("evaluate" if key == "eval_loss" else "train"):
            if key is None:
                del content[record]
            else:
                del content[record][key]

    return change


MODEL = ArrayRecord([np.zeros((1, 2))])
NETWORK = nn.Linear(2, 1, bias=False)
MISNAMED = "network must be the one that clients train, with arrays 0, its own are weight"


@pytest.mark.parametrize(
    ("strategy", "given", "why"),
    [
        (Auto(), {"num_rounds": 0}, "num_rounds must be a whole number >= 1, got 0"),
        (Auto(), {"num_rounds": 2.5}, "num_rounds must be a whole number >= 1, got 2.5"),
        (Auto(), {"min_available_nodes": 0}, "min_available_nodes must be a whole number >= 1, got 0"),
        (Auto(), {"timeout": -1}, "timeout must be > 0 or None, got -1"),
        (Auto(), {"initial_arrays": {}}, "initial_arrays must be an ArrayRecord, got a dict"),
        (
            Auto(),
            {"initial_arrays": ArrayRecord()},
            "initial_arrays must have floating-point numbers to train, got None",
        ),
        (
            Auto(),
            {"initial_arrays": ArrayRecord([np.zeros(2, np.int64)])},
            "initial_arrays must have floating-point numbers to train, got 0: int64",
        ),
        (
            Auto(),
            {"initial_arrays": ArrayRecord([np.array([math.inf])])},
            "initial_arrays must be finite, array '0' is not",
        ),
        (
            Auto(),
            {"compare_rows": True, "evaluate_config": ConfigRecord({"rows": 5})},
            "evaluate_config must not have rows, which compare_rows=True sends, got 5",
        ),
        *(
            (each, {}, MISNAMED)
            for each in (IFCA(network=NETWORK), FedGMCC(network=NETWORK, input_shape=[2]))
        ),
        (
            FedGMCC(network=NETWORK, input_shape=[3]),
            {"initial_arrays": ArrayRecord(NETWORK.state_dict())},
            "input_shape must be that of the network's inputs, got [3]: mat1 and mat2 shapes cannot be "
            "multiplied (1x3 and 2x1)",
        ),
        (Auto(), {"buffers": frozenset({"mean"})}, "buffers must be among 0, got mean"),
        (Auto(drift_every=2), {}, "drift_every must be 0 for a ClientApp of your own, got 2"),
        (
            Auto(aggregator=lambda: FedProx(0.1, weighted_by_key="rows")),
            {},
            "weighted_by_key must be 'num-examples', got 'rows'",
        ),
    ],
)
def test_what_cannot_run_ends_before_a_client_is_asked(
    strategy: ClusteredStrategy, given: Mapping[str, Any], why: str
) -> None:
    apart = Apart(2)
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        strategy.start(apart.grid, **{"initial_arrays": MODEL, "num_rounds": 2, **given})
    assert apart.asked == []


def test_a_run_of_ones_own_clients_cannot_be_resumed() -> None:
    strategy, apart = ClusteredStrategy(), Apart(2)
    Apart(2).start(strategy, 1)
    with pytest.raises(ValueError, match="^resume must be None for a ClientApp of your own, whose"):
        apart.start(ClusteredStrategy(), 2, resume=strategy.run_state())
    assert apart.asked == []


@pytest.mark.parametrize(
    ("change", "phase", "line"),
    [
        (_without("arrays"), "train", 'content["arrays"] = ArrayRecord('),
        (_without("metrics"), "train", 'content["metrics"] = MetricRecord({"num-examples": '),
        (_without("metrics", "num-examples"), "train", 'metrics["num-examples"] = len(rows)'),
        (_without("metrics", "eval_loss"), "evaluate", 'metrics["loss"] = loss'),
    ],
)
def test_what_a_reply_lacks_is_the_line_to_add(change: Change, phase: str, line: str) -> None:
    failures = Apart(2, change).start(ClusteredStrategy(), 1).rounds[0]["failures"]
    assert [(each["client"], each["phase"]) for each in failures] == [(1, phase)]
    lacks = (
        f"client 1 (node {FIRST_NODE_ID + 1}), round 1: no {line.partition(' = ')[0]} in reply, add: {line}"
    )
    assert lacks in failures[0]["reason"]


@pytest.mark.parametrize(
    ("record", "further"), [("ArrayRecord", ArrayRecord([np.zeros(1)])), ("MetricRecord", MetricRecord({}))]
)
def test_a_second_record_of_a_kind_is_named(record: str, further: ArrayRecord | MetricRecord) -> None:
    def change(content: RecordDict, message: Message, _: int) -> None:
        if message.metadata.message_type == "train":
            content["state"] = further

    own = "arrays" if record == "ArrayRecord" else "metrics"
    why = f"client 0 (node 2), round 1: reply must have one {record}, got ['{own}', 'state']"
    with pytest.raises(FederationError, match=re.escape(why)):
        Apart(4, change).start(ClusteredStrategy(), 1)


def test_an_accuracy_that_is_not_known_hides_nobody_elses() -> None:
    def some(content: RecordDict, message: Message, node: int) -> None:
        if message.metadata.message_type == "evaluate":
            accuracy = 0.25 * node if node else math.nan
            content["metrics"] = MetricRecord({"num-examples": 2, "loss": 1.0, "accuracy": accuracy})

    found = Apart(3, some).start(ClusteredStrategy(), 1).evaluate_metrics_clientapp[1]
    assert found["accuracy"] == 0.375  # of 0.25 and 0.5


def test_a_client_whose_losses_are_not_finite_has_no_vote_and_is_named() -> None:
    def lost(content: RecordDict, message: Message, node: int) -> None:
        if message.metadata.message_type == "evaluate" and node == 1:
            content["metrics"]["eval_loss"] = math.nan

    result = Apart(8, lost).start(FLHC(parameters=FLHC.parameters_type(rounds=2)), 4)
    assert "for 7 of 7 clients (1 client has no usable answer and did not vote)" in result.verdict.text


def test_numbers_of_numpy_count() -> None:
    def means(content: RecordDict, message: Message, _: int) -> None:
        if message.metadata.message_type == "evaluate":  # Flower's simulation leaves them as they are
            numbers = {"loss": np.float64(0.5), "accuracy": np.float64(0.75)}
            content["metrics"] = MetricRecord({"num-examples": 2, **numbers})

    (line,) = Apart(2, means).start(ClusteredStrategy(), 1).rounds
    assert (line["test_loss"], line["global_accuracy"]) == (0.5, 0.75)


def test_statistics_of_normalisation_tell_nobody_who_is_alike_and_gather_no_momentum() -> None:
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        node, content = int(context.node_config["partition-id"]), RecordDict()
        model = message.content["arrays"]["0.weight"].numpy()
        if message.metadata.message_type == "train":
            variance = 1001.0 if node >= 4 else 1.0  # the inputs of half of them are in another unit
            arrays = (model + WANTED[node % 2]) / 2, np.zeros(1), np.array([variance])
            content["arrays"] = ArrayRecord(dict(zip(names, map(Array, arrays), strict=True)))
        loss = float(np.square(model - WANTED[node % 2]).sum())
        content["metrics"] = MetricRecord({"num-examples": 10, "loss": loss})
        return Message(content, reply_to=message)

    app.train()(answer)
    app.evaluate()(answer)
    names = ("0.weight", "1.running_mean", "1.running_var")
    first = ArrayRecord(dict(zip(names, map(Array, (np.zeros(2), np.zeros(1), np.ones(1))), strict=True)))
    strategy = FLHC(
        parameters=FLHC.parameters_type(rounds=2), aggregator=lambda: FedAvgM(server_momentum=0.9)
    )
    found = strategy.start(LocalGrid(app, {}, 8), first, 6)
    assert found.assignment.tolist() == [0, 1] * 4
    for model in found.models:  # of two clients with 1 and two with 1001, in every round
        assert model["1.running_var"].numpy() == pytest.approx([501.0])


@pytest.mark.parametrize("name", ["loss", "eval_loss"])
def test_a_loss_that_is_no_number_is_named(name: str) -> None:
    def several(content: RecordDict, message: Message, _: int) -> None:
        if message.metadata.message_type == "evaluate":
            content["metrics"] = MetricRecord({"num-examples": 2, name: [0.5, 0.25]})

    why = rf"client 0 (node 2), round 1: {name} must be one number, got [0.5, 0.25]"
    with pytest.raises(FederationError, match=re.escape(why)):
        Apart(4, several).start(ClusteredStrategy(), 1)


LINES = {
    FedGWC: 'client 0 (node 2), round 1: no content["losses"] in reply, add: '
    "content.update(reporting.losses(loss_of_each_step)); its keys are ['arrays', 'metrics']",
    ClustPSIPFL: 'client 0 (node 2): no content["label-counts"] in reply, add: '
    "content.update(reporting.label_counts(labels, num_classes)); its keys are ['metrics']",
    FMCL: 'client 0 (node 2): no content["prototypes"] in reply, add: '
    "content.update(reporting.prototypes(embeddings, labels, num_classes)); its keys are ['metrics']",
    PACFL: "a ClientApp of your own can only train and evaluate, the method asks 'query.subspaces': it needs "
    "fedclust's own clients",
}


@pytest.mark.parametrize("method", LINES)
def test_what_no_reply_has_ends_the_run(method: type[ClusteredStrategy]) -> None:
    with pytest.raises(FederationError) as raised:
        Apart(4).start(method(), 2)
    assert str(raised.value) == LINES[method]


def test_a_method_that_compares_rows_names_the_line() -> None:
    line = re.escape("content.update(reporting.comparison(other, own, labels, config))")
    with pytest.raises(FederationError, match=rf'no content\["difference"\] in reply, add: {line}'):
        Apart(4).start(FLHC(parameters=FLHC.parameters_type(rounds=1)), 1, compare_rows=True)


def test_a_run_without_losses_ends_before_round_1() -> None:
    def change(content: RecordDict, message: Message, _: int) -> None:
        if message.metadata.message_type == "evaluate":
            del content["metrics"]["eval_loss"]

    with pytest.raises(
        FederationError, match=r'no metrics\["loss"\] in reply, add: metrics\["loss"\] = loss'
    ):
        Apart(4, change).start(Auto(), 2)


# -- What further methods need ------------------------------------------------------------------------------


def reported(content: RecordDict, message: Message, node: int) -> None:
    """Add what every method may need: labels, embeddings and losses tell even nodes from odd ones."""
    labels, of = np.array([node % 2] * 27 + [0, 1] * 3), node % 2
    if message.metadata.message_type == "train":
        content.update(reporting.losses([1.0 + of, 0.5 + of]))
        return
    content["metrics"]["num-examples"] = len(labels)
    content.update(reporting.label_counts(labels, 2))
    content.update(reporting.prototypes(np.eye(2)[labels] + [of, 0.0], labels, 2))
    if "compare-with" in message.content:
        sides = [message.content[name] for name in ("compare-with", "arrays")]
        other, own = (_chances(weights(side)[0], len(labels)) for side in sides)
        content.update(reporting.comparison(other, own, labels, message.content["config"]))


def _chances(weight: float, rows: int) -> np.ndarray:
    """Give label 0, which most rows of even nodes have, a chance that grows with the weight."""
    return np.tile([(1 + weight) / 2, (1 - weight) / 2], (rows, 1))


@pytest.mark.parametrize("method", [ClustPSIPFL, FMCL, FECFL])
def test_what_clients_report_before_round_1_parts_them(method: type[ClusteredStrategy]) -> None:
    result = Apart(10, reported).start(method(), 2)
    groups = [{*result.assignment[first::2].tolist()} for first in (0, 1)]
    assert [len(each) for each in groups] == [1, 1]
    assert groups[0] != groups[1]


def test_haccs_takes_the_fastest_of_clients_with_alike_labels() -> None:
    chosen = ClusteredStrategy(selection=HACCS(latencies=range(1, 11)), participation=0.2)
    rounds = Apart(10, reported).start(chosen, 4, prove=False).rounds
    # Even and odd nodes are a group each, whose first is the fastest; drawn twice it gives two.
    cohorts = [line["cohort"] for line in rounds]
    assert all(each in ([0, 1], [0, 2], [1, 3]) for each in cohorts)
    assert [0, 1] in cohorts != [[0, 1]] * 4


def test_fedgwc_reads_the_losses_of_each_step() -> None:
    seen: list[list[float]] = []

    class Watched(FedGWC):
        def after_round(self, clusters, replies, federation):
            seen.extend(reply.losses.tolist() for reply in replies)
            return super().after_round(clusters, replies, federation)

    Apart(4, reported).start(Watched(participation=1), 1, prove=False)
    assert seen == [[1.0, 0.5], [2.0, 1.5]] * 2


def test_rows_are_compared_where_clients_report_them() -> None:
    result = Apart(6, reported).start(FLHC(parameters=FLHC.parameters_type(rounds=2)), 8, compare_rows=True)
    said = "Train in 2 groups: on held-out rows their Brier score is lower by "
    assert result.verdict.text.startswith(said)
    assert result.verdict.text.endswith(", for 6 of 6 clients")
    gain = float(result.verdict.text.removeprefix(said).partition(",")[0])
    # The model for all scores about 1/2; sure ones 0 on 30 of a client's 33 rows and 2 on the others.
    assert gain == pytest.approx(0.5 - 2 / 11, abs=0.1)


# -- The page -----------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]


def _diffs() -> list[str]:
    page = (ROOT / "docs" / "YOUR_FLOWER_APP.md").read_text(encoding="utf-8")
    return re.findall(r"^```diff\n(.*?)^```$", page, re.M | re.S)


def test_few_lines_change() -> None:
    server, client = ([line[1:] for line in each.splitlines() if line[0] == "+"] for each in _diffs())
    assert len(server) == 2
    assert len(client) <= 5  # that of rows; no other record takes more than an import and a line


def test_what_the_page_says_runs() -> None:
    lines = [line[1:] for line in _diffs()[0].splitlines() if line[0] in "+ "]
    names = {"grid": Apart(10).grid, "arrays": ArrayRecord([np.zeros((1, 2))]), "config": None}
    exec("\n".join(lines), names)
    result = names["result"]
    assert result.assignment.tolist() == [0, 1] * 5
    assert result.verdict.text == (
        "Train in 2 groups: after their trial their models were better for 10 of 10 clients"
    )


EXAMPLE = ROOT / "examples" / "flower_app"


@pytest.mark.parametrize("client", ["numpy_client", "sklearn_client", "jax_client"])
def test_the_example_finds_its_groups(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "jax", reason="needs JAX, which fedclust does not"
    ) if client == "jax_client" else None
    monkeypatch.syspath_prepend(EXAMPLE)
    grid = LocalGrid(importlib.import_module(f"flower_app.{client}").app, {}, 10)
    model = ArrayRecord([np.zeros((10, 64), np.float32), np.zeros(10, np.float32)])
    result = Auto().start(grid, model, 17, train_config=ConfigRecord({"lr": 0.5}))
    assert result.assignment.tolist() == [0, 1] * 5
    assert result.rounds[-1]["test_loss"] < 0.6 < 1.0 < result.rounds[9]["test_loss"]


def test_the_example_s_own_server_and_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    told = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    names = (told["components"][part].split(":") for part in ("serverapp", "clientapp"))
    server, client = (getattr(importlib.import_module(module), app) for module, app in names)
    config = {**told["config"], "num-server-rounds": 17, "report": str(tmp_path / "example")}
    server(LocalGrid(client, {}, 10), Context(1, 2, {}, RecordDict(), config))
    summary = SavedRun(tmp_path / "example").summary
    assert summary["assignment"] == [0, 1] * 5
    assert summary["mean_client_accuracy"] > 0.9
    assert "for 10 of 10 clients" in summary["verdict"]["text"]
    assert summary["failed_replies"] == 0
    assert capsys.readouterr().out.startswith("clusters: [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]\nverdict: ")
