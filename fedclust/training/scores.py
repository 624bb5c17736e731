"""Scores of many clients at once from what one model predicted for all their examples."""

import numpy as np
from scipy.stats import rankdata

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
    """Reduce per-example results to scores per client.

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
    For each client ``num-examples``, ``loss``, ``accuracy``, ``balanced-accuracy`` (mean recall over the
    classes it holds) and, with `probabilities`, ``macro-f1`` (over classes it holds or was predicted) and
    ``auc`` (one-vs-rest, over classes of which it holds some but not all examples). NaN where undefined.
    """
    clients = len(counts)
    owner = np.repeat(np.arange(clients), counts)
    positions = int(np.prod(labels.shape[1:]))
    cells = clients * num_classes
    first = np.repeat(owner, positions) * num_classes
    truth, guess = first + labels.ravel(), first + predictions.ravel()
    held, guessed, hits = (
        np.bincount(some, minlength=cells).reshape(clients, num_classes)
        for some in (truth, guess, truth[truth == guess])
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        columns = {
            "num-examples": counts.astype(float),
            "loss": np.bincount(owner, weights=losses, minlength=clients) / counts,
            "accuracy": hits.sum(1) / held.sum(1),
            "balanced-accuracy": _mean_of_rows(hits / held),
        }
        if probabilities is not None:
            columns["macro-f1"] = _mean_of_rows(2 * hits / (held + guessed))
    if probabilities is not None:
        ends = np.cumsum(counts * positions)
        parts = zip(
            np.split(labels.ravel(), ends[:-1]),
            np.split(probabilities.reshape(-1, num_classes), ends[:-1]),
            strict=True,
        )
        columns["auc"] = np.array([_auc(*part) for part in parts])
    return [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def _mean_of_rows(values: FloatArray) -> FloatArray:
    """Average each row over its entries that are not NaN, NaN where there are none."""
    present = ~np.isnan(values)
    return np.where(present, values, 0.0).sum(1) / present.sum(1)


def _auc(labels: IntArray, probabilities: FloatArray) -> float:
    """Area under the ROC curve, each class against the rest, averaged: the Mann–Whitney statistic."""
    held = np.bincount(labels, minlength=probabilities.shape[1])
    classes = np.flatnonzero((held > 0) & (held < len(labels)))
    if classes.size == 0:
        return float("nan")
    ranks = rankdata(probabilities[:, classes], axis=0)
    positive = held[classes]
    rank_sums = np.array([ranks[labels == c, index].sum() for index, c in enumerate(classes)])
    areas = (rank_sums - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))
    return float(areas.mean())
