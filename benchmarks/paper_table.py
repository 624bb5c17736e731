"""Run the rows and columns of a paper's table, and print ours next to the published figures.

    python benchmarks/paper_table.py FOLDER clust_psi_pfl_fmnist     Clust-PSI-PFL, Tables III and IV
    python benchmarks/paper_table.py FOLDER clust_psi_pfl_acs_income --clients 10 50 100     and its Fig. 7
    python benchmarks/paper_table.py FOLDER fmcl_imagenette          FMCL, Table 1
    … --rows FedAvg HACCS CFL --columns alpha=0.3 similarity=0       some of them
    … --dry-run                                                      only the commands
    … --write                                                        the tables into docs/RESULTS.md, too

EXPERIMENT is one of conf/experiment that names its rows. Makes the runs that FOLDER lacks, goes on with those
that were interrupted, and writes FOLDER/EXPERIMENT.md. Figures are those of the last round; if the paper's
are of the round with the best mean over the seeds, every round is scored and that one has a column, too. Data
are read from ../shared/data unless --data is given; a smaller setting is one of
--set partition.num_clients=10 rounds=5.
"""

import argparse
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import DATA, arguments, finished, note_commit, over_seeds, show, side_by_side, table
from published_rows import figures_for, lookup, row_of, tables_of
from results import COLUMNS, measured, published

from fedclust.results import SavedRun
from fedclust.settings import folders
from fedclust.settings.composition import compose, plain

FOLDERS = {"imagenette": "imagenette64", "emnist": "emnist62"}  # where a dataset's folder has another name


class CannotRun(ValueError):
    """Something that the runs need is missing."""


@dataclass(frozen=True)
class Column:
    """A setting of the table.

    Attributes
    ----------
    title
        Its name, as ``--columns`` takes it; empty if the table has only one.
    overrides
        What chooses it.
    place
        Its number among the paper's settings.
    """

    title: str
    overrides: tuple[str, ...]
    place: int = 0


@dataclass(frozen=True)
class Run:
    """One row of one column with one seed.

    Attributes
    ----------
    row, column, clients, seed
        Its place; `clients` is None for the experiment's own number.
    overrides
        Arguments of ``python -m fedclust``, without the folder.
    folder
        Of its results.
    """

    row: str
    column: Column
    clients: int | None
    seed: int
    overrides: tuple[str, ...]
    folder: Path


def rows_of(experiment: str) -> dict[str, list[str]]:
    """List what to type for each row of a table, by its name in the paper."""
    rows = tables_of(experiment).get("rows")
    if not rows:
        raise CannotRun(f"EXPERIMENT must have rows in benchmarks/published_figures, got {experiment}")
    return dict(rows)


def columns_of(tables: Mapping[str, Any]) -> list[Column]:
    """List the settings that the paper has figures for; those of a strategy are rows and not columns."""
    found = []
    for place, setting in enumerate(tables.get("settings", [])):
        if any(key.startswith("strategy.") for key in setting):
            continue
        figures = [values[place] for row in tables["by_setting"].values() for values in row.values()]
        if all(figure is None for figure in figures):  # "infeasible", as the paper has it
            continue
        overrides = tuple(f"{key.removeprefix('choices.')}={value}" for key, value in setting.items())
        found.append(Column(overrides[-1].removeprefix("partition."), overrides, place))
    return found or [Column("", ())]


def figures_of(experiment: str, row: str, column: Column, clients: int | None = None) -> dict[str, Any]:
    """Find the published figures of a row in a column; empty if there are none."""
    base = [f"experiment={experiment}", *lookup(experiment), *column.overrides, "compare=[]"]
    if clients is not None and clients != compose(base).partition.num_clients:  # the table is of one number
        return {}
    config = compose([*base, *rows_of(experiment)[row]])
    figures = figures_for(plain(config))[0]
    return figures.get(row_of(str(config.choices.strategy), figures), {})


def data_of(options: argparse.Namespace) -> str:
    """Name the folder that the runs read."""
    needed = lookup(options.experiment, options.set)
    chosen = [f"experiment={options.experiment}", *needed, *options.set]
    dataset = str(compose(chosen).choices.dataset)
    place = options.data or DATA / FOLDERS.get(dataset, dataset)
    if not place.exists():
        raise CannotRun(f"{options.experiment} needs the dataset {dataset}: give its folder with --data")
    return f"dataset.path={place}"


