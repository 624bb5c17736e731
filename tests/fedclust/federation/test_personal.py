"""What the server asks and makes of the answers."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from fedclust.federation import Measured
from fedclust.federation.asking import Answers
from fedclust.federation.questions import Serving, ask_personal, prior_shifts
from fedclust.messages.codec import Bounds
from fedclust.messages.evaluation import PersonalAnswer, PersonalQuestion
from fedclust.personal.layers import Auto, Finetune, Prior

COUNTS = np.array([[90, 10], [10, 90], [90, 10], [10, 90]])
CLUSTERS, ONE = np.array([0, 0, 1, 1]), np.zeros(4, dtype=int)


def _model(value: float) -> ArrayRecord:
    record = ArrayRecord()
    record["w"] = Array(np.array([value]))
    return record


MODELS = (_model(0.0), _model(1.0))
COMMON = (_model(7.0),)
NONE = Measured({"accuracy": np.array([0.1, 0.2, 0.3, 0.4]), "loss": np.array([1.0, 1.0, 1.0, math.nan])})
SERVING = Serving(NONE, (CLUSTERS, MODELS), (ONE, COMMON), np.array([False, False, True, True]))


@dataclass
class _Clients:
    """Answers as it is told, and remembers what it was asked."""

    answers: dict[int, PersonalAnswer]
    asked: dict[int, Any] = field(default_factory=dict)
    num_clients: int = 4
    bounds: Bounds = field(default_factory=Bounds)

    def describe(self) -> Any:
        return SimpleNamespace(train_counts=COUNTS)

    def ask(self, questions: dict[int, PersonalQuestion]) -> Answers:
        self.asked = questions
        silent = {client: "no reply" for client in range(4) if client not in self.answers}
        return Answers(self.answers, silent)


def _answer(
    client: int, losses: dict[str, float], failed: dict[str, str] | None = None, **accuracies: float
) -> PersonalAnswer:
    rest = {"num-examples": 3.0, "loss": 0.5, "balanced-accuracy": 0.5}
    figures = {layer: {"accuracy": value, **rest} for layer, value in accuracies.items()}
    return PersonalAnswer(client, figures, {}, losses, failed or {})


def test_each_client_is_sent_the_model_that_serves_it_and_its_shares() -> None:
    clients = _Clients({})
    layered = ask_personal(clients, SERVING, Auto(epochs=2), 8)  # type: ignore[arg-type]
    assert [float(clients.asked[client].model["w"].numpy()[0]) for client in range(4)] == [0, 0, 7, 7]
    assert {question.server_round for question in clients.asked.values()} == {8}
    assert {question.finetune for question in clients.asked.values()} == {Finetune(epochs=2)}
    # Cluster 0's model has seen clients 0 and 1, the model for all everybody; both have seen the classes
    # alike, so the summands have the same signs, but m̂ is of two clients or of four.
    own, everyone = prior_shifts(COUNTS[:2], np.zeros(2, dtype=int)), prior_shifts(COUNTS, ONE)
    assert not np.allclose(own, everyone[:2])
    for client, expected in enumerate([*own, *everyone[2:]]):
        np.testing.assert_allclose(clients.asked[client].shift, expected)
    assert layered.shifts is not None
    np.testing.assert_allclose(layered.shifts, [*own, *everyone[2:]])


def test_prior_asks_for_no_training_and_finetune_for_no_counts() -> None:
    clients = _Clients({})
    ask_personal(clients, SERVING, Prior(), 8)  # type: ignore[arg-type]
    assert {question.finetune for question in clients.asked.values()} == {None}
    layered = ask_personal(clients, SERVING, Finetune(), 8)  # type: ignore[arg-type]
    assert {question.shift for question in clients.asked.values()} == {None}
    assert layered.shifts is None


def test_the_figures_are_those_of_the_layer_that_each_client_uses() -> None:
    clients = _Clients(
        {
            # Least loss: fine-tuning.
            0: _answer(0, {"none": 0.9, "prior": 0.8, "finetune": 0.7}, prior=0.5, finetune=0.6),
            # A tie with none.
            1: _answer(1, {"none": 0.7, "prior": 0.7, "finetune": 0.7}, prior=0.5, finetune=0.6),
            # Fine-tuning failed.
            2: _answer(2, {"none": 0.9, "prior": 0.8}, {"finetune": "diverged"}, prior=0.5),
            # Client 3 does not answer.
        }
    )
    layered = ask_personal(clients, SERVING, Auto(), 8)  # type: ignore[arg-type]
    assert {choice: used.tolist() for choice, used in layered.used.items()} == {
        "prior": ["prior", "prior", "prior", "none"],
        "finetune": ["finetune", "finetune", "none", "none"],
        "auto": ["finetune", "none", "prior", "none"],
    }
    accuracies = {choice: each.figures["accuracy"].tolist() for choice, each in layered.measured.items()}
    assert accuracies == {
        "prior": [0.5, 0.5, 0.5, 0.4],
        "finetune": [0.6, 0.6, 0.3, 0.4],
        "auto": [0.6, 0.2, 0.5, 0.4],
    }
    assert layered.failures == {2: "finetune: diverged", 3: "no reply"}
    np.testing.assert_array_equal(layered.losses["finetune"], [0.7, 0.7, math.nan, math.nan])
    assert NONE.figures["accuracy"].tolist() == [0.1, 0.2, 0.3, 0.4]
