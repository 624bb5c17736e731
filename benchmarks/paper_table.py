"""Run the rows and columns of a paper's table, and print and draw ours next to the published figures.

    python benchmarks/paper_table.py FOLDER clust_psi_pfl_fmnist     Clust-PSI-PFL, Tables III and IV
    python benchmarks/paper_table.py FOLDER clust_psi_pfl_acs_income --clients 10 50 100     and its Fig. 7
    python benchmarks/paper_table.py FOLDER fmcl_imagenette          FMCL, Table 1
    … --small                                                        minutes on two cores, another setting
    … --rows FedAvg HACCS CFL --columns alpha=0.3 similarity=0       some of them
    … --dry-run                                                      only the commands

EXPERIMENT is one of conf/experiment that names its rows. Makes the runs that FOLDER lacks, then writes
FOLDER/EXPERIMENT.md and its picture as PNG and SVG. Figures are those of the last round. Data are read from
../shared/data unless --data is given.
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

import altair as alt
import numpy as np
from common import DATA, arguments, finished, note_commit, side_by_side, table
from published_rows import published_for, row_of, tables_of
from results import COLUMNS, measured, published

from fedclust.results.charts import save
from fedclust.results.charts.chart import COLOURS, data_of as given_rows
from fedclust.settings import compose, plain

MeanAndSpread = tuple[float, float]
_KINDS = alt.Scale(domain=["ours", "published"], range=[*COLOURS[:2]])
FOLDERS = {"imagenette": "imagenette64"}  # where a dataset's folder has another name
# Fewer examples, clients and rounds; without its foundation model FMCL groups by pixels.
SMALL = {
    "clust_psi_pfl": (2000, ("partition.num_clients=10", "rounds=5", "training.epochs=2")),
    "fmcl": (
        300,
        ("partition.num_clients=8", "rounds=2", "encoder=pixels", "dataset.input_shape=[3,32,32]"),
    ),
}
STAND_INS = {("acs_income", "adult"): ("dataset=adult", "~dataset.only")}


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
    """

    title: str
    overrides: tuple[str, ...]


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


def _lookup(experiment: str) -> tuple[str, ...]:
    """List what a configuration needs to be composed where only its figures are wanted."""
    return ("encoder.path=.",) if experiment.startswith("fmcl") else ()


def columns_of(tables: Mapping[str, Any]) -> list[Column]:
    """List the settings that the paper has figures for; those of a strategy are rows and not columns."""
    found = []
    for place, setting in enumerate(tables.get("settings", [])):
        if any(key.startswith("strategy.") for key in setting):
            continue
        figures = [values[place] for row in tables["by_setting"].values() for values in row.values()]
        if all(figure is None for figure in figures):  # "infeasible", as the paper has it
            continue
        overrides = [f"{key.removeprefix('choices.')}={value}" for key, value in setting.items()]
        found.append(Column(overrides[-1].removeprefix("partition."), tuple(overrides)))
    return found or [Column("", ())]


def figures_of(experiment: str, row: str, column: Column, clients: int | None = None) -> dict[str, Any]:
    """Find the published figures of a row in a column; empty if there are none."""
    base = [f"experiment={experiment}", *_lookup(experiment), *column.overrides, "compare=[]"]
    if clients not in (None, compose(base).partition.num_clients):  # the paper's table is of one number
        return {}
    config = compose([*base, *rows_of(experiment)[row]])
    figures = published_for(plain(config)).get("figures", {})
    return figures.get(row_of(str(config.choices.strategy), figures), {})


def data_of(options: argparse.Namespace, folder: Path) -> list[str]:
    """List what makes the runs read their data; a part of it for --small."""
    dataset = str(compose([f"experiment={options.experiment}", *_lookup(options.experiment)]).choices.dataset)
    chosen: tuple[str, ...] = ()
    if options.stand_in:
        if (dataset, options.stand_in) not in STAND_INS:
            known = ", ".join(f"{other} for {missing}" for missing, other in STAND_INS)
            raise CannotRun(f"--stand-in must be one of {known}, got {options.stand_in} for {dataset}")
        chosen, dataset = STAND_INS[dataset, options.stand_in], options.stand_in
    place = options.data or DATA / FOLDERS.get(dataset, dataset)
    if not place.exists():
        others = [other for missing, other in STAND_INS if missing == dataset]
        instead = f", or --stand-in {others[0]}" if others else ""
        raise CannotRun(
            f"{options.experiment} needs the dataset {dataset}: give its folder with --data{instead}"
        )
    # A part of a table lacks rare categories, which have columns of their own, and a linear model is fast.
    if options.small and not options.stand_in and (place / "train.parquet").is_file():
        place = part_of(place / "train.parquet", folder / "data" / dataset, _small(options.experiment)[0])
        chosen += ("partition.test=holdout",)
    return [*chosen, f"dataset.path={place}"]


