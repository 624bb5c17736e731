"""Check a site's tables before they are used: fedclust check FILE…

Each line names a column, what is wrong in how many rows, where (rows are counted from 1, without the header),
and what to do. Nothing is sent or written. Several files are also compared, as the sites of one run.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from fedclust.data.check.findings import Finding, check_table, lines
from fedclust.data.sites import Own
from fedclust.data.sites.agreement import Statement, agree
from fedclust.data.sites.rows import Builder, builder_of, describe, read_site, wanted_of
from fedclust.data.source import find_column
from fedclust.support.checks import few

_EXAMPLES = """examples:
  fedclust check patients.csv --target diagnosis
  fedclust check north.csv south.csv --target diagnosis --group patient_id
  fedclust check patients.csv --target diagnosis --sep ";" --decimal "," --encoding latin-1

exit status: 0 without errors, 1 with errors, 2 if an option is wrong"""

_MOST_LINES = 14  # of findings, in all files
_CSV = re.compile(r"'?dataset\.csv_options\.(sep|decimal|encoding)=(\S+?)'?(?=[\s;,]|$)")


def main(argv: Sequence[str]) -> int:
    """Print what should be mended in some files, and what a run would send of them.

    Returns
    -------
    Exit status: 0 without errors, 1 with errors; 2 if an option is wrong, from argparse.
    """
    given = _parser().parse_args(argv)
    statements: dict[str, Statement] = {}
    counts = {"error": 0, "warning": 0}
    for file in given.files:
        builder = _builder(given, file)
        try:
            about, found = _checked(builder, given)
            _print(f"{file}: {about}")
            for each in found:
                counts[each.severity] += 1
            for line in lines(found, max(3, _MOST_LINES // len(given.files)), severity=True):
                _print(f"  {line}")
            if given.target and not any(each.severity == "error" for each in found):
                stated = describe(read_site(str(file.name), builder, Own(group=given.group), 0))
                statements[str(file)] = stated
                _print(f"  a run would send: {stated.summary()}")
        except (ValueError, OSError, LookupError) as error:
            counts["error"] += 1
            _print(f"{file}: error: {_readable(error)}")
    if len(statements) > 1:
        refused, cautions = _together(statements, given)
        counts["error"] += len(refused)
        counts["warning"] += len(cautions)
        for line in [*(f"  error: {line}" for line in refused), *(f"  warning: {line}" for line in cautions)][
            :8
        ]:
            _print(line)
    _print(f"{counts['error']} errors, {counts['warning']} warnings")
    return 1 if counts["error"] else 0


def _checked(builder: Builder, given: argparse.Namespace) -> tuple[str, list[Finding]]:
    """Describe the size of a table, and check it."""
    import pandas as pd

    with builder.opened() as parts:
        names = parts[0].rows.schema.names
        for role in ("target", "group", "ignore", "keep"):
            for name in [getattr(given, role)] if role in ("target", "group") else getattr(given, role):
                if name is not None:
                    find_column(parts[0], name, f"--{role}")
        used = [name for name in names if name not in given.ignore]
        tables = [part.rows.to_table().to_pandas().reindex(columns=used) for part in parts]
        table = pd.concat(tables, ignore_index=True)
    found = check_table(table, given.target, given.group, given.keep)
    about = f"{len(table):,} rows, {len(names):,} columns"
    if given.target is None:
        return f"{about}; with --target COLUMN the labels are checked, too: {few(names, 8)}", found
    if given.group:
        about += f", {table[given.group].nunique():,} different {given.group}, never divided"
    return about, found


def _together(statements: dict[str, Statement], given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Compare the files as the sites of a run; return what is wrong and what to look at."""
    _print("as sites of one run:")
    try:
        outcome = agree(statements, wanted_of(_builder(given, Path()), None, None))
    except ValueError as error:
        return [str(error)], []
    # A site's own warnings stand below its name already.
    own = {f"{site}: {line}" for site, each in statements.items() for line in each.warnings}
    refused = [f"{site}: {reason}" for site, reason in outcome.refused.items()]
    return refused, [line for line in outcome.cautions if line not in own]


def _builder(given: argparse.Namespace, path: Path) -> Builder:
    options = {name: getattr(given, name) for name in ("sep", "decimal", "encoding")}
    dataset = {"_target_": "fedclust.data.tables.Tables", "name": "csv", "label": given.target or ""}
    return builder_of(dataset | {"csv_options": options, "ignore": given.ignore, "keep": given.keep}, path)


def _readable(error: Exception) -> str:
    """Write an error of reading a file with the options of this command."""
    text = " ".join(str(error).split())
    for advice in ("; give dataset.path=", " (read from "):
        text = text.partition(advice)[0]
    return _CSV.sub(r"--\1 \2", text)


def _print(line: str) -> None:
    """Print a line of at most 400 characters; names of columns may hold anything."""
    print("".join(each if each.isprintable() else "?" for each in line[:400]))


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="fedclust check", description=__doc__, epilog=_EXAMPLES, formatter_class=raw
    )
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="a CSV or Parquet file, or a folder"
    )
    parser.add_argument("--target", metavar="COLUMN", help="the column with the label")
    parser.add_argument("--group", metavar="COLUMN", help="the key of the person that a row belongs to")
    for name, what in (("ignore", "columns that the run leaves out"), ("keep", "columns to use as they are")):
        parser.add_argument(f"--{name}", metavar="COLUMN", nargs="+", default=[], help=what)
    for name, value in (("sep", ","), ("decimal", "."), ("encoding", "utf-8")):
        parser.add_argument(f"--{name}", default=value, help=f"of a CSV file; {value!r} unless given")
    return parser
