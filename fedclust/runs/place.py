"""Find the cluster of a client that was not in a run: fedclust place FOLDER ROWS."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedclust.runs.library import load

_EXAMPLES = """examples:
  fedclust place outputs/2026-01-31/12-00-00 new.csv
  fedclust place outputs/2026-01-31/12-00-00 new.csv --label diagnosis

Without a column of labels, the cluster whose model is most certain of the rows; none if none clearly is."""


def main(argv: Sequence[str]) -> int:
    """Print the cluster whose model serves a new client, the reason, and the clients in that cluster.

    Returns
    -------
    Exit status: 0, or 2 if the folder, the rows or an argument is invalid, with one line on standard error.
    """
    given = _parser().parse_args(argv)
    try:
        result = load(given.folder, allow=given.allow)
        rows, _ = result.served().read(given.rows)
        label = given.label or str((result.saved.config.get("dataset") or {}).get("label"))
        known = given.label is not None or label in getattr(rows, "columns", ())
        found = result.place(rows, rows[label] if known else None)
        who = [] if found.cluster is None else result.served().sites
        clients = [site.label for site in who if site.cluster == found.cluster]
        print(f"{'no cluster' if found.cluster is None else f'cluster {found.cluster}'}: {found.reason}")
        if found.cluster is not None:
            print(f"with {', '.join(clients)}")
            print(f"to predict: fedclust predict {given.folder} {given.rows} --cluster {found.cluster}")
    except (ValueError, OSError, LookupError, ModuleNotFoundError) as error:
        print("fedclust place:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="fedclust place", description=__doc__, epilog=_EXAMPLES, formatter_class=raw
    )
    parser.add_argument("folder", type=Path, help="the folder of a finished run")
    parser.add_argument("rows", type=Path, help="a CSV or Parquet file of the new client's rows")
    parser.add_argument("--label", metavar="COLUMN", help="column of labels; the run's own unless given")
    parser.add_argument("--allow", default="", help="further names to build, separated by commas")
    return parser
