"""Compare finished runs, mean ± standard deviation over seeds: ``python -m fedclust.runs.compare outputs``.

With ``--plots DIR``, draw them as the pictures of a paper instead of printing a table.
"""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from fedclust.results.comparison import Comparison, Row, compare, find_runs
from fedclust.results.summary import PREFIX
from fedclust.support.checks import few

_METRICS = (
    "mean_client_accuracy", "personal.mean_client_accuracy", "balanced_accuracy", "global_accuracy",
    "macro_f1", "ad", "sdad", "rand_index", "adjusted_rand_index", "num_clusters", "seconds",
    "newcomers.accuracy", "newcomers.adjusted_rand", "newcomers.none",
)  # fmt: skip
_DIGITS = {"num_clusters": 1, "newcomers.none": 1, "seconds": 1, "rounds": 0, "num_clients": 0}


def as_text(comparison: Comparison, metrics: Sequence[str]) -> str:
    """Format the comparison for a terminal.

    Parameters
    ----------
    comparison
        The comparison.
    metrics
        Keys of ``summary.json``, one column each.
    """
    table = Table(box=box.SIMPLE_HEAD, caption="mean ± sample standard deviation over seeds")
    for place, title in enumerate(_titles(comparison, metrics)):
        table.add_column(title, justify="right" if place > len(comparison.settings) else "left")
    for row in comparison.rows:
        table.add_row(*_cells(row, metrics))
    terminal = Console()
    console = Console(file=io.StringIO(), width=terminal.width if terminal.is_terminal else 10_000)
    with console.capture() as printed:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def as_markdown(comparison: Comparison, metrics: Sequence[str]) -> str:
    """Format the comparison as a Markdown table."""
    titles = _titles(comparison, metrics)
    rules = ["---"] * (1 + len(comparison.settings)) + ["---:"] * (1 + len(metrics))
    rows = [titles, rules, *(_cells(row, metrics) for row in comparison.rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def as_csv(comparison: Comparison, metrics: Sequence[str]) -> str:
    """Format the comparison as CSV, with a column for each mean and each sample standard deviation.

    A missing value and the deviation of a single run are empty.
    """
    lines = []
    for row in comparison.rows:
        line: dict[str, Any] = {"strategy": row.strategy}
        line |= {**dict(zip(comparison.settings, row.settings, strict=True)), "seeds": len(row.summaries)}
        for metric in metrics:
            values = pd.Series(row.values(metric), dtype=float)
            line |= {f"{metric}_mean": values.mean(), f"{metric}_std": values.std()}
        lines.append(line)
    return pd.DataFrame(lines).to_csv(index=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Command-line arguments; ``sys.argv[1:]`` unless given.

    Returns
    -------
    Exit status: 0, or 1 if there is nothing to compare or a file cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m fedclust.runs.compare", description=__doc__)
    add = parser.add_argument
    kinds = "text (default), markdown or csv; with --plots some of svg,pdf,png (default svg,pdf)"
    add("folders", nargs="+", type=Path, metavar="folder", help="folder to search, with its subfolders")
    add("--format", metavar="FORMAT", help=kinds)
    add("--metrics", metavar="KEY,KEY", help="keys of summary.json to show, or to draw maps of")
    add("--plots", type=Path, metavar="DIR", help="draw pictures into this folder, print no table")
    add("--width", choices=("column", "page"), help="of pictures: 3.4 (default) or 7 inches")
    options = parser.parse_args(arguments)
    formats = _formats(parser, options)
    try:
        runs, unfinished = find_runs(options.folders)
        comparison = compare(runs)
        metrics = _chosen(comparison, options.metrics)
        if options.plots is not None:
            asked = metrics if options.metrics else [key for key in metrics if key == "mean_client_accuracy"]
            _draw(comparison, options.plots, formats, options.width or "column", asked)
    except (OSError, ValueError) as error:
        print(f"fedclust.runs.compare: {error}", file=sys.stderr)
        return 1
    if options.plots is None:
        write = {"text": as_text, "markdown": as_markdown, "csv": as_csv}[formats[0]]
        print(write(comparison, metrics), end="")
    _print_left_out("not finished", unfinished)
    _print_left_out("same strategy, settings and seed as another run", comparison.repeats)
    return 0


def _formats(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Read ``--format``; a wrong one ends the program as argparse does."""
    if options.plots is None and options.width is not None:
        parser.error("--width must be given with --plots, it is the width of pictures")
    table = options.plots is None
    known = ("text", "markdown", "csv") if table else ("svg", "pdf", "png")
    formats: list[str] = (options.format or ("text" if table else "svg,pdf")).split(",")
    if not {*formats} <= {*known} or (table and len(formats) > 1):
        rule = "be one of" if table else "be among"
        where = "" if table else " with --plots"
        parser.error(f"--format must {rule} {', '.join(known)}{where}, got {options.format}")
    return formats


def _draw(
    comparison: Comparison, into: Path, formats: Sequence[str], width: str, metrics: Sequence[str]
) -> None:
    from fedclust.results.charts.comparison import draw_comparison  # Altair takes half a second to import

    for picture in draw_comparison(comparison, into, formats, width, metrics):  # type: ignore[arg-type]
        for file in picture.files:
            print(f"{file}: {picture.shows}")
        if not picture.files:
            print(f"{picture.name} not drawn: {picture.shows}")


def _print_left_out(what: str, folders: Sequence[Path]) -> None:
    if folders:
        print(f"left out, {what}: {few(folders, 3)}", file=sys.stderr)


def _chosen(comparison: Comparison, asked: str | None) -> list[str]:
    available = comparison.metrics
    if asked is None:
        return [metric for metric in _METRICS if metric in available]
    metrics = asked.split(",")
    unknown = [metric for metric in metrics if metric not in available]
    if unknown:
        raise ValueError(f"metrics must be among {', '.join(available)}, got {', '.join(unknown)}")
    return metrics


def _titles(comparison: Comparison, metrics: Sequence[str]) -> list[str]:
    return ["strategy", *comparison.settings, "seeds", *map(_title, metrics)]


def _title(metric: str) -> str:
    layered, key = metric.startswith(PREFIX), metric.removeprefix(PREFIX)
    return key.replace("_", " ") + (", personal layer" if layered else "")


def _cells(row: Row, metrics: Sequence[str]) -> list[str]:
    return [row.strategy, *row.settings, str(len(row.summaries)), *(_cell(row, metric) for metric in metrics)]


def _cell(row: Row, metric: str) -> str:
    values, digits = row.values(metric), _DIGITS.get(metric, 3)
    if not values.size:
        return "–"
    text = f"{values.mean():.{digits}f}"
    if values.size > 1:
        text += f" ± {values.std(ddof=1):.{digits}f}"
    # A value undefined for some seeds, such as WAS with a single cluster, averages fewer runs.
    return text if values.size == len(row.summaries) else f"{text} ({values.size} of {len(row.summaries)})"


if __name__ == "__main__":
    sys.exit(main())
