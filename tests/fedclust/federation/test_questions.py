"""What the server asks and makes of the answers."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedclust.data.targets import CLASSES
from fedclust.federation import Clusters, Measured
from fedclust.federation.answering import Answers
from fedclust.federation.questions import (
    Serving,
    ask_differences,
    ask_figures,
    ask_personal,
    confuse_clusters,
    prior_shifts,
    shifts_for,
)
from fedclust.messages.codec import Bounds
from fedclust.messages.evaluation import (
    Confusion,
    ConfusionQuestion,
    FigureAnswer,
    FigureQuestion,
    PersonalAnswer,
    ProofAnswer,
)
from fedclust.personal.layers import Auto, Finetune, Prior
from fedclust.proof import evidence
from fedclust.proof.figure import Rows

COUNTS = np.array([[90, 10], [10, 90], [90, 10], [10, 90]])
CLUSTERS, ONE = np.array([0, 0, 1, 1]), np.zeros(4, dtype=int)


def _model(value: float) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array([value]))})


MODELS = (_model(0.0), _model(1.0))
COMMON = (_model(7.0),)
NONE = Measured({"accuracy": np.array([0.1, 0.2, 0.3, 0.4]), "loss": np.array([1.0, 1.0, 1.0, math.nan])})
SERVING = Serving(NONE, (CLUSTERS, MODELS), (ONE, COMMON), np.array([False, False, True, True]))


@dataclass
class _Clients:
    """Clients that answer by `work`, or not at all, and remember what they were asked."""

    work: Callable[[int, Any], Any]
    asked: list[dict[int, Any]] = field(default_factory=list)
    num_clients: int = 4
    bounds: Bounds = field(default_factory=Bounds)
    validation: int = 50  # rows, with which each client chooses for itself
    clients: Any = field(default_factory=lambda: SimpleNamespace(plain=False))

    def describe(self) -> Any:
        return SimpleNamespace(
            target=CLASSES,
            train_counts=COUNTS,
            num_test=np.full(4, 60),
            num_validation=np.full(4, self.validation),
        )

    def ask(self, question: Any, clients: Iterable[int] = ()) -> Answers:
        asked = question if isinstance(question, Mapping) else {int(each): question for each in clients}
        self.asked.append(asked)
        found = {client: self.work(client, each) for client, each in asked.items()}
        replies = {client: answer for client, answer in found.items() if answer is not None}
        return Answers(replies, {client: "no reply" for client in asked if client not in replies})


# -- Label-prior correction ---------------------------------------------------------------------------------


def test_each_model_is_corrected_by_the_shares_it_was_trained_on() -> None:
    # One model for all has seen both classes alike. Clients with mostly class 0 get a shift above
    # 0 for class 0 and below for class 1.
    counts = np.array([[90, 10], [90, 10], [10, 90], [10, 90]])
    common = prior_shifts(counts, np.zeros(4, dtype=int))
    assert (common[:2, 0] > 0).all()
    assert (common[:2, 1] < 0).all()
    np.testing.assert_allclose(common[2:], common[:2, ::-1])
    # Within the groups all clients are alike: nothing is left to correct.
    assert not prior_shifts(counts, np.array([0, 0, 1, 1])).any()


def test_a_client_without_examples_is_not_corrected() -> None:
    counts = np.array([[90, 10], [0, 0], [10, 90]])
    shifts = prior_shifts(counts, np.zeros(3, dtype=int))
    assert not shifts[1].any()
    np.testing.assert_allclose(shifts[[0, 2]], prior_shifts(counts[[0, 2]], np.zeros(2, dtype=int)))
    assert not prior_shifts(np.zeros((2, 3), dtype=int), np.zeros(2, dtype=int)).any()


def test_who_fits_a_correction_does_so_whatever_its_bins() -> None:
    counts, clusters = np.array([[5, 5], [5, 5], [0, 0], [5, 5]]), np.array([0, 0, 0, -1])
    assert not prior_shifts(counts, clusters).any()  # the shares are alike
    assert prior_shifts(counts, clusters, fitted=True).tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
    assert shifts_for(counts[1:3], counts[:1], fitted=True).tolist() == [[1, 1], [0, 0]]


def test_measured_by_the_model_that_serves() -> None:
    own = Measured({"accuracy": np.array([0.1, 0.2, 0.3])}, {})
    common = Measured({"accuracy": np.array([0.7, 0.8, np.nan]), "auc": np.array([0.5, 0.5, 0.5])}, {})
    served = own.served(common, np.array([True, False, True]))
    assert served.figures["accuracy"][:2].tolist() == [0.7, 0.2]
    assert np.isnan(served.figures["accuracy"][2])
    assert served.figures["auc"][0] == pytest.approx(0.5)
    assert np.isnan(served.figures["auc"][1])


def test_clients_of_no_cluster_do_not_count_among_what_a_model_was_trained_on() -> None:
    counts = np.array([[90, 10], [10, 90], [50, 50], [80, 20]])
    shifts = prior_shifts(counts, np.array([0, 0, -1, -1]))
    assert not shifts[2:].any()
    np.testing.assert_allclose(shifts[:2], prior_shifts(counts[:2], np.zeros(2, dtype=int)))


# -- The printed figure ------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [set(), {3}, {0, 1, 2, 3}])
def test_clients_bet_where_fewer_rows_came_back_than_enough(silent: set[int]) -> None:
    # Four clients of 60 test rows in one group: 240 are enough for an interval of Hall's, and nobody bets.
    # Without client 3 there are 180, so the others are asked once more; client 2 is then silent, too.
    def work(client: int, asked: FigureQuestion) -> FigureAnswer | None:
        if client in silent or (asked.bets and client == 2):
            return None
        return FigureAnswer.of(Rows.of(np.zeros((2, 60)), np.zeros(60), np.ones((2, 60)), asked.bets))

    clients, twice = _Clients(work), silent == {3}
    found = ask_figures(clients, (ONE, COMMON), (ONE, COMMON))  # type: ignore[arg-type]
    asked = [{(client, each.bets) for client, each in questions.items()} for questions in clients.asked]
    assert asked[0] == {(client, False) for client in range(4)}
    assert asked[1:] == ([{(0, True), (1, True), (2, True)}] if twice else [])
    assert found.keys() == ({0, 1} if twice else {*range(4)} - silent)
    assert all(len(rows.brier.log_wealth) == (81 if twice else 0) for rows in found.values())


# -- Personal layers ---------------------------------------------------------------------------------------


def _answer(client: int, chosen: str, losses: dict, failed=None, **accuracies: float) -> PersonalAnswer:
    rest = {"num-examples": 3.0, "loss": 0.5, "balanced-accuracy": 0.5}
    figures = {layer: {"accuracy": value, **rest} for layer, value in accuracies.items()}
    return PersonalAnswer(client, figures, {}, losses, failed or {}, chosen)


def test_each_client_is_sent_the_model_that_serves_it_and_its_shares() -> None:
    clients = _Clients(lambda *_: None)
    layered = ask_personal(clients, SERVING, Auto(epochs=2), 8)  # type: ignore[arg-type]
    assert [float(clients.asked[0][client].model["w"].numpy()[0]) for client in range(4)] == [0, 0, 7, 7]
    assert {question.server_round for question in clients.asked[-1].values()} == {8}
    assert {question.finetune for question in clients.asked[-1].values()} == {Finetune(epochs=2)}
    # Cluster 0's model has seen clients 0 and 1, the model for all everybody; both have seen the classes
    # alike, so the summands have the same signs, but m̂ is of two clients or of four.
    own, everyone = prior_shifts(COUNTS[:2], np.zeros(2, dtype=int)), prior_shifts(COUNTS, ONE)
    assert not np.allclose(own, everyone[:2])
    for client, expected in enumerate([*own, *everyone[2:]]):
        np.testing.assert_allclose(clients.asked[0][client].shift, expected)
    np.testing.assert_allclose(layered.shifts, [*own, *everyone[2:]])


def test_prior_asks_for_no_training_and_finetune_for_no_counts() -> None:
    clients = _Clients(lambda *_: None)
    ask_personal(clients, SERVING, Prior(), 8)  # type: ignore[arg-type]
    assert {question.finetune for question in clients.asked[-1].values()} == {None}
    layered = ask_personal(clients, SERVING, Finetune(), 8)  # type: ignore[arg-type]
    assert {question.shift for question in clients.asked[-1].values()} == {None}
    assert layered.shifts is None


@pytest.mark.parametrize("personal", [Prior(), Auto()])
def test_a_correction_serves_who_has_chosen_it_and_can_use_it(personal: Prior | Auto) -> None:
    clients = _Clients(lambda client, _: _answer(client, "none", {}, prior=0.9) if client else None)
    chosen = np.array(["prior", "prior", "none", "prior"]), np.zeros((4, 2))
    layered = ask_personal(clients, SERVING, personal, 8, chosen)  # type: ignore[arg-type]
    assert layered.used[personal.choice].tolist() == ["none", "prior", "none", "prior"]
    bare = SERVING.measured.figures["accuracy"]
    served = layered.measured[personal.choice].figures["accuracy"]
    assert served.tolist() == [bare[0], 0.9, bare[2], 0.9]


def test_the_figures_are_those_of_the_layer_that_each_client_uses() -> None:
    answers = {
        0: _answer(0, "finetune", {"none": 0.9, "prior": 0.8, "finetune": 0.7}, prior=0.5, finetune=0.6),
        1: _answer(1, "none", {"none": 0.7, "prior": 0.7, "finetune": 0.7}, prior=0.5, finetune=0.6),
        # Fine-tuning failed; client 3 does not answer.
        2: _answer(2, "prior", {"none": 0.9, "prior": 0.8}, {"finetune": "diverged"}, prior=0.5),
    }
    clients = _Clients(lambda client, _: answers.get(client))
    layered = ask_personal(clients, SERVING, Auto(), 8)  # type: ignore[arg-type]
    assert {choice: used.tolist() for choice, used in layered.used.items()} == {
        "prior": ["prior", "prior", "prior", "none"],
        "finetune": ["finetune", "finetune", "none", "none"],
        "auto": ["finetune", "none", "prior", "none"],
    }
    # With fewer rows they choose together: finetune gains 0.2 and 0, prior 0.1, 0 and 0.1 with an error of
    # 0.033; client 2 has no finetune, so that is no choice, and client 3 did not answer.
    few = _Clients(lambda client, _: answers.get(client), validation=49)
    together = ask_personal(few, SERVING, Auto(), 8)  # type: ignore[arg-type]
    assert together.used["auto"].tolist() == ["prior", "prior", "prior", "none"]
    accuracies = {choice: each.figures["accuracy"].tolist() for choice, each in layered.measured.items()}
    assert accuracies == {
        "prior": [0.5, 0.5, 0.5, 0.4],
        "finetune": [0.6, 0.6, 0.3, 0.4],
        "auto": [0.6, 0.2, 0.5, 0.4],
    }
    assert layered.failures == {2: "finetune: diverged", 3: "no reply"}
    np.testing.assert_array_equal(layered.losses["finetune"], [0.7, 0.7, math.nan, math.nan])
    assert NONE.figures["accuracy"].tolist() == [0.1, 0.2, 0.3, 0.4]


# -- Confusion between clusters -----------------------------------------------------------------------------


def _confuse(assignment: Iterable[int], answers: Iterable[int], silent: int = -1) -> tuple[dict, _Clients]:
    """Client k counts k + 1 samples of class 0, answered with the number in the cluster's model."""

    def work(client: int, question: ConfusionQuestion) -> Confusion | None:
        counts = np.zeros((3, 3), dtype=int)
        counts[0, int(question.arrays["w"].numpy()[0])] = client + 1
        return None if client == silent else Confusion(counts)

    clients = _Clients(work)
    clusters = Clusters(np.array([*assignment]), tuple(map(_model, answers)))
    return confuse_clusters(clients, clusters), clients  # type: ignore[arg-type]


