"""Read a run from its folder; for its page and pictures, only what they show, rounded.

A page is rewritten many times while its run trains, in the same process, so it must not read every number of
every round: see :class:`ThinnedRun`.
"""

import base64
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedclust.data.targets import Target, from_values
from fedclust.support.untrusted import read_arrays, read_json, read_table, read_yaml, readable
from fedclust.typing import FloatArray, IntArray

FILES = ("rounds.jsonl", "summary.json", "clients.parquet")
"""Files of which a run's folder has at least one."""

FAILED = "failed.txt"
"""Says why a run has failed."""


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run read from its folder; each file is read on first access.

    A missing file reads as empty, because an interrupted run lacks the last ones.

    Attributes
    ----------
    folder
        The run's folder.

    Raises
    ------
    FileNotFoundError
        If the folder holds neither ``rounds.jsonl`` nor ``summary.json`` nor ``clients.parquet``.
    """

    folder: Path

    def __post_init__(self) -> None:
        if not any((self.folder / name).is_file() for name in FILES):
            raise FileNotFoundError(f"folder must hold a run ({', '.join(FILES)}), got {self.folder}")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json``.

        Raises
        ------
        ValueError
            If it is not a JSON object.
        """
        return self._mapping("summary.json", read_json)

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.yaml``.

        Raises
        ------
        ValueError
            If it is not a YAML mapping.
        """
        return self._mapping("config.yaml", read_yaml)

    @cached_property
    def failed(self) -> str:
        """Why the run has failed; empty unless it has, and was not resumed since."""
        path = self.folder / FAILED
        return path.read_text(encoding="utf-8").strip() if path.is_file() else ""

    def _mapping(self, name: str, read: Callable[[Path], Any]) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            return {}
        value = read(path)
        if not isinstance(value, dict):
            raise ValueError(f"{path} must hold a mapping, got {type(value).__name__}")
        return value

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of ``rounds.jsonl``.

        Raises
        ------
        ValueError
            If a line is not a JSON object. A truncated last line, which a killed run can leave, is ignored.
        """
        return list(self.lines())

    def lines(self) -> Iterator[dict[str, Any]]:
        """Read the lines of ``rounds.jsonl`` one after another, as :attr:`rounds` has them."""
        path = self.folder / "rounds.jsonl"
        if not path.is_file():
            return
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                try:
                    if line != "\n":
                        if not isinstance(found := json.loads(line), dict):
                            raise ValueError(f"an object, got {type(found).__name__}")
                        yield found
                except (ValueError, RecursionError) as error:
                    if not line.endswith("\n"):  # text after the last line break is not a complete line
                        break
                    raise ValueError(f"{path}, line {number} must be JSON: {error}") from error

    @cached_property
    def changes(self) -> list[dict[str, Any]]:
        """``clusters.json``: each assignment with its round and reason."""
        path = self.folder / "clusters.json"
        return read_json(path) if path.is_file() else []

    @cached_property
    def clients(self) -> pd.DataFrame | None:
        """``clients.parquet``, a row per client that trained."""
        table = self._all_clients
        if table is None or "newcomer" not in table:
            return table
        return table[~table["newcomer"]].reset_index(drop=True)

    @cached_property
    def newcomers(self) -> pd.DataFrame | None:
        """The rows of ``clients.parquet`` of the clients that were left out of training, if any were."""
        table = self._all_clients
        if table is None or "newcomer" not in table:
            return None
        return table[table["newcomer"]].reset_index(drop=True)

    @cached_property
    def _all_clients(self) -> pd.DataFrame | None:
        path = self.folder / "clients.parquet"
        number = self.summary.get("num_clients")
        most = 10**7 if not isinstance(number, int) else 1000 + 100 * number  # some were held out of training
        return read_table(path, most) if path.is_file() else None

    @cached_property
    def placing(self) -> dict[str, NDArray]:
        """``placing.npz``: the method's rule for newcomers; empty without one."""
        path = self.folder / "placing.npz"
        return dict(read_arrays(path)) if path.is_file() else {}

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """``inputs.json``: how raw rows become inputs; empty for a run from before this file existed."""
        return self._mapping("inputs.json", read_json)

    @property
    def target(self) -> Target:
        """What is predicted."""
        return from_values(self.summary.get("target") or self.inputs.get("target"))

    @cached_property
    def compared(self) -> dict[str, "SavedRun"]:
        """The strategies compared with this one, by name; of a finished run, those that its summary has.

        Others were compared with it before it was resumed, perhaps after fewer rounds.
        """
        folders = sorted(path.parent for path in self.folder.glob("compare/*/rounds.jsonl"))
        if "made" in self.summary:
            folders = [folder for folder in folders if folder.name in self.summary.get("compare", {})]
        return {folder.name: SavedRun(folder) for folder in folders}

    @property
    def side_by_side(self) -> list[tuple[str, "SavedRun"]]:
        """The run itself and the runs compared with it, with the names of their strategies."""
        return [(self.strategy, self), *self.compared.items()]

    @property
    def strategy(self) -> str:
        """The strategy's name; the folder's name if there is no summary."""
        return str(self.summary.get("strategy", self.folder.name))

    @cached_property
    def assignment(self) -> IntArray | None:
        """Final cluster index of each client, shape (K,)."""
        if self.clients is not None:
            return self.clients["cluster"].to_numpy(dtype=np.int64)
        return np.array(self.changes[-1]["assignment"]) if self.changes else None

    def _column(self, name: str) -> "pd.Series | None":
        return None if self.clients is None else self.clients.get(name)

    @cached_property
    def groups(self) -> IntArray | None:
        """Known grouping of the clients, shape (K,), if the partition has one."""
        column = self._column("group")
        return None if column is None or column.isna().any() else column.to_numpy(dtype=np.int64)

    @cached_property
    def client_names(self) -> list[str] | None:
        """Names of the K clients in the data, if they have any."""
        column = self._column("name")
        return None if column is None else column.tolist()

    @cached_property
    def label_counts(self) -> IntArray | None:
        """Training labels of each client, shape (K, C)."""
        column = self._column("label_counts")
        return None if column is None or column.empty else np.stack(column.to_list())

    def series(self, key: str) -> tuple[IntArray, FloatArray]:
        """Return one value over the rounds.

        Parameters
        ----------
        key
            A key of the lines of ``rounds.jsonl``.

        Returns
        -------
        The rounds that have the key, and its values, both of shape (n,).
        """
        pairs = [(line["round"], line[key]) for line in self.rounds if line.get(key) is not None]
        numbers, values = ([pair[at] for pair in pairs] for at in (0, 1))
        return np.array(numbers, dtype=np.int64), np.array(values, dtype=float)

    def matrices(self) -> Iterator[tuple[str, NDArray]]:
        """Yield the arrays of ``matrices.npz``, loading one at a time."""
        path = self.folder / "matrices.npz"
        if path.is_file():
            yield from read_arrays(path)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of a configuration by dotted key, such as ``"partition.alpha"``."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


