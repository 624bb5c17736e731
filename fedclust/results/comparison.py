"""Compare many runs: one row per strategy and setting, averaged over seeds, and tests between methods."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from fedclust.results.names import paper_name
from fedclust.results.report import figure
from fedclust.results.saved_run import SavedRun, flat
from fedclust.results.summary import PREFIX, SERVED_FIGURES, personal_figure
from fedclust.support.checks import check_choice
from fedclust.typing import FloatArray, IntArray

LOWER = ("ad", "sdad", "wadb", "seconds", "bytes_down", "bytes_up", "failed_replies")
"""Keys of ``summary.json`` of which the lowest value is the best."""

_NEWCOMERS = ("newcomers.accuracy", "newcomers.adjusted_rand", "newcomers.none")
# Top-level keys of a configuration that do not affect a run's results, such as where it ran.
_NO_SETTINGS = {
    "checkpoint_every",
    "compare",
    "hydra",
    "output_dir",
    "overrides",
    "resume",
    "searchpath",
    "seed",
    "timeout",
    "wait",
}


@dataclass(frozen=True, eq=False)
class Row:
    """The runs of one strategy with one setting.

    Attributes
    ----------
    strategy
        Name of the strategy.
    settings
        The setting, one text per name in :attr:`ComparedRuns.settings`; empty if the strategy's configuration
        lacks that key.
    runs
        The runs, one per seed, ordered by seed.
    """

    strategy: str
    settings: tuple[str, ...]
    runs: tuple[SavedRun, ...]

    def values(self, metric: str) -> FloatArray:
        """Return one metric for all seeds that have it, shape (n,)."""
        return np.array([*self.by_seed(metric).values()], dtype=float)

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return one metric by seed, for all seeds that have it."""
        values = {run.summary["seed"]: _value(run.summary, metric) for run in self.runs}
        return {seed: value for seed, value in values.items() if value is not None}

    def curves(self, metric: str) -> tuple[IntArray, FloatArray]:
        """Return the rounds that all runs with a metric have, shape (n,), and its values, shape (runs, n)."""
        found = [curve for run in self.runs if (curve := run.series(metric))[0].size]
        if not found:
            return np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        shared = reduce(np.intersect1d, [rounds for rounds, _ in found])
        return shared, np.stack([values[np.isin(rounds, shared)] for rounds, values in found])


@dataclass(frozen=True, eq=False)
class ComparedRuns:
    """A table of runs.

    Attributes
    ----------
    settings
        Configuration groups and keys in which the runs differ, without those that follow from others.
    rows
        Rows, ordered by settings, then strategy.
    repeats
        Runs left out because another run has the same strategy, setting and seed.
    """

    settings: tuple[str, ...]
    rows: tuple[Row, ...]
    repeats: tuple[Path, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys with a number in at least one summary, in the order first seen.

        ``personal.<key>`` is a figure with the personal layer that the run chose, ``newcomers.<key>`` one of
        clients that were left out of training.
        """
        items = (item for row in self.rows for run in row.runs for item in run.summary.items())
        own = dict.fromkeys(key for key, value in items if _is_number(value))
        later = (*(PREFIX + key for key in SERVED_FIGURES), *_NEWCOMERS)
        return (*own, *(key for key in later if any(row.values(key).size for row in self.rows)))


def _beside(run: SavedRun) -> Path | None:
    """Return the folder of the run that this one was compared with, if any."""
    return run.folder.parents[1] if run.folder.parent.name == "compare" else None


def _config(run: SavedRun) -> dict[str, str]:
    """Flatten a run's configuration; if missing, that of the main run without its strategy."""
    config, beside = run.config, _beside(run)
    if not config and beside is not None and (beside / "config.yaml").is_file():
        config = {key: value for key, value in SavedRun(beside).config.items() if key != "strategy"}
    size = {key: run.summary[key] for key in ("num_clients", "rounds") if key in run.summary}
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in flat(config | size)
        if value != {} and key.split(".")[0] not in _NO_SETTINGS and key.split(".")[-1] != "seed"
    }


def find_runs(folders: Sequence[Path]) -> tuple[list[SavedRun], list[Path]]:
    """Find runs in folders and their subfolders, including compared strategies.

    Parameters
    ----------
    folders
        Folders that contain runs or Hydra sweeps, at any depth.

    Returns
    -------
    The runs with a summary, and the folders of unfinished runs.

    Raises
    ------
    FileNotFoundError
        If a folder does not exist, or none contains a finished run.
    ValueError
        If a summary cannot be read.
    """
    runs, unfinished = runs_below(folders)
    if not runs:
        named = ", ".join(map(str, folders))
        rule = f"folders must hold at least one finished run, got {named} without a summary.json of one"
        more = f"; {len(unfinished)} run(s) there have not finished" if unfinished else ""
        raise FileNotFoundError(f"{rule}{more}")
    return runs, unfinished


