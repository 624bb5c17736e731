import numpy as np
import pytest
import torch

from fedclust.messages.codec import encode
from fedclust.messages.evaluation import LossesQuestion
from fedclust.messages.models import from_state, to_state
from fedclust.training.trainer import Trainer

SEVERAL = {"clients": "0-3"}


@pytest.fixture
def two_models(model) -> list:
    """The network, and the same one with its last layer turned round."""
    state = to_state(model)
    *_, last = state
    return [model, from_state({**state, last: state[last] + torch.arange(10.0)})]


def _answer(content) -> tuple[list[float], list[int]]:
    listed = content["losses"]
    return listed["losses"], listed["wins"]


def test_each_client_measures_every_model_on_its_whole_training_part(
    node, network, two_models, federation
) -> None:
    question = encode(LossesQuestion(two_models))
    contents, errors = node(SEVERAL).ask_clients("query.losses", {1: question, 3: question})
    assert errors == {}
    for client in (1, 3):
        by_row = np.zeros((2, len(federation.train[client])))
        for number, each in enumerate(two_models):
            network.load_state_dict(to_state(each))
            for position, row in enumerate(federation.train[client]):  # one example after the other
                pixels = (federation.inputs[row].float() / 255 - federation.mean[0]) / federation.std[0]
                with torch.no_grad():
                    shares = torch.softmax(network(pixels.unsqueeze(0)), dim=1)[0]
                by_row[number, position] = -np.log(float(shares[int(federation.labels[row])]))
        losses, wins = _answer(contents[client])
        np.testing.assert_allclose(losses, by_row.mean(axis=1), rtol=1e-4)
        first = int((by_row[0] <= by_row[1]).sum())
        assert 0 < first < by_row.shape[1]
        assert wins == [first, by_row.shape[1] - first]


def test_a_row_on_which_models_tie_counts_for_the_first(node, model, federation) -> None:
    question = encode(LossesQuestion([model, model]))
    contents, _ = node(SEVERAL).ask_clients("query.losses", {2: question})
    assert _answer(contents[2])[1] == [len(federation.train[2]), 0]


def test_all_clients_go_through_a_model_together(node, two_models, monkeypatch) -> None:
    calls = []
    honest = Trainer.losses

    def losses(self, jobs):
        calls.append(sorted((job.client, id(job.state)) for job in jobs))
        return honest(self, jobs)

    monkeypatch.setattr(Trainer, "losses", losses)
    question = encode(LossesQuestion(two_models))
    node(SEVERAL).ask_clients("query.losses", dict.fromkeys(range(4), question))
    (jobs,) = calls
    assert len(jobs) == 8
    assert len({state for _, state in jobs}) == 2  # shared objects, which are evaluated together


def test_data_that_cannot_be_measured_cost_one_client(node, two_models, monkeypatch) -> None:
    honest = Trainer.losses

    def losses(self, jobs):
        if any(job.client == 1 for job in jobs):
            raise RuntimeError("no such token")
        return honest(self, jobs)

    monkeypatch.setattr(Trainer, "losses", losses)
    question = encode(LossesQuestion(two_models))
    contents, errors = node(SEVERAL).ask_clients("query.losses", dict.fromkeys(range(3), question))
    assert errors == {1: "RuntimeError: no such token"}
    assert sorted(contents) == [0, 2]
