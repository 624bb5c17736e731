"""What ``task=advise`` writes, draws and prints."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedclust.clustering.prototype_evidence import compare
from fedclust.federation import Descriptions, Federation
from fedclust.federation.run import RunState
from fedclust.results.charts.chart import save
from fedclust.results.charts.run import advice_map, client_sizes, label_counts, matrix_picture
from fedclust.results.thinned import evenly
from fedclust.runs.advice.advise import Seen, advise, agreement_text, look, summarise
from fedclust.typing import IntArray

_MOST_CLIENTS = 500  # on the map: it compares all pairs
_SEEN = {True: "seen", False: "not seen", None: "not measured"}


def give_advice(
    federation: Federation, common: RunState, summary: Mapping[str, Any], seed: int, folder: Path
) -> dict[str, object]:
    """Look at a federation after a short run, choose what it would take, and draw what was seen.

    Parameters
    ----------
    federation
        The clients.
    common
        Where the run of one model for all ended; updates are made from its model.
    summary
        Of the short run of ``strategy=auto``, with its verdict.
    seed
        The run's seed.
    folder
        The run's folder.

    Returns
    -------
    ``shifts``, ``update_agreement`` and ``advice`` for ``summary.json``.
    """
    seen = look(federation, common.models[0], common.server_round, seed)
    assignment: IntArray = np.asarray(summary["assignment"])
    described = federation.describe()
    _draw(seen, described, assignment, folder / "plots")
    told = summarise(seen, advise(seen, summary["verdict"], assignment))
    return {**told, "update_agreement_text": agreement_text(seen)}


def print_advice(summary: Mapping[str, Any], folder: Path, console: Console) -> None:
    """Print the kinds of shift with their evidence, and what to do."""
    table = Table(box=box.SIMPLE_HEAD, title="What sets the clients apart", title_justify="left")
    for title in ("shift", "", "evidence"):
        table.add_column(title)
    for shift in summary["shifts"]:
        strong = "bold" if shift["seen"] else ""
        table.add_row(Text(shift["kind"], strong), Text(_SEEN[shift["seen"]], strong), Text(shift["text"]))
    table.add_row("updates", "", Text(summary["update_agreement_text"]))
    console.print(table)
    chosen = summary["advice"]
    console.print(Text("Advice: " + chosen["reason"] + ".", style="bold"))
    command = " ".join(["fedclust", *map(shlex.quote, chosen["overrides"])])
    console.print(f"  {command}  (with your dataset, partition and model)", highlight=False, soft_wrap=True)
    console.print(f"pictures: {folder.resolve() / 'plots'}", markup=False, highlight=False, soft_wrap=True)


def _draw(seen: Seen, described: Descriptions, assignment: IntArray, folder: Path) -> None:
    counts = described.train_counts
    names = described.class_names or None
    pictures = {
        "label_shift": label_counts(counts, assignment, names, described.client_names),
        "quantity_skew": client_sizes(counts.sum(axis=1)),
    }
    if seen.looks is not None and seen.prototypes is not None:
        shown = np.array(evenly(len(counts), _MOST_CLIENTS))
        rows = seen.prototypes.rows(shown)
        distances = np.sqrt(np.maximum(compare(rows, rows).distance(np.nan), 0))
        pictures["feature_and_concept_shift"] = advice_map(distances, seen.looks.groups[shown], shown)
    if seen.updates is not None:
        cosines = seen.updates.cosines
        pictures["update_agreement"] = matrix_picture(
            "cosines_of_updates", cosines, assignment[seen.answered]
        )
    for name, picture in pictures.items():
        save(picture.chart, folder / f"{name}.png", title=picture.title)
