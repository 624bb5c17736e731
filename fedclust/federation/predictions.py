"""Ask clients to save what the models that serve them predict for their test rows."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from flwr.app import ArrayRecord, RecordDict

from fedclust.federation.federation import Federation
from fedclust.messages import ARRAYS, QUERY_PREDICTIONS, BadReply, read_predictions
from fedclust.messages.predictions import prediction_table
from fedclust.typing import IntArray

__all__ = ["FILE", "save_predictions"]

FILE = "predictions.parquet"


def save_predictions(
    federation: Federation, assignment: IntArray, models: Sequence[ArrayRecord], folder: Path
) -> str:
    """Ask every client; in a simulation write ``predictions.parquet``, in a deployment nodes keep the rows.

    Parameters
    ----------
    federation
        The clients.
    assignment
        Cluster of each client, shape (K,).
    models
        The model that serves each cluster.
    folder
        The run's folder.

    Returns
    -------
    A line that says what was saved where.
    """
    questions = {
        client: RecordDict({ARRAYS: models[int(cluster)]})
        for client, cluster in enumerate(assignment.tolist())
    }
    answers = federation.ask(QUERY_PREDICTIONS, None, questions)
    failures, described = dict(answers.failures), federation.describe()
    names, classes = described.client_names, described.class_names
    tables: list[pd.DataFrame] = []
    kept = 0
    for client, reply in answers.replies.items():
        try:
            count, found = read_predictions(reply, federation.bounds)
            if found is None:
                kept += count
                continue
            rows, labels, chances = found
            known = classes or tuple(map(str, range(chances.shape[-1])))
            if chances.shape[-1] < len(known) or (
                labels.size and not 0 <= labels.min() <= labels.max() < len(known)
            ):
                raise BadReply(f"client {client}: predictions must be of {len(known)} classes")
            name = None if names is None else names[client]
            tables.append(prediction_table(client, name, rows, labels, chances, known))
        except BadReply as error:
            failures[client] = str(error)
    said = []
    if tables:
        pd.concat(tables, ignore_index=True).to_parquet(folder / FILE, index=False)
        said.append(f"{sum(map(len, tables)):,} rows in {FILE}")
    if kept:
        said.append(f"{kept:,} rows on the clients' own nodes")
    if failures:
        client = min(failures)
        said.append(f"none of {len(failures)} clients, such as {client}: {failures[client]}")
    return f"predictions of test rows: {'; '.join(said)}"
