"""Compare finished runs, mean ± standard deviation over seeds: ``fedclust compare outputs``.

With ``--plots DIR``, draw them as the pictures of a paper instead of printing a table.
"""

import argparse
import io
import shlex
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedclust.results.names import paper_name
from fedclust.runs.verbs import Parser
from fedclust.support.checks import check_choice, few, none_of

if TYPE_CHECKING:
    from fedclust.proof.words import Words
    from fedclust.results.comparison import ComparedRuns, Difference, Differences, Row

_EXAMPLES = """
  fedclust compare outputs/sweep
  fedclust compare outputs/sweep --metrics mean_client_accuracy,seconds --against fedavg
  fedclust compare outputs/sweep --format latex > table.tex
  fedclust compare outputs/sweep --plots pictures --width page"""

_METRICS = (
    "mean_client_accuracy", "without_layer.mean_client_accuracy", "balanced_accuracy", "macro_f1", "ad",
    "adjusted_rand_index", "num_clusters", "seconds",
    "newcomers.accuracy", "newcomers.adjusted_rand", "newcomers.none",
)  # fmt: skip
_SHORT = (
    *("mean_client_accuracy", "without_layer.mean_client_accuracy", "validation_brier"),
    *("adjusted_rand_index", "seconds"),
)
_DIGITS = {"num_clusters": 1, "newcomers.none": 1, "seconds": 1, "rounds": 0, "num_clients": 0}
_FORMATS = ("text", "markdown", "latex", "csv")
_MOST = 12  # rows at the end of a sweep

_LATEX = str.maketrans({
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", "−": "$-$", "<": "$<$", ">": "$>$", "†": r"$^\dagger$"},
})  # fmt: skip


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


def as_latex(
    table: Sequence[Sequence[str]], left: int, caption: str, bold: Collection[tuple[int, int]]
) -> str:
    """Format a table for LaTeX with the package booktabs.

    Parameters
    ----------
    table, left
        As for :func:`as_text`.
    bold
        Row, from 1, and column of each cell in bold.
    caption
        The caption.
    """
    lines = []
    for place, row in enumerate(table):
        cells = [cell.translate(_LATEX) for cell in row]
        cells = [rf"\textbf{{{cell}}}" if (place, at) in bold else cell for at, cell in enumerate(cells)]
        lines.append(" & ".join(cells) + r" \\")
    columns = "l" * left + "r" * (len(table[0]) - left)
    return "\n".join([
        r"\begin{table}", r"\centering", rf"\caption{{{caption.translate(_LATEX)}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule",
        r"\end{tabular}", r"\end{table}", "",
    ])  # fmt: skip


def as_csv(comparison: "ComparedRuns", metrics: Sequence[str], tests: "Differences") -> str:
    """Format the comparison as CSV, with a column for each mean and each sample standard deviation.

    A missing value and the deviation of a single run are empty. ``difference`` and ``p_value`` are of the
    first metric.
    """
    import pandas as pd

    found, lines = {row: each for (row, _), each in tests.items()}, []
    for row in comparison.rows:
        line: dict[str, Any] = {"strategy": row.strategy}
        line |= {**dict(zip(comparison.settings, row.settings, strict=True)), "seeds": len(row.runs)}
        for metric in metrics:
            values = pd.Series(row.values(metric), dtype=float)
            line |= {f"{metric}_mean": values.mean(), f"{metric}_std": values.std()}
        if tests:
            gap = found.get(row)
            line |= {"difference": gap and gap.mean, "p_value": gap and gap.p_value}
        lines.append(line)
    return pd.DataFrame(lines).to_csv(index=False)


def pairs_as_csv(comparison: "ComparedRuns", tests: "Differences") -> str:
    """Format the differences of every two methods as CSV; what is unknown is empty."""
    import pandas as pd

    columns = ["setting", "strategy", "against", "seeds", "difference", "difference_std", "p_value"]
    names = _names(comparison)
    lines = [
        (*names[row], names[other][1], gap.seeds, gap.mean, gap.spread, gap.p_value)
        for (row, other), gap in tests.items()
    ]
    return pd.DataFrame(lines, columns=columns).to_csv(index=False)


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
    from fedclust.results.comparison import (
        best_first,
        compare,
        differences,
        find_runs,
        of_one_kind,
        reference,
    )

    found, unfinished = find_runs(options.folders)
    kind, runs, others = of_one_kind(found)
    comparison = compare(runs)
    metrics = _chosen(comparison, options.metrics)
    if options.plots is not None:
        asked = metrics if options.metrics else [key for key in metrics if key == "mean_client_accuracy"]
        _draw(comparison, options.plots, formats, options.width or "column", asked)
    else:
        against = options.against or reference(comparison, metrics[0])
        tests = differences(comparison, metrics[0], options.against)
        _print(best_first(comparison, metrics[0]), metrics, tests, against, formats[0])
        if tests and formats[0] == "text" and options.against is None:
            print("--against=STRATEGY compares with another one, --against=all every two")
    _print_left_out("not finished", unfinished)
    _print_left_out(f"not of {kind}, as the newest run", others)
    _print_left_out("same strategy, settings and seed as another run", comparison.repeats)
    return 0