def runs_of(options: argparse.Namespace, data: str, folder: Path) -> list[Run]:
    """List all runs."""
    tables = tables_of(options.experiment)
    rows = _chosen("--rows", options.rows, list(rows_of(options.experiment)))
    columns = {column.title: column for column in columns_of(tables)}
    settings = [columns[title] for title in _chosen("--columns", options.columns, list(columns))]
    made = []
    for clients in options.clients or [None]:
        number = () if clients is None else (f"partition.num_clients={clients}",)
        for column in settings:
            for row in rows:
                for seed in options.seeds:
                    overrides = [
                        f"experiment={options.experiment}", *column.overrides, data, *number,
                        f"evaluate_every={1 if tables.get('best_round') else '${rounds}'}", *options.set,
                        *tables["rows"][row], "compare=[]", "proof=false", "serve=cluster", f"seed={seed}",
                    ]  # fmt: skip
                    names = (column.title or "table", f"clients-{clients or 'own'}", row, f"seed-{seed}")
                    place = folder.joinpath(
                        *(re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII) for name in names)
                    )
                    made.append(Run(row, column, clients, seed, tuple(overrides), place))
    return made


def _chosen(option: str, asked: Sequence[str] | None, there: list[str]) -> list[str]:
    if unknown := sorted(set(asked or ()) - set(there)):
        raise CannotRun(f"{option} must be among {', '.join(there)}, got {', '.join(unknown)}")
    return [name for name in there if not asked or name in asked]


def _make(run: Run) -> str:
    """Make a run that is not there; return what is wrong."""
    import fedclust

    if finished(run.folder):
        return ""
    begun = any(run.folder.glob("checkpoints/*"))
    try:
        if not begun:
            with folders.locked(run.folder, resumed=False):  # another process may be writing it
                shutil.rmtree(run.folder, ignore_errors=True)
        fedclust.run([f"resume={run.folder}"] if begun else [*run.overrides, f"output_dir={run.folder}"])
    except Exception as error:  # one method's failure is a gap in the table and not the end of it
        return str(error)
    return ""


def check_settings(folder: Path, given: Sequence[str]) -> None:
    """Raise an error if the folder's runs were made with another ``--set``: they would stand for these."""
    note = folder / "provenance.json"
    there = json.loads(note.read_text(encoding="utf-8")).get("set") if note.is_file() else None
    if there is not None and there != _settings(given):
        rule = f"be that of the runs in {folder}, {' '.join(there) or 'nothing'}, or FOLDER another one"
        raise CannotRun(f"--set must {rule}, got {' '.join(given) or 'nothing'}")


def _settings(given: Sequence[str]) -> list[str]:
    return sorted(each for each in given if not each.startswith("evaluate_every="))


def make(runs: Sequence[Run], folder: Path, workers: int, given: Sequence[str]) -> bool:
    """Make all runs that are not there, with the ``--set`` `given`; return whether all are there."""
    note_commit(folder, set=_settings(given))
    whole, known = True, set[str]()
    for place, (run,), wrong in side_by_side(_make, [(run,) for run in runs], workers):
        whole &= not wrong
        line = f"{place} {run.row} {run.column.title} seed {run.seed}"
        if wrong:
            line += ": failed as before" if wrong in known else f": {wrong}"
        known.add(wrong)
        print(line, file=sys.stderr if wrong else sys.stdout, flush=True)
    return whole


