"""Evaluation against one example at a time, scikit-learn and hand-worked values; users' metrics."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import nn
from torch.nn import functional

import fedclust
from fedclust.data.dataset import FederatedData
from fedclust.data.targets import classes
from fedclust.data.targets.classes import scores_by_client
from fedclust.settings.composition import build, compose
from fedclust.training import LocalTraining
from fedclust.training.cohort import Job
from fedclust.training.evaluation import check_names, measure_own
from fedclust.training.losses import binary_cross_entropy
from fedclust.training.working_model import WorkingModel

from .conftest import Written

FIGURES = ("num-examples", "loss", "accuracy", "balanced-accuracy")


@pytest.mark.parametrize("kind", ["batch norm", "dropout", "positions"])
@pytest.mark.parametrize("batch_size", [7, 1000])
def test_evaluation_equals_one_example_at_a_time(small, kind: str, batch_size: int) -> None:
    made = small.set_up(kind, evaluation_batch_size=batch_size)
    model, data, first = made.model, made.data, made.start
    second = {name: (tensor * 1.5).to(tensor.dtype) for name, tensor in first.items()}
    states = [first, second, first, second, {name: tensor.clone() for name, tensor in first.items()}]
    # After some training, so that what the trainer keeps cannot pass for what it is given.
    list(made.trainer.train(made.jobs, 1))
    jobs = [Job(client, data.test[client], states[client]) for client in (3, 0, 4, 1, 2)]
    for job, got in zip(jobs, made.trainer.evaluate(jobs), strict=True):
        model.load_state_dict(job.state)
        model.eval()
        losses, hits, labels = [], [], []
        for row in job.rows:
            logits = model(small.normalised(data, data.inputs[row : row + 1])).detach().flatten(0, -2)
            truth = data.labels[row].reshape(-1)
            losses.append(functional.cross_entropy(logits, truth).item())
            hits += (logits.argmax(-1) == truth).tolist()
            labels += truth.tolist()
        recalls = [np.mean(np.array(hits)[np.array(labels) == label]) for label in sorted(set(labels))]
        assert got.outcomes is None
        figures = [len(job.rows), np.mean(losses), np.mean(hits), np.mean(recalls)]
        assert got.figures == pytest.approx(dict(zip(FIGURES, figures, strict=True)), rel=1e-4)


@pytest.mark.parametrize(("kind", "most"), [("convolution", 128), ("linear", 300)])
def test_evaluation_takes_128_rows_through_convolutions_on_a_cpu(small, kind, most) -> None:
    made = small.set_up(kind)
    seen: list[int] = []
    made.trainer._working.model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    rows = np.resize(np.concatenate(made.data.test), 300)
    made.trainer.evaluate([Job(0, rows, made.start)])
    assert seen == ([128, 128, 300 - 2 * 128] if most == 128 else [300])


@pytest.mark.parametrize(("kind", "positions"), [("linear", 1), ("positions", 6)])
def test_not_all_outputs_are_kept_at_once(small, kind, positions, monkeypatch) -> None:
    made = small.set_up(kind)
    assert (made.data.labels[0].numel(), made.data.num_classes) == (positions, 3)
    trainer, jobs = made.trainer, made.jobs
    assert [len(job.rows) for job in jobs] == [1, 9, 20, 8, 13]
    expected = trainer.evaluate(jobs, full=True)
    kept: list[list[int]] = []
    reduce = classes.scores_by_client

    def counted(counts: np.ndarray, *rest) -> list:
        kept.append(counts.tolist())
        return reduce(counts, *rest)

    monkeypatch.setattr(classes, "scores_by_client", counted)
    monkeypatch.setattr("fedclust.training.trainer._MOST_VALUES", 15 * positions * 3)  # those of 15 rows
    found = trainer.evaluate(jobs, full=True)
    assert kept == [[1, 9], [20], [8], [13]]
    for got, wanted in zip(found, expected, strict=True):
        assert got.figures == pytest.approx(wanted.figures, rel=1e-5, nan_ok=True)
        np.testing.assert_array_equal(got.outcomes.hits, wanted.outcomes.hits)
    kept.clear()
    trainer.evaluate(jobs)  # the predicted classes alone: three times as many rows, 45
    assert kept == [[1, 9, 20, 8], [13]]


def test_a_batch_is_of_one_client_where_a_row_depends_on_its_batch(small) -> None:
    # A BatchNorm without running statistics normalises by the batch: with other clients' rows in it, a
    # client's accuracy would depend on who is evaluated on the same node.
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(32, track_running_stats=False)
    model = torch.nn.Sequential(torch.nn.Flatten(), norm, torch.nn.Linear(32, 3))
    made = small.set_up(model, evaluation_batch_size=1000)
    data, trainer = made.data, made.trainer
    jobs = [made.jobs[client] for client in (1, 2, 4)]
    for job, scores, logits, losses in zip(
        jobs, trainer.evaluate(jobs), trainer.logits(jobs), trainer.losses(jobs), strict=True
    ):
        rows = torch.from_numpy(job.rows)
        flat = small.normalised(data, data.inputs[rows]).flatten(1).double()
        normal = (flat - flat.mean(dim=0)) / (flat.var(dim=0, unbiased=False) + norm.eps).sqrt()
        expected = normal @ model[2].weight.detach().double().T + model[2].bias.detach().double()
        np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)
        each = functional.cross_entropy(expected, data.labels[rows], reduction="none")
        np.testing.assert_allclose(losses, each, rtol=1e-4)
        assert scores.figures["loss"] == pytest.approx(each.mean().item(), rel=1e-4)


def test_full_adds_f1_auc_and_counts(small) -> None:
    made = small.set_up()
    trainer, jobs = made.trainer, made.tests
    for short, full in zip(trainer.evaluate(jobs), trainer.evaluate(jobs, full=True), strict=True):
        assert full.figures.keys() == short.figures.keys() | {"macro-f1", "auc"}
        assert {name: full.figures[name] for name in short.figures} == pytest.approx(short.figures)
        assert full.outcomes.hits.sum() / full.outcomes.there.sum() == pytest.approx(full.figures["accuracy"])


def test_no_rows_and_no_jobs(small) -> None:
    made = small.set_up()
    assert made.trainer.evaluate([]) == []
    (scores,) = made.trainer.evaluate([Job(0, np.zeros(0, dtype=np.int64), made.start)], full=True)
    assert scores.figures["num-examples"] == 0
    assert np.isnan([value for name, value in scores.figures.items() if name != "num-examples"]).all()
    assert scores.outcomes.there.tolist() == [0] * made.data.num_classes


@pytest.mark.parametrize("mode", ["auto", "sequential", "vectorised"])
def test_clients_with_one_model_share_passes_whatever_trains_them(small, mode, monkeypatch) -> None:
    made = small.set_up("dropout", evaluation_batch_size=7, mode=mode)
    sizes: list[int] = []
    forward = WorkingModel.forward

    def counted(self: WorkingModel, inputs: torch.Tensor, *rest, **named) -> torch.Tensor:
        sizes.append(len(inputs))
        return forward(self, inputs, *rest, **named)

    monkeypatch.setattr(WorkingModel, "forward", counted)
    made.trainer.evaluate(made.tests)
    rows = sum(len(job.rows) for job in made.tests)
    # Batches of seven rows run on over the clients' borders: only the last may be smaller.
    assert sorted(sizes, reverse=True) == [7] * (rows // 7) + [rows % 7] * (rows % 7 > 0)


def shifted(model, inputs: torch.Tensor) -> torch.Tensor:
    """Logits 0 and the input plus the bias."""
    return torch.cat([torch.zeros_like(inputs), inputs + model.bias], dim=1)


ZERO = nn.Parameter(torch.zeros(1))


def _two_classes(small, inputs: torch.Tensor, labels: torch.Tensor) -> FederatedData:
    own = {"train": (np.arange(3),), "test": (np.arange(0),), "mean": (), "std": (), "class_names": None}
    return replace(small.federation(), inputs=inputs, labels=labels, num_classes=2, **own)


def test_losses_come_row_by_row_and_job_by_job(small) -> None:
    rows = (np.array([2, 0]), np.array([1]), np.array([], dtype=int))
    data = _two_classes(small, torch.tensor([[0.0], [1.0], [-2.0]]), torch.tensor([1, 0, 1]))
    made = small.set_up(Written(shifted, bias=ZERO), data, batch_size=1, evaluation_batch_size=2)
    zero, one = {"bias": torch.tensor([0.0])}, {"bias": torch.tensor([1.0])}
    jobs = [Job(0, rows[0], one), Job(0, rows[0], zero), Job(1, rows[1], one), Job(2, rows[2], zero)]
    found = made.trainer.losses(jobs)
    # −log σ(x + b) for label 1, −log(1 − σ(x + b)) = log(1 + e^(x + b)) for label 0.
    np.testing.assert_allclose(found[0], np.log1p(np.exp([1.0, -1.0])), rtol=1e-6)  # rows 2 and 0, b = 1
    np.testing.assert_allclose(found[1], np.log1p(np.exp([2.0, 0.0])), rtol=1e-6)  # b = 0
    np.testing.assert_allclose(found[2], np.log1p(np.exp([2.0])), rtol=1e-6)  # row 1, label 0, b = 1
    assert found[3].shape == (0,)


def thresholds(model, inputs: torch.Tensor) -> torch.Tensor:
    """Predict class 1 at each of two positions where the number there is above the bias."""
    return torch.stack([torch.zeros_like(inputs), inputs - model.bias], dim=-1)


def test_counts_by_label_and_answer_job_by_job(small) -> None:
    inputs = torch.tensor([[1.0, -1.0], [3.0, 1.0], [-2.0, 2.0]])
    labels = torch.tensor([[1, 0], [0, 1], [1, 1]])
    rows = (np.array([0, 1, 2]), np.array([2]), np.array([], dtype=int))
    data = _two_classes(small, inputs, labels)
    trainer = small.set_up(Written(thresholds, bias=ZERO), data, evaluation_batch_size=2).trainer
    low, high = {"bias": torch.tensor([0.0])}, {"bias": torch.tensor([1.5])}
    jobs = [Job(0, rows[0], low), Job(1, rows[1], low), Job(0, rows[0], high), Job(2, rows[2], high)]
    first, second, third, none = trainer.confusions(jobs)
    # Above 0: answers 10, 11, 01 for labels 10, 01, 11. Label 0 twice: 0, 1; label 1 four times: 1, 1, 0, 1.
    np.testing.assert_array_equal(first, [[1, 1], [1, 3]])
    np.testing.assert_array_equal(second, [[0, 0], [1, 1]])
    # Above 1.5: answers 00, 10, 01. Label 0: 0, 1; label 1: 0, 0, 0, 1.
    np.testing.assert_array_equal(third, [[1, 1], [3, 1]])
    np.testing.assert_array_equal(none, np.zeros((2, 2)))


@pytest.mark.parametrize("positions", [(), (4,)])
def test_as_scikit_learn(positions: tuple[int, ...]) -> None:
    draws = np.random.default_rng(0)
    counts = np.array([30, 1, 45])
    total = counts.sum()
    labels = draws.integers(0, 4, (total, *positions))
    labels[:30] %= 3  # the first client lacks class 3
    probabilities = draws.dirichlet(np.ones(4), (total, *positions)).round(1)  # makes ties
    predictions = probabilities.argmax(-1)
    losses = draws.random(total)
    scores = scores_by_client(counts, losses, labels, predictions, 4, probabilities)
    first = 0
    for count, got in zip(counts, scores, strict=True):
        part = slice(first, first + count)
        truth, guess = labels[part].ravel(), predictions[part].ravel()
        chances = probabilities[part].reshape(-1, 4)
        some = [label for label in range(4) if 0 < (truth == label).sum() < len(truth)]
        areas = [metrics.roc_auc_score(truth == label, chances[:, label]) for label in some]
        held = np.unique(truth)
        recall = metrics.recall_score(truth, guess, labels=held, average="macro", zero_division=0)
        figures = [count, losses[part].mean(), metrics.accuracy_score(truth, guess), recall]
        figures += [metrics.f1_score(truth, guess, average="macro"), np.mean(areas) if areas else np.nan]
        wanted = dict(zip((*FIGURES, "macro-f1", "auc"), figures, strict=True))
        assert got.figures == pytest.approx(wanted, nan_ok=True)
        assert got.outcomes.there.tolist() == np.bincount(truth, minlength=4).tolist()
        assert got.outcomes.predicted.tolist() == np.bincount(guess, minlength=4).tolist()
        assert got.outcomes.hits.tolist() == [((truth == c) & (guess == c)).sum() for c in range(4)]
        first += count


@pytest.mark.parametrize(
    ("labels", "predictions", "value", "figures"),
    [
        # One class is all there is. Class 1: precision 1, recall 1/2, F1 2/3; class 0 was predicted: F1 0.
        ([1, 1], [1, 0], 0.5, {"auc": np.nan, "macro-f1": 1 / 3, "loss": 0.5}),
        # A diverged model.
        ([0, 1], [0, 0], np.nan, {"auc": np.nan, "accuracy": 0.5, "loss": np.nan}),
    ],
)
def test_what_is_undefined(labels, predictions, value: float, figures: dict[str, float]) -> None:
    data = np.full(2, value), np.array(labels), np.array(predictions), 2, np.full((2, 2), value)
    (scores,) = scores_by_client(np.array([2]), *data)
    assert {name: scores.figures[name] for name in figures} == pytest.approx(figures, nan_ok=True)


def top_two(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """One per example: whether the label is among the two largest outputs."""
    return (outputs.topk(2).indices == labels[:, None]).any(1).float()


def largest(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """A number of all the client's rows together."""
    return float(outputs.max())


