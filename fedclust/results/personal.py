"""What a run's folder says of personal layers."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedclust.personal.layers import NONE, PRIOR, Personal
from fedclust.results.proof import SERVED_FIGURES

if TYPE_CHECKING:  # federation imports findings, which write with fedclust.results
    from fedclust.federation import Measured
    from fedclust.federation.personal import Layered

__all__ = ["PREFIX", "personal_figure", "personal_line", "personal_summary", "personal_table"]

PREFIX = "personal."
"""Before the name of a figure with the personal layer, where runs are compared."""

_MOST_FAILED = 10


def personal_summary(
    personal: Personal,
    layered: "Layered",
    none: Mapping[str, object],
    summarised: Callable[["Measured"], Mapping[str, object]],
    own_metrics: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Lay out personal layers for ``summary.json``.

    Parameters
    ----------
    personal
        The choice of layers.
    layered
        What clients measured.
    none
        The run's summary without a personal layer.
    summarised
        Makes a summary from what clients measured.
    own_metrics
        Names of the user's own metrics.

    Returns
    -------
    ``choice``; ``figures``, by choice, ``none`` first; ``clients``, how many use which layer under `choice`;
    and ``failures``, who could not make one, and why.
    """
    keys = (*SERVED_FIGURES, *own_metrics)
    figures = {NONE: {key: none.get(key) for key in keys}}
    for choice, measured in layered.measured.items():
        summary = summarised(measured)
        figures[choice] = {key: summary.get(key) for key in keys}
    used = layered.used[personal.choice].tolist()
    return {
        "choice": personal.choice,
        "figures": figures,
        "clients": {layer: used.count(layer) for layer in (NONE, *personal.asked)},
        "failures": [{"client": client, "reason": why} for client, why in layered.failures.items()],
    }


def personal_table(table: pd.DataFrame, personal: Personal, layered: "Layered") -> pd.DataFrame:
    """Add to the table of clients which layer each uses and what it measured with each.

    Returns
    -------
    The table with the columns ``personal`` (the layer that the client uses), ``personal_accuracy`` (with it),
    ``accuracy_<layer>`` and ``validation_loss_<layer>`` of each layer that was tried, and ``prior_shift``
    (lists: what the label-prior correction adds to the logits) where that was.
    """
    columns: dict[str, Any] = {"personal": layered.used[personal.choice].tolist()}
    unknown = np.full(len(table), np.nan)
    columns["personal_accuracy"] = layered.measured[personal.choice].figures.get("accuracy", unknown)
    for layer in personal.asked:
        made = layered.used[layer] == layer
        measured = layered.measured[layer].figures.get("accuracy", unknown)
        columns[f"accuracy_{layer}"] = np.where(made, measured, np.nan)
    for layer, losses in layered.losses.items():
        columns[f"validation_loss_{layer}"] = losses
    if layered.shifts is not None and PRIOR in personal.asked:
        columns["prior_shift"] = layered.shifts.tolist()
    return table.assign(**columns)


def personal_figure(summary: Mapping[str, Any], key: str) -> Any:
    """Look up a figure with the personal layer that a run chose; None where it has none."""
    personal = summary.get("personal") or {}
    return (personal.get("figures") or {}).get(personal.get("choice"), {}).get(key)


def personal_line(summary: Mapping[str, Any]) -> str | None:
    """Say in one line how many clients use which layer, and who could not make one; None without layers."""
    personal = summary.get("personal")
    if not personal:
        return None
    counts = {layer: number for layer, number in personal["clients"].items() if number}
    used = ", ".join(f"{number} {layer}" for layer, number in counts.items())
    line = f"Personal layer: {personal['choice']} (clients: {used})"
    if failures := personal.get("failures"):
        shown = "; ".join(f"client {each['client']}: {each['reason']}" for each in failures[:_MOST_FAILED])
        more = f"; and {len(failures) - _MOST_FAILED} more" if len(failures) > _MOST_FAILED else ""
        line += f"; failed: {shown}{more}"
    return line
