"""Evaluation in large batches against one example at a time."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedclust.training import Job, LocalTraining, Trainer, evaluation
from fedclust.training.kernels.working_model import WorkingModel


@pytest.mark.parametrize("kind", ["batch norm", "dropout", "positions"])
@pytest.mark.parametrize("batch_size", [7, 1000])
def test_evaluation_equals_one_example_at_a_time(small: Any, kind: str, batch_size: int) -> None:
    model, data = small.build(kind), small.federation(kind)
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, evaluation_batch_size=batch_size)
    first = small.start_of(model)
    second = {name: tensor * 1.5 for name, tensor in first.items()}
    states = [first, second, first, second, {name: tensor.clone() for name, tensor in first.items()}]
    trainer = Trainer(model, data, training, seed=0)
    # After some training, so that what the trainer keeps cannot pass for what it is given.
    list(trainer.train(small.jobs(data, first), 1))
    jobs = [Job(client, data.test[client], states[client]) for client in (3, 0, 4, 1, 2)]
    for job, got in zip(jobs, trainer.evaluate(jobs), strict=True):
        model.load_state_dict(job.state)
        model.eval()
        losses, hits, labels = [], [], []
        for row in job.rows:
            inputs = data.inputs[row : row + 1]
            if inputs.dtype == torch.uint8:
                mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
                inputs = (inputs / 255 - mean) / std
            logits = model(inputs).detach().flatten(0, -2)
            truth = data.labels[row].reshape(-1)
            losses.append(functional.cross_entropy(logits, truth).item())
            hits += (logits.argmax(-1) == truth).tolist()
            labels += truth.tolist()
        recalls = [np.mean(np.array(hits)[np.array(labels) == label]) for label in sorted(set(labels))]
        assert got.outcomes is None
        assert got.figures == pytest.approx(
            {
                "num-examples": len(job.rows),
                "loss": np.mean(losses),
                "accuracy": np.mean(hits),
                "balanced-accuracy": np.mean(recalls),
            },
            rel=1e-4,
        )


@pytest.mark.parametrize(("kind", "positions"), [("linear", 1), ("positions", 6)])
def test_not_all_outputs_are_kept_at_once(
    small: Any, kind: str, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = small.build(kind), small.federation(kind)
    assert (data.labels[0].numel(), data.num_classes) == (positions, 3)
    trainer = Trainer(model, data, LocalTraining(learning_rate=0.1, batch_size=8, epochs=1), seed=0)
    state = small.start_of(model)
    # 1, 9, 20, 8 and 13 rows.
    jobs = [Job(client, data.train[client], state) for client in range(5)]
    assert [len(job.rows) for job in jobs] == [1, 9, 20, 8, 13]
    expected = trainer.evaluate(jobs, full=True)
    kept: list[list[int]] = []
    reduce = evaluation.scores_by_client

    def counted(counts: np.ndarray, *rest: Any) -> list[Any]:
        kept.append(counts.tolist())
        return reduce(counts, *rest)

    monkeypatch.setattr(evaluation, "scores_by_client", counted)
    monkeypatch.setattr(evaluation, "_MOST_VALUES", 15 * positions * 3)  # those of 15 rows
    found = trainer.evaluate(jobs, full=True)
    assert kept == [[1, 9], [20], [8], [13]]
    for got, wanted in zip(found, expected, strict=True):
        assert got.figures == pytest.approx(wanted.figures, rel=1e-5, nan_ok=True)
        np.testing.assert_array_equal(got.outcomes.hits, wanted.outcomes.hits)
    kept.clear()
    trainer.evaluate(jobs)  # the predicted classes alone: three times as many rows, 45
    assert kept == [[1, 9, 20, 8], [13]]


def test_a_batch_is_of_one_client_where_a_row_depends_on_its_batch(small: Any) -> None:
    # A BatchNorm without running statistics normalises by the batch: with other clients' rows in it, a
    # client's accuracy would depend on who is evaluated on the same node.
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(32, track_running_stats=False)
    model, data = torch.nn.Sequential(torch.nn.Flatten(), norm, torch.nn.Linear(32, 3)), small.federation()
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, evaluation_batch_size=1000)
    trainer, state = Trainer(model, data, training, seed=0), small.start_of(model)
    jobs = [Job(client, data.train[client], state) for client in (1, 2, 4)]
    for job, scores, logits, losses in zip(
        jobs, trainer.evaluate(jobs), trainer.logits(jobs), trainer.losses(jobs), strict=True
    ):
        rows = torch.from_numpy(job.rows)
        inputs = data.inputs[rows]
        if inputs.dtype == torch.uint8:
            mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
            inputs = (inputs / 255 - mean) / std
        flat = inputs.flatten(1).double()
        normal = (flat - flat.mean(dim=0)) / (flat.var(dim=0, unbiased=False) + norm.eps).sqrt()
        expected = normal @ model[2].weight.detach().double().T + model[2].bias.detach().double()
        np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)
        each = functional.cross_entropy(expected, data.labels[rows], reduction="none")
        np.testing.assert_allclose(losses, each, rtol=1e-4)
        assert scores.figures["loss"] == pytest.approx(each.mean().item(), rel=1e-4)


def test_full_adds_f1_auc_and_counts(small: Any) -> None:
    model, data = small.build("linear"), small.federation()
    trainer = Trainer(model, data, LocalTraining(learning_rate=0.1, batch_size=8, epochs=1), seed=0)
    state = small.start_of(model)
    jobs = [Job(client, rows, state) for client, rows in enumerate(data.test)]
    for short, full in zip(trainer.evaluate(jobs), trainer.evaluate(jobs, full=True), strict=True):
        assert full.figures.keys() == short.figures.keys() | {"macro-f1", "auc"}
        assert {name: full.figures[name] for name in short.figures} == pytest.approx(short.figures)
        assert full.outcomes.hits.sum() / full.outcomes.there.sum() == pytest.approx(full.figures["accuracy"])


def test_no_rows_and_no_jobs(small: Any) -> None:
    model, data = small.build("linear"), small.federation()
    trainer = Trainer(model, data, LocalTraining(learning_rate=0.1, batch_size=8, epochs=1), seed=0)
    assert trainer.evaluate([]) == []
    (scores,) = trainer.evaluate([Job(0, np.zeros(0, dtype=np.int64), small.start_of(model))], full=True)
    assert scores.figures["num-examples"] == 0
    assert np.isnan([value for name, value in scores.figures.items() if name != "num-examples"]).all()
    assert scores.outcomes.there.tolist() == [0] * data.num_classes


@pytest.mark.parametrize("mode", ["auto", "sequential", "vectorised"])
def test_clients_with_one_model_share_passes_whatever_trains_them(
    small: Any, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = small.build("dropout"), small.federation("dropout")
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, evaluation_batch_size=7, mode=mode)
    trainer, start = Trainer(model, data, training, seed=0), small.start_of(model)
    sizes: list[int] = []
    forward = WorkingModel.forward

    def counted(self: WorkingModel, inputs: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        sizes.append(len(inputs))
        return forward(self, inputs, *rest, **named)

    monkeypatch.setattr(WorkingModel, "forward", counted)
    trainer.evaluate([Job(client, data.test[client], start) for client in range(5)])
    rows = sum(len(data.test[client]) for client in range(5))
    # Batches of seven rows run on over the clients' borders: only the last may be smaller.
    assert sorted(sizes, reverse=True) == [7] * (rows // 7) + [rows % 7] * (rows % 7 > 0)
