"""What a client says of several models' responsibility for its rows, and how it trains with it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.clients import mixtures, train
from fedclust.clients.node import Node, node_of_objects
from fedclust.data.arrays import from_arrays
from fedclust.messages.coalitions import ALL_ROWS, name_of
from fedclust.messages.codec import BadReply, Reading
from fedclust.messages.mixtures import Responsibilities, ResponsibilitiesQuestion
from fedclust.messages.models import from_state, to_state
from fedclust.messages.training import Instruction
from fedclust.training import LocalTraining

RATE, OMEGA = 0.5, np.array([0.7, 0.1, 0.2])
SHARES = np.array([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8]])


@pytest.fixture
def site() -> Node:
    """Return two clients of 11 and 12 training rows in three classes, which take two steps an epoch."""
    draws, parts = np.random.default_rng(0), []
    for rows in (11, 12):
        pairs = [(draws.normal(size=(n, 2)).astype("f4"), draws.integers(0, 3, n)) for n in (rows, 0, 5)]
        parts.append(tuple(pairs))
    how = LocalTraining(learning_rate=RATE, batch_size=100, epochs=1)
    return node_of_objects(from_arrays(parts), nn.Linear(2, 3), how, seed=0, device="cpu")


def _models():
    draws = torch.Generator().manual_seed(0)
    shapes = {"weight": (3, 2), "bias": (3,)}
    return tuple(
        from_state({name: torch.randn(shape, generator=draws) for name, shape in shapes.items()})
        for _ in range(3)
    )


def _gamma(site: Node, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's responsibilities, in the order of its training rows, and its label."""
    found, labels = [], []
    for row in site.data.train[client]:
        label = int(site.data.labels[row])
        weights = []
        for model, omega, shares in zip(_models(), OMEGA, SHARES, strict=True):
            state = to_state(model)
            logits = functional.linear(site.data.inputs[row], state["weight"], state["bias"])
            weights.append(omega * float(logits.softmax(0)[label]) / shares[label])
        found.append(np.divide(weights, sum(weights)))
        labels.append(label)
    return np.array(found), np.array(labels)


def test_sums_by_class_are_those_of_a_literal_loop(site) -> None:
    question = ResponsibilitiesQuestion.of(_models(), OMEGA, SHARES)
    answers, errors = mixtures.responsibilities(site, {0: question, 1: question})
    assert errors == {}
    for client, answer in answers.items():
        gamma, labels = _gamma(site, client)
        expected = [[gamma[labels == label, k].sum() for label in range(3)] for k in range(3)]
        np.testing.assert_allclose(answer.sums, expected, rtol=1e-5)


def test_each_model_trains_with_its_own_weights(site) -> None:
    models = _models()
    arms = {name_of(10, ALL_ROWS): models[2], name_of(2, ALL_ROWS): models[1]}  # by number, not by name
    asked = Instruction(models[0], 1, arms=arms, mixture=OMEGA, label_shares=SHARES.ravel())
    answers, errors = train.train(site, {0: asked, 1: asked})
    assert errors == {}
    for client, answer in answers.items():
        gamma, labels = _gamma(site, client)
        inputs = site.data.inputs[site.data.train[client]]
        sent = answer.arrays, answer.arms[name_of(2, ALL_ROWS)], answer.arms[name_of(10, ALL_ROWS)]
        for k, (model, trained) in enumerate(zip(models, sent, strict=True)):
            state = {name: tensor.requires_grad_() for name, tensor in to_state(model).items()}
            logits = functional.linear(inputs, state["weight"], state["bias"])
            losses = functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none")
            (losses * torch.from_numpy(gamma[:, k]).float()).mean().backward()
            for name, tensor in to_state(trained).items():
                expected = state[name].detach() - RATE * state[name].grad
                torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-6)


def test_a_client_whose_rows_a_model_cannot_read_fails_alone(site, monkeypatch) -> None:
    of_all = site.trainer.losses

    def losses(jobs):
        if any(job.client == 1 for job in jobs):
            raise RuntimeError("no")
        return of_all(jobs)

    monkeypatch.setattr(site.trainer, "losses", losses)
    asked = Instruction(_models()[0], 1, mixture=np.ones(1), label_shares=SHARES[0])
    answers, errors = train.train(site, {0: asked, 1: asked})
    assert list(answers) == [0]
    assert list(errors) == [1]


def test_sums_of_another_number_of_models_are_refused() -> None:
    at = Reading(7, 3, asked=ResponsibilitiesQuestion.of(_models(), OMEGA, SHARES))
    with pytest.raises(BadReply, match="client 7, round 3: sums must be of 3 models, got 2"):
        Responsibilities(np.ones((2, 3))).check(at)
