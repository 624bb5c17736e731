"""Add clients that were left out of training to a run's table and summary."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedclust import metrics
from fedclust.newcomers.placing import COMMON, Newcomers
from fedclust.personal.layers import NONE as NO_LAYER
from fedclust.results.summary import LAYERED, client_table, named

NONE = -1
"""In ``clients.parquet``, the cluster of a newcomer that is in no cluster."""


def newcomers_table(newcomers: Newcomers, num_classes: int, with_names: bool) -> pd.DataFrame:
    """Build the rows of ``clients.parquet`` for the clients that were left out.

    Parameters
    ----------
    newcomers
        The clients.
    num_classes
        Number of classes C.
    with_names
        Whether clients have names.
    """
    clients, measured, placements = list(newcomers.placements), newcomers.measured, newcomers.placements
    nothing = np.zeros(num_classes, dtype=np.int64)
    known = [newcomers.described.get(client) for client in clients]
    train = [nothing if each is None else each.train_counts for each in known]
    groups = [-1 if each is None or each.group is None else each.group for each in known]
    names = [str(client if each is None else each.name) for client, each in zip(clients, known, strict=True)]
    outcomes = {row: measured.outcomes.get(client) for row, client in enumerate(clients)}
    table = client_table(
        [NONE if each.cluster is None else each.cluster for each in placements.values()],
        [counts.sum() for counts in train],
        [0 if each is None else each.test_counts.sum() for each in known],
        train,
        [{name: float(values[client]) for name, values in measured.figures.items()} for client in clients],
        None if -1 in groups else groups,
        names if with_names else None,
        {row: each for row, each in outcomes.items() if each is not None},
        served=[newcomers.served[client] for client in clients],
        newcomer=[True] * len(clients),
        placed_by=[each.reason for each in placements.values()],
    )
    return table.assign(client=clients)


def add_newcomers(
    clients: pd.DataFrame, summary: dict[str, object], newcomers: Newcomers
) -> tuple[pd.DataFrame, dict[str, object]]:
    """Add the clients that were left out to the table of clients, and to the summary as ``newcomers``.

    Their rows have missing values in columns that only trained clients have. They use no personal layer.

    Parameters
    ----------
    clients
        Table of the clients that trained.
    summary
        The run's summary.
    newcomers
        The clients that were left out.
    """
    num_classes = len(clients["label_counts"].iloc[0])
    rows = newcomers_table(newcomers, num_classes, "name" in clients)
    if "personal" in clients:  # what serves newcomers has no layer
        bare = {f"{key}_none": rows[key] for key in LAYERED if key in rows}
        rows = rows.assign(personal=NO_LAYER, **bare)
    names = [*clients["name"], *rows["name"]] if "name" in clients else []
    joined = pd.concat([clients.assign(newcomer=False), rows], ignore_index=True)
    joined = joined.astype({"client": "int64", "cluster": "int64", "newcomer": bool})
    return joined, {**summary, "newcomers": newcomers_summary(newcomers, rows, names)}


def newcomers_summary(newcomers: Newcomers, table: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """Summarise the results of the clients that were left out, for ``summary.json``.

    Parameters
    ----------
    newcomers
        The clients.
    table
        Their rows, see :func:`newcomers_table`.
    names
        Name of every client, newcomers too; empty without names.

    Returns
    -------
    ``clients``, ``accuracy`` (mean over clients), ``balanced_accuracy``, ``adjusted_rand`` (of their clusters
    against the known groups, where a client in no cluster counts as a cluster of its own; null without known
    groups), ``none`` (number in no cluster), ``common`` (number served by the model for all), ``failures``
    and ``placements``.
    """
    clusters = table["cluster"].to_numpy(dtype=np.int64)
    # A client in no cluster counts as a cluster of its own.
    apart = np.where(clusters == NONE, clusters.max() + 1 + np.arange(len(clusters)), clusters)
    known, agreement = bool(table["group"].notna().all()) and len(table) > 1, None
    if known:
        agreement = metrics.adjusted_rand_index(table["group"].to_numpy(dtype=np.int64), apart)
    return {
        "clients": len(table),
        **{key: _mean(table[key].to_numpy(dtype=float)) for key in ("accuracy", "balanced_accuracy")},
        "adjusted_rand": agreement,
        "none": int((clusters == NONE).sum()),
        "common": sum(each == COMMON for each in newcomers.served.values()),
        "failures": named(list(newcomers.failures), names or None),
        "placements": [{"client": client, **each.summary()} for client, each in newcomers.placements.items()],
    }


def _mean(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else None
