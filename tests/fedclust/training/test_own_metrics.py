"""Metrics and losses of the user's own, in evaluation and through whole runs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedclust
from fedclust.settings import build, compose
from fedclust.training import Job, LocalTraining, Trainer
from fedclust.training.losses import binary_cross_entropy
from fedclust.training.own_metrics import check_names, measure


def top_two(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """One per example: whether the label is among the two largest outputs."""
    return (outputs.topk(2).indices == labels[:, None]).any(1).float()


def largest(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """A number of all the client's rows together."""
    return float(outputs.max())


OUTPUTS = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [0.0, 5.0, 1.0]])
LABELS = torch.tensor([1, 0, 1])


def test_a_number_or_one_per_example() -> None:
    # Client 0 has rows 0 and 1, of which row 0's label is in its top two; client 1 none; client 2 row 2.
    first, none, last = measure(
        {"top_two": top_two, "largest": largest}, np.array([2, 0, 1]), OUTPUTS, LABELS
    )
    assert first == {"top_two": 0.5, "largest": 3.0}
    assert math.isnan(none["top_two"])
    assert last == {"top_two": 1.0, "largest": 5.0}


class OnGpu(torch.Tensor):
    """A tensor that NumPy refuses until it is copied to the CPU, as it does a GPU's."""

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def test_metrics_may_use_numpy_wherever_the_model_computes() -> None:
    def hits(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        return float((outputs.numpy().argmax(1) == labels.numpy()).mean())

    with pytest.raises(TypeError, match="can't convert"):
        hits(OUTPUTS.as_subclass(OnGpu), LABELS.as_subclass(OnGpu))
    # The largest outputs are of classes 0, 2 and 1, the labels are 1, 0 and 1: one of three.
    (found,) = measure({"hits": hits}, np.array([3]), OUTPUTS.as_subclass(OnGpu), LABELS.as_subclass(OnGpu))
    assert found == {"hits": pytest.approx(1 / 3)}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"accuracy": largest}, "must not have the name of an existing figure, got 'accuracy'"),
        ({"cluster": largest}, "must not have the name of an existing figure, got 'cluster'"),
        ({"top-2": largest}, "names of letters, digits and underscores, got 'top-2'"),
        ({"top": 3}, "metrics.top must be a function of outputs and labels, got 3"),
    ],
)
def test_names_and_functions(metrics: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_names(metrics)


def test_a_metric_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"metrics.all must return a number, or one per example, shape .3."):
        measure({"all": lambda outputs, labels: outputs}, np.array([3]), OUTPUTS, LABELS)


@pytest.mark.parametrize("full", [False, True])
def test_evaluation_has_the_loss_and_the_metrics(small: Any, full: bool) -> None:
    model, data = small.build("linear"), small.federation("linear")
    training = LocalTraining(
        learning_rate=0.1, batch_size=8, epochs=1, loss=binary_cross_entropy, evaluation_batch_size=7
    )
    trainer = Trainer(model, data, training, seed=0, metrics={"top_two": top_two, "largest": largest})
    jobs = [Job(client, data.test[client], small.start_of(model)) for client in (2, 0, 4)]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    for job, got in zip(jobs, trainer.evaluate(jobs, full=full), strict=True):
        losses, hits, values = [], [], []
        for row in job.rows:
            outputs = model((data.inputs[row : row + 1] / 255 - mean) / std).detach()[0]
            chances = 1 / (1 + np.exp(-outputs.double().numpy()))
            label = int(data.labels[row])
            losses.append(-np.log([c if i == label else 1 - c for i, c in enumerate(chances)]).mean())
            hits.append(label in np.argsort(outputs.numpy())[-2:])
            values.append(float(outputs.max()))
        assert got.figures["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert got.figures["top_two"] == pytest.approx(np.mean(hits))
        assert got.figures["largest"] == pytest.approx(max(values), rel=1e-5)
    assert "top_two" not in trainer.evaluate(jobs, own=False)[0].figures


def test_a_run_of_ones_own_arrays() -> None:
    draws = np.random.default_rng(0)
    clients = [(draws.normal(size=(40, 4)).astype(np.float32), draws.integers(0, 3, 40)) for _ in range(4)]
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, loss=binary_cross_entropy)
    network = nn.Linear(4, 3)
    result = fedclust.simulate(
        "fedavg", network, clients, rounds=2, training=training, metrics={"top_two": top_two}
    )
    per_client = result.clients["top_two"].to_numpy()
    assert ((per_client > 0) & (per_client <= 1)).all()
    assert result.summary["top_two"] == pytest.approx(per_client.mean())
    assert result.rounds["top_two"].iloc[-1] == pytest.approx(per_client.mean())
    x, y = clients[0]
    with torch.no_grad():
        outputs = result.model_of(0)(torch.from_numpy(x))
    expected = float(binary_cross_entropy(outputs, torch.from_numpy(y)).mean())
    assert result.losses(x, y)[0] == pytest.approx(expected)


def test_a_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_this_test.py").write_text(
        "from torch.nn import functional\n\n\n"
        "def smooth(outputs, labels, amount):\n"
        "    return functional.cross_entropy(outputs, labels, reduction='none', label_smoothing=amount)\n\n\n"
        "def margin(outputs, labels):\n"
        "    first, second = outputs.topk(2).values.unbind(1)\n"
        "    return first - second\n"
    )
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "smooth.yaml").write_text(
        "_target_: mine_of_this_test.smooth\n_partial_: true\namount: 0.1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = [f"hydra.searchpath=[{tmp_path}]", "loss=smooth", "loss.amount=0.2", "strategy=fedavg"]
    result = fedclust.run(
        [
            *overrides, "compare=[]", "rounds=1", "partition.groups=[2,1]", "partition.num_clients=3",
            "+metrics.margin={_target_: mine_of_this_test.margin, _partial_: true}",
            f"output_dir={tmp_path}/out",
        ]
    )  # fmt: skip
    training = build(compose(overrides).training)
    assert training.loss.keywords == {"amount": 0.2}
    assert (result.clients["margin"] > 0).all()
    assert result.summary["margin"] == pytest.approx(result.clients["margin"].mean())
    assert result._loss.keywords == {"amount": 0.2}
    with pytest.raises(ValueError, match=r"training.loss._target_ must be allowed, got .mine_of_this_test"):
        fedclust.load(result.folder)
    allowed = fedclust.load(result.folder, allow="mine_of_this_test.smooth")
    assert allowed._loss.keywords == {"amount": 0.2}