def summaries(runs: Sequence[Run]) -> dict[tuple[int | None, Column], dict[str, list[dict[str, Any]]]]:
    """Read the summaries by number of clients and column, and by row, one per seed."""
    found: dict[tuple[int | None, Column], dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        rows = found.setdefault((run.clients, run.column), {}).setdefault(run.row, [])
        if finished(run.folder):
            rows.append(json.loads((run.folder / "summary.json").read_text(encoding="utf-8")))
    return found


def best_round(runs: Sequence[Run], key: str) -> list[float]:
    """Return each seed's figure in the round in which their mean is best; empty if one round was scored.

    Parameters
    ----------
    runs
        Those of one row and column; only the finished ones count.
    key
        A figure of the rounds of which more is better.
    """
    series = [SavedRun(run.folder).series(key) for run in runs if finished(run.folder)]
    if not series:
        return []
    rounds = sorted(set.intersection(*(set(numbers.tolist()) for numbers, _ in series)))
    if len(rounds) < 2:
        return []
    values = np.array([values[np.isin(numbers, rounds)] for numbers, values in series])
    best: list[float] = values[:, values.mean(axis=0).argmax()].tolist()
    return best


def write(options: argparse.Namespace, runs: Sequence[Run], out: Path) -> str:
    """Write the tables; return them."""
    tables, read = tables_of(options.experiment), summaries(runs)
    theirs = {
        (place, row): figures_of(options.experiment, row, place[1], place[0])
        for place, rows in read.items()
        for row in rows
    }
    keys = {key for figures in theirs.values() for key in figures} | {"global_accuracy"}
    shown = [column for column in COLUMNS if keys.intersection(column.keys)]
    notes: Mapping[str, str] = tables.get("notes", {})
    parts = [f"# {options.experiment}\n", f"Published: {tables.get('source', 'no source')}.", _ours(options)]
    parts += [f"\\* {row}: {notes[row]}." for row in notes if any(row in rows for rows in read.values())]
    for place, rows in read.items():
        cells = [[f"{row} \\*" if row in notes else row] for row in rows]
        for column in shown:
            for line, (row, found) in zip(cells, rows.items(), strict=True):
                line += [measured(column, found) if found else "–", published(column, theirs[place, row])]
        headings = ["row", *(text for column in shown for text in (column.title, "published"))]
        if tables.get("best_round"):
            at = headings.index("global accuracy") + 1
            headings.insert(at, "global accuracy, best round")
            for line, row in zip(cells, rows, strict=True):
                of_row = [run for run in runs if (run.clients, run.column, run.row) == (*place, row)]
                line.insert(at, over_seeds(best_round(of_row, "global_accuracy")))
        parts.append(f"\n## {_panel(place, rows)}\n\n{table(headings, cells)}\n")
    text = "\n".join(parts)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{options.experiment}.md").write_text(text, encoding="utf-8")
    return text


def _ours(options: argparse.Namespace) -> str:
    setting = f"another setting: {'; '.join(options.set)}" if options.set else "the paper's setting"
    return f"Ours: {setting}; last round; seeds {', '.join(map(str, options.seeds))}."


def _panel(place: tuple[int | None, Column], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    clients, column = place
    found = [summary for each in rows.values() for summary in each]
    skew = {each["seed"]: psi for each in found if (psi := each.get("weighted_psi")) is not None}
    number = found[0]["num_clients"] if found else clients
    measures = [
        column.title,
        f"K = {number}" if number else "",
        f"WPSI {np.mean(list(skew.values())):.2f}" if skew else "",
    ]
    return ", ".join(text for text in measures if text) or "Table"


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a run failed, 2 if something is missing."""
    parser = arguments(__doc__, page="RESULTS", folder=True)
    parser.add_argument("experiment")
    parser.add_argument("--rows", nargs="+", help="names of the paper's rows; all unless given")
    parser.add_argument("--columns", nargs="+", help="such as alpha=0.3 similarity=0; all unless given")
    parser.add_argument("--clients", nargs="+", type=int, help="numbers of clients, a panel for each")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--data", type=Path, help="the dataset's folder")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the runs")
    options = parser.parse_args(given)
    out = options.folder.resolve()
    folder = out / options.experiment
    try:
        runs = runs_of(options, data_of(options), folder)
        check_settings(folder, options.set)
    except ValueError as error:  # also of a configuration that cannot be composed
        print(f"paper_table: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        for run in runs:
            print(shlex.join(["python", "-m", "fedclust", *run.overrides, f"output_dir={run.folder}"]))
        return 0
    whole = make(runs, folder, options.workers, options.set)
    text = write(options, runs, out)
    show(options.experiment, re.sub(r"^#+", r"\g<0>##", text, flags=re.M).strip(), options.write, folder)
    return int(not whole)


if __name__ == "__main__":
    sys.exit(main())
