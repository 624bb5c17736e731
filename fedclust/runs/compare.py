"""Compare finished runs, mean ± standard deviation over seeds: ``fedclust compare outputs``.

With ``--plots DIR``, draw them as the pictures of a paper instead of printing a table.
"""

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedclust.results.names import paper_name
from fedclust.runs.verbs import Parser
from fedclust.support.checks import check_choice, few, none_of

if TYPE_CHECKING:
    from fedclust.results.comparison import ComparedRuns, Difference, Row

_EXAMPLES = """
  fedclust compare outputs/sweep
  fedclust compare outputs/sweep --metrics mean_client_accuracy,seconds --against fedavg
  fedclust compare outputs/sweep --format latex > table.tex
  fedclust compare outputs/sweep --plots pictures --width page"""

_PERSONAL = "personal."
_METRICS = (
    "mean_client_accuracy", "personal.mean_client_accuracy", "balanced_accuracy", "macro_f1", "ad",
    "adjusted_rand_index", "num_clusters", "seconds",
    "newcomers.accuracy", "newcomers.adjusted_rand", "newcomers.none",
)  # fmt: skip
_SHORT = ("mean_client_accuracy", "personal.mean_client_accuracy", "adjusted_rand_index", "seconds")
_DIGITS = {"num_clusters": 1, "newcomers.none": 1, "seconds": 1, "rounds": 0, "num_clients": 0}
_FORMATS = ("text", "markdown", "latex", "csv")
_MOST = 12  # rows at the end of a sweep

Tests = Mapping["Row", "Difference"]
"""How the rows differ from those that they are compared with; empty where seeds are too few to test."""


def as_text(table: Sequence[Sequence[str]], left: int) -> str:
    """Format a table for a terminal.

    Parameters
    ----------
    table
        The titles, and the cells of each row.
    left
        Number of columns that hold text; the others are aligned to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal, shown = Console(), Table(box=box.SIMPLE_HEAD, show_edge=False)
    for place, title in enumerate(table[0]):
        shown.add_column(title, justify="right" if place >= left else "left")
    for row in table[1:]:
        shown.add_row(*row)
    console = Console(file=io.StringIO(), width=terminal.width if terminal.is_terminal else 10_000)
    with console.capture() as printed:
        console.print(shown)
    return "".join(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def as_markdown(table: Sequence[Sequence[str]], left: int) -> str:
    """Format a table as Markdown."""
    rules = ["---" if place < left else "---:" for place in range(len(table[0]))]
    rows = [table[0], rules, *table[1:]]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def as_latex(table: Sequence[Sequence[str]], left: int) -> str:
    """Format a table for LaTeX with the package booktabs; methods are named as in their papers."""
    import pandas as pd

    rows = [[paper_name(row[0]), *row[1:]] for row in table[1:]]
    columns = "l" * left + "r" * (len(table[0]) - left)
    frame = pd.DataFrame(rows, columns=list(table[0]))
    return frame.to_latex(index=False, escape=True, column_format=columns).replace("±", r"$\pm$")


def as_csv(comparison: "ComparedRuns", metrics: Sequence[str], tests: Tests) -> str:
    """Format the comparison as CSV, with a column for each mean and each sample standard deviation.

    A missing value and the deviation of a single run are empty. ``difference`` and ``p_value`` are of the
    first metric.
    """
    import pandas as pd

    lines = []
    for row in comparison.rows:
        line: dict[str, Any] = {"strategy": row.strategy}
        line |= {**dict(zip(comparison.settings, row.settings, strict=True)), "seeds": len(row.runs)}
        for metric in metrics:
            values = pd.Series(row.values(metric), dtype=float)
            line |= {f"{metric}_mean": values.mean(), f"{metric}_std": values.std()}
        if tests:
            found = tests.get(row)
            line |= {"difference": found and found.mean, "p_value": found and found.p_value}
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
    Exit status 0.

    Raises
    ------
    ValueError, OSError
        If there is nothing to compare, or a file cannot be read.
    """
    described = parser()
    options = described.parse_args(arguments)
    formats = _formats(described, options)
    from fedclust.results.comparison import compare, differences, find_runs

    runs, unfinished = find_runs(options.folders)
    comparison = compare(runs)
    metrics = _chosen(comparison, options.metrics)
    if options.plots is not None:
        asked = metrics if options.metrics else [key for key in metrics if key == "mean_client_accuracy"]
        _draw(comparison, options.plots, formats, options.width or "column", asked)
    else:
        tests = differences(comparison, metrics[0], options.against) if metrics else {}
        if formats[0] == "csv":
            print(as_csv(comparison, metrics, tests), end="")
        else:
            _print_table(comparison, metrics, tests, formats[0], options.against)
    _print_left_out("not finished", unfinished)
    _print_left_out("same strategy, settings and seed as another run", comparison.repeats)
    return 0


