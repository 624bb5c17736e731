"""Run the experiments of docs/RESULTS.md, and write their tables: no number is typed by hand.

    python benchmarks/results.py FOLDER [NAME …] [--seeds 0 1 2] [--threads 1] [--no-run]

Each table stands between the two marks of its experiment. Runs are one after another; a finished one is not
repeated. Datasets are read from ../shared/data.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import DOCS, arguments, finished, show, table
from experiments import EXPERIMENTS, Experiment, make
from published_rows import published_for, row_of

from fedclust.results import SavedRun


@dataclass(frozen=True)
class Column:
    """A figure of ``summary.json``, or two of one run with ± between them.

    Attributes
    ----------
    title
        Heading.
    keys
        One key, shown with its sample standard deviation over the seeds, or two, shown as a pair.
    digits
        Decimals.
    """

    title: str
    keys: tuple[str, ...]
    digits: int = 3


_MOST_CLUSTERS = 12  # more would not be read

COLUMNS = (
    Column("clusters", ("num_clusters",), 1),
    Column("global accuracy", ("global_accuracy",)),
    Column("mean client accuracy", ("mean_client_accuracy",)),
    Column("balanced accuracy", ("balanced_accuracy",)),
    Column("accuracy by training shares", ("share_weighted_accuracy",)),
    Column("pooled macro F1", ("pooled_macro_f1",)),
    Column("pooled AUC", ("pooled_auc",)),
    Column("AD ± SDAD", ("ad", "sdad")),
    Column("Rand index", ("rand_index",)),
    Column("adjusted Rand index", ("adjusted_rand_index",)),
    Column("WAS", ("was",)),
    Column("WADB", ("wadb",)),
    Column("best global accuracy", ("best_global_accuracy",)),
)


def number(value: float, digits: int) -> str:
    """Write a number; whole ones of a table's counts without decimals."""
    return f"{value:,.{0 if digits == 1 and value == round(value) else digits}f}"


def measured(column: Column, summaries: Sequence[Mapping[str, Any]]) -> str:
    """Write a column's figure over the seeds: mean ± sample standard deviation, or that of the one seed."""
    found = [[summary.get(key) for summary in summaries] for key in column.keys]
    values = [np.array([value for value in each if value is not None], dtype=float) for each in found]
    if not all(each.size for each in values):
        return "–"
    parts = [float(each.mean()) for each in values]
    if len(values) == 1 and values[0].size > 1:
        parts.append(float(values[0].std(ddof=1)))
    text = " ± ".join(number(part, column.digits) for part in parts)
    # A figure undefined for some seeds, such as WAS with a single cluster, is a mean over fewer.
    return text if values[0].size == len(summaries) else f"{text} ({values[0].size} of {len(summaries)})"


def published(column: Column, figures: Mapping[str, Any]) -> str:
    """Write a paper's figure, with its own spread if there is one."""
    parts: list[float] = []
    for key in column.keys:
        value = figures.get(key)
        parts += value if isinstance(value, list) else [value] if value is not None else []
    return " ± ".join(_as_published(part) for part in parts) or "–"


def _as_published(value: float) -> str:
    """Write two decimals, as the papers mostly do; more if the paper has more, none for a count."""
    return f"{value:.2f}" if isinstance(value, float) and round(value, 2) == value else f"{value:g}"


def with_best(run: SavedRun) -> dict[str, Any]:
    """Add to a summary the best of the rounds that were scored, as some papers report it."""
    _, values = run.series("global_accuracy")
    return dict(run.summary) | {"best_global_accuracy": float(values.max()) if values.size else None}


