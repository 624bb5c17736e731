import numpy as np
import pytest
import torch

from fedclust.messages.codec import METRICS
from fedclust.messages.models import from_state, to_state
from fedclust.training.trainer import Trainer

SEVERAL = {"clients": "0-3"}


def _metrics(content) -> dict[str, float]:
    return dict(content.metric_records[METRICS])


def test_each_client_measures_on_its_own_test_part(node, tell, network, federation) -> None:
    content = tell()
    contents, errors = node(SEVERAL).ask_clients("evaluate", {1: content, 3: content})
    assert errors == {}
    for client in (1, 3):
        losses, hits = [], []
        for row in federation.test[client]:  # one example after the other
            pixels = (federation.inputs[row].float() / 255 - federation.mean[0]) / federation.std[0]
            with torch.no_grad():
                shares = torch.softmax(network(pixels.unsqueeze(0)), dim=1)[0]
            label = int(federation.labels[row])
            losses.append(-np.log(float(shares[label])))
            hits.append(int(shares.argmax()) == label)
        measured = _metrics(contents[client])
        assert measured["num-examples"] == len(federation.test[client])
        assert measured["accuracy"] == pytest.approx(np.mean(hits))
        assert measured["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
        assert measured.keys() == {"num-examples", "loss", "accuracy", "balanced-accuracy"}


def test_what_takes_longer_is_measured_when_asked_for(node, tell) -> None:
    contents, _ = node(SEVERAL).ask_clients("evaluate", {0: tell(full=True), 1: tell()})
    assert {"macro-f1", "auc"} <= _metrics(contents[0]).keys()
    assert "outcomes" in contents[0]
    assert "outcomes" not in contents[1]
    assert not {"macro-f1", "auc"} & _metrics(contents[1]).keys()


def test_each_cluster_measures_its_own_model(node, tell, model) -> None:
    other = from_state({name: -tensor for name, tensor in to_state(model).items()})
    both, _ = node(SEVERAL).ask_clients("evaluate", {0: tell(), 1: tell(other)})
    swapped, _ = node(SEVERAL).ask_clients("evaluate", {0: tell(other), 1: tell()})
    for client in (0, 1):
        assert _metrics(both[client])["loss"] != pytest.approx(_metrics(swapped[client])["loss"])


def test_an_only_client_answers_a_plain_message(node, tell) -> None:
    contents, _ = node(SEVERAL).ask_clients("evaluate", {2: tell()})
    assert _metrics(node({"clients": "2"}).ask("evaluate", tell()).content) == _metrics(contents[2])


def test_data_that_cannot_be_evaluated_cost_one_client(node, tell, federation, monkeypatch) -> None:
    honest = Trainer.evaluate

    def evaluate(self, jobs, *, full=False, own=True):
        if any(job.client == 1 for job in jobs):
            raise KeyError("an odd batch")
        return honest(self, jobs, full=full, own=own)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    content = tell()
    contents, errors = node(SEVERAL).ask_clients("evaluate", {0: content, 1: content, 3: content})
    assert errors == {1: "KeyError: 'an odd batch'"}
    assert sorted(contents) == [0, 3]
    assert _metrics(contents[3])["num-examples"] == len(federation.test[3])
