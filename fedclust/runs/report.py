"""Print a run's results again and redraw its pictures: ``python -m fedclust.runs.report outputs/<run>``.

Rewrite its page, too; for a folder with several runs, such as a sweep's, the page that compares them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedclust.results import SavedRun, print_report
from fedclust.results.page import is_run, write_page


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Command-line arguments; ``sys.argv[1:]`` unless given.

    Returns
    -------
    Exit status: 0, or 1 if a folder does not contain a readable run.
    """
    parser = argparse.ArgumentParser(prog="python -m fedclust.runs.report", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="folder", help="folder of a run")
    parser.add_argument("--no-plots", action="store_true", help="only print the table")
    options = parser.parse_args(arguments)
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
                from fedclust.results.charts import draw  # Altair takes half a second to import

                for path in draw(folder):
                    print(path)
            print(page)
        except (OSError, ValueError, LookupError, TypeError) as error:
            shown = (
                error if isinstance(error, OSError | ValueError) else f"{folder} is no run's: {error!r:.200}"
            )
            print(f"fedclust.runs.report: {shown}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
