"""Read a run for its page and pictures without what they do not show, and its numbers in few digits.

A page is written again and again while a run goes on, in the run's own process. What it reads must not grow
with every number that a round writes, times all rounds.
"""

import base64
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedclust.results.saved_run import SavedRun

MOST_CLIENTS = 5_000
"""Clients on a page; ``clients.parquet`` has the others."""

MOST_ACCURACIES, MOST_ROUNDS = 150_000, 1_000
"""Accuracies of all clients over the rounds, and rounds that they are of."""

_CLIENTS = "client_accuracy"
_UNUSED = ("cluster_accuracy", "cluster_sizes")
_OF_REPORTS = ("mse", "pair_coverage", "split")


def short(value: Any) -> float | int | None:
    """Round a number to six digits; None unless it is a finite number."""
    if value is None or isinstance(value, (bool, np.bool_, str)):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value)
    number = float(value)
    return float(f"{number:.6g}") if np.isfinite(number) else None


def shorts(values: Iterable[Any]) -> list[float | int | None]:
    """Round each of some numbers, see :func:`short`."""
    return [short(value) for value in values]


def evenly(count: int, most: int) -> list[int]:
    """Choose at most so many of the places 0 to count - 1, evenly spaced, the first and the last included."""
    if count <= most:
        return list(range(count))
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def pack(shares: ArrayLike) -> str:
    """Write numbers in [0, 1], of any shape, as base64 of two little-endian bytes each.

    The codes 0 and 65534 are 0 and 1, 65535 is an unknown value.
    """
    numbers = np.asarray(shares, dtype=np.float64)
    codes = np.where(np.isfinite(numbers), np.rint(np.clip(numbers, 0, 1) * 65534), 65535)
    return base64.b64encode(codes.astype("<u2").tobytes()).decode("ascii")


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
