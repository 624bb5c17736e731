"""Read a run from its folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from fedclust.typing import FloatArray, IntArray

# The pure Python loader needs more time for a configuration than all other files of a run take together.
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        names = ("rounds.jsonl", "summary.json", "clients.parquet")
        if not any((self.folder / name).is_file() for name in names):
            raise FileNotFoundError(f"folder must hold a run ({', '.join(names)}), got {self.folder}")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """``summary.json``.

        Raises
        ------
        ValueError
            If it is not a JSON object.
        """
        path = self.folder / "summary.json"
        if not path.is_file():
            return {}
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} must be JSON: {error}") from error
        if not isinstance(summary, dict):
            raise ValueError(f"{path} must hold an object, got {type(summary).__name__}")
        return summary

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.yaml``.

        Raises
        ------
        ValueError
            If it is not a YAML mapping.
        """
        path = self.folder / "config.yaml"
        if not path.is_file():
            return {}
        try:
            config = yaml.load(path.read_text(encoding="utf-8"), _YAML_LOADER)
        except yaml.YAMLError as error:
            raise ValueError(f"{path} must be YAML: {error}") from error
        if not isinstance(config, dict):
            raise ValueError(f"{path} must hold a mapping, got {type(config).__name__}")
        return config

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The lines of ``rounds.jsonl``.

        Raises
        ------
        ValueError
            If a line is not JSON. A truncated last line is ignored, since a killed run can leave one.
        """
        return list(self.lines())

    def lines(self) -> Iterator[dict[str, Any]]:
        """Read the lines of ``rounds.jsonl`` one after another, as :attr:`rounds` has them."""
        path = self.folder / "rounds.jsonl"
        if not path.is_file():
            return
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                try:
                    if line != "\n":
                        yield json.loads(line)
                except ValueError as error:
                    if not line.endswith("\n"):  # text after the last line break is not a complete line
                        break
                    raise ValueError(f"{path}, line {number} must be JSON: {error}") from error

    @cached_property
    def changes(self) -> list[dict[str, Any]]:
        """``clusters.json``: each assignment with its round and reason."""
        path = self.folder / "clusters.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

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
        return pd.read_parquet(path) if path.is_file() else None

    @cached_property
    def placing(self) -> dict[str, NDArray]:
        """``placing.npz``: the method's rule for clients that come later; empty without one."""
        path = self.folder / "placing.npz"
        if not path.is_file():
            return {}
        with np.load(path) as arrays:
            return {name: arrays[name] for name in arrays.files}

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """``inputs.json``: how raw rows become inputs; empty for a run of before there was one."""
        path = self.folder / "inputs.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    @cached_property
    def compared(self) -> dict[str, "SavedRun"]:
        """The strategies compared with this one, by name."""
        return {
            path.parent.name: SavedRun(path.parent)
            for path in sorted(self.folder.glob("compare/*/rounds.jsonl"))
        }

    @property
    def side_by_side(self) -> list[tuple[str, "SavedRun"]]:
        """The run itself and the runs compared with it, with their display names."""
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

    @cached_property
    def groups(self) -> IntArray | None:
        """Known grouping of the clients, shape (K,), if the partition has one."""
        if self.clients is None or "group" not in self.clients or self.clients["group"].isna().any():
            return None
        return self.clients["group"].to_numpy(dtype=np.int64)

    @cached_property
    def client_names(self) -> list[str] | None:
        """Names of the K clients in the data, if they have any."""
        if self.clients is None or "name" not in self.clients:
            return None
        return self.clients["name"].tolist()

    @cached_property
    def label_counts(self) -> IntArray | None:
        """Training labels of each client, shape (K, C)."""
        if self.clients is None or "label_counts" not in self.clients or self.clients.empty:
            return None
        return np.stack([np.asarray(counts) for counts in self.clients["label_counts"]])

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
        numbers = np.array([number for number, _ in pairs], dtype=np.int64)
        return numbers, np.array([value for _, value in pairs], dtype=float)

    def matrices(self) -> Iterator[tuple[str, NDArray]]:
        """Yield the arrays of ``matrices.npz``, loading one at a time."""
        path = self.folder / "matrices.npz"
        if path.is_file():
            with np.load(path) as arrays:
                for name in arrays.files:
                    yield name, arrays[name]
