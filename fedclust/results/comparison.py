"""Compare many runs: one row per strategy and setting, averaged over seeds, and tests between methods."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from fedclust.data import targets
from fedclust.proof import holm
from fedclust.proof.words import CLASSES, Words
from fedclust.results.names import paper_name
from fedclust.results.report import MARK, figure, guess_note, known
from fedclust.results.saved_run import SavedRun, flat
from fedclust.results.summary import SERVED_FIGURES
from fedclust.settings.run_options import RunOptions
from fedclust.support.checks import check_choice
from fedclust.typing import FloatArray, IntArray

PREFIX = "without_layer."
"""Begins the keys of figures of the models that serve, without their personal layers."""

LOWER = (
    *("ad", "sdad", "wadb", "validation_brier", "seconds", "failed_replies", "newcomers.none"),
    *("bytes_down", "bytes_up", "bytes_down_unbundled", "bytes_up_unbundled", "epsilon", "delta"),
    *("trial_trainings", "trial_rounds", "trial_bytes_down", "trial_bytes_up", *targets.LOWER),
)
"""Keys of ``summary.json`` of which the lowest value is the best."""

_NEWCOMERS = ("newcomers.accuracy", "newcomers.adjusted_rand", "newcomers.none")
_OWN = tuple(name for kind in targets.KINDS.values() for name in kind.figure_ranges)
QUALITY = (*SERVED_FIGURES, *_OWN, "rand_index", "adjusted_rand_index", "was", "wadb", *_NEWCOMERS)
"""Keys of ``summary.json`` that measure quality."""
REFERENCE = "fedavg"
"""The strategy that all others are compared with, unless another one is named or it did not run."""

ALL = "all"
"""Instead of a strategy to compare with: compare every two methods."""

LEVEL = 0.05
LEAST_SEEDS = 5
"""With fewer seeds in common, two methods are not tested."""

BEST = (
    f"bold: the best of each setting and, with at least {LEAST_SEEDS} seeds, those not significantly worse "
    f"(at {LEVEL}, corrected by Holm for all pairs)"
)
"""What the rows of :func:`best` are."""

# Top-level keys of a configuration that do not affect a run's results, such as where it ran.
_NO_SETTINGS = {
    "checkpoint_every",
    "compare",
    "hosts",
    "hydra",
    "keep_matrices",
    "max_outage",
    "objective",
    "output_dir",
    "overrides",
    "proof",
    "resume",
    "save_predictions",
    "searchpath",
    "seed",
    "timeout",
    "tracker",
    "wait",
}


_CAP = "strategy.row_cap"  # of a cap that nobody gave


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

    @property
    def mark(self) -> str:
        """A mark if nobody gave the number of groups that the method takes, else nothing."""
        return MARK * any("groups_guessed" in run.summary for run in self.runs)

    @property
    def name(self) -> str:
        """The method's name as its paper writes it, with its mark."""
        return paper_name(self.strategy) + self.mark

    def values(self, metric: str) -> FloatArray:
        """Return one metric for all seeds that have it, shape (n,)."""
        return np.array([*self.by_seed(metric).values()], dtype=float)

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return one metric by seed, for all seeds that have it, to 12 significant digits.

        As many rows that are predicted right give means over clients that may differ in the last bit.
        """
        values = {run.summary["seed"]: figure(run.summary, metric) for run in self.runs}
        return {seed: float(f"{value:.12g}") for seed, value in values.items() if known(value)}

    def beside(self, other: "Row", metric: str) -> tuple[FloatArray, FloatArray]:
        """Return one metric of this row and another for the seeds that both have; for their own if none."""
        own, theirs = self.by_seed(metric), other.by_seed(metric)
        if not (shared := sorted(own.keys() & theirs.keys())):
            return self.values(metric), other.values(metric)
        return np.array([own[seed] for seed in shared]), np.array([theirs[seed] for seed in shared])

    def curves(self, metric: str) -> tuple[IntArray, FloatArray]:
        """Return the rounds that all runs with a metric have, shape (n,), and its values, shape (runs, n)."""
        found = [curve for run in self.runs if (curve := run.series(metric))[0].size]
        if not found:
            return np.zeros(0, dtype=np.int64), np.zeros((0, 0))
        shared = reduce(np.intersect1d, [rounds for rounds, _ in found])
        return shared, np.stack([values[np.isin(rounds, shared)] for rounds, values in found])


def words_of(rows: Iterable[Row]) -> Words:
    """Return what runs predict, in words that hold of all of them."""
    first, *others = [run.target.words for row in rows for run in row.runs] or [CLASSES]
    return first.beside(others)


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
    def words(self) -> Words:
        """What the runs predict, in words that hold of all of them."""
        return words_of(self.rows)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys with a number in at least one summary, in the order first seen.

        ``without_layer.<key>`` is a figure without the personal layers that serve, ``newcomers.<key>`` one of
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
    """Flatten a run's configuration; if missing, that of the main run without its strategy.

    A ``row_cap`` that nobody gave follows from the strategy, or from the one it ran beside: it becomes a key
    of the strategy's.
    """
    config, beside = run.config, _beside(run)
    if not config and beside is not None and (beside / "config.yaml").is_file():
        config = {key: value for key, value in SavedRun(beside).config.items() if key != "strategy"}
    if not any(each.lstrip("+").startswith("row_cap=") for each in config.get("overrides") or ["row_cap="]):
        config = dict(config)
        if (cap := config.pop("row_cap", None)) is not None:
            config["strategy"] = {**(config.get("strategy") or {}), "row_cap": cap}  # _CAP
    config = _as_composed(config)
    size = {key: run.summary[key] for key in ("num_clients", "rounds") if key in run.summary}
    return {
        key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in flat(size | config)  # the rounds that were asked for, if the run stopped early
        if value != {} and _NO_SETTINGS.isdisjoint(key.removeprefix("choices.").split(".")[:1])
    }


def _as_composed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Write the configuration of a run of objects, from Python, as if it had been composed.

    What follows from the strategy is its own: its class, its parameters, a cap of rows, and how it selects
    clients and personalises unless it was told.
    """
    found = dict(config)
    if isinstance(settings := found.pop("settings", None), Mapping):
        shared = {field.name for field in fields(RunOptions)} - {"row_cap"}
        own = {key: value for key, value in settings.items() if key not in shared}
        found |= {key: value for key, value in settings.items() if key in shared}
        found["strategy"] = own | {"selection": found.pop("selection", None)}
        if (found.get("choices") or {}).get("personal") == "own":
            found.pop("personal", None)
    return found


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


