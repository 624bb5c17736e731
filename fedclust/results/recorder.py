"""Write a run's results into its folder, while it runs."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import ArrayLike, NDArray

from fedclust.results.strict_json import dumps, dumps_by_key, plain, replace_file

__all__ = ["Recorder", "comparable", "write_summary"]


class Recorder:
    """The folder of one run.

    Each part is written at once, so that a run that stops early keeps its results so far.
    Use it as a context manager, or call :meth:`close`.

    Parameters
    ----------
    folder
        Created with its parents if missing. It may hold other files, such as Hydra's own log.
    config
        The composed configuration, for ``config.yaml``: YAML text or a mapping; None to write none.

    Raises
    ------
    FileExistsError
        If the folder already holds a run.
    """

    def __init__(self, folder: Path, config: str | Mapping[str, object] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._rounds = (folder / "rounds.jsonl").open("x", encoding="utf-8")
        except FileExistsError as error:
            raise FileExistsError(
                f"output_dir must not hold another run, got {folder} with a rounds.jsonl in it"
            ) from error
        self.folder = folder
        self._last_round = 0
        self._assignment: NDArray[np.int64] | None = None
        self._matrices: dict[str, NDArray] = {}
        if config is not None:
            text = config if isinstance(config, str) else yaml.safe_dump(plain(config), sort_keys=False)
            replace_file(folder / "config.yaml", text)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close ``rounds.jsonl``."""
        self._rounds.close()

    def compared(self, name: str, config: str | Mapping[str, object] | None = None) -> "Recorder":
        """Open the folder of a compared strategy; see :meth:`compared_folder`.

        Raises
        ------
        FileExistsError
            If it already holds a run.
        """
        return Recorder(self.compared_folder(self.folder, name), config)

    @classmethod
    def resume(
        cls, folder: Path, server_round: int, config: str | Mapping[str, object] | None = None
    ) -> "Recorder":
        """Open the folder of a run to resume it after a round; the results of later rounds are removed.

        Parameters
        ----------
        folder
            The run's folder. Files that the run had not written yet may be missing.
        server_round
            The last round to keep; 0 to start over.
        config
            As for :class:`Recorder`.

        Raises
        ------
        ValueError
            If ``rounds.jsonl`` lacks a round up to that one.
        """
        kept = _lines_up_to(folder / "rounds.jsonl", server_round)
        if len(kept) != server_round:
            raise ValueError(
                f"rounds.jsonl must have the {server_round} rounds of its checkpoint, "
                f"{folder} has {len(kept)}"
            )
        changes = _changes_up_to(folder / "clusters.json", server_round) if server_round else []
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rounds.jsonl").unlink(missing_ok=True)
        recorder = cls(folder, config)
        recorder._rounds.writelines(kept)
        recorder._rounds.flush()
        recorder._last_round = server_round
        (folder / "clusters.json").unlink(missing_ok=True)
        for change in changes:
            recorder.assignment(change["round"], change["assignment"], change["reason"])
        return recorder

    @staticmethod
    def rounds_in(folder: Path) -> int:
        """Count the rounds that a run has written; a last line that was cut short does not count."""
        return len(_lines_up_to(folder / "rounds.jsonl", None))

    @staticmethod
    def compared_folder(folder: Path, name: str) -> Path:
        """Return the folder of a compared strategy, which runs on the same partition and seed.

        Parameters
        ----------
        folder
            The run's own folder.
        name
            Name of the compared strategy; it becomes ``compare/<name>/``.

        Raises
        ------
        ValueError
            If the name cannot be one folder's name.
        """
        if name in {"", ".", ".."} or name != Path(name).name:
            raise ValueError(f"name must be usable as a folder name, got {name!r}")
        return folder / "compare" / name

    def round(self, record: Mapping[str, object]) -> None:
        """Append one round to ``rounds.jsonl``.

        Parameters
        ----------
        record
            Must have ``round``; other keys are free.

        Raises
        ------
        ValueError
            If ``round`` is missing, or not greater than that of the line before.
        TypeError
            If a value has no JSON form.
        """
        number = record.get("round")
        if not isinstance(number, (int, np.integer)) or number <= self._last_round:
            raise ValueError(f"round must be an integer > {self._last_round}, got {number!r}")
        self._rounds.write(dumps(record) + "\n")
        self._rounds.flush()
        self._last_round = int(number)

    def assignment(self, server_round: int, assignment: ArrayLike, reason: str) -> bool:
        """Add an entry to ``clusters.json`` if the assignment differs from the one before.

        Parameters
        ----------
        server_round
            Round after which it is valid; 0 for the start.
        assignment
            Cluster index of each client, shape (K,).
        reason
            Why it changed, such as ``"cluster 0 split in 2"``.

        Returns
        -------
        Whether it differed.
        """
        clusters = np.asarray(assignment)
        if self._assignment is not None and np.array_equal(clusters, self._assignment):
            return False
        first = self._assignment is None
        self._assignment = clusters.astype(np.int64)
        entry = dumps({"round": server_round, "assignment": clusters, "reason": reason})
        path = self.folder / "clusters.json"
        if first:
            replace_file(path, f"[\n{entry}\n]\n")
            return True
        # A method that regroups every round makes many entries: put this one before the closing bracket
        # in place, instead of writing all of them anew.
        with path.open("rb+") as file:
            file.seek(-len("\n]\n"), os.SEEK_END)
            file.write(f",\n{entry}\n]\n".encode())
        return True

    def inputs(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Write ``inputs.json``: the mean and standard deviation for normalising inputs; empty for none."""
        replace_file(self.folder / "inputs.json", dumps({"mean": list(mean), "std": list(std)}) + "\n")

    def clients(self, table: pd.DataFrame) -> None:
        """Write ``clients.parquet``, a row per client; see :func:`fedclust.results.client_table`.

        Raises
        ------
        ValueError
            If there is no column ``client`` or ``cluster``.
        """
        missing = {"client", "cluster"} - set(table.columns)
        if missing:
            raise ValueError(f"table must have the columns client and cluster, got {list(table.columns)}")
        partial = self.folder / "clients.parquet.partial"
        table.to_parquet(partial, index=False)
        os.replace(partial, self.folder / "clients.parquet")

    def matrices(self, **arrays: ArrayLike) -> None:
        """Add named arrays to ``matrices.npz``; a name given again replaces the earlier array.

        Every array of shape (K, K) is drawn, rows and columns ordered by cluster; NaN stands for a pair
        that was never compared. Names with a special meaning, see :mod:`fedclust.results.plots`:
        ``interaction``, ``affinity``, ``distances``, ``evidence``, ``pair_scores``, ``silhouette_numbers``
        and ``silhouette_scores``, ``error_ratio_numbers``, ``error_ratios`` and ``error_ratio_limit`` (one
        number), ``curve_pairs``, ``curve_points``, ``curve_losses`` and ``line_losses``, ``separations``,
        names that start with ``loss_trace``, ``class_names``, ``confusion`` and ``confusion_clusters``.

        Raises
        ------
        ValueError
            If an array holds Python objects, which could not be read back safely.
        """
        for name, array in arrays.items():
            values = np.asarray(array)
            if values.dtype.hasobject:
                raise ValueError(f"matrix {name} must hold numbers or strings, got dtype {values.dtype}")
            self._matrices[name] = values
        partial = self.folder / "matrices.partial.npz"
        # Not compressed: a large affinity matrix hardly shrinks. (The stub takes the names for options.)
        np.savez(partial, **self._matrices)  # type: ignore[arg-type]
        os.replace(partial, self.folder / "matrices.npz")

    def placing(self, rule: Mapping[str, NDArray]) -> None:
        """Write ``placing.npz``: the rule by which clients that come later are placed; nothing without one.

        See :mod:`fedclust.placing_rules`.
        """
        if not rule:
            return
        partial = self.folder / "placing.partial.npz"
        np.savez(partial, **rule)  # type: ignore[arg-type]
        os.replace(partial, self.folder / "placing.npz")

    def summary(self, summary: Mapping[str, object]) -> None:
        """Write ``summary.json``, see :func:`write_summary`."""
        write_summary(self.folder, summary)


def write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    """Write a run's ``summary.json``, a line per key; see :func:`fedclust.results.summarise`."""
    replace_file(folder / "summary.json", dumps_by_key(summary))


def _lines_up_to(path: Path, server_round: int | None) -> list[str]:
    """List the lines of the first rounds, None for all; a last line that was cut short does not count."""
    kept: list[str] = []
    if not path.is_file():
        return kept
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n") or len(kept) == server_round:
            break
        kept.append(line)
    return kept


def _changes_up_to(path: Path, server_round: int) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    entries = text.removeprefix("[\n").removesuffix("\n]\n").split(",\n")  # an entry is one line
    changes = []
    for entry in entries:
        try:
            change = json.loads(entry)
        except ValueError:
            break  # cut short
        if change["round"] <= server_round:
            changes.append(change)
    return changes


def comparable(records: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Remove from the lines of ``rounds.jsonl`` what differs between two runs of one seed: times and bytes.

    The number of bytes depends on the number of nodes that the clients are spread over.

    Parameters
    ----------
    records
        Parsed lines, such as :attr:`fedclust.results.SavedRun.rounds`.

    Returns
    -------
    The same without keys called ``seconds``, ending in ``_seconds`` or starting with ``bytes_``, at any
    depth.
    """
    return [_without_costs(record) for record in records]


def _without_costs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_costs(item) for key, item in value.items() if not _is_cost(str(key))}
    return [_without_costs(item) for item in value] if isinstance(value, list) else value


def _is_cost(key: str) -> bool:
    return key == "seconds" or key.endswith("_seconds") or key.startswith("bytes_")
