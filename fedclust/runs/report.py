"""Print all figures of a run, redraw its pictures and rewrite its page: fedclust report FOLDER."""

from collections.abc import Sequence
from pathlib import Path

from fedclust.runs.verbs import Parser

_EXAMPLES = """
  fedclust report outputs/2026-01-31/12-00-00
  fedclust report outputs/sweep                 the page that compares its runs
  fedclust report outputs/* --no-plots"""


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
        If a folder does not contain a readable run.
    """
    options = parser().parse_args(arguments)
    from fedclust.results import SavedRun, print_report
    from fedclust.results.page import is_run, write_page  # Altair takes half a second to import

    for folder in options.folders:
        try:
            page = write_page(folder)
            if not is_run(folder):
                print(page)
                continue
            run = SavedRun(folder)
            if run.summary:
                print_report(run)
            else:
                print(f"{folder}: no summary.json, the run has not finished")
            if not options.no_plots:
                from fedclust.results.charts import draw

                for path in draw(folder):
                    print(path)
            print(page)
        except (LookupError, TypeError) as error:
            raise ValueError(f"{folder} is no run's: {error!r:.200}") from error
    return 0


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("report", _EXAMPLES)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="folder", help="folder of a run or of a sweep"
    )
    parser.add_argument("--no-plots", action="store_true", help="draw no pictures")
    return parser