def of_one_kind(runs: Sequence[SavedRun]) -> tuple[str, list[SavedRun], list[Path]]:
    """Choose the runs that predict what the newest one does; a share of classes is no concordance.

    Returns
    -------
    What they predict, such as ``classes``, these runs, and the folders of the others; nothing of no runs.
    """
    if not runs:
        return "", [], []
    kind = type(max(runs, key=_written).target)
    others = [run.folder for run in runs if type(run.target) is not kind]
    return kind.__name__.lower(), [run for run in runs if type(run.target) is kind], others


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
    configs = _without_splits({run: _config(run) for run in runs})
    if not any(run.summary.get("capped") for run in runs):  # then no client has more rows than any cap
        for config in configs.values():
            config.pop(_CAP, None)
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


_SPLIT = "partition.seed"


def _without_splits(configs: Mapping[SavedRun, dict[str, str]]) -> dict[SavedRun, dict[str, str]]:
    """Drop what of the configurations follows from each run's own seed: copies of it, and drawn test rows."""
    seeds = {run: str(run.summary["seed"]) for run in configs}
    keys = {key for config in configs.values() for key in config if key.endswith(".seed")}
    dropped = {key for key in keys if all(config.get(key) == seeds[run] for run, config in configs.items())}
    known = all("content" in config or "data" not in config for config in configs.values())  # 0.3 wrote none
    if not known:
        dropped.add("content")
    dropped |= {"data"} if known or not _differ(configs) else set()
    found = {}
    for run, config in configs.items():
        found[run] = own = {key: value for key, value in config.items() if key not in dropped}
        if "content" in own:
            own["content"] = own["content"].removesuffix(f"-{seeds[run]}")
    splits: dict[tuple[str, frozenset[tuple[str, str]]], list[SavedRun]] = {}
    for run, own in found.items():
        split = own.pop(_SPLIT, "null")
        shared = frozenset((key, value) for key, value in own.items() if "strategy" not in key.split("."))
        splits.setdefault((split, shared), []).append(run)
    for (split, _), alike in splits.items():
        if split != "null" and {seeds[run] for run in alike} != {split}:  # not each run's own: a setting
            for run in alike:
                found[run][_SPLIT] = split
    return found


