"""Write a run's results into its folder while it runs, or elsewhere if the folder cannot be written."""

import errno
import json
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

import numpy as np
import pandas as pd
import yaml
from numpy.typing import ArrayLike, NDArray

from fedclust.data.targets import CLASSES, Target, to_values
from fedclust.support.checks import dumps, dumps_by_key, plain, replace_file
from fedclust.support.reasons import RunFailed


def another_run(folder: Path) -> FileExistsError:
    """Make the error of a new run whose folder holds one already."""
    rule = f"output_dir must not hold another run, got {folder} with a rounds.jsonl in it"
    return FileExistsError(f"{rule}; to go on with that one, give resume={folder}")


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
    kept
        Lines of an earlier ``rounds.jsonl`` to go on from, see :meth:`resume`; None for a new run.

    Raises
    ------
    FileExistsError
        If the folder already holds a run, and this is a new one.
    """

    def __init__(
        self,
        folder: Path,
        config: str | Mapping[str, object] | None = None,
        kept: Sequence[str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if kept is None:
                self._rounds = (folder / "rounds.jsonl").open("x+", encoding="utf-8")
            else:  # the earlier file stays until this one has what is kept of it
                self._rounds = (begun := folder / "partial.rounds.jsonl").open("w+", encoding="utf-8")
                self._rounds.writelines(kept)
                self._rounds.flush()
                os.replace(begun, folder / "rounds.jsonl")
        except FileExistsError as error:
            raise another_run(folder) from error
        self.folder = folder
        self._last_round = 0
        self._assignment: NDArray[np.int64] | None = None
        self._matrices: dict[str, NDArray] = {}
        self._changes: BinaryIO | None = None
        self._end_of_changes = 0  # where its closing bracket is
        self._unwritten_round = ""
        self._unwritten_changes: list[str] = []
        self._before: dict[str, bytes] = {}  # files of a resumed run, until it has something new
        self._config: str | None = None
        if config is not None:
            text = config if isinstance(config, str) else yaml.safe_dump(plain(config), sort_keys=False)
            replace_file(folder / "config.yaml", text)
            self._config = text

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; put back those of a resumed run that has nothing new."""
        for file in (self._rounds, self._changes):
            with suppress(OSError):  # what a full disk rejected has already raised, when it was written
                if file is not None:
                    file.close()
        for name, content in self._before.items():
            with suppress(OSError):  # without room for them, the run goes on from what is there
                self._replace(name, partial(Path.write_bytes, data=content))
        self._before = {}

    def copy_to(self, folder: Path) -> None:
        """Write the run so far into another folder, from which it can be resumed.

        It is read from the open files, which works even after their folder was removed, and from what could
        not be written into them. Must be called before :meth:`close`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self._config is not None:
            replace_file(folder / "config.yaml", self._config)
        lines = _content(self._rounds)
        lines = lines[: lines.rfind(b"\n") + 1]
        (folder / "rounds.jsonl").write_bytes(lines + self._unwritten_round.encode())
        changes = b"" if self._changes is None else _content(self._changes)[: self._end_of_changes]
        entries = ([changes.decode().removeprefix("[\n")] if changes else []) + self._unwritten_changes
        if entries:
            (folder / "clusters.json").write_text("[\n" + ",\n".join(entries) + "\n]\n", encoding="utf-8")

    @classmethod
    def resume(
        cls, folder: Path, server_round: int, config: str | Mapping[str, object] | None = None
    ) -> "Recorder":
        """Open the folder of a run to resume it after a round; the results of later rounds are removed.

        If the run is closed with no further round and no summary, as when it is refused, its folder is as it
        was.

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
            rule = f"rounds.jsonl must have the {server_round} rounds of the checkpoint"
            raise ValueError(f"{rule}, that in {folder} has {len(kept)}")
        changes = _changes_up_to(folder / "clusters.json", server_round) if server_round else []
        paths = [folder / name for name in ("config.yaml", "rounds.jsonl", "clusters.json")]
        before = {path.name: path.read_bytes() for path in paths if path.is_file()}
        recorder = cls(folder, config, kept)
        recorder._before = before
        recorder._last_round = server_round
        (folder / "clusters.json").unlink(missing_ok=True)
        try:
            for change in changes:
                recorder.assignment(change["round"], change["assignment"], change["reason"])
        except BaseException:
            recorder.close()
            raise
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
        OSError
            If the file cannot be written, or was removed.
        """
        number = record.get("round")
        if not isinstance(number, (int, np.integer)) or number <= self._last_round:
            raise ValueError(f"round must be an integer > {self._last_round}, got {number!r}")
        self._unwritten_round = dumps(record) + "\n"
        if os.fstat(self._rounds.fileno()).st_nlink == 0:  # removed: a write would succeed and be lost
            path = str(self.folder / "rounds.jsonl")
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._rounds.write(self._unwritten_round)
        self._rounds.flush()
        self._unwritten_round = ""
        self._last_round = int(number)
        if self._before:
            self._before = {}
            # Its figures belong to another round than the run's new last one.
            (self.folder / "summary.json").unlink(missing_ok=True)

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
        self._assignment = clusters.astype(np.int64)
        entry = dumps({"round": server_round, "assignment": clusters, "reason": reason})
        self._unwritten_changes.append(entry)
        if self._changes is None:
            self._changes = (self.folder / "clusters.json").open("wb+", buffering=0)
        # A method that regroups every round makes many entries: put this one before the closing bracket in
        # place, instead of writing all of them anew.
        added = ",\n" if self._end_of_changes else "[\n"
        text = (added + ",\n".join(self._unwritten_changes)).encode()
        self._changes.seek(self._end_of_changes)
        _write_all(self._changes, text + b"\n]\n")
        self._end_of_changes += len(text)
        self._unwritten_changes.clear()
        return True

    def inputs(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        encoder: Mapping[str, object] | None = None,
        embedded_by: str = "",
        target: Target = CLASSES,
    ) -> None:
        """Write ``inputs.json``.

        Parameters
        ----------
        mean, std
            Mean and standard deviation of each channel of images; empty for other inputs.
        encoder
            How raw rows become inputs, see :mod:`fedclust.data.input_encoders`; None if unknown.
        embedded_by
            Fingerprint of the frozen encoder that embeds these; empty without one.
        target
            What is predicted.
        """
        values: dict[str, object] = {"mean": list(mean), "std": list(std)}
        if encoder is not None:
            values["encoder"] = encoder
        if embedded_by:
            values["embedded_by"] = embedded_by
        if predicted := to_values(target):
            values["target"] = predicted
        replace_file(self.folder / "inputs.json", dumps(values) + "\n")

    def clients(self, table: pd.DataFrame) -> None:
        """Write ``clients.parquet``, a row per client; see :func:`fedclust.results.client_table`.

        Raises
        ------
        ValueError
            If there is no column ``client`` or ``cluster``.
        """
        if not {"client", "cluster"} <= set(table.columns):
            raise ValueError(f"table must have the columns client and cluster, got {list(table.columns)}")
        self._replace("clients.parquet", lambda partial: table.to_parquet(partial, index=False))

    def matrices(self, **arrays: ArrayLike) -> None:
        """Add named arrays to ``matrices.npz``; a name given again replaces the earlier array.

        Every array of shape (K, K) is drawn, rows and columns ordered by cluster; NaN stands for a pair
        that was never compared. Names with a special meaning, see :mod:`fedclust.results.charts.run`:
        ``interaction``, ``affinity``, ``distances``, ``pair_scores``, ``silhouette_numbers`` and
        ``silhouette_scores``, ``curve_pairs``, ``curve_points``, ``curve_losses`` and ``line_losses``,
        ``class_names``, ``confusion`` and ``confusion_clusters``.

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
        # Not compressed: a large affinity matrix hardly shrinks. (The stub takes the names for options.)
        self._replace("matrices.npz", lambda partial: np.savez(partial, **self._matrices))  # type: ignore[arg-type]

    def placing(self, rule: Mapping[str, NDArray | str]) -> None:
        """Write ``placing.npz``, the rule by which newcomers are placed; write nothing without a rule.

        See :mod:`fedclust.newcomers.placing`.
        """
        if rule:
            self._replace("placing.npz", lambda partial: np.savez(partial, **rule))  # type: ignore[arg-type]

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        partial = self.folder / f"partial.{name}"
        write(partial)
        os.replace(partial, self.folder / name)

    def summary(self, summary: Mapping[str, object]) -> None:
        """Write ``summary.json``, see :func:`write_summary`."""
        write_summary(self.folder, summary)
        self._before = {}


