"""Find the cluster of a client that was not in a run: fedclust place FOLDER ROWS."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedclust.runs.verbs import CSV_FLAGS, Parser, csv_options
from fedclust.support.checks import few, none_of

_EXAMPLES = """
  fedclust place outputs/2026-01-31/12-00-00 new.csv
  fedclust place outputs/2026-01-31/12-00-00 new.csv --label diagnosis"""
_NOTE = "Without a column of labels: the cluster whose clients' rows these are like, if one's clearly are."


def main(argv: Sequence[str]) -> int:
    """Print the cluster whose model serves a new client, the reason, and the clients in that cluster.

    Returns
    -------
    Exit status 0.

    Raises
    ------
    ValueError, OSError
        If the folder or the rows are invalid.
    """
    given = parser().parse_args(argv)
    from fedclust.data.input_encoders import TableEncoder
    from fedclust.runs.library import load  # imports PyTorch

    result = load(given.folder, allow=given.allow)
    served = result.served()
    rows, _ = served.read(given.rows, csv_options(given))
    dataset, columns = result.saved.config.get("dataset") or {}, getattr(rows, "columns", ())
    label, event = given.label or dataset.get("label"), dataset.get("event")
    wanted = [label] if isinstance(label, str) else label or []  # of several, the first that exists
    names = [name for name in wanted if name in columns][:1]
    if given.label is not None and not hasattr(rows, "columns"):
        raise ValueError(f"--label must be left out, as images have no columns, got {given.label}")
    if given.label is not None and not names:
        raise ValueError(none_of("--label", given.label, columns, "must be a column of the rows, one of"))
    if names and event:
        names.append(event)
        if event not in columns:
            rule = f"rows must have a column {event}, the events of the times in {names[0]}"
            raise ValueError(f"{rule}, got {few(columns)}")
    found = result.place(rows, (tuple(names) if event else names[0]) if names else None)
    if isinstance(served.encoder, TableEncoder):
        for note in served.encoder.notes(rows.drop(columns=names)):
            print(f"fedclust place: {note}", file=sys.stderr)
    print(f"{'no cluster' if found.cluster is None else f'cluster {found.cluster}'}: {found.reason}")
    if found.cluster is not None:
        print(f"with {', '.join(site.label for site in served.sites if site.cluster == found.cluster)}")
        flags = [(name, getattr(given, name)) for name in CSV_FLAGS] + [("csv", each) for each in given.csv]
        again = [part for name, value in flags if value is not None for part in (f"--{name}", value)]
        paths = shlex.join([str(given.folder), str(given.rows), *again])
        print(f"to predict: fedclust predict {paths} --cluster {found.cluster}")
    return 0


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("place", _EXAMPLES, _NOTE)
    parser.add_argument("folder", type=Path, help="the folder of a finished run")
    parser.add_argument(
        "rows", type=Path, help="a CSV or Parquet file of the new client's rows, or a folder of images"
    )
    parser.add_argument("--label", metavar="COLUMN", help="column of labels; the run's own unless given")
    parser.add_argument("--allow", default="", help="further names to build, separated by commas")
    parser.add_csv_options({})
    return parser