def runs_below(folders: Sequence[Path]) -> tuple[list[SavedRun], list[Path]]:
    """Find runs like :func:`find_runs`, but allow that none has finished yet."""
    finished: set[Path] = set()
    unfinished: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"folder must exist, got {folder}")
        finished |= {path.resolve().parent for path in folder.rglob("summary.json")}
        unfinished |= {path.resolve().parent for path in folder.rglob("rounds.jsonl")}
    # `task=inspect` leaves a summary too, but of a partition.
    runs = [run for run in map(SavedRun, sorted(finished)) if run.summary.get("task") != "inspect"]
    return runs, sorted(unfinished - finished)


def compare(runs: Sequence[SavedRun]) -> ComparedRuns:
    """Group runs by strategy and setting.

    A compared strategy (``compare=fedavg``) counts as a separate run, unless that strategy also ran by
    itself with the same setting and seed: then the same figures would count twice. Of several runs that
    agree in all three, the newest is used.

    Parameters
    ----------
    runs
        Finished runs.

    Raises
    ------
    ValueError
        If a summary or configuration cannot be read, or a summary has no strategy or seed.
    """
    for run in runs:
        if not {"strategy", "seed"} <= run.summary.keys():
            path, found = run.folder / "summary.json", list(run.summary)
            raise ValueError(f"{path} must have the keys strategy and seed, got {found}")
    configs = {run: _config(run) for run in runs}
    keys = _settings(configs)
    groups: dict[tuple[str, tuple[str, ...]], dict[int, SavedRun]] = {}
    repeats = []
    # The newest first, own runs before compared ones: the first one of each seed is kept.
    for run in sorted(runs, key=lambda each: (_beside(each) is not None, -_written(each))):
        setting = tuple(configs[run].get(key, "") for key in keys)
        seeds = groups.setdefault((run.strategy, setting), {})
        if seeds.setdefault(run.summary["seed"], run) is not run and "taken_from" not in run.summary:
            repeats.append(run.folder)  # a copy is not a second run
    rows = []
    for (strategy, setting), seeds in sorted(groups.items(), key=_place):
        rows.append(Row(strategy, setting, tuple(seeds[seed] for seed in sorted(seeds))))
    titles = tuple(key.removeprefix("choices.") for key in keys)
    return ComparedRuns(titles, tuple(rows), tuple(sorted(repeats)))


@dataclass(frozen=True)
class Difference:
    """A method's mean difference from another one on the same seeds.

    Attributes
    ----------
    mean, spread
        Mean and sample standard deviation over the seeds; the latter is NaN for one seed.
    seeds
        Number of seeds that both have.
    p_value
        Of :func:`fedclust.metrics.ranks.sign_flip`, times `pairs` (Bonferroni), at most 1.
    pairs
        Number of pairs of methods in this setting that are compared.
    """

    mean: float
    spread: float
    seeds: int
    p_value: float
    pairs: int


def by_setting(comparison: ComparedRuns) -> tuple[str, dict[str, dict[str, Row]]]:
    """Group rows by setting; the strategies' own keys belong to the methods' names.

    Returns
    -------
    The settings' keys, and the rows by setting and method, which is named as its paper writes it.
    """
    panels: dict[str, dict[str, Row]] = {}
    shared = [key for key in comparison.settings if not key.startswith("strategy.")]
    for row in comparison.rows:
        given = dict(zip(comparison.settings, row.settings, strict=True))
        # A key that this setting lacks is empty; a computed one is null.
        named = {key: f"{key.rpartition('.')[2]} {value}" for key, value in given.items() if value}
        setting = ", ".join(named[key] for key in shared if key in named and given[key] != "null")
        own = (text for key, text in named.items() if key not in shared)
        panels.setdefault(setting, {})[", ".join([paper_name(row.strategy), *own])] = row
    return ", ".join(shared), panels


def ranked(rows: Iterable[Row], metric: str) -> list[Row]:
    """Sort the rows that have a metric by its mean, the best first."""
    means = {row: values.mean() for row in rows if (values := row.values(metric)).size}
    return sorted(means, key=means.__getitem__, reverse=metric not in LOWER)