def _content(file: IO[Any]) -> bytes:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def _write_all(file: BinaryIO, text: bytes) -> None:
    """Write to an unbuffered file, which may take the text in parts, such as on an almost full disk."""
    while text:
        text = text[file.write(text) :]


def write_summary(folder: Path, summary: Mapping[str, object]) -> None:
    """Write a run's ``summary.json``, a line per key; see :func:`fedclust.results.summarise`."""
    replace_file(folder / "summary.json", dumps_by_key(summary))


def _lines_up_to(path: Path, server_round: int | None) -> list[str]:
    """List the lines of the first rounds, or of all for None; a last line that was cut short is dropped."""
    kept: list[str] = []
    # A power failure can leave bytes that are not text.
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.split("\n")[:-1]:
        try:
            if len(kept) == server_round or not isinstance(json.loads(line), dict):
                break
        except ValueError:
            break
        kept.append(f"{line}\n")
    return kept


def _changes_up_to(path: Path, server_round: int) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
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
    """Remove times and bytes from lines of ``rounds.jsonl``, so that two runs of one seed are equal.

    The number of bytes depends on the number of nodes that the clients are spread over.

    Parameters
    ----------
    records
        Parsed lines, such as :attr:`fedclust.results.SavedRun.rounds`.

    Returns
    -------
    The lines without keys named ``seconds`` or ``made``, ending in ``_seconds`` or starting with
    ``bytes_``, at any depth.
    """
    return [_without_costs(record) for record in records]