def part_of(source: Path, folder: Path, rows: int) -> Path:
    """Save some rows of a Parquet file, the same share of each class, drawn with seed 0."""
    target = folder / "train.parquet"
    if not target.is_file():
        import pandas as pd

        everything = pd.read_parquet(source)
        share = min(1.0, rows / len(everything))
        part = everything.groupby("label", group_keys=False).sample(frac=share, random_state=0).sort_index()
        folder.mkdir(parents=True, exist_ok=True)
        part.to_parquet(target, index=False)  # a table's index would be read as a column
    return folder


def _small(experiment: str) -> tuple[int, tuple[str, ...]]:
    name = next((name for name in SMALL if experiment.startswith(name)), None)
    if name is None:
        raise CannotRun(f"--small is for {', '.join(SMALL)}, got {experiment}")
    return SMALL[name]


def runs_of(options: argparse.Namespace, data: Sequence[str], folder: Path) -> list[Run]:
    """List all runs."""
    tables = tables_of(options.experiment)
    rows = _chosen("--rows", options.rows, list(rows_of(options.experiment)))
    columns = {column.title: column for column in columns_of(tables)}
    settings = [columns[title] for title in _chosen("--columns", options.columns, list(columns))]
    size = _small(options.experiment)[1] if options.small else ()
    made = []
    for clients in options.clients or [None]:
        number = () if clients is None else (f"partition.num_clients={clients}",)
        for column in settings:
            for row in rows:
                for seed in options.seeds:
                    overrides = [
                        f"experiment={options.experiment}", *column.overrides, *data, *size, *number,
                        *options.set, *tables["rows"][row], "compare=[]", "proof=false", "serve=cluster",
                        "evaluate_every=${rounds}", "checkpoint_every=0", f"seed={seed}",
                    ]  # fmt: skip
                    names = (column.title or "table", f"clients-{clients or 'own'}", row, f"seed-{seed}")
                    place = folder.joinpath(*(re.sub(r"[^\w.-]+", "-", name) for name in names))
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
    shutil.rmtree(run.folder, ignore_errors=True)
    try:
        fedclust.run([*run.overrides, f"output_dir={run.folder}"])
    except Exception as error:  # one method's failure is a gap in the table and not the end of it
        return str(error)
    return ""


def make(runs: Sequence[Run], folder: Path, workers: int) -> bool:
    """Make all runs that are not there, several at a time; return whether all are there."""
    note_commit(folder)
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


def write(options: argparse.Namespace, runs: Sequence[Run], out: Path) -> str:
    """Write the tables and the picture; return the tables."""
    tables, read = tables_of(options.experiment), summaries(runs)
    theirs = {
        (place, row): figures_of(options.experiment, row, place[1], place[0])
        for place, rows in read.items()
        for row in rows
    }
    keys = {key for figures in theirs.values() for key in figures} | {"global_accuracy"}
    shown = [column for column in COLUMNS if keys.intersection(column.keys)]
    parts = [f"# {options.experiment}\n", f"Published: {tables.get('source', 'no source')}.", _ours(options)]
    for place, rows in read.items():
        cells = [[row] for row in rows]
        for column in shown:
            for line, (row, found) in zip(cells, rows.items(), strict=True):
                line += [measured(column, found) if found else "–", published(column, theirs[place, row])]
        headings = ["row", *(text for column in shown for text in (column.title, "published"))]
        parts.append(f"\n## {_panel(place, rows)}\n\n{table(headings, cells)}\n")
    text = "\n".join(parts)
    out.mkdir(parents=True, exist_ok=True)
    name = options.experiment + ("-small" if options.small else "")
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    ours = [_drawn(rows) for rows in read.values()]
    papers = [
        {row: _pair(theirs[place, row]["global_accuracy"]) for row in rows if _has(theirs[place, row])}
        for place, rows in read.items()
    ]
    figure = draw(
        list(next(iter(read.values()))),
        [_panel(place, rows) for place, rows in read.items()],
        ours,
        papers,
        f"{options.experiment}{', small: not the published setting' if options.small else ''}",
        "global accuracy",
    )
    for suffix in (".png", ".svg"):
        save(figure, out / (name + suffix))
    return text


