"""What models answer for many clients' rows, in few large batches: scores, losses, logits, confusions."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType

import numpy as np
import torch

from fedclust.metrics import CLIENT_FIGURES, Outcomes, classification, classification_by_client, outcomes
from fedclust.training.cohort import Job
from fedclust.training.device_data import DeviceData
from fedclust.training.lanes import Lanes
from fedclust.training.losses import Loss, cross_entropy, example_losses
from fedclust.training.working_model import WorkingModel
from fedclust.typing import FloatArray, IntArray, State

Metric = Callable[[torch.Tensor, torch.Tensor], float | torch.Tensor]
"""From a client's outputs, shape (n, C), and labels, shape (n,), to a number, or one per example.

Both are on the CPU, wherever the model computes.
"""

Measure = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""From the logits, labels and jobs' positions of a batch to tensors with a row per example."""

# Columns of clients.parquet, and keys of summary.json and of a round, which such a metric would replace.
_TAKEN = {
    *(name.replace("-", "_") for name in CLIENT_FIGURES), "ad", "adjusted_rand_index", "assignment",
    "balanced_accuracy", "bytes_down", "bytes_down_unbundled", "bytes_up", "bytes_up_unbundled", "client",
    "cluster", "cluster_sizes", "compare", "failed_replies", "failures", "gaussian_weight", "global_accuracy",
    "group", "label_counts", "mean_client_accuracy", "name", "num_clients", "num_clusters", "num_test",
    "num_train", "pooled_auc", "pooled_macro_f1", "rand_index", "round", "rounds",
    "sdad", "seconds", "seed", "share_weighted_accuracy", "strategy", "test_loss", "train_loss", "was",
    "wadb", "weighted_psi",
    "accuracy_finetune", "accuracy_prior", "personal", "personal_accuracy", "prior_shift",
    "validation_loss_finetune", "validation_loss_none", "validation_loss_prior",
}  # fmt: skip

_MOST_VALUES = 1 << 26  # of models' outputs, kept until they are reduced: 256 MiB

_Batch = tuple[State, torch.Tensor, torch.Tensor]
"""A model, rows, and the position of the job of each."""


@dataclass(frozen=True, eq=False)
class Scores:
    """A model's scores on one client's rows.

    Attributes
    ----------
    figures
        ``num-examples``, ``loss`` (nats), ``accuracy``, ``balanced-accuracy``, of a full evaluation
        ``macro-f1`` and ``auc``, and the user's own metrics; NaN where undefined.
    outcomes
        Of a full evaluation, the counts that figures over all clients' rows are computed from.
    """

    figures: dict[str, float]
    outcomes: Outcomes | None = None


