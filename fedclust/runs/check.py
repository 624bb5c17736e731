"""Check a site's tables before they are used: fedclust check FILE…

Each line names a column, what is wrong in how many rows, where (rows are counted from 1, without the header),
and what to do. Nothing is sent or written. Several files are also compared, as the sites of one run.

With --rules a first ``site.toml`` is written, unless it exists, and a default run of one round is rehearsed
in this process under its rules: what the site sends, message by message, with sizes.
"""

import argparse
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedclust.data.check import SETTING, lines, names_typed
from fedclust.data.sites import OwnSitesPartition
from fedclust.data.sites.agreement import Statement, agree
from fedclust.data.sites.rows import builder_of, describe, read_site, wanted_of
from fedclust.data.source import UNREADABLE
from fedclust.data.targets import KINDS
from fedclust.runs.verbs import CSV_FLAGS, Parser, csv_options
from fedclust.support.checks import few

_EXAMPLES = """
  fedclust check north.csv south.csv --target diagnosis --group patient_id
  fedclust check patients.csv --target days --event died --rules site.toml
  fedclust check patients.csv --target diagnosis --sep ";" --decimal "," --encoding latin-1"""

_MOST_LINES = 14  # of findings, in all files
_OPTIONS = {"target": "kind", "event": "event", "keep": "keep", "ignore": "ignore"}  # by setting of dataset


def main(argv: Sequence[str]) -> int:
    """Print what should be mended in some files, and what a run would send of them.

    Returns
    -------
    Exit status: 0 without errors, 1 with errors; 2 if an option is wrong, from argparse.
    """
    given = parser().parse_args(argv)
    statements: dict[str, Statement] = {}
    counts: Counter[str] = Counter()
    for file in given.files:
        builder = _builder(given, file)
        try:
            with builder.opened() as parts:
                found, names = builder.findings(parts), parts[0].rows.schema.names
                rows = sum(part.rows.count_rows() for part in parts)
            hint = "" if given.target else f"; --target COLUMN checks the labels, too: {few(names, 8)}"
            _print(f"{file}: {rows:,} rows, {len(names):,} columns{hint}")
            most = max(3, _MOST_LINES // len(given.files))
            for line in lines(found, most, lambda each: f"{each.severity}: {each.line}"):
                _print(f"  {line}")
            counts.update(each.severity for each in found)
            if given.target and not any(each.severity == "error" for each in found):
                stated = describe(read_site(file.name, builder, OwnSitesPartition(group=given.group), 0))
                statements[str(file)] = stated
                _print(f"  a run would send: {stated.summary()}")
                if given.rules:
                    from fedclust.runs.rehearsal import rehearsed, written_rules  # imports Flower

                    for line in [*written_rules(given, stated), *rehearsed(given, file, csv_options(given))]:
                        _print(f"  {line}")
        except UNREADABLE as error:
            counts["error"] += 1
            text = re.split(
                r"; give dataset\.path=|; \w+\.\w+= names it| \(read from ", " ".join(str(error).split())
            )[0]
            _print(f"{file}: error: {text}")
    if len(statements) > 1:
        _print("as the sites of one run:")
        for severity, line in _together(statements, given):
            counts[severity] += 1
            _print(f"  {severity}: {line}")
    _print(f"errors: {counts['error']}, warnings: {counts['warning']}")
    return 1 if counts["error"] else 0


def _together(statements: dict[str, Statement], given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Compare the files as the sites of a run; yield the severity of each finding, and its line."""
    try:
        outcome = agree(statements, wanted_of(_builder(given, Path()), None, None))
    except ValueError as error:
        yield "error", str(error)
        return
    yield from (("error", f"{site}: {reason}") for site, reason in outcome.refused.items())
    # A site's own warnings stand below its name already.
    own = {f"{site}: {line}" for site, each in statements.items() for line in each.warnings}
    yield from (("warning", line) for line in outcome.cautions if line not in own)


def _builder(given: argparse.Namespace, path: Path) -> Any:  # Tables
    dataset = {"_target_": "fedclust.data.tables.Tables", "name": "csv", "label": given.target or ""}
    dataset |= {"target": given.kind, "event": given.event}
    columns = {"ignore": given.ignore, "keep": given.keep, "group": given.group}
    return builder_of({**dataset, **columns, "csv_options": csv_options(given)}, path)


def _print(line: str) -> None:
    """Print a line, with this command's options, of at most 400 characters; names may hold anything."""
    line = SETTING.sub(_option, line).replace("partition.group=", "--group ")
    print("".join(each if each.isprintable() else "?" for each in line[:400]))


def _option(setting: re.Match[str]) -> str:
    """Return the option of this command that stands for a setting."""
    csv, name, value = setting.groups()
    if csv:
        return f"--{name} {value}" if name in CSV_FLAGS else f"--csv {name}={value}"
    if name not in _OPTIONS:
        return setting[0]
    values = names_typed(value[1:-1]) if value.startswith("[") else [value]
    return f"--{_OPTIONS[name]} {shlex.join(values)}"


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser(
        "check", _EXAMPLES, "exit status: 0 without errors, 1 with errors, 2 if an option is wrong"
    )
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="a CSV or Parquet file, or a folder"
    )
    parser.add_argument("--target", metavar="COLUMN", help="the column with the label")
    kinds = f"{' or '.join(KINDS)}; the first unless given"
    parser.add_argument("--kind", metavar="KIND", choices=list(KINDS), help=kinds)
    parser.add_argument("--event", metavar="COLUMN", help="1 where the event happened, 0 where censored")
    parser.add_argument("--group", metavar="COLUMN", help="the key of the person that a row belongs to")
    rules = "write first rules of what may leave; list what a run gets"
    parser.add_argument("--rules", type=Path, metavar="FILE", nargs="?", const=Path("site.toml"), help=rules)
    kept = "columns to use as they are; at a node, keep= in --node-config"
    for name, what in (("ignore", "columns that the run leaves out"), ("keep", kept)):
        parser.add_argument(f"--{name}", metavar="COLUMN", nargs="+", default=[], help=what)
    parser.add_csv_options()
    return parser