def end_sweep(folder: Path) -> None:
    """Print how a sweep's runs compare, the best method of each setting, and where the sweep's page is."""
    from dataclasses import replace

    from fedclust.results import comparison as results

    kind, runs, others = results.of_one_kind(results.runs_below([folder])[0])
    comparison, metric = results.compare(runs), _SHORT[0]
    best = results.ranked(comparison.rows, metric)
    if not best:  # none has finished, or they are not of methods
        return
    metrics = [key for key in _SHORT if key in comparison.metrics]
    print()
    tests, against = results.differences(comparison, metric), results.reference(comparison, metric)
    shown = results.best_first(replace(comparison, rows=tuple(best[:_MOST])), metric)
    _print(shown, metrics, tests, against)
    _print_left_out(f"not of {kind}, as the newest run", others)
    more = [f"{len(best) - _MOST} more: fedclust compare {shlex.quote(str(folder))}"] * (len(best) > _MOST)
    page = folder.resolve() / "report.html"
    last = f"page: {page}" if page.is_file() else f"results: {page.parent}"
    print("\n".join([*more, *results.best_lines(comparison), last]))


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("compare", _EXAMPLES)
    add = parser.add_argument
    kinds = f"{', '.join(_FORMATS)}; with --plots some of svg,pdf,png"
    add("folders", nargs="+", type=Path, metavar="folder", help="folder to search, with its subfolders")
    add("--format", metavar="FORMAT", help=kinds)
    add("--metrics", metavar="KEY,KEY", help="keys of summary.json; the first one is tested")
    add(
        "--against",
        metavar="STRATEGY",
        help="test against it, not against fedavg; all: test every two methods",
    )
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


def _print(
    comparison: "ComparedRuns", metrics: Sequence[str], tests: "Differences", against: str, form: str = "text"
) -> None:
    """Print the table in a format, with notes on how to read it: below it, or in LaTeX as its caption."""
    from fedclust.results import comparison as results

    pairs = against == results.ALL
    if form == "csv":
        text = pairs_as_csv(comparison, tests) if pairs else as_csv(comparison, metrics, tests)
        print(text, end="")
        return
    table, left = (_pairs if pairs else _methods)(comparison, metrics, tests, against)
    notes, bold = [] if pairs else ["mean ± sample standard deviation over seeds"], set()
    if form == "latex" and not pairs:
        for column, metric in enumerate(metrics, left + 1):
            found = results.best(comparison, metric)
            bold |= {(place, column) for place, row in enumerate(comparison.rows, 1) if row in found}
    notes += [results.BEST] * bool(bold)
    if any(each.seeds > 1 for each in tests.values()):
        notes.append(results.how_tested(tests, against))
    notes += filter(None, [results.guesses_line(comparison.rows)])
    if form == "latex":
        print(as_latex(table, left, "; ".join(notes), bold), end="")
    else:
        print({"text": as_text, "markdown": as_markdown}[form](table, left), end="")
        print("\n" * (form == "markdown") + "; ".join(notes))


def _methods(
    comparison: "ComparedRuns", metrics: Sequence[str], tests: "Differences", against: str
) -> tuple[list[list[str]], int]:
    """Make the table of methods, and count its columns of text."""
    found = {row: each for (row, _), each in tests.items()}
    tested = any(each.seeds > 1 for each in tests.values())
    figures = [_title(key, comparison.words) for key in metrics]
    titles = ["strategy", *comparison.settings, "seeds", *figures]
    table = [titles + [f"from {paper_name(against)} (p)"] * tested]
    for row in comparison.rows:
        cells = [row.name, *row.settings, str(len(row.runs)), *(_cell(row, key) for key in metrics)]
        table.append(cells + [_tested(found.get(row))] * tested)
    return table, 1 + len(comparison.settings)


def _pairs(
    comparison: "ComparedRuns", metrics: Sequence[str], tests: "Differences", _: str
) -> tuple[list[list[str]], int]:
    """Make the table of every two methods, and count its columns of text."""
    titles, names = ["setting", "strategy", "against", "seeds"], _names(comparison)
    table = [[*titles, f"{_title(metrics[0], comparison.words)}, difference (p)"]]
    for (row, other), gap in tests.items():
        (setting, name), (_, others) = names[row], names[other]
        table.append([setting, name + row.mark, others + other.mark, str(gap.seeds), _tested(gap)])
    several = any(row[0] for row in table[1:])
    return [row[not several :] for row in table], 2 + several


def _names(comparison: "ComparedRuns") -> dict["Row", tuple[str, str]]:
    """Return each row's setting and name."""
    from fedclust.results.comparison import by_setting

    panels = by_setting(comparison)[1]
    return {row: (setting, name) for setting, rows in panels.items() for name, row in rows.items()}


def _tested(found: "Difference | None") -> str:
    from fedclust.results.comparison import LEAST_SEEDS

    if found is None:
        return "–"
    spread = f" ± {found.spread:.3f}" if found.seeds > 1 else ""
    chance = "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.2g}"
    text = f"{round(found.mean, 3) + 0:+.3f}{spread}".replace("-", "−")  # no −0.000
    return text if found.seeds < LEAST_SEEDS else f"{text} ({chance})"


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
    available, words = comparison.metrics, comparison.words
    if asked is None:
        first, bare, *others = (key for key in _METRICS if key not in words.without)
        shown = first, bare, *(key for key, _, _ in words.figures), *others
        return [metric for metric in shown if metric in available] or [first]
    metrics = asked.split(",")
    for metric in metrics:
        check_choice("metrics", metric, available)
    return metrics


def _title(metric: str, words: "Words") -> str:
    from fedclust.results.comparison import PREFIX

    bare, key = metric.startswith(PREFIX), metric.removeprefix(PREFIX)
    return words.title(key) + (", without layer" if bare else "")


def _cell(row: "Row", metric: str) -> str:
    from fedclust.results.comparison import mean_and_spread

    values, digits = row.values(metric), _DIGITS.get(metric, 3)
    if not values.size:
        return "–"
    text = mean_and_spread(values, digits)
    # A value undefined for some seeds, such as WAS with a single cluster, averages fewer runs.
    return text if values.size == len(row.runs) else f"{text} ({values.size} of {len(row.runs)})"
