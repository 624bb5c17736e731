"""Check a site's tables before they are used: fedclust check FILE…

Each line names a column, what is wrong in how many rows, where (rows are counted from 1, without the header),
and what to do. Nothing is sent or written. Several files are also compared, as the sites of one run.

With --rules a first ``site.toml`` is written, unless it exists, and a default run of one round is rehearsed
in this process under its rules: what the site sends, message by message, with sizes.
"""

import argparse
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict

from fedclust.data.check import lines
from fedclust.data.sites import OwnSitesPartition
from fedclust.data.sites.agreement import Statement, agree
from fedclust.data.sites.rows import builder_of, describe, read_site, wanted_of
from fedclust.data.sites.rules import OURS, Rules
from fedclust.data.source import UNREADABLE
from fedclust.grids.client_grid import WrappedGrid
from fedclust.runs.verbs import Parser
from fedclust.support.checks import few

_EXAMPLES = """
  fedclust check patients.csv --target diagnosis
  fedclust check north.csv south.csv --target diagnosis --group patient_id
  fedclust check patients.csv --target diagnosis --rules site.toml
  fedclust check patients.csv --target diagnosis --sep ";" --decimal "," --encoding latin-1"""

_MOST_LINES = 14  # of findings, in all files
_CSV = re.compile(r"'?dataset\.csv_options\.(\w+)=(\"[^\"]*\"|[^\s;,']+)'?")
_FLAGS = {name: f"{name} " for name in ("sep", "decimal", "encoding")}
_WORDS = {"true": True, "false": False, "null": None}


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
                    _rules(given, file, stated)
        except UNREADABLE as error:
            counts["error"] += 1
            text = re.split("; give dataset.path=| \\(read from ", " ".join(str(error).split()))[0]
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


# -- Rules, and what leaves under them ----------------------------------------------------------------------

_TEMPLATE = """\
# What this site lets leave it (docs/SECURITY.md). Nothing in a run changes it; every run prints it first.
# flower-supernode … --node-config "data='…' name='…' rules='/data/site.toml'"

labels = {labels}  # columns that a run may predict
inputs = {inputs}  # columns that a run may learn from; no others are described
groups = []  # columns whose values may be clients of their own and name them (dataset.natural)
min_cell = 10  # nothing that is of fewer rows leaves: counts, classes, categories, means, figures
max_values = 100  # most classes, and most categories of a column
own_models = true  # false: no model leaves that other sites may be sent; coalitions run without this site
# questions = {questions}  # without this line all are answered
# methods = ["auto", "fedavg"]  # choices of strategy= and compare=; without this line any
# layers = ["prior"]  # choices of personal=; without this line any
# encoders = ["random"]  # that may embed the rows; without this line those of --node-config "encoder=…"
# rounds_per_day = 200  # most rounds a day, of all runs together
# clip = 1.0  # length to which the change by training is cut
# noise = 0.01  # standard deviation of the noise on each parameter, as a multiple of clip
"""

_MESSAGES = {
    "query.clients": "names of the site and its clients, and its rules",
    "query.statement": "classes, columns, categories, means and spreads",
    "query.agreement": "that its rows are encoded",
    "query.encoder": "the encoding that all sites agreed on",
}


def _rules(given: argparse.Namespace, file: Path, stated: Statement) -> None:
    """Write first rules, unless there are some, and rehearse a run under them."""
    if not given.rules.exists():
        inputs = [name for name, column in stated.columns.items() if not column.unfit]
        lists = {"labels": [given.target], "inputs": inputs}
        written = {name: json.dumps(each, ensure_ascii=False) for name, each in lists.items()}
        given.rules.write_text(_TEMPLATE.format(questions=json.dumps(OURS), **written), encoding="utf-8")
        _print(f"  {given.rules}: written, edit it as you like")
    _print(f"  rules: {Rules.read(given.rules).line}")
    for line in _rehearsed(given, file):
        _print(f"  {line}")