def end_sweep(folder: Path) -> None:
    """Print how a sweep's runs compare, the best method of each setting, and where the sweep's page is."""
    from dataclasses import replace

    from fedclust.results.comparison import best_lines, compare, differences, ranked, runs_below

    comparison, metric = compare(runs_below([folder])[0]), _SHORT[0]
    best = ranked(comparison.rows, metric)
    if not best:  # none has finished, or they are not of methods
        return
    metrics = [key for key in _SHORT if key in comparison.metrics]
    print()
    _print_table(replace(comparison, rows=tuple(best[:_MOST])), metrics, differences(comparison, metric))
    more = [f"{len(best) - _MOST} more: fedclust compare {folder}"] * (len(best) > _MOST)
    page = folder.resolve() / "report.html"
    last = f"page: {page}" if page.is_file() else f"results: {page.parent}"
    print("\n".join([*more, *best_lines(comparison), last]))


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("compare", _EXAMPLES)
    add = parser.add_argument
    kinds = f"{', '.join(_FORMATS)}; with --plots some of svg,pdf,png"
    add("folders", nargs="+", type=Path, metavar="folder", help="folder to search, with its subfolders")
    add("--format", metavar="FORMAT", help=kinds)
    add("--metrics", metavar="KEY,KEY", help="keys of summary.json; the first one is tested")
    add("--against", metavar="STRATEGY", help="test against it, not against the best of each setting")
    add("--plots", type=Path, metavar="DIR", help="draw pictures into this folder, print no table")
    add("--width", choices=("column", "page"), help="of pictures: 3.4 (default) or 7 inches")
    return parser


def _formats(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """Read ``--format``; a wrong one ends the program as argparse does."""
    if options.plots is None and options.width is not None:
        parser.error("--width must be given with --plots, it is the width of pictures")
    table = options.plots is None
    known = _FORMATS if table else ("svg", "pdf", "png")
    formats: list[str] = (options.format or ("text" if table else "svg,pdf")).split(",")
    if not {*formats} <= {*known} or (table and len(formats) > 1):
        rule = "must be one of" if table else "with --plots must be among"
        parser.error(none_of("--format", options.format, known, rule))
    return formats


def _print_table(
    comparison: "ComparedRuns",
    metrics: Sequence[str],
    tests: Tests,
    form: str = "text",
    against: str | None = None,
) -> None:
    """Print the table in a format, and below it how to read it."""
    from fedclust.results.comparison import how_tested

    tested = any(each.seeds > 1 for each in tests.values())
    titles = ["strategy", *comparison.settings, "seeds", *map(_title, metrics)]
    table = [titles + [f"from {against or 'the best'} (p)"] * tested]
    for row in comparison.rows:
        cells = [row.strategy, *row.settings, str(len(row.runs)), *(_cell(row, key) for key in metrics)]
        table.append(cells + [_tested(tests.get(row))] * tested)
    left = 1 + len(comparison.settings)
    print({"text": as_text, "markdown": as_markdown, "latex": as_latex}[form](table, left), end="")
    notes = ["mean ± sample standard deviation over seeds", *([how_tested(tests)] if tested else [])]
    print({"text": "", "markdown": "\n", "latex": "% "}[form] + "; ".join(notes))


def _tested(found: "Difference | None") -> str:
    if found is None:
        return "–"
    spread = f" ± {found.spread:.3f}" if found.seeds > 1 else ""
    return f"{round(found.mean, 3) + 0:+.3f}{spread} ({found.p_value:.2g})"  # no -0.000


def _draw(
    comparison: "ComparedRuns", into: Path, formats: Sequence[str], width: str, metrics: Sequence[str]
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


def _chosen(comparison: "ComparedRuns", asked: str | None) -> list[str]:
    available = comparison.metrics
    if asked is None:
        return [metric for metric in _METRICS if metric in available]
    metrics = asked.split(",")
    for metric in metrics:
        check_choice("metrics", metric, available)
    return metrics


def _title(metric: str) -> str:
    layered, key = metric.startswith(_PERSONAL), metric.removeprefix(_PERSONAL)
    return key.replace("_", " ") + (", personal layer" if layered else "")


def _cell(row: "Row", metric: str) -> str:
    from fedclust.results.comparison import mean_and_spread

    values, digits = row.values(metric), _DIGITS.get(metric, 3)
    if not values.size:
        return "–"
    text = mean_and_spread(values, digits)
    # A value undefined for some seeds, such as WAS with a single cluster, averages fewer runs.
    return text if values.size == len(row.runs) else f"{text} ({values.size} of {len(row.runs)})"
