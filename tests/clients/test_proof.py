"""A client's comparison of two models."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, RecordDict

from fedclust.clients.node import Node
from fedclust.data import FederatedData
from fedclust.messages.codec import BadReply, Reading, decode, encode
from fedclust.messages.evaluation import ProofAnswer, ProofQuestion
from fedclust.messages.models import from_state, to_state
from fedclust.proof import Difference

C = 10
EVEN = np.zeros(C)


def _undecided(model: ArrayRecord) -> ArrayRecord:
    """Make a model whose logits are all 0."""
    state = to_state(model)
    return from_state({name: torch.zeros_like(tensor) for name, tensor in state.items()})


def _ask(node, questions: dict[int, ProofQuestion]) -> tuple[dict[int, Difference], dict[int, str]]:
    return node({"clients": "0-5"}).told(questions)


def test_three_numbers_by_hand(node, federation: FederatedData, model: ArrayRecord) -> None:
    # Both models' logits are 0. A without a shift gives each class 1/10:
    #   Brier score (9/10)² + 9·(1/10)² = 0.9 for every row.
    # B with ln 9 added to class 3 gives it 9/(9 + 9) = 1/2 and each other class 1/18:
    #   a 3: (1/2)² + 9·(1/18)² = 0.25 + 9/324; another: (1/2)² + (17/18)² + 8·(1/18)² = 0.25 + 297/324.
    undecided, shift = _undecided(model), EVEN.copy()
    shift[3] = math.log(9)
    question = ProofQuestion(undecided, undecided, EVEN, shift)
    told, errors = _ask(node, dict.fromkeys(range(6), question))
    assert not errors
    assert told.keys() == set(range(6))
    some = 0
    for client, answer in told.items():
        rows = federation.validation[client]
        threes = int((federation.labels[rows] == 3).sum())
        others = len(rows) - threes
        some += threes
        gain_three, gain_other = 0.9 - (0.25 + 9 / 324), 0.9 - (0.25 + 297 / 324)
        mean = (threes * gain_three + others * gain_other) / len(rows)
        squares = threes * (gain_three - mean) ** 2 + others * (gain_other - mean) ** 2
        assert answer.count == len(rows) >= 2
        assert answer.mean == pytest.approx(mean, abs=1e-7)
        assert answer.variance == pytest.approx(squares / (len(rows) - 1), abs=1e-7)
    assert some > 0


def test_as_a_slow_loop_has_it(
    node, federation: FederatedData, model: ArrayRecord, network: torch.nn.Module
) -> None:
    first, second = model, _undecided(model)
    shifts = np.random.default_rng(0).normal(size=(6, 2, C))
    asked = {c: ProofQuestion(first, second, shifts[c, 0], shifts[c, 1]) for c in range(6)}
    told, _ = _ask(node, asked)
    mean, std = federation.mean[0], federation.std[0]
    for client in range(6):
        differences = []
        for row in federation.validation[client]:
            image = (federation.inputs[row : row + 1].float() / 255 - mean) / std
            scores = []
            for state, shift in ((first, shifts[client, 0]), (second, shifts[client, 1])):
                network.load_state_dict(to_state(state))
                with torch.no_grad():
                    logits = network.eval()(image)[0].double().numpy() + shift
                p = np.exp(logits) / np.exp(logits).sum()
                truth = int(federation.labels[row])
                scores.append(sum((p[c] - (c == truth)) ** 2 for c in range(C)))
            differences.append(scores[0] - scores[1])
        assert told[client].mean == pytest.approx(np.mean(differences), abs=1e-5)
        assert told[client].variance == pytest.approx(np.var(differences, ddof=1), abs=1e-5)


def test_clients_may_be_asked_about_different_models(node, model: ArrayRecord) -> None:
    other = _undecided(model)
    apart = {
        0: ProofQuestion(model, other, EVEN, EVEN),
        1: ProofQuestion(other, model, EVEN, EVEN),
        2: ProofQuestion(other, other, EVEN, EVEN),
    }
    told, _ = _ask(node, apart)
    reverse, _ = _ask(node, {0: apart[1], 1: apart[0]})
    assert told[0].mean == pytest.approx(-reverse[0].mean)
    assert told[1].mean == pytest.approx(-reverse[1].mean)
    assert (told[2].mean, told[2].variance) == (0, 0)


def test_a_model_that_diverged_fails_its_client_alone(node, model: ArrayRecord, broken: ArrayRecord) -> None:
    fine = ProofQuestion(model, model, EVEN, EVEN)
    told, errors = _ask(node, {0: fine, 1: ProofQuestion(model, broken, EVEN, EVEN), 2: fine})
    assert told.keys() == {0, 2}
    assert list(errors) == [1]
    assert "logits must be finite" in errors[1]


def test_a_client_without_held_out_rows_says_so(
    node, federation: FederatedData, model: ArrayRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Node.of

    def without(context):
        found = honest(context)
        validation = (np.zeros(0, dtype=np.int64), *found.data.validation[1:])
        return dataclasses.replace(found, data=dataclasses.replace(found.data, validation=validation))

    monkeypatch.setattr(Node, "of", without)
    question = ProofQuestion(model, model, EVEN, EVEN)
    told, errors = _ask(node, {0: question, 1: question})
    assert not errors
    assert (told[0].mean, told[0].variance, told[0].count) == (0, 0, 0)
    assert told[1].count == len(federation.validation[1])


@pytest.mark.parametrize(
    ("mean", "variance", "count", "rule"),
    [
        (2.5, 0.0, 3, "mean must be in"),
        (float("nan"), 0.0, 3, "mean must be in"),
        (0.0, -1.0, 3, "variance must be in"),
        (0.0, 9.0, 3, "variance must be in"),
        (0.0, 0.0, -1, "count must be in"),
    ],
)
def test_numbers_that_cannot_be_are_refused(mean: float, variance: float, count: int, rule: str) -> None:
    asked = Reading(4, asked=ProofQuestion(ArrayRecord(), ArrayRecord(), EVEN, EVEN))
    with pytest.raises(BadReply, match=f"client 4: {rule}"):
        decode(ProofAnswer, encode(ProofAnswer(mean, variance, count)), asked)
    with pytest.raises(BadReply, match="client 4: no 'difference' in reply"):
        decode(ProofAnswer, RecordDict(), asked)