class _Rehearsal(WrappedGrid):
    """Records what the first node sends."""

    def __init__(self, grid: Any) -> None:
        super().__init__(grid)
        self.sent: dict[str, list[int]] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages; return the replies."""
        replies = list(super().send_and_receive(messages, timeout=timeout))
        first = min(self.get_node_ids())
        for reply in replies:
            if reply.metadata.src_node_id == first:
                size = _num_bytes(reply.content) if reply.has_content() else 0
                self.sent.setdefault(reply.metadata.message_type, []).append(size)
        return replies


def _num_bytes(content: RecordDict) -> int:
    arrays = sum(len(each.data) for record in content.array_records.values() for each in record.values())
    records: list[Any] = [*content.config_records.values(), *content.metric_records.values()]
    return arrays + sum(len(f"{name}{value}") for each in records for name, value in each.items())


def _rehearsed(given: argparse.Namespace, file: Path) -> Iterator[str]:
    """Run a round of a default run in this process, with the file as two sites; list what one sends."""
    import io

    from rich.console import Console

    from fedclust import clients
    from fedclust.federation import FederationError
    from fedclust.grids.local_grid import LocalGrid
    from fedclust.privacy import NoPrivacy
    from fedclust.runs.server import federate, left_clients
    from fedclust.settings.composition import compose, to_run_config

    own = _csv_options(given) | {"keep": ",".join(given.keep), "data": str(file), "rules": str(given.rules)}
    with tempfile.TemporaryDirectory() as folder, _cache(folder):
        named = [f"dataset.label={json.dumps(given.target)}", f"dataset.ignore={json.dumps(given.ignore)}"]
        named += [f"partition.group={json.dumps(given.group)}"] if given.group else []
        short = ["rounds=1", "compare=[]", "partition.settle=0", "wait=1", f"output_dir={folder}/run"]
        config = compose(["dataset=csv", "partition=own", *named, *short])
        nodes = LocalGrid(clients.app, to_run_config(config), 2)
        nodes.configure(own)
        for number, context in enumerate(nodes.contexts):
            context.node_config["name"] = f"site-{number + 1}"
            del context.node_config["allow"], context.node_config["predictions"]  # of the user's own process
        rehearsal, ended = _Rehearsal(nodes), ""
        Path(folder, "run").mkdir()
        try:
            federate(config, rehearsal, Path(folder, "run"), Console(file=io.StringIO()))
        except FederationError as error:
            ended = str(error)
    yield "a default run (strategy=auto, of two sites with this file, one round) gets from the site:"
    what = left_clients(rehearsal.sent, NoPrivacy()) | _MESSAGES
    for kind, sizes in rehearsal.sent.items():
        times = f"{len(sizes)} times, " if len(sizes) > 1 else ""
        yield f"  {kind.removeprefix('query.')}: {times}{max(sizes):,} bytes: {what[kind]}"
    if ended:
        yield f"  the run ends: {ended}"


@contextmanager
def _cache(folder: str) -> Iterator[None]:
    """Keep what a rehearsal encodes in a folder of its own."""
    before = os.environ.get("FEDCLUST_CACHE")
    os.environ["FEDCLUST_CACHE"] = f"{folder}/cache"
    try:
        yield
    finally:
        os.environ.pop("FEDCLUST_CACHE")
        if before is not None:
            os.environ["FEDCLUST_CACHE"] = before


def _builder(given: argparse.Namespace, path: Path) -> Any:  # Tables
    dataset = {"_target_": "fedclust.data.tables.Tables", "name": "csv", "label": given.target or ""}
    columns = {"ignore": given.ignore, "keep": given.keep, "group": given.group}
    return builder_of({**dataset, **columns, "csv_options": _csv_options(given)}, path)


def _csv_options(given: argparse.Namespace) -> dict[str, Any]:
    named = {name: getattr(given, name) for name in _FLAGS}
    options = {name: value for name, value in named.items() if value is not None}
    for name, equals, value in (each.partition("=") for each in given.csv):
        if not equals:
            raise ValueError(f"--csv takes NAME=VALUE, got {name}")
        options[name] = _WORDS.get(value, int(value) if value.isdecimal() else value)
    return options


def _print(line: str) -> None:
    """Print a line, with this command's options, of at most 400 characters; names may hold anything."""
    line = _CSV.sub(lambda match: f"--{_FLAGS.get(match[1], f'csv {match[1]}=')}{match[2]}", line)
    print("".join(each if each.isprintable() else "?" for each in line[:400]))


def parser() -> Parser:
    """Describe the verb's arguments."""
    parser = Parser(
        "check", _EXAMPLES, "exit status: 0 without errors, 1 with errors, 2 if an option is wrong"
    )
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="a CSV or Parquet file, or a folder"
    )
    parser.add_argument("--target", metavar="COLUMN", help="the column with the label")
    parser.add_argument("--group", metavar="COLUMN", help="the key of the person that a row belongs to")
    rules = "write first rules of what may leave, unless they exist, and list what a run gets under them"
    parser.add_argument("--rules", type=Path, metavar="FILE", nargs="?", const=Path("site.toml"), help=rules)
    for name, what in (("ignore", "columns that the run leaves out"), ("keep", "columns to use as they are")):
        parser.add_argument(f"--{name}", metavar="COLUMN", nargs="+", default=[], help=what)
    for name, value in (("sep", ","), ("decimal", "."), ("encoding", "utf-8")):
        parser.add_argument(f"--{name}", help=f"of a CSV file; {value!r} unless given")
    options = "another of dataset.csv_options, such as thousands=, or keep_default_na=false"
    parser.add_argument("--csv", metavar="NAME=VALUE", action="append", default=[], help=options)
    return parser
