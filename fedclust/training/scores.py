"""Scores of many clients at once from what one model predicted for all their examples."""

import numpy as np

from fedclust.metrics import classification, classification_by_client
from fedclust.typing import FloatArray, IntArray

__all__ = ["scores_by_client"]


def scores_by_client(
    counts: IntArray,
    losses: FloatArray,
    labels: IntArray,
    predictions: IntArray,
    num_classes: int,
    probabilities: FloatArray | None = None,
) -> list[dict[str, float]]:
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
        Class probabilities, shape (N, C) or (N, positions, C); given, macro-F1 and AUC are added.

    Returns
    -------
    For each client ``num-examples``, ``loss``, ``accuracy``, ``balanced-accuracy`` and, with
    `probabilities`, ``macro-f1`` and ``auc``; NaN where undefined, as with no examples or a model whose
    probabilities are not finite.
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
    if probabilities is not None:
        columns["macro-f1"] = figures["macro_f1"]
        ends = np.cumsum(counts * positions)[:-1]
        parts = zip(
            np.split(labels.ravel(), ends),
            np.split(probabilities.reshape(-1, num_classes), ends),
            strict=True,
        )
        columns["auc"] = np.array([_auc(*part) for part in parts])
    return [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _auc(labels: IntArray, probabilities: FloatArray) -> float:
    if not np.isfinite(probabilities).all():  # a model that diverged ranks nothing
        return float("nan")
    return classification(labels, probabilities)["auc"]