def evaluate_jobs(
    lanes: Lanes,
    data: DeviceData,
    jobs: Sequence[Job],
    batch_size: int,
    *,
    full: bool,
    loss: Loss = cross_entropy,
    metrics: Mapping[str, Metric] = MappingProxyType({}),
) -> list[Scores]:
    """Measure models on clients' rows.

    Jobs that share a `state` object are put through the model together, unless the model mixes rows.

    Parameters
    ----------
    lanes, data, jobs, batch_size
        As in :func:`answers`.
    full
        Whether to add macro-F1, AUC and the counts for figures over all clients' rows.
    loss
        Loss of each example.
    metrics
        The user's own metrics, by name.

    Returns
    -------
    The scores of each job, in order.
    """
    width = data.positions * (data.num_classes if full or metrics else 1)
    found: list[Scores] = []
    for part in _parts(jobs, max(1, _MOST_VALUES // width)):
        shifts = _shifts(part, data)

        def measure(
            logits: torch.Tensor,
            labels: torch.Tensor,
            owners: torch.Tensor,
            shifts: torch.Tensor | None = shifts,
        ) -> tuple[torch.Tensor, ...]:
            if shifts is not None:
                own = shifts[owners.to(shifts.device)]
                logits = logits + own.view(len(own), *[1] * (logits.dim() - 2), -1)
            output = logits.softmax(-1) if full else logits
            kept = ([output] if full else []) + ([logits] if metrics else [])
            return example_losses(logits, labels, loss), labels, output.argmax(-1), *kept

        answered = answers(lanes, data, part, batch_size, measure)
        counts = np.array([len(job.rows) for job in part], dtype=np.int64)
        losses, labels, predictions, *more = (
            torch.cat(parts).numpy() for parts in zip(*answered, strict=True)
        )
        scores = scores_by_client(
            counts, losses, labels, predictions, data.num_classes, more[0] if full else None
        )
        for score, (_, truth, *_, outputs) in zip(scores, answered, strict=True):
            score.figures.update(measure_own(metrics, outputs, truth))
        found += scores
    return found


def answers(
    lanes: Lanes,
    data: DeviceData,
    jobs: Sequence[Job],
    batch_size: int,
    measure: Measure,
) -> list[tuple[torch.Tensor, ...]]:
    """Put jobs' rows through their models, those of one model together, unless it mixes rows.

    Parameters
    ----------
    lanes
        The models to evaluate in; their state on entry and exit does not matter.
    data
        The dataset.
    jobs
        One job per client: its rows and the model to evaluate.
    batch_size
        Examples per forward pass.
    measure
        Reduces the logits, labels and positions in `jobs` of a batch's rows to tensors with a row each.

    Returns
    -------
    For each job, in order, its own rows of these tensors, on the CPU.
    """
    loaded: dict[int, int] = {}

    @torch.inference_mode()
    def answer(working: WorkingModel, batch: _Batch) -> tuple[torch.Tensor, ...]:
        state, rows, owners = batch
        if loaded.get(id(working)) != id(state):
            loaded[id(working)] = id(state)
            working.load(state)
            working.model.eval()
        inputs, labels = data.batch(rows)
        return measure(working.forward(inputs).float(), labels, owners)

    together: dict[Hashable, list[int]] = {}
    for place, key in enumerate(lanes.working.batch_keys([job.state for job in jobs])):
        together.setdefault(key, []).append(place)
    batches: list[_Batch] = []
    for places in together.values():
        rows = np.concatenate([jobs[place].rows for place in places]).astype(np.int64)
        if len(rows):
            owners = np.repeat(places, [len(jobs[place].rows) for place in places])
            parts = torch.from_numpy(rows).to(data.rows_device).split(batch_size)
            owned = torch.from_numpy(owners).split(batch_size)
            batches += zip(repeat(jobs[places[0]].state), parts, owned, strict=False)
    if batches:
        answers = lanes.each("evaluate", answer, batches)
    else:
        none = torch.zeros(0, dtype=torch.int64)
        answers = [measure(torch.zeros(0, data.num_classes), none, none)]
    order = [place for places in together.values() for place in places]
    sizes = [len(jobs[place].rows) for place in order]
    columns = [torch.cat(parts).cpu().split(sizes) for parts in zip(*answers, strict=True)]
    of_place = dict(zip(order, zip(*columns, strict=True), strict=True))
    return [of_place[place] for place in range(len(jobs))]


def _parts(jobs: Sequence[Job], most: int) -> Iterator[Sequence[Job]]:
    """Divide jobs into parts of at most so many rows, or of one job with more."""
    first = rows = 0
    for place, job in enumerate(jobs):
        if place > first and rows + len(job.rows) > most:
            yield jobs[first:place]
            first, rows = place, 0
        rows += len(job.rows)
    if jobs:
        yield jobs[first:]


def _shifts(jobs: Sequence[Job], data: DeviceData) -> torch.Tensor | None:
    """Stack what is added to each job's logits, shape (n, C); None where nothing is."""
    if all(job.shift is None for job in jobs):
        return None
    nothing = np.zeros(data.num_classes)
    stacked = np.stack([nothing if job.shift is None else job.shift for job in jobs])
    return torch.from_numpy(stacked).to(data.device, torch.float32)


def scores_by_client(
    counts: IntArray,
    losses: FloatArray,
    labels: IntArray,
    predictions: IntArray,
    num_classes: int,
    probabilities: FloatArray | None = None,
) -> list[Scores]:
    """Reduce per-example results to scores per client, as :mod:`fedclust.metrics` defines them.

    Where labels have positions, every position counts as one prediction.

    Parameters
    ----------
    counts
        Examples of each client, shape (n,); examples lie client by client in the other arguments.
    losses
        Loss of each example in nats, shape (N,).
    labels, predictions
        Class indices, shape (N,) or (N, positions).
    num_classes
        Number of classes C.
    probabilities
        Class probabilities, shape (N, C) or (N, positions, C), for a full evaluation; else None.

    Returns
    -------
    Scores of each client; figures are NaN where undefined, as with no examples or a model whose probabilities
    are not finite.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    positions = int(np.prod(labels.shape[1:]))
    figures = classification_by_client(
        np.repeat(owner, positions), labels.ravel(), predictions.ravel(), len(counts), num_classes
    )
    with np.errstate(invalid="ignore"):
        columns = {
            "num-examples": counts.astype(float),
            "loss": np.bincount(owner, weights=losses, minlength=len(counts)) / counts,
            "accuracy": figures["accuracy"],
            "balanced-accuracy": figures["balanced_accuracy"],
        }
    rows = [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    if probabilities is None:
        return [Scores(row) for row in rows]
    ends = np.cumsum(counts * positions)[:-1]
    flat = (labels.ravel(), predictions.ravel(), probabilities.reshape(-1, num_classes))
    parts = zip(*(np.split(each, ends) for each in flat), strict=True)
    return [
        Scores(row | {"macro-f1": float(f1), "auc": _auc(part[0], part[2])}, outcomes(*part))
        for row, f1, part in zip(rows, figures["macro_f1"], parts, strict=True)
    ]


def _auc(labels: IntArray, probabilities: FloatArray) -> float:
    if not np.isfinite(probabilities).all():  # the probabilities of a diverged model have no order
        return float("nan")
    return classification(labels, probabilities)["auc"]


def check_names(metrics: Mapping[str, Metric]) -> None:
    """Check that metrics are functions, with names that are not taken.

    Raises
    ------
    ValueError
        If a name is taken or has other characters than letters, digits and underscores, or a metric is not a
        function.
    """
    for name, metric in metrics.items():
        if not name.isidentifier():
            raise ValueError(f"metrics must have names of letters, digits and underscores, got {name!r}")
        if name in _TAKEN:
            raise ValueError(f"metrics must not have the name of an existing figure, got {name!r}")
        if not callable(metric):
            raise ValueError(f"metrics.{name} must be a function of outputs and labels, got {metric!r}")


def measure_own(
    metrics: Mapping[str, Metric], outputs: torch.Tensor, labels: torch.Tensor
) -> dict[str, float]:
    """Compute a client's own metrics.

    Parameters
    ----------
    metrics
        By name.
    outputs
        The model's outputs, shape (n, C), or (n, positions, C), on the CPU.
    labels
        Class indices, shape (n,), or (n, positions), on the CPU.

    Returns
    -------
    Each metric: the number it returned, or the mean over the client's examples; NaN without examples.

    Raises
    ------
    ValueError
        If a metric returns neither a number nor one per example.
    """
    return {name: _number(name, metric, outputs, labels) for name, metric in metrics.items()}


def _number(name: str, metric: Metric, outputs: torch.Tensor, labels: torch.Tensor) -> float:
    if not len(labels):
        return float("nan")
    value = torch.as_tensor(metric(outputs, labels))
    if value.shape not in ((), labels.shape[:1]):
        raise ValueError(
            f"metrics.{name} must return a number, or one per example, shape [{len(labels)}], "
            f"got shape {list(value.shape)}"
        )
    return float(value.double().mean())