def test_every_model_answers_for_every_cluster() -> None:
    found, _ = _confuse([0, 1, 1, 0], [0, 2])
    np.testing.assert_array_equal(found["confusion_clusters"], [0, 1])
    # Cluster 0 has clients 0 and 3, with 1 + 4 samples; cluster 1 clients 1 and 2, with 2 + 3. Model 0
    # answers 0, model 1 answers 2.
    assert found["confusion"].shape == (2, 2, 3, 3)
    for row in (0, 1):
        np.testing.assert_array_equal(found["confusion"][row, :, 0], [[5, 0, 0], [0, 0, 5]])
    assert not found["confusion"][..., 1:, :].any()
    # A client that does not answer is left out.
    found, _ = _confuse([0, 1, 1, 0], [0, 2], silent=0)
    np.testing.assert_array_equal(found["confusion"].sum(axis=(2, 3)), [[4, 4], [5, 5]])


def test_no_confusion_if_a_cluster_does_not_answer_or_is_the_only_one() -> None:
    assert _confuse([0, 1], [0, 1], silent=1)[0] == {}
    found, clients = _confuse([0, 0], [0])
    assert (found, clients.asked) == ({}, [])


def test_the_four_largest_clusters_and_fifty_clients_of_each_are_asked() -> None:
    found, clients = _confuse([*[0] * 101, 1, 2, 2, 3, 3, 4, 4, 5, 5], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(found["confusion_clusters"], [0, 2, 3, 4])
    assert [len(asked) for asked in clients.asked] == [50 + 2 + 2 + 2] * 4
    assert {0, 100} <= set(clients.asked[0])


@pytest.mark.parametrize("liars", [(), (4,), (0, 11)])
def test_a_vote_is_judged_by_those_with_the_same_models(liars: tuple[int, ...]) -> None:
    # Clients 0 to 11 gain nothing by their group's model, 12 to 14 all there is by theirs. They compare other
    # models than the first twelve, and three are too few to judge a vote by.
    groups, recorded = np.repeat([0, 1], [12, 3]), []

    def answer(client: int) -> ProofAnswer:
        gain = -2.0 if client in liars else 2.0 if client > 11 else 0.0
        return ProofAnswer.of(evidence(np.full(20, gain)))

    federation: Any = SimpleNamespace(
        num_clients=15,
        clients=SimpleNamespace(plain=False),
        describe=lambda: SimpleNamespace(
            target=CLASSES, train_counts=np.full((15, 2), 5), num_validation=np.full(15, 20)
        ),
        ask=lambda asked: Answers({client: answer(client) for client in asked}, {}),
        failed=lambda *given: recorded.append(given),
    )
    measured, failures = ask_differences(federation, (np.zeros(15, dtype=int), COMMON), (groups, MODELS))
    reasons = {
        client: f"client {client}: vote must be likely next to those of the 11 others with the same models, "
        "got -2.00 on 20 rows"
        for client in liars
    }
    assert failures == reasons
    assert recorded == [(client, "query.proof", reason) for client, reason in reasons.items()]
    assert [*measured] == [client for client in range(15) if client not in liars]
