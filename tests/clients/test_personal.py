"""What a client measures with personal layers."""

import dataclasses

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch.nn import functional

from fedclust.clients.node import Node
from fedclust.data import FederatedData
from fedclust.messages.codec import SERVER, BadReply, Reading, decode, encode
from fedclust.messages.evaluation import PersonalAnswer, PersonalQuestion
from fedclust.messages.models import to_state
from fedclust.personal.layers import Finetune
from fedclust.training.cohort import draw_batches
from fedclust.training.parameters import LocalTraining


def _ask(node, asked: dict[int, PersonalQuestion]) -> tuple[dict[int, PersonalAnswer], dict[int, str]]:
    return node({"clients": "0-5"}).told(asked)


def _images(federation: FederatedData, rows: np.ndarray) -> torch.Tensor:
    return (federation.inputs[rows].float() / 255 - federation.mean[0]) / federation.std[0]


def _figures(network, federation: FederatedData, rows: np.ndarray, shift: float | np.ndarray) -> tuple:
    labels = federation.labels[torch.from_numpy(rows)]
    network.eval()
    with torch.no_grad():
        logits = network(_images(federation, rows)) + torch.as_tensor(shift, dtype=torch.float32)
    loss = functional.cross_entropy(logits, labels)
    return float(loss), float((logits.argmax(1) == labels).float().mean())


def test_as_a_slow_loop_has_it(
    node, federation: FederatedData, model: ArrayRecord, network: torch.nn.Module
) -> None:
    shifts = np.random.default_rng(0).normal(size=(6, 10))
    how = Finetune(epochs=2, learning_rate=0.05)
    asked = {client: PersonalQuestion.of(model, 9, shifts[client], how) for client in range(6)}
    told, errors = _ask(node, asked)
    assert not errors
    assert told.keys() == set(range(6))
    start, federation_seed = to_state(model), 0
    training = LocalTraining(learning_rate=0.05, batch_size=16, epochs=2)
    for client, answer in told.items():
        assert not answer.failed
        test, held_out = federation.test[client], federation.validation[client]
        network.load_state_dict(start)
        loss, accuracy = _figures(network, federation, test, shifts[client])
        assert answer.tests["prior"].metrics["loss"] == pytest.approx(loss, rel=1e-4)
        assert answer.tests["prior"].metrics["accuracy"] == pytest.approx(accuracy)
        assert answer.losses["none"] == pytest.approx(
            _figures(network, federation, held_out, 0.0)[0], rel=1e-4
        )
        expected = _figures(network, federation, held_out, shifts[client])[0]
        assert answer.losses["prior"] == pytest.approx(expected, rel=1e-4)
        network.train()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
        batches = draw_batches([client], [federation.train[client]], training, federation_seed, 9)
        for rows, size in zip(batches.rows[0], batches.sizes[0], strict=True):
            batch = rows[:size]
            labels = federation.labels[torch.from_numpy(batch)]
            loss = functional.cross_entropy(network(_images(federation, batch)), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        loss, accuracy = _figures(network, federation, test, 0.0)
        assert answer.tests["finetune"].metrics["loss"] == pytest.approx(loss, rel=1e-3)
        assert answer.tests["finetune"].metrics["accuracy"] == pytest.approx(accuracy)
        expected = _figures(network, federation, held_out, 0.0)[0]
        assert answer.losses["finetune"] == pytest.approx(expected, rel=1e-3)


def test_what_is_not_asked_for_is_not_done(node, model: ArrayRecord) -> None:
    question = PersonalQuestion(model, 4)
    answers, errors = node({"clients": "0-5"}).ask_clients("query.personal", {0: encode(question)})
    assert not errors
    assert sorted(answers[0]) == ["failed", "validation-losses"]
    more = Reading(0, asked=PersonalQuestion(model, 4, np.zeros(10)))
    with pytest.raises(BadReply, match="^client 0: no 'figures/prior' in reply"):
        decode(PersonalAnswer, answers[0], more)


def test_a_client_that_cannot_fine_tune_says_so_and_answers_the_rest(node, model: ArrayRecord) -> None:
    asked = {
        client: PersonalQuestion.of(
            model, 4, np.zeros(10), Finetune(epochs=1, learning_rate=1e30 if client == 2 else 0.1)
        )
        for client in range(3)
    }
    told, errors = _ask(node, asked)
    assert not errors
    assert told[2].failed.keys() == {"finetune"}
    assert "non-finite" in told[2].failed["finetune"] or "2^24" in told[2].failed["finetune"]
    assert told[2].tests.keys() == {"prior"}
    assert told[2].losses.keys() == {"none", "prior"}
    for client in (0, 1):
        assert not told[client].failed
        assert told[client].tests.keys() == {"prior", "finetune"}


def test_a_model_without_numbers_costs_its_client_only(node, model: ArrayRecord, broken: ArrayRecord) -> None:
    asked = {
        client: PersonalQuestion(broken if client == 1 else model, 4, np.zeros(10)) for client in range(3)
    }
    told, _ = _ask(node, asked)
    assert np.isnan(told[1].losses["none"])
    assert told[0].losses["none"] > 0


def test_without_validation_rows_there_are_no_losses(
    node, model: ArrayRecord, federation: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Node.of.__func__  # type: ignore[attr-defined]

    def without(cls: type[Node], context: object) -> Node:
        found = of(cls, context)
        return dataclasses.replace(found, data=dataclasses.replace(found.data, validation=()))

    monkeypatch.setattr(Node, "of", classmethod(without))
    told, errors = _ask(node, {0: PersonalQuestion(model, 4, np.zeros(10))})
    assert not errors
    assert told[0].losses == {}
    assert told[0].tests.keys() == {"prior"}


def test_counts_that_do_not_fit_are_refused() -> None:
    content = RecordDict(
        {
            "figures/prior": MetricRecord(
                {"accuracy": 1.0, "balanced-accuracy": 1.0, "loss": 0.1, "num-examples": 3.0}
            ),
            "outcomes/prior": ArrayRecord({"class-counts": torch.ones(2, 3, dtype=torch.uint8)}),
            "failed": ConfigRecord(),
        }
    )
    with pytest.raises(BadReply, match="^client 3: class-counts must have shape"):
        decode(PersonalAnswer, content, Reading(3, asked=PersonalQuestion(ArrayRecord(), 1, np.zeros(3))))


def test_a_question_without_a_model_is_refused(model: ArrayRecord) -> None:
    with pytest.raises(ValueError, match="^the server's message: no 'arrays' in reply"):
        decode(PersonalQuestion, RecordDict(), SERVER)
    asked = PersonalQuestion.of(model, 4, None, Finetune(layers="last"))
    assert asked.finetune == Finetune(layers="last")
    assert asked.shift is None
    assert asked.server_round == 4
