"""Read a run for its page without what the page does not show.

A page is written again and again while a run goes on, in the run's own process. What it reads must not grow
with every number that a round writes, times all rounds.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedclust.results.page.values import evenly
from fedclust.results.saved_run import SavedRun

__all__ = ["MOST_ACCURACIES", "MOST_CLIENTS", "MOST_ROUNDS", "ThinnedRun", "shown"]

MOST_CLIENTS = 5_000
"""Clients on a page; ``clients.parquet`` has the others."""

MOST_ACCURACIES, MOST_ROUNDS = 150_000, 1_000
"""Accuracies of all clients over the rounds, and rounds that they are of."""

_CLIENTS = "client_accuracy"
_UNUSED = ("cluster_accuracy", "cluster_sizes")
_OF_REPORTS = ("mse", "pair_coverage", "split")


def shown(count: int, width: int, most: int = MOST_ACCURACIES) -> list[int]:
    """Choose the rounds whose accuracies are shown.

    Parameters
    ----------
    count
        Rounds that have clients' accuracies.
    width
        Number of clients.
    most
        Most accuracies, about.
    """
    return evenly(count, min(MOST_ROUNDS, max(2, most // width)))


@dataclass(frozen=True, eq=False)
class ThinnedRun(SavedRun):
    """A run as its page needs it.

    Of ``rounds.jsonl``, clients' accuracies are those of the rounds that are shown, and a method's report has
    what is drawn of it. Of ``clusters.json``, an assignment but the last has the clients that are shown, and
    the ``sizes`` of all clusters.
    """

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of ``rounds.jsonl``, thinned.

        Raises
        ------
        ValueError
            If a line is not JSON.
        """
        count = width = 0
        for record in self.lines():
            if record.get(_CLIENTS):
                count, width = count + 1, len(record[_CLIENTS])
        chosen = set(shown(count, width)) if count else set()
        found, place = [], 0
        for record in self.lines():
            if record.get(_CLIENTS):
                if place not in chosen:
                    del record[_CLIENTS]
                place += 1
            found.append(_thinned(record))
        return found

    @cached_property
    def changes(self) -> list[dict[str, Any]]:
        """``clusters.json``, thinned."""
        path = self.folder / "clusters.json"
        found: list[dict[str, Any]] = []
        if not path.is_file():
            return found
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:  # an entry is one line
                if not line.startswith("{"):
                    continue
                change = json.loads(line.rstrip().rstrip(","))
                clusters = np.array(change["assignment"], dtype=np.int32)
                change |= {"assignment": clusters, "sizes": np.bincount(clusters)}
                if found:
                    found[-1]["assignment"] = found[-1]["assignment"][:MOST_CLIENTS].copy()
                found.append(change)
        return found

    @cached_property
    def compared(self) -> Mapping[str, SavedRun]:  # type: ignore[override]
        """The strategies compared with this one, by name."""
        return {name: ThinnedRun(run.folder) for name, run in super().compared.items()}


def _thinned(record: dict[str, Any]) -> dict[str, Any]:
    for key in _UNUSED:
        record.pop(key, None)
    if "cohort" in record:
        record["cohort"] = np.array(record["cohort"], dtype=np.int32)
    reports = record.get("strategy") or {}
    record["strategy"] = {
        name: {key: report[key] for key in _OF_REPORTS if key in report}
        for name, report in reports.items()
        if isinstance(report, Mapping)
    }
    return {sys.intern(key): value for key, value in record.items()}  # or each line has keys of its own