def section(experiment: Experiment, runs: Sequence[SavedRun], provenance: Sequence[Mapping[str, Any]]) -> str:
    """Write an experiment's heading, its table, and the source of its figures."""
    by_strategy: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for strategy, beside in run.side_by_side:
            if beside.summary:  # a strategy that is still running has none
                by_strategy.setdefault(strategy, []).append(with_best(beside))
    paper = published_for(runs[0].config)
    figures = paper.get("figures", {})
    theirs = {name: figures.get(row_of(name, figures), {}) for name in by_strategy}
    everything = [summary for summaries in by_strategy.values() for summary in summaries]
    scored = {run.config["evaluate_every"] for run in runs}
    columns = [("strategy", [f"`{name}`" for name in by_strategy])]
    for column in COLUMNS:
        if all(summary.get(column.keys[0]) is None for summary in everything):
            continue
        columns.append((column.title, [measured(column, each) for each in by_strategy.values()]))
        if any(key in known for key in column.keys for known in theirs.values()):
            columns.append(("published", [published(column, theirs[name]) for name in by_strategy]))
    headings, cells = zip(*columns, strict=True)
    seeds = [str(run.summary["seed"]) for run in runs]
    lines = [f"### {experiment.title}\n", table(headings, zip(*cells, strict=True)) + "\n"]
    facts = [
        f"Command: `{provenance[0]['command'].rpartition(' seed=')[0] or provenance[0]['command']}`, "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}.",
        f"Rounds: {runs[0].summary['rounds']}, scored every {' or '.join(map(str, sorted(scored)))}; "
        f"clients: {runs[0].summary['num_clients']}; weighted PSI of the partition: "
        f"{measured(Column('', ('weighted_psi',), 2), [run.summary for run in runs])}.",
        f"{provenance[0]['device']}, {provenance[0]['threads']} thread.",
    ]
    if len(runs) == 1 and min(scored) > 1:
        course = [f"`{name}` {_course(run)}" for name, run in runs[0].side_by_side if run.summary]
        facts.append(f"Global accuracy of the rounds scored: {'; '.join(course)}.")
        facts += [_by_cluster(name, run, runs[0]) for name, run in runs[0].side_by_side if _has_clusters(run)]
    if unfinished := sorted({name for run in runs for name in run.config["compare"]} - set(by_strategy)):
        facts.append(f"Not finished: {', '.join(f'`{name}`' for name in unfinished)}.")
    if most := max(len(summary.get("capped", ())) for summary in everything):
        facts.append(f"Clients whose rows do not all count (`row_cap`): up to {most}.")
    if paper:
        own = [
            f"`{key}` {json.dumps(ours)} ({json.dumps(its)})" for key, (ours, its) in paper["changes"].items()
        ]
        but = f" Otherwise than there: {', '.join(own)}." if own else ""
        facts.insert(0, f"Published: {paper['source']}.{but}")
    return "\n".join([*lines, *(f"- {fact}" for fact in facts)]) + "\n"


def _has_clusters(run: SavedRun) -> bool:
    return run.clients is not None and 1 < run.summary.get("num_clusters", 1) <= _MOST_CLUSTERS


def _by_cluster(name: str, run: SavedRun, whole: SavedRun) -> str:
    """List a run's clusters, with FedAvg's accuracy on the same clients if it was compared."""
    frame = run.clients
    assert frame is not None
    columns = {"own": frame["accuracy"]}
    for other, beside in whole.side_by_side:
        if other == "fedavg" and beside.clients is not None:
            columns["fedavg"] = beside.clients["accuracy"]
    parts = []
    for _, rows in frame.groupby("cluster"):
        tested = rows["num_test"]
        scores = [float((values[rows.index] * tested).sum() / tested.sum()) for values in columns.values()]
        shares = [max(counts) / sum(counts) for counts in rows["label_counts"]]
        parts.append(
            f"{len(rows)}, {rows['num_train'].sum():,}, {np.mean(shares):.2f}, "
            + ", ".join(f"{score:.3f}" for score in scores)
        )
    beside = ", `fedavg`'s on the same clients" if "fedavg" in columns else ""
    return (
        f"Clusters of `{name}` (clients, training images, mean share of a client's largest class, global "
        f"accuracy{beside}): {'; '.join(parts)}."
    )


def _course(run: SavedRun) -> str:
    rounds, values = run.series("global_accuracy")
    return ", ".join(f"{value:.3f} ({number})" for number, value in zip(rounds, values, strict=True))


def main() -> int:
    """Run the command line; return 1 if a run failed."""
    parser = arguments(__doc__, folder=True)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-run", action="store_true", help="write the tables of what is there")
    parser.add_argument("--out", type=Path, default=DOCS / "RESULTS.md")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(EXPERIMENTS)):
        parser.error(f"NAME must be among {', '.join(EXPERIMENTS)}, got {', '.join(unknown)}")
    failed = False
    for name in options.names or EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        for seed in [] if options.no_run else options.seeds or experiment.seeds:
            folder = (options.folder / name / f"seed-{seed}").resolve()
            if folder.is_dir() and not finished(folder):
                print(f"{folder}: has not finished; remove it to run it again", file=sys.stderr)
                failed = True
            elif not folder.is_dir():
                # 3 is a result: no model beats guessing.
                failed |= make(experiment.command(seed), folder, options.threads) not in (0, 3)
        folders = [path.parent for path in sorted((options.folder / name).glob("seed-*/summary.json"))]
        if folders:
            provenance = [json.loads((folder / "provenance.json").read_text("utf-8")) for folder in folders]
            text = section(experiment, [SavedRun(folder) for folder in folders], provenance)
            show(name, text.rstrip(), options.out, *folders)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