def _differ(configs: Mapping[SavedRun, dict[str, str]]) -> bool:
    """Return whether runs with one seed have different data, or a different split of them."""
    found: dict[tuple[object, ...], set[str]] = {}
    for run, config in configs.items():
        rest = frozenset((key, value) for key, value in config.items() if key not in ("data", "content"))
        found.setdefault((run.strategy, run.summary["seed"], rest), set()).add(config.get("data", ""))
    return any(len(each) > 1 for each in found.values())


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
        Two-sided, corrected by Holm for the tests of the setting; NaN with fewer than five seeds.
    by_signs
        Whether the p-value is that of :func:`fedclust.metrics.ranks.sign_flip`, not that of a paired t test.
    tests
        Number of tests of the setting.
    """

    mean: float
    spread: float
    seeds: int
    p_value: float
    by_signs: bool
    tests: int


Differences = Mapping[tuple[Row, Row], Difference]
"""How one row differs from another, by the two rows."""


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
    """Sort the rows that have a metric by its mean, the best first, and those with few seeds last.

    A run that failed with a difficult seed makes its method no better: the first two are such that none after
    them leads them by the mean over the seeds that both have, if there are such. Few seeds are fewer than
    half as many as another row's.
    """
    found = {row: seeds for row in rows if (seeds := row.by_seed(metric))}
    most = max(map(len, found.values()), default=0)
    sign = -1 if metric.removeprefix(PREFIX) in LOWER else 1
    many = {row for row, seeds in found.items() if 2 * len(seeds) >= most}
    order = sorted(found, key=lambda row: (row not in many, -sign * row.values(metric).mean()))

    def led(row: Row, others: Sequence[Row]) -> bool:
        pairs = ((found[row], found[other]) for other in others if other is not row)
        gaps = (sum(own[seed] - theirs[seed] for seed in own.keys() & theirs) for own, theirs in pairs)
        return any(round(sign * gap, 12) < 0 for gap in gaps)

    for place in range(min(2, len(many))):
        later = order[place : len(many)]
        row = next((row for row in later if not led(row, later)), later[0])
        order.remove(row)
        order.insert(place, row)
    return order


def best_first(comparison: ComparedRuns, metric: str) -> ComparedRuns:
    """Sort the rows of each setting by a metric, the best first and those without it last."""
    settings = by_setting(comparison)[1].values()
    places = {row: place for each in settings for place, row in enumerate(ranked(each.values(), metric))}
    shared = sum(not key.startswith("strategy.") for key in comparison.settings)  # these come first

    def key(row: Row) -> tuple[object, ...]:
        return tuple(map(_number_or_text, row.settings[:shared])), places.get(row, len(places))

    return replace(comparison, rows=tuple(sorted(comparison.rows, key=key)))


def guesses_line(rows: Iterable[Row]) -> str | None:
    """Explain the mark at the names of methods that guess their number of groups; None if there is none."""
    runs = [run for row in rows for run in row.runs if "groups_guessed" in run.summary]
    groups = [len(np.unique(run.groups)) for run in runs if run.groups is not None]
    return guess_note([run.summary["groups_guessed"] for run in runs], groups) if runs else None


def reference(comparison: ComparedRuns, metric: str) -> str:
    """Choose the strategy to compare the others with, by its name alone: FedAvg, else the first by letter.

    It is not chosen by its results, so only the tests against it must share the level.
    """
    names = sorted({row.strategy for row in ranked(comparison.rows, metric)})
    return next((name for name in names if name == REFERENCE), names[0] if names else REFERENCE)


def differences(
    comparison: ComparedRuns, metric: str, against: str | None = None
) -> dict[tuple[Row, Row], Difference]:
    """Compare methods of the same setting seed by seed.

    The test flips the signs of the differences where there are enough seeds to reach 0.05 after the
    correction (:func:`seeds_for_signs`); with fewer it is a paired t test, which takes the differences as
    normal. Those of methods that find the groups with some seeds only are not: of ten such methods that are
    equally good, simulated, some differ significantly from the first in 18 % of settings with three seeds,
    in 6 % with four, and in 2 % with five. With fewer than five seeds nothing is tested.

    Source: Holm, 1979, as in :func:`fedclust.proof.holm`.

    Parameters
    ----------
    comparison
        The comparison.
    metric
        Key of ``summary.json``.
    against
        Strategy to compare the others with, or ``"all"`` for every two methods; that of :func:`reference`
        unless given. Of several rows of that strategy, the first by its settings.

    Returns
    -------
    The difference by the method and the one that it is compared with; of every two, the better one is first.
    Methods without a common seed are left out.

    Raises
    ------
    ValueError
        If `against` is no strategy of the runs.
    """
    if against is not None:
        check_choice("against", against, [*dict.fromkeys(row.strategy for row in comparison.rows), ALL])
    strategy = against or reference(comparison, metric)
    found: dict[tuple[Row, Row], Difference] = {}
    for methods in by_setting(comparison)[1].values():
        rows = ranked(methods.values(), metric)
        if strategy == ALL:
            pairs = [
                (better, other) for better, other in (ranked(two, metric) for two in combinations(rows, 2))
            ]
        else:
            named = [row for row in rows if row.strategy == strategy]
            pairs = [(row, _like(row, named, comparison.settings)) for row in rows if named]
        found |= _tested((pair for pair in pairs if pair[0] is not pair[1]), metric)
    return found


def _like(row: Row, named: Sequence[Row], settings: Sequence[str]) -> Row:
    """Choose the row to compare with: one whose rows were capped as this one's, the first by its settings."""
    caps = [place for place, key in enumerate(settings) if key == _CAP]

    def key(each: Row) -> tuple[object, ...]:
        other = any(each.settings[place] != row.settings[place] for place in caps)
        return other, [*map(_number_or_text, each.settings)]

    return min(named, key=key)


