"""Rehearse a run under a site's rules: what leaves, message by message. ``fedclust check --rules``."""

import argparse
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Message, RecordDict
from rich.console import Console

from fedclust import clients
from fedclust.data.sites.agreement import Statement
from fedclust.data.sites.rules import OURS, Rules
from fedclust.federation import FederationError
from fedclust.grids.client_grid import WrappedGrid
from fedclust.grids.local_grid import LocalGrid
from fedclust.privacy import NoPrivacy
from fedclust.runs.server import federate, left_clients
from fedclust.settings.composition import compose, to_run_config

_TEMPLATE = """\
# What this site lets leave it (docs/SECURITY.md). Nothing in a run changes it; every run prints it first.
# flower-supernode … --node-config "data='…' name='…' rules='/data/site.toml'"

labels = {labels}  # columns that a run may predict
inputs = {inputs}  # columns that a run may learn from; no others are described
groups = []  # columns that may name clients (dataset.natural) or groups, such as ["ward"]; []: none may
{patient}  # column with a patient's key, which each run must then name as partition.group
min_cell = 10  # nothing that is of fewer rows leaves: counts, classes, categories, means, figures
max_values = 100  # most classes, and most categories of a column
own_models = true  # false: no model leaves that other sites may be sent; coalitions run without this site
# questions = {questions}  # without this line all are answered
# methods = ["auto", "fedavg"]  # choices of strategy= and compare=; without this line any
# layers = ["prior"]  # choices of personal=; without this line any
# encoders = ["random"]  # that may embed the rows; without this line those of --node-config "encoder=…"
# rounds_per_day = 200  # most messages a day that ask for training (train, update), of all runs together
# clip = 1.0  # length to which the change by training is cut
# noise = 0.01  # standard deviation of the noise on each parameter, as a multiple of clip
# patient_noise = 1.0  # least noise of privacy=patient_dp, without which it neither trains nor sends figures
# patient_clip = 1.0  # largest length of a patient's gradient in it
# patient_epsilon = 10.0  # most that a patient spends in all runs together, at patient_delta
# patient_delta = 1e-5
"""

_MESSAGES = {
    "query.clients": "names of the site and its clients, and its rules",
    "query.statement": "what is predicted, columns, categories, means and spreads",
    "query.agreement": "that its rows are encoded",
    "query.encoder": "the encoding that all sites agreed on",
}


def written_rules(given: argparse.Namespace, stated: Statement) -> Iterator[str]:
    """Write first rules for a site, unless there are some; list what they say.

    Parameters
    ----------
    given
        The options of ``fedclust check``.
    stated
        What the site's file would be described as.
    """
    if given.rules.is_dir():
        raise ValueError(f"--rules must be a file, got the folder {given.rules}")
    if not given.rules.exists():
        inputs = [name for name, column in stated.columns.items() if not column.unfit]
        lists = {"labels": [each for each in (given.target, given.event) if each], "inputs": inputs}
        written = {name: json.dumps(each, ensure_ascii=False) for name, each in lists.items()}
        key = '# patient = "patient_id"'
        if given.group:
            key = f"patient = {json.dumps(given.group, ensure_ascii=False)}"
        text = _TEMPLATE.format(questions=json.dumps(OURS), patient=key, **written)
        given.rules.write_text(text, encoding="utf-8")
        yield f"{given.rules}: written, edit it as you like"
    yield f"rules: {Rules.read(given.rules).line}"


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


def rehearsed(given: argparse.Namespace, file: Path, csv_options: dict[str, Any]) -> Iterator[str]:
    """Run a round of a default run in this process, with the file as two sites; list what one sends.

    Parameters
    ----------
    given
        The options of ``fedclust check``.
    file
        The site's file.
    csv_options
        How it is read, as in ``dataset.csv_options``.
    """
    predicted = {"target": given.kind, "event": given.event}
    own = csv_options | {"keep": ",".join(given.keep), "data": str(file), "rules": str(given.rules)}
    with tempfile.TemporaryDirectory() as folder, _apart(folder):
        named = [f"dataset.label={json.dumps(given.target)}", f"dataset.ignore={json.dumps(given.ignore)}"]
        named += [f"dataset.{key}={json.dumps(value)}" for key, value in predicted.items() if value]
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
def _apart(folder: str) -> Iterator[None]:
    """Keep what a rehearsal encodes and counts in a folder of its own."""
    before = {name: os.environ.get(name) for name in ("FEDCLUST_CACHE", "FEDCLUST_ACCOUNTS")}
    os.environ.update({name: f"{folder}/{name}" for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