def _ours(options: argparse.Namespace) -> str:
    changed = [f"stand-in {options.stand_in}"] if options.stand_in else []
    if options.small:
        rows, size = _small(options.experiment)
        part = "" if options.stand_in else f"about {rows:,} examples, a fifth held out, "
        changed.append(f"--small: {part}{', '.join(size)}")
    changed += options.set
    setting = f"another setting: {'; '.join(changed)}" if changed else "the paper's setting"
    return f"Ours: {setting}; last round; seeds {', '.join(map(str, options.seeds))}."


def _panel(place: tuple[int | None, Column], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    clients, column = place
    found = [summary for each in rows.values() for summary in each]
    skew = {round(summary["weighted_psi"], 2) for summary in found if summary.get("weighted_psi") is not None}
    number = found[0]["num_clients"] if found else clients
    measures = [
        column.title,
        f"K = {number}" if number else "",
        f"WPSI {np.mean(list(skew)):.2f}" if skew else "",
    ]
    return ", ".join(text for text in measures if text) or "Table"


def _drawn(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, MeanAndSpread]:
    values = {row: [each["global_accuracy"] for each in found] for row, found in rows.items() if found}
    return {
        row: (float(np.mean(each)), float(np.std(each, ddof=1)) if len(each) > 1 else 0.0)
        for row, each in values.items()
    }


def _has(figures: Mapping[str, Any]) -> bool:
    return figures.get("global_accuracy") is not None


def _pair(figure: Any) -> MeanAndSpread:
    mean, spread = figure if isinstance(figure, list) else (figure, 0.0)
    return float(mean), float(spread)


def _rows(figures: Mapping[str, MeanAndSpread], by: str) -> list[dict[str, Any]]:
    return [
        {"row": row, "x": mean, "low": mean - spread, "high": mean + spread, "by": by}
        for row, (mean, spread) in figures.items()
    ]


def _dots(rows: list[dict[str, Any]], names: Sequence[str], x: str) -> alt.LayerChart:
    base = alt.Chart(given_rows(rows)).encode(
        alt.Y("row:N", sort=list(names), title=None), alt.Color("by:N", title=None, scale=_KINDS),
        yOffset=alt.YOffset("by:N", sort=["published", "ours"]),
    )  # fmt: skip
    bars = base.mark_rule().encode(alt.X("low:Q", title=x, scale=alt.Scale(zero=False)), x2="high:Q")
    return bars + base.mark_point(filled=True, size=35).encode(
        alt.X("x:Q", title=x), shape=alt.Shape("by:N", title=None)
    )


def draw(
    rows: Sequence[str],
    panels: Sequence[str],
    ours: Sequence[Mapping[str, MeanAndSpread]],
    published: Sequence[Mapping[str, MeanAndSpread]],
    title: str,
    measure: str,
) -> alt.ConcatChart:
    """Draw a table of a paper: a panel per setting, a row per method, ours and the published figure in it.

    `ours` and `published` have for each panel mean and standard deviation by method.
    """
    charts = [
        _dots([*_rows(theirs, "published"), *_rows(own, "ours")], rows, measure).properties(
            title=panel, width=150
        )
        for panel, own, theirs in zip(panels, ours, published, strict=True)
    ]
    return alt.concat(*charts, columns=5, title=f"{title}; bars: standard deviation over seeds")


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a run failed, 2 if something is missing."""
    parser = arguments(__doc__, folder=True)
    parser.add_argument("experiment")
    parser.add_argument("--rows", nargs="+", help="names of the paper's rows; all unless given")
    parser.add_argument("--columns", nargs="+", help="such as alpha=0.3 similarity=0; all unless given")
    parser.add_argument("--clients", nargs="+", type=int, help="numbers of clients, a panel for each")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--small", action="store_true", help="few examples, clients and rounds")
    parser.add_argument("--data", type=Path, help="the dataset's folder")
    parser.add_argument("--stand-in", help="another dataset in place of one that cannot be had")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the runs")
    options = parser.parse_args(given)
    out = options.folder.resolve()
    folder = out / (options.experiment + ("-small" if options.small else ""))
    try:
        runs = runs_of(options, data_of(options, out), folder)
    except ValueError as error:  # also of a configuration that cannot be composed
        print(f"paper_table: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        for run in runs:
            print(shlex.join(["python", "-m", "fedclust", *run.overrides, f"output_dir={run.folder}"]))
        return 0
    whole = make(runs, folder, options.workers)
    print(write(options, runs, out))
    return int(not whole)


if __name__ == "__main__":
    sys.exit(main())
