"""Summarise a run for ``summary.json``."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedclust import metrics
from fedclust.metrics import Outcomes
from fedclust.results.decisions import client_decisions
from fedclust.typing import FloatArray, IntArray

__all__ = ["client_table", "means_by_cluster", "named", "round_accuracies", "summarise"]

# Keys of a client's evaluation, and their columns.
_COLUMNS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "balanced-accuracy": "balanced_accuracy",
    "macro-f1": "macro_f1",
    "auc": "auc",
}
_TRAFFIC = ("bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled")

_MOST_HISTORIES = 1_000  # clients whose accuracies are in rounds.jsonl; of more, its size would grow too much


def client_table(
    assignment: ArrayLike,
    num_train: ArrayLike,
    num_test: ArrayLike,
    label_counts: ArrayLike | None,
    evaluation: Sequence[Mapping[str, float] | None],
    groups: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    outcomes: Mapping[int, Outcomes] | None = None,
    seed: int = 0,
    **columns: ArrayLike,
) -> pd.DataFrame:
    """Build the table of ``clients.parquet``.

    Parameters
    ----------
    assignment
        Cluster index of each client, shape (K,).
    num_train, num_test
        Samples in each client's training and test part, shape (K,).
    label_counts
        Training labels of each client, shape (K, C); None where unknown, and there is no such column.
    evaluation
        Per client, the scores of its cluster's model on its test part, K mappings with the keys ``loss``,
        ``accuracy``, ``balanced-accuracy``, ``macro-f1`` and ``auc``, and the user's own metrics; missing
        ones become NaN, and None stands for a client that did not answer.
    groups
        Known grouping, shape (K,), or None.
    names
        Name of each client in the data (a hospital, a writer, a user), K of them, or None.
    outcomes
        Counts of a full evaluation, by client, from which ``share_weighted_accuracy`` is computed, and the
        columns of :func:`fedclust.results.decisions.client_decisions`.
    seed
        The run's seed, for their intervals.
    columns
        Further columns of the method, such as ``gaussian_weight``, each of shape (K,).

    Returns
    -------
    One row per client with the columns ``client``, ``name`` if there are names, ``cluster``, ``group``
    (missing values without a known grouping), ``num_train``, ``num_test``, ``label_counts`` (lists), the five
    figures, ``share_weighted_accuracy``, the user's own metrics, and ``columns``.

    Raises
    ------
    ValueError
        If an argument does not have one entry per client.
    """
    clusters = np.asarray(assignment, dtype=np.int64)
    counts = None if label_counts is None else np.asarray(label_counts, dtype=np.int64)
    table: dict[str, Any] = {
        "client": np.arange(len(clusters)),
        **({} if names is None else {"name": list(names)}),
        "cluster": clusters,
        "group": [None] * len(clusters) if groups is None else np.asarray(groups),
        "num_train": np.asarray(num_train),
        "num_test": np.asarray(num_test),
        **({} if counts is None else {"label_counts": counts.tolist()}),
    }
    for key, column in _COLUMNS.items():
        table[column] = [np.nan if scores is None else scores.get(key, np.nan) for scores in evaluation]
    table["share_weighted_accuracy"] = (
        np.full(len(clusters), np.nan) if counts is None else _share_weighted(counts, outcomes or {})
    )
    table |= client_decisions(outcomes or {}, len(clusters), seed)
    own = {name for scores in evaluation if scores for name in scores} - {*metrics.CLIENT_FIGURES}
    for name in sorted(own):
        table[name] = [np.nan if scores is None else scores.get(name, np.nan) for scores in evaluation]
    table.update({name: np.asarray(values) for name, values in columns.items()})
    for name, values in table.items():
        if len(values) != len(clusters):
            raise ValueError(f"{name} must have an entry per client, {len(clusters)}, got {len(values)}")
    return pd.DataFrame(table).astype({"group": "Int64"})


def means_by_cluster(values: ArrayLike, assignment: ArrayLike) -> list[float | None]:
    """Average clients' values over each cluster, to 4 digits.

    Parameters
    ----------
    values
        Shape (K,); NaN for a client that did not measure.
    assignment
        Cluster index of each client, shape (K,).

    Returns
    -------
    A mean per cluster, by its index; None where no client measured.
    """
    numbers, clusters = np.asarray(values, dtype=float), np.asarray(assignment)
    known = np.isfinite(numbers)
    measured = [numbers[known & (clusters == cluster)] for cluster in range(clusters.max() + 1)]
    return [round(float(each.mean()), 4) if each.size else None for each in measured]


def round_accuracies(accuracies: FloatArray, assignment: IntArray) -> dict[str, object]:
    """Return the clients' and clusters' accuracies in an evaluated round; not of very many clients.

    Parameters
    ----------
    accuracies
        Shape (K,), in [0, 1]; NaN for a client that did not measure.
    assignment
        Cluster index of each client, shape (K,).
    """
    if len(accuracies) > _MOST_HISTORIES:
        return {}
    return {
        "client_accuracy": [round(value, 4) for value in accuracies.tolist()],
        "cluster_accuracy": means_by_cluster(accuracies, assignment),
    }


def named(failures: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> Sequence[Mapping[str, Any]]:
    """Add the ``name`` of each failed client, if clients have names.

    Parameters
    ----------
    failures
        As in ``rounds.jsonl``: mappings with ``client``, ``phase`` and ``reason``.
    names
        Name of each client, or None.
    """
    if names is None:
        return failures
    return [
        {"client": failure["client"], "name": names[failure["client"]], **failure} for failure in failures
    ]


def summarise(
    clients: pd.DataFrame,
    *,
    strategy: str,
    seed: int,
    rounds: int,
    seconds: float,
    failed_replies: int = 0,
    outcomes: Collection[Outcomes] = (),
    own_metrics: Collection[str] = (),
    traffic: Mapping[str, int] | None = None,
    compare: Mapping[str, Mapping[str, object]] | None = None,
    published: Mapping[str, object] | None = None,
    **details: object,
) -> dict[str, object]:
    """Compute the content of ``summary.json``.

    Means leave out clients without a value: those that did not reply to the last evaluation, and for AUC
    those whose test part has a single class.

    Parameters
    ----------
    clients
        Table of :func:`client_table`.
    strategy
        Name of the strategy.
    seed
        The run's seed.
    rounds
        Number of rounds of the run.
    seconds
        Wall-clock time of the run, in seconds.
    failed_replies
        Number of failed or missing replies, over all rounds.
    outcomes
        Of each client that answered the last evaluation, the counts for the pooled figures.
    own_metrics
        Columns of `clients` with the user's own metrics; their means are reported.
    traffic
        ``bytes_down``, ``bytes_up``, ``bytes_down_unbundled`` and ``bytes_up_unbundled`` of the whole run, as
        :class:`~fedclust.federation.Traffic` totals them; None if traffic was not counted.
    compare
        Summaries of the compared strategies, by name.
    published
        The paper's results for this setting, for the final table: ``source``, such as ``"FedGWC, Table 1"``,
        and ``figures``, by strategy and then by key of this summary, each a number or a pair of mean and
        standard deviation, in the same units as ours.
    details
        Further values of the method, such as ``silhouette``; written after the common keys.

    Returns
    -------
    The common keys in a fixed order, None for an undefined value, then `details`.

    Raises
    ------
    ValueError
        If the table has no rows, or a detail has the same name as a common key.
    """
    if clients.empty:
        raise ValueError("clients must have at least one row, got none")
    assignment = clients["cluster"].to_numpy(dtype=np.int64)
    known = "label_counts" in clients
    counts = np.stack([np.asarray(row) for row in clients["label_counts"]]) if known else None
    sizes = np.bincount(assignment)
    accuracy = clients["accuracy"].to_numpy(dtype=float)
    weights = clients["num_test"].to_numpy(dtype=float)
    answered = np.isfinite(accuracy)
    ad, sdad = metrics.fairness(accuracy[answered]) if answered.any() else (None, None)
    several = np.count_nonzero(sizes) > 1
    summary: dict[str, object] = {
        "strategy": strategy,
        "seed": seed,
        "rounds": rounds,
        "num_clients": len(clients),
        "num_clusters": int(np.count_nonzero(sizes)),
        "cluster_sizes": sizes.tolist(),
        "assignment": assignment.tolist(),
        "global_accuracy": (
            float(metrics.global_accuracy(accuracy[answered], weights[answered])) if answered.any() else None
        ),
        "mean_client_accuracy": _mean(accuracy),
        "balanced_accuracy": _mean(clients["balanced_accuracy"].to_numpy(dtype=float)),
        "share_weighted_accuracy": _mean(clients["share_weighted_accuracy"].to_numpy(dtype=float)),
        "macro_f1": _mean(clients["macro_f1"].to_numpy(dtype=float)),
        "auc": _mean(clients["auc"].to_numpy(dtype=float)),
        "pooled_macro_f1": _known(metrics.pooled_macro_f1(outcomes)),
        "pooled_auc": _known(metrics.pooled_auc(outcomes)),
        **{name: _mean(clients[name].to_numpy(dtype=float)) for name in own_metrics},
        "ad": ad,
        "sdad": sdad,
        "was": metrics.wasserstein_adjusted_silhouette(counts, assignment)
        if several and counts is not None
        else None,
        "wadb": metrics.wasserstein_adjusted_davies_bouldin(counts, assignment)
        if several and counts is not None
        else None,
        "rand_index": _agreement(metrics.rand_index, clients),
        "adjusted_rand_index": _agreement(metrics.adjusted_rand_index, clients),
        "weighted_psi": None if counts is None else float(metrics.weighted_psi(counts)),
        "seconds": seconds,
        "failed_replies": failed_replies,
        **{key: (traffic or {}).get(key) for key in _TRAFFIC},
        "compare": dict(compare or {}),
    }
    if published:
        summary["published"] = dict(published)
    taken = summary.keys() & details.keys()
    if taken:
        raise ValueError(f"details must not use the common keys, got {sorted(taken)}")
    return summary | details


def _mean(values: FloatArray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _agreement(index: Callable[[IntArray, IntArray], float], clients: pd.DataFrame) -> float | None:
    """Compute the agreement of the clusters with the known grouping, if there is one."""
    if clients["group"].isna().any():
        return None
    return index(clients["group"].to_numpy(dtype=np.int64), clients["cluster"].to_numpy(dtype=np.int64))


def _share_weighted(train_counts: IntArray, outcomes: Mapping[int, Outcomes]) -> FloatArray:
    """Compute each client's accuracy weighted by its training shares; NaN without counts."""
    figures = np.full(len(train_counts), np.nan)
    if outcomes:
        clients = list(outcomes)
        hits = np.stack([outcomes[client].hits for client in clients])
        there = np.stack([outcomes[client].there for client in clients])
        figures[clients] = metrics.share_weighted_accuracy(train_counts[clients], hits, there)
    return figures