OUTPUTS = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [0.0, 5.0, 1.0]])
LABELS = torch.tensor([1, 0, 1])


def test_a_number_or_one_per_example() -> None:
    # Of rows 0 and 1, row 0's label is in its top two; a client without rows; row 2.
    first, none, last = (
        measure_own({"top_two": top_two, "largest": largest}, OUTPUTS[some], LABELS[some])
        for some in (slice(0, 2), slice(0, 0), slice(2, 3))
    )
    assert first == {"top_two": 0.5, "largest": 3.0}
    assert math.isnan(none["top_two"])
    assert last == {"top_two": 1.0, "largest": 5.0}


class OnGpu(torch.Tensor):
    """A tensor that NumPy refuses until it is copied to the CPU, as it does a GPU's."""

    def numpy(self, *, force: bool = False):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def test_metrics_may_use_numpy_wherever_the_model_computes(small) -> None:
    def hits(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        return float((outputs.numpy().argmax(1) == labels.numpy()).mean())

    with pytest.raises(TypeError, match="can't convert"):
        hits(OUTPUTS.as_subclass(OnGpu), LABELS.as_subclass(OnGpu))
    there = Written(lambda model, x: model.head(x.flatten(1)).as_subclass(OnGpu), head=nn.Linear(32, 3))
    made = small.set_up(there, metrics={"hits": hits})
    (scores,) = made.trainer.evaluate([made.tests[2]])
    assert scores.figures["hits"] == pytest.approx(scores.figures["accuracy"])


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"accuracy": largest}, "must not have the name of an existing figure, got 'accuracy'"),
        ({"cluster": largest}, "must not have the name of an existing figure, got 'cluster'"),
        ({"top-2": largest}, "names of letters, digits and underscores, got 'top-2'"),
        ({"top": 3}, "metrics.top must be a function of outputs and labels, got 3"),
    ],
)
def test_names_and_functions(metrics: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_names(metrics)


def test_a_metric_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"metrics.all must return a number, or one per example, shape .3."):
        measure_own({"all": lambda outputs, labels: outputs}, OUTPUTS, LABELS)
    with pytest.raises(ValueError, match=r"^metrics.none must return a number, .*: RuntimeError: Could not"):
        measure_own({"none": lambda outputs, labels: None}, OUTPUTS, LABELS)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("full", [False, True])