def _tested(pairs: Iterable[tuple[Row, Row]], metric: str) -> dict[tuple[Row, Row], Difference]:
    """Test pairs of methods that share one level."""
    from scipy.stats import ttest_1samp  # takes most of a second to import

    from fedclust.metrics.ranks import sign_flip

    gaps = {}
    for row, other in pairs:
        own, theirs = row.by_seed(metric), other.by_seed(metric)
        if shared := own.keys() & theirs.keys():
            # Equal differences may not be equal to the last bit.
            gaps[row, other] = np.round([own[seed] - theirs[seed] for seed in sorted(shared)], 12)
    tests = sum(each.size >= LEAST_SEEDS for each in gaps.values())
    p_values, by_signs = {}, {}
    for pair, each in gaps.items():
        if each.size >= LEAST_SEEDS:
            by_signs[pair] = each.size >= seeds_for_signs(tests)
            if by_signs[pair]:
                p_values[pair] = sign_flip(each)
            elif np.ptp(each) > 0:
                p_values[pair] = float(ttest_1samp(each, 0.0).pvalue)
            else:  # the limit of the t test, whose statistic is infinite unless all are 0
                p_values[pair] = float(not each.any())
    corrected = dict(zip(p_values, holm([*p_values.values()]).tolist(), strict=True)) if tests else {}
    return {
        pair: Difference(
            round(float(each.mean()), 12),
            float(each.std(ddof=1)) if each.size > 1 else np.nan,
            each.size,
            corrected.get(pair, np.nan),
            by_signs.get(pair, False),
            tests,
        )
        for pair, each in gaps.items()
    }


def seeds_for_signs(tests: int) -> int:
    """Return how many seeds sign flips need to reach 0.05: the least n with 2 / 2ⁿ · tests ≤ 0.05."""
    return math.ceil(math.log2(2 * max(tests, 1) / LEVEL))


