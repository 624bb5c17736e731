"""Scores of clients, from models' outputs on their rows; and the user's own metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedclust.metrics import CLIENT_FIGURES, Outcomes, auc, classification_by_client, outcomes
from fedclust.typing import FloatArray, IntArray

Metric = Callable[[Tensor, Tensor], float | Tensor]
"""Function from a client's outputs, shape (n, C), and labels, shape (n,), to a number, or one per example.

Both are on the CPU, wherever the model computes.
"""

# Columns of clients.parquet, and keys of summary.json and of a round, which a metric of that name would
# replace.
_TAKEN = {
    *(name.replace("-", "_") for name in CLIENT_FIGURES), "ad", "adjusted_rand_index", "assignment",
    "balanced_accuracy", "bytes_down", "bytes_down_unbundled", "bytes_up", "bytes_up_unbundled", "client",
    "cluster", "cluster_sizes", "compare", "failed_replies", "failures", "gaussian_weight", "global_accuracy",
    "group", "label_counts", "mean_client_accuracy", "name", "num_clients", "num_clusters", "num_test",
    "num_train", "pooled_auc", "pooled_macro_f1", "rand_index", "round", "rounds",
    "sdad", "seconds", "seed", "share_weighted_accuracy", "strategy", "test_loss", "train_loss", "was",
    "wadb", "weighted_psi",
    "accuracy_finetune", "accuracy_none", "accuracy_prior", "balanced_accuracy_none", "brier_none",
    "confusion_none", "personal", "prior_shift",
    "validation_brier_finetune", "validation_brier_none", "validation_brier_prior",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scores:
    """A model's scores on one client's rows.

    Attributes
    ----------
    figures
        ``num-examples``, ``loss`` (nats), ``accuracy``, ``balanced-accuracy``, after a full evaluation
        ``macro-f1`` and ``auc``, and the user's own metrics; NaN if undefined.
    outcomes
        After a full evaluation, the counts from which metrics over all clients' rows are computed.
    """

    figures: dict[str, float]
    outcomes: Outcomes | None = None


def scores_by_client(
    counts: IntArray,
    losses: FloatArray,
    labels: IntArray,
    predictions: IntArray,
    num_classes: int,
    probabilities: FloatArray | None = None,
) -> list[Scores]:
    """Reduce per-example results to scores per client, as :mod:`fedclust.metrics` defines them.

    If labels have positions, every position counts as one prediction.

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
    Scores of each client; NaN if undefined, as without examples or with probabilities that are not finite.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    positions = int(np.prod(labels.shape[1:]))
    figures = classification_by_client(
        np.repeat(owner, positions), labels.ravel(), predictions.ravel(), len(counts), num_classes
    )
    with np.errstate(invalid="ignore"):
        means = np.bincount(owner, weights=losses, minlength=len(counts)) / counts
    names = "num-examples", "loss", "accuracy", "balanced-accuracy"
    columns = counts.astype(float), means, figures["accuracy"], figures["balanced_accuracy"]
    rows = [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)]
    if probabilities is None:
        return [Scores(row) for row in rows]
    ends = np.cumsum(counts * positions)[:-1]
    flat = (labels.ravel(), predictions.ravel(), probabilities.reshape(-1, num_classes))
    parts = zip(*[np.split(each, ends) for each in flat], strict=True)
    scores = []
    for row, f1, part in zip(rows, figures["macro_f1"].tolist(), parts, strict=True):
        counted = outcomes(*part)
        # The probabilities of a diverged model have no order.
        area = auc(part[0], part[2]) if counted.bins is not None else float("nan")
        scores.append(Scores(row | {"macro-f1": f1, "auc": area}, counted))
    return scores


def check_names(metrics: Mapping[str, Metric]) -> None:
    """Check that metrics are functions whose names are not taken.

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


def measure_own(metrics: Mapping[str, Metric], outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the user's own metrics for a client.

    Parameters
    ----------
    metrics
        The metrics, by name.
    outputs
        The model's outputs, shape (n, C), or (n, positions, C), on the CPU.
    labels
        Class indices, shape (n,), or (n, positions), on the CPU.

    Returns
    -------
    For each metric, the number that it returned, or the mean over the client's examples; NaN without
    examples.

    Raises
    ------
    ValueError
        If a metric returns neither a number nor one per example.
    """
    return {name: _number(name, metric, outputs, labels) for name, metric in metrics.items()}


def _number(name: str, metric: Metric, outputs: Tensor, labels: Tensor) -> float:
    if not len(labels):
        return float("nan")
    value = torch.as_tensor(metric(outputs, labels))
    if value.shape not in ((), labels.shape[:1]):
        wanted = f"a number, or one per example, shape [{len(labels)}]"
        raise ValueError(f"metrics.{name} must return {wanted}, got shape {list(value.shape)}")
    return float(value.double().mean())