def test_evaluation_has_the_loss_and_the_metrics(small, full: bool) -> None:
    own = {"top_two": top_two, "largest": largest}
    made = small.set_up(loss=binary_cross_entropy, evaluation_batch_size=7, metrics=own)
    data, trainer, jobs = made.data, made.trainer, [made.tests[client] for client in (2, 0, 4)]
    for job, got in zip(jobs, trainer.evaluate(jobs, full=full), strict=True):
        losses, hits, values = [], [], []
        for row in job.rows:
            outputs = made.model(small.normalised(data, data.inputs[row : row + 1])).detach()[0]
            chances = 1 / (1 + np.exp(-outputs.double().numpy()))
            label = int(data.labels[row])
            losses.append(-np.log([c if i == label else 1 - c for i, c in enumerate(chances)]).mean())
            hits.append(label in np.argsort(outputs.numpy())[-2:])
            values.append(float(outputs.max()))
        assert got.figures["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert got.figures["top_two"] == pytest.approx(np.mean(hits))
        assert got.figures["largest"] == pytest.approx(max(values), rel=1e-5)


def test_a_run_of_ones_own_arrays() -> None:
    draws = np.random.default_rng(0)
    clients = [(draws.normal(size=(40, 4)).astype(np.float32), draws.integers(0, 3, 40)) for _ in range(4)]
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, loss=binary_cross_entropy)
    network = nn.Linear(4, 3)
    own = {"training": training, "metrics": {"top_two": top_two}}
    result = fedclust.simulate("fedavg", network, clients, rounds=1, **own)
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
    named = "_target_: mine_of_this_test.smooth\n_partial_: true\namount: 0.1\n"
    (tmp_path / "loss" / "smooth.yaml").write_text(named)
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = [f"hydra.searchpath=[{tmp_path}]", "loss=smooth", "loss.amount=0.2", "strategy=fedavg"]
    small_run = ["compare=[]", "proof=false", "rounds=1", "partition.num_clients=3", "partition.groups=[2,1]"]
    margin = "+metrics.margin={_target_: mine_of_this_test.margin, _partial_: true}"
    result = fedclust.run([*overrides, *small_run, margin, f"output_dir={tmp_path}/out"])
    training = build(compose(overrides).training)
    assert training.loss.keywords == {"amount": 0.2}
    assert (result.clients["margin"] > 0).all()
    assert result.summary["margin"] == pytest.approx(result.clients["margin"].mean())
    assert result._loss.keywords == {"amount": 0.2}
    with pytest.raises(ValueError, match=r"training.loss._target_ must be allowed, got .mine_of_this_test"):
        fedclust.load(result.folder)
    allowed = fedclust.load(result.folder, allow="mine_of_this_test.smooth")
    assert allowed._loss.keywords == {"amount": 0.2}