MOST_CLIENTS = 5_000
"""Most clients on a page; ``clients.parquet`` has all."""

MOST_ACCURACIES, MOST_ROUNDS = 150_000, 1_000
"""Most accuracies on a page, over all clients and rounds, and most rounds that they are from."""

_CLIENTS = "client_accuracy"
_UNUSED = ("cluster_accuracy", "cluster_sizes")
_OF_REPORTS = ("mse", "pair_coverage", "split")


def shorts(values: ArrayLike) -> list[float | int | None]:
    """Round to six significant digits; None for non-finite numbers. Integers are kept."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array.tolist()
    floats = array.astype(np.float64).tolist()
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in floats]


def evenly(count: int, most: int) -> list[int]:
    """Choose at most `most` of the indices 0 to count - 1, evenly spaced, with the first and the last."""
    if count <= most:
        return list(range(count))
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def pack(shares: ArrayLike) -> str:
    """Encode numbers in [0, 1], of any shape, as base64 of two little-endian bytes each.

    The codes 0 to 65534 stand for 0 to 1, 65535 for an unknown value.
    """
    numbers = np.asarray(shares, dtype=np.float64)
    codes = np.where(np.isfinite(numbers), np.rint(np.clip(numbers, 0, 1) * 65534), 65535)
    return base64.b64encode(codes.astype("<u2").tobytes()).decode("ascii")


def shown(count: int, width: int, most: int = MOST_ACCURACIES) -> list[int]:
    """Choose the rounds whose accuracies are shown.

    Parameters
    ----------
    count
        Number of rounds that have clients' accuracies.
    width
        Number of clients.
    most
        Approximate limit on the number of accuracies.
    """
    return evenly(count, min(MOST_ROUNDS, max(2, most // width)))


@dataclass(frozen=True, eq=False)
class ThinnedRun(SavedRun):
    """A run, reduced to what its page shows.

    From ``rounds.jsonl``, it keeps the clients' accuracies of the rounds that are shown, and what is drawn of
    a method's report. From ``clusters.json``, every assignment but the last has only the clients that are
    shown; each has the ``sizes`` of all clusters.
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
        changes: list[dict[str, Any]] = []
        if not path.is_file():
            return changes
        with readable(path, "JSON"), path.open(encoding="utf-8", newline="\n") as file:
            for line in file:  # an entry is one line
                if not line.startswith("{"):
                    continue
                change = json.loads(line.rstrip().rstrip(","))
                clusters = np.array(change["assignment"], dtype=np.int32)
                change |= {"assignment": clusters, "sizes": np.bincount(clusters)}
                if changes:
                    changes[-1]["assignment"] = changes[-1]["assignment"][:MOST_CLIENTS].copy()
                changes.append(change)
        return changes

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
    return {sys.intern(key): value for key, value in record.items()}  # one copy of each key for all lines
