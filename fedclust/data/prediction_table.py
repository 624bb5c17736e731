"""The table of predictions of test rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["prediction_table"]


def prediction_table(
    client: int,
    name: str | None,
    rows: IntArray,
    labels: IntArray,
    chances: FloatArray,
    class_names: Sequence[str],
) -> "pd.DataFrame":
    """Build the table of a client's predictions.

    Parameters
    ----------
    client, name
        The client's id, and its name or None.
    rows
        Rows of the dataset, shape (n,).
    labels
        Their classes, shape (n,), or (n, positions).
    chances
        Probabilities, shape (n, C), or (n, positions, C).
    class_names
        Names of the classes, shape (C,).

    Returns
    -------
    A row per row, or per row and position, with ``client``, ``name`` where there is one, ``row``,
    ``position`` where there are some, ``label`` and ``predicted`` by name, and a column ``p: <class>`` each.
    """
    import pandas as pd

    names = np.array(class_names, dtype=object)
    flat = chances.reshape(-1, chances.shape[-1])[:, : len(names)]
    positions = labels.shape[1] if labels.ndim > 1 else 1
    table: dict[str, object] = {"client": np.full(len(flat), client)}
    if name is not None:
        table["name"] = name
    table["row"] = np.repeat(rows, positions)
    if labels.ndim > 1:
        table["position"] = np.tile(np.arange(positions), len(rows))
    table["label"] = names[labels.reshape(-1)]
    table["predicted"] = names[flat.argmax(axis=1)]
    table |= {f"p: {each}": flat[:, place] for place, each in enumerate(class_names)}
    return pd.DataFrame(table)
