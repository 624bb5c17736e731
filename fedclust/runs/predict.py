"""Predict with the models of an export, or of a run: fedclust predict FOLDER ROWS."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedclust.runs.verbs import Parser, csv_options

if TYPE_CHECKING:
    from fedclust.serving.served import Served

_PREDICTED = "predicted"
_EXAMPLES = """
  fedclust predict served patients.csv --site north --out predictions.csv
  fedclust predict outputs/2026-01-31/12-00-00 scans/ --cluster 1"""


def main(argv: Sequence[str]) -> int:
    """Write a table with the predicted class and each class's probability, one line per row.

    Of amounts it has the amount, of times the survival at each time and the risk.

    Returns
    -------
    Exit status 0.

    Raises
    ------
    ValueError, OSError
        If the folder or the rows are invalid.
    """
    given = parser().parse_args(argv)
    import pandas as pd  # these take seconds to import

    from fedclust.data.input_encoders import TableEncoder

    served = _open(given.folder, given.allow)
    rows, names = served.read(given.rows, csv_options(given))
    table = served.predict(rows, site=given.site, cluster=given.cluster, times=given.times)
    site = None if given.site is None else served.site(given.site)
    encoder, name = served.encoder, site.label if site else ""
    notes = encoder.notes(rows, name) if isinstance(encoder, TableEncoder) else []
    for note in [*notes, site and site.note]:
        if note:
            print(f"fedclust predict: {note}", file=sys.stderr)
    if names is not None and len(table) == len(names):
        table.index = pd.Index(map(_inert, names), name="file")
    if predicted := served.target.named(table.to_numpy(), served.class_names):
        table.insert(0, _PREDICTED, list(map(_inert, predicted)), allow_duplicates=True)
    table.columns = pd.Index(map(_inert, table.columns))
    try:
        table.to_csv(given.out or sys.stdout, index=table.index.name is not None or table.index.nlevels > 1)
    except OSError as error:
        if given.out is None:  # the reader of standard output may be gone
            raise
        raise ValueError(f"--out must be a file that can be written, got {given.out}: {error}") from error
    return 0


def _inert(text: object) -> str:
    """Put an apostrophe before a text that a spreadsheet would run as a formula; numbers stay."""
    cell = str(text)
    if cell[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _open(folder: Path, allow: str) -> "Served":
    from fedclust.serving.served import CLUSTER, INDEX, load_export

    if (folder / INDEX).is_file() or (folder / CLUSTER).is_file():
        return load_export(folder, allow=allow)
    if (folder / "rounds.jsonl").is_file():  # a run's own folder
        from fedclust.runs.library import load

        return load(folder, allow=allow).served()
    raise FileNotFoundError(f"folder must hold an export or a run, got {folder}")


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser("predict", _EXAMPLES)
    parser.add_argument("folder", type=Path, help="what fedclust export wrote, or a run's folder")
    parser.add_argument("rows", type=Path, help="a CSV or Parquet file, an image or a folder of images")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--site", help="name or id of the client whose rows they are")
    which.add_argument("--cluster", type=int, help="cluster of a client that was not in the run")
    parser.add_argument(
        "--times", type=float, nargs="+", help="of times to an event: when survival is asked for"
    )
    parser.add_argument("--out", type=Path, help="where to write the table; standard output unless given")
    parser.add_argument("--allow", default="", help="further names to build, separated by commas")
    parser.add_csv_options({})
    return parser