def how_tested(found: Differences, against: str) -> str:
    """Explain the p-values of :func:`differences`.

    Parameters
    ----------
    found
        At least one difference.
    against
        The strategy that the others are compared with, or ``"all"``.
    """
    tested = [each for each in found.values() if each.seeds >= LEAST_SEEDS]
    pairs = "every two methods" if against == ALL else f"each method against {paper_name(against)}"
    if not tested:
        return f"no p-values of {pairs}: they need {LEAST_SEEDS} seeds in common"
    sizes, used = {each.tests for each in tested}, []
    if any(not each.by_signs for each in tested):
        needed = f"sign flips do not, but need {seeds_for_signs(max(sizes))} seeds"
        used.append(f"by a paired t test, which takes the differences as normal ({needed})")
    if any(each.by_signs for each in tested):
        where = "or, where there are as many, " * bool(used)
        used.append(f"{where}by sign flips, which take the differences as symmetric")
    text = f"p: {pairs} on the same seeds, two-sided, {', '.join(used)}"
    if max(sizes) > 1:
        text += f"; corrected by Holm for the {'up to ' * (len(sizes) > 1)}{max(sizes)} tests of a setting"
    few = len(tested) < len(found)
    return text + f"; none with fewer than {LEAST_SEEDS} seeds in common" * few


def best(comparison: ComparedRuns, metric: str) -> set[Row]:
    """Find the best method of each setting with several, and those that are not significantly worse.

    As the best one is known only from the same figures, all pairs of methods share the level. Methods that
    cannot be tested count as worse, unless their mean is the same. A metric that does not measure quality,
    such as the number of clusters or the seconds, has no best method.
    """
    if metric.removeprefix(PREFIX) not in QUALITY:
        return set()
    tests = differences(comparison, metric, ALL)
    found: set[Row] = set()
    for methods in by_setting(comparison)[1].values():
        rows = ranked(methods.values(), metric)
        if len(rows) > 1:
            gaps = {row: tests.get((rows[0], row)) for row in rows[1:]}
            alike = {row for row, gap in gaps.items() if gap and (gap.mean == 0 or gap.p_value >= LEVEL)}
            ahead = {row for row in rows[1:] if (row, rows[0]) in tests}  # on the seeds that both have
            found |= {rows[0], *alike, *ahead}
    return found


def best_lines(comparison: ComparedRuns) -> list[str]:
    """Name the method with the highest mean accuracy in each setting that has several, a line each."""
    lines, key = [], "mean_client_accuracy"
    found = differences(comparison, key, ALL)
    for setting, methods in by_setting(comparison)[1].items():
        names = {row: name for name, row in methods.items()}
        if len(rows := ranked(methods.values(), key)) > 1:
            first, other = rows[:2]
            best, second = first.beside(other, key)
            if led := best.mean() < second.mean():  # each is led by another: then by their own means
                best, second = first.values(key), other.values(key)
            shared = math.isclose(best.mean(), second.mean(), rel_tol=1e-12)
            line = f"{names[first]} and {names[other]} share" if shared else f"{names[first]} has"
            over = f" over {best.size} seeds" if best.size > 1 else ""
            fewer = min(first.values(key).size, other.values(key).size) < max(
                r.values(key).size for r in rows
            )
            over += " that both have" * (bool(over) and fewer and not led)
            line += f" the highest {comparison.words.share}{over}, {mean_and_spread(best)}"
            line += "" if shared else f"; next {names[other]}, {mean_and_spread(second)}"
            gap = found.get((first, other))
            if not (shared or led) and gap is not None and gap.seeds >= LEAST_SEEDS:
                line += f", p {gap.p_value:.2g}" + (f" over all {gap.tests} pairs" if gap.tests > 1 else "")
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


_OF_DATA = ("choices.dataset", "dataset.path", "dataset.label", "dataset.target")


def _settings(configs: Mapping[SavedRun, Mapping[str, str]]) -> tuple[str, ...]:
    """Find the fewest keys that distinguish all runs with different configurations.

    A key of the strategy counts only if it differs between runs of one strategy; between two strategies,
    their names are enough.
    """
    keys = sorted(
        {key for config in configs.values() for key in config},
        # The name of a dataset, or where it is, is clearer than the ten keys that change with it.
        key=lambda key: (
            key not in _OF_DATA,
            not key.startswith("choices."),
            key.endswith("_target_"),
            key.count("."),
            key,
        ),
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


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