def _without_costs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_costs(item) for key, item in value.items() if not _is_cost(str(key))}
    return [_without_costs(item) for item in value] if isinstance(value, list) else value


def _is_cost(key: str) -> bool:
    return key in ("seconds", "made") or key.endswith("_seconds") or key.startswith("bytes_")


class CannotWrite(Exception):
    """A run's folder cannot be written; the message gives the reason."""


class Rescuable(Protocol):
    """A run that can be saved into another folder."""

    @property
    def progress(self) -> str:
        """Its last finished round, such as ``"3 of 9"``."""

    def rescue(self, folder: Path) -> None:
        """Save the run so that it can be resumed from `folder`."""


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise :class:`CannotWrite` if a run's files cannot be written.

    Raises
    ------
    CannotWrite
        In place of an OSError, except FileExistsError, which reports a folder that holds another run.
    """
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise CannotWrite(f"{folder} cannot be written ({error.strerror or error})") from error


@contextmanager
def rescuing(runs: Mapping[str, Rescuable], texts: Mapping[str, str]) -> Iterator[None]:
    """Save the runs in a new temporary folder when their own cannot be written.

    Parameters
    ----------
    runs
        The strategies' runs so far, by name, the run itself first; runs may be added inside the context.
    texts
        Further files of the folder that a resumed run needs, by name; also may be added.

    Raises
    ------
    RunFailed
        In place of :class:`CannotWrite`; the message tells where the runs are now and how to resume them.
    """
    try:
        yield
    except CannotWrite as error:
        raise RunFailed(f"{RunFailed.PHRASE} {_saved(runs, texts, str(error))}") from error


def _saved(runs: Mapping[str, Rescuable], texts: Mapping[str, str], why: str) -> str:
    if not runs:
        return f"0, {why}: nothing was trained yet"
    where = list(runs.values())[-1].progress
    parent = "the temporary folder"
    try:
        parent = tempfile.gettempdir()
        folder = Path(tempfile.mkdtemp(prefix="fedclust-rescued-"))
        for position, (name, run) in enumerate(runs.items()):
            run.rescue(folder / "compare" / name if position else folder)
        for name, text in texts.items():
            replace_file(folder / name, text)
    except OSError as error:
        reason = error.strerror or error
        return f"{where}, {why}, nor can {parent} ({reason}): only the last checkpoint is left"
    return (
        f"{where}, {why}: everything up to this round is now in {folder}; to resume: fedclust "
        f"resume={shlex.quote(str(folder))}"
    )