def differences(comparison: ComparedRuns, metric: str, against: str | None = None) -> dict[Row, Difference]:
    """Compare each method with the best one of its setting, or with a given one, seed by seed.

    Parameters
    ----------
    comparison
        The comparison.
    metric
        Key of ``summary.json``.
    against
        Strategy to compare the others with; the best one of each setting unless given. All pairs then count,
        because the best one is known only from the same figures.

    Returns
    -------
    The difference of each row but those that the others are compared with, and those without a common seed.

    Raises
    ------
    ValueError
        If `against` is no strategy of the runs.
    """
    from fedclust.metrics.ranks import sign_flip  # scipy.stats takes most of a second to import

    if against is not None:
        check_choice("against", against, dict.fromkeys(row.strategy for row in comparison.rows))
    found = {}
    for methods in by_setting(comparison)[1].values():
        rows = ranked(methods.values(), metric)
        reference = next((row for row in rows if against in (None, row.strategy)), None)
        pairs = len(rows) * (len(rows) - 1) // 2 if against is None else len(rows) - 1
        theirs = {} if reference is None else reference.by_seed(metric)
        for row in rows:
            own = row.by_seed(metric)
            gaps = np.array([own[seed] - theirs[seed] for seed in own.keys() & theirs.keys()])
            if row is not reference and gaps.size:
                spread = float(gaps.std(ddof=1)) if gaps.size > 1 else np.nan
                p_value = min(1.0, pairs * sign_flip(gaps))
                found[row] = Difference(float(gaps.mean()), spread, gaps.size, p_value, pairs)
    return found


def how_tested(found: Mapping[Row, Difference]) -> str:
    """Explain the p-values of :func:`differences`, and what they can show with so few seeds."""
    most = max(found.values(), key=lambda each: (each.seeds, -each.pairs))
    least, needed = min(1.0, most.pairs * 2 / 2**most.seeds), math.ceil(math.log2(2 * most.pairs / 0.05))
    able = f", {needed} seeds are needed for 0.05" if least > 0.05 else ""
    times = f", times the {most.pairs} pairs of methods" if most.pairs > 1 else ""
    return (
        f"p: sign-flip test of the differences by seed, two-sided{times}; "
        f"with {most.seeds} seeds it is at least {least:.2g}{able}"
    )


def best_lines(comparison: ComparedRuns) -> list[str]:
    """Name the method with the highest mean accuracy in each setting that has several, a line each."""
    lines, key, found = [], "mean_client_accuracy", differences(comparison, "mean_client_accuracy")
    for setting, methods in by_setting(comparison)[1].items():
        names = {row: name for name, row in methods.items()}
        if len(rows := ranked(methods.values(), key)) > 1:
            first, other = rows[:2]
            best, second = first.values(key), other.values(key)
            shared = best.mean() == second.mean()
            line = f"{names[first]} and {names[other]} share" if shared else f"{names[first]} has"
            over = f" over {best.size} seeds" if best.size > 1 else ""
            line += f" the highest accuracy{over}, {mean_and_spread(best)}"
            line += "" if shared else f"; next {names[other]}, {mean_and_spread(second)}"
            if not shared and (gap := found.get(other)) is not None and gap.seeds > 1:
                line += f", p {gap.p_value:.2g}"
            lines.append(f"{setting}: {line}" if setting else line)
    return [*lines[:5], f"and {len(lines) - 5} more settings, in the table"] if len(lines) > 5 else lines


def mean_and_spread(values: FloatArray, digits: int = 3) -> str:
    """Format mean ± sample standard deviation; – without values."""
    spread = f" ± {values.std(ddof=1):.{digits}f}" if values.size > 1 else ""
    return f"{values.mean():.{digits}f}{spread}" if values.size else "–"


def _place(group: tuple[tuple[str, tuple[str, ...]], object]) -> tuple[object, ...]:
    """Return the sort key: settings, with numbers by size, then strategy."""
    (strategy, setting), _ = group
    return tuple(_number_or_text(value) for value in setting), strategy


def _number_or_text(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value), ""
    except ValueError:
        return True, 0.0, value


def _settings(configs: Mapping[SavedRun, Mapping[str, str]]) -> tuple[str, ...]:
    """Find the fewest keys that distinguish all runs with different configurations.

    A key of the strategy counts only if it differs between runs of one strategy; between two strategies,
    their names are enough.
    """
    keys = sorted(
        {key for config in configs.values() for key in config},
        # The name of a dataset is clearer than the ten keys that change with it.
        key=lambda key: (not key.startswith("choices."), key.endswith("_target_"), key.count("."), key),
    )
    shared = [key for key in keys if "strategy" not in key.split(".")]
    own = [key for key in keys if key.startswith("strategy.")]
    kept: list[str] = []
    groups: list[tuple[str, ...]] = [()] * len(configs)
    for key in [*shared, None, *own]:
        finer = [
            (*group, run.strategy if key is None else config.get(key, ""))
            for group, (run, config) in zip(groups, configs.items(), strict=True)
        ]
        if key is None:
            groups = finer
        elif len(set(finer)) > len(set(groups)):
            groups = finer
            kept.append(key)
    return tuple(kept)


def _written(run: SavedRun) -> float:
    return (run.folder / "summary.json").stat().st_mtime


def _value(summary: Mapping[str, Any], metric: str) -> Any:
    if metric.startswith(PREFIX):
        return personal_figure(summary, metric.removeprefix(PREFIX))
    return figure(summary, metric)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
