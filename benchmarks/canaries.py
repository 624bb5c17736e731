"""Run random configurations over sites whose data hold canaries, and search every reply for them.

    python benchmarks/canaries.py FOLDER [--number 3000] [--seed 0] [--write]    until so many have run

Three deployed nodes in this process, with data and rules of their own, answer small runs with random methods,
layers, privacy, targets and options of ``dataset``; nothing but the runs' configurations changes. A canary is
what must stay: names of rows, files and folders, categories and classes of a single row, numbers of a row as
they stand in the table, and a whole row as a network reads it. A configuration counts once a site has trained
in it. ``canaries.jsonl`` below the folder has a line for each that was tried; delete it to begin again.
"""

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from common import arguments, note_commit, show, side_by_side, table
from flwr.app import ArrayRecord, Message, RecordDict
from omegaconf import OmegaConf
from PIL import Image
from rich.console import Console

from fedclust import clients
from fedclust.clients.node import Node
from fedclust.data.images import Images
from fedclust.data.sites.rules import OURS
from fedclust.data.tables import Tables
from fedclust.data.text import Text
from fedclust.grids.client_grid import WrappedGrid
from fedclust.grids.joined import separated
from fedclust.grids.local_grid import LocalGrid
from fedclust.messages.codec import record_bytes
from fedclust.runs.server import federate
from fedclust.settings import checks
from fedclust.settings.composition import CONF, compose, to_run_config
from fedclust.settings.folders import expand

CANARY, HUGE = "hunter2canary", 987_654_321.25
SITES = {"north": 40, "east": 50, "south": 60}
_BATCH = 10  # configurations of a process


# -- The sites' data ----------------------------------------------------------------------------------------


def table_of(site: str) -> pd.DataFrame:
    """Make a site's rows, of which every cell that one person alone has is a canary."""
    draws, rows = np.random.default_rng(crc32(site.encode())), SITES[site]
    number, dose = np.arange(rows), draws.normal(size=rows)
    return pd.DataFrame(
        {
            "dose": np.round(7e5 + 1e5 * dose, 3),
            "pulse": np.round(300 + 50 * draws.normal(size=rows), 5),
            "ward": draws.choice(["a", "b"], rows),
            "cause": [f"{CANARY}cause" if row == 0 else "XYZ"[row % 3] for row in number],
            "stage": [f"{CANARY}stage" if row == 1 else "III"[: 1 + row % 3] for row in number],
            "patient": [f"{CANARY}{site}{row // 2}" for row in number],
            "code": 4_200_000 + draws.permutation(rows),
            "note": [
                f"seen {CANARY}{row} in ward {['one', 'two', 'three'][int(d > 0) + row % 2]}"
                for row, d in zip(number, dose, strict=True)
            ],
            "doctor": [f"{CANARY}doctor" if row == 2 else "AB"[row % 2] for row in number],
            "vendor": site[0],
            "cost": np.where(number == 3, HUGE, np.round(5e4 * np.exp(dose / 4), 2)),
            "days": np.round(1e5 * np.exp(dose / 2), 2),
            "died": (number % 3 > 0).astype(int),
            "ill": np.where(dose + draws.normal(size=rows) / 2 > 0, "yes", "no"),
        }
    )


def make_sites(folder: Path) -> dict[str, dict[str, Path]]:
    """Write each site's table and pictures, and return the files by kind and site."""
    made: dict[str, dict[str, Path]] = {"table": {}, "pictures": {}}
    for site, rows in SITES.items():
        below = folder / f"{CANARY}-place" / site
        below.mkdir(parents=True, exist_ok=True)
        made["table"][site] = below / f"{CANARY}-{site}.csv"
        table_of(site).to_csv(made["table"][site], index=False)
        made["pictures"][site] = below / "pictures"
        draws = np.random.default_rng(rows)
        for number in range(rows):
            kind = made["pictures"][site] / ("ill" if number % 2 else "well")
            kind.mkdir(parents=True, exist_ok=True)
            pixels = draws.integers(0, 256, (4, 4, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(kind / f"{CANARY}{number}.png")
    return made


_NUMBERS = ("dose", "pulse", "code", "cost", "days")


def numbers_of_rows() -> np.ndarray:
    """Return every number of a single row of a table, sorted."""
    cells = pd.concat([table_of(site) for site in SITES])[list(_NUMBERS)]
    return np.unique(cells.to_numpy(float))


# -- Searching ----------------------------------------------------------------------------------------------


def _walk(value: Any) -> Iterator[Any]:
    """Yield every value of a reply, and those that texts of JSON hold."""
    if isinstance(value, ArrayRecord | RecordDict) or hasattr(value, "items"):
        for key, each in value.items():
            yield str(key)
            yield from _walk(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _walk(each)
    elif hasattr(value, "numpy"):
        yield value.numpy()
    elif isinstance(value, bytes):
        yield np.frombuffer(value[: len(value) // 4 * 4], dtype="<f4")
        yield value.decode("latin-1")
    else:
        yield value
        if isinstance(value, str) and value[:1] in ("{", "["):
            with suppress(ValueError):
                yield from _walk(json.loads(value))


def found_in(content: Any, numbers: np.ndarray, rows: np.ndarray) -> list[str]:
    """List the canaries of a reply.

    Parameters
    ----------
    content
        The reply's content, or the text of its error.
    numbers
        Numbers that a single row has, sorted, shape (m,).
    rows
        Rows as a network reads them, of length 1 and each there once, shape (n, d).
    """
    found, plain = [], []
    for value in _walk(content):
        if isinstance(value, str) and CANARY in value:
            found.append(value[max(0, value.index(CANARY) - 40) :][:100])
        elif isinstance(value, bool | str):
            continue
        elif isinstance(value, int | float):
            plain.append(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu" and value.size:
            plain.extend(_near(value, numbers))
            found += _along(value, rows)
    return found + [f"number {each}" for each in _near(np.array(plain, dtype=float), numbers)]


def _near(values: np.ndarray, numbers: np.ndarray) -> list[float]:
    """Return those of some values that are the number of a row, as near as a float32 is."""
    flat = values.ravel().astype(float)
    flat = flat[(flat >= numbers[0] * 0.99) & (flat <= numbers[-1] * 1.01)]
    if not flat.size:
        return []
    place = np.clip(np.searchsorted(numbers, flat), 1, len(numbers) - 1)
    apart = np.minimum(np.abs(flat - numbers[place - 1]), np.abs(flat - numbers[place]))
    return flat[apart <= np.spacing(flat.astype(np.float32))].tolist()


def changes(content: Any, sent: Any) -> list[np.ndarray]:
    """Return what arrays of a reply differ by from those of its question that have their shape."""
    reply, asked = ([each for each in _walk(one) if isinstance(each, np.ndarray)] for one in (content, sent))
    return [
        each.astype(float) - other
        for each in reply
        for other in asked
        if each.shape == other.shape and each.dtype.kind == "f"
    ]


def _along(values: np.ndarray, rows: np.ndarray) -> list[str]:
    """Find vectors of an array that point where a row does."""
    width, found = rows.shape[1] if len(rows) else 0, []
    if width < 4 or values.dtype.kind != "f":
        return []
    for axis in [place for place, length in enumerate(values.shape) if length == width]:
        vectors = np.moveaxis(values, axis, -1).reshape(-1, width).astype(float)
        vectors = vectors[np.isfinite(vectors).all(axis=1)]
        lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
        alike = np.abs((vectors / lengths) @ rows.T)
        if (alike > 1 - 1e-6).any():
            found.append(f"row {alike.argmax() % len(rows)} of the site in an array {values.shape}")
    return found


def _rows_of(context: Any) -> np.ndarray:
    """Return a node's rows as its network reads them: those with fractions, that are there once."""
    try:
        inputs = np.asarray(Node.of(context).data.inputs, dtype=float)
    except Exception:  # there are none before the agreement
        return np.zeros((0, 0))
    inputs = inputs.reshape(len(inputs), -1)
    _, where, counts = np.unique(inputs, axis=0, return_index=True, return_counts=True)
    once = inputs[where[counts == 1]]
    once = once[(once % 1 != 0).any(axis=1) | (np.abs(once).sum(axis=1) > 255)]
    return once / np.maximum(np.linalg.norm(once, axis=1, keepdims=True), 1e-300)


class Searched(WrappedGrid):
    """Nodes whose every reply is searched."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__(grid)
        self.found: list[str] = []
        self.replies = self.bytes = self.models = self.exposed = 0
        self.kinds: set[str] = set()
        self._numbers, self._rows = numbers_of_rows(), dict[int, np.ndarray]()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        """Send messages, and search the replies."""
        for message in messages:
            (reply,) = self._grid.send_and_receive([message], timeout=timeout)
            self._search(message, reply)
            yield reply

    def _search(self, message: Message, reply: Message) -> None:
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        self.replies += 1
        if reply.has_error():
            content, size = reply.error.reason, len(reply.error.reason)
        else:
            content = separated(reply.content)
            size = sum(record_bytes(record) for record in reply.content.values())
            self.kinds.add(kind)
            if kind == "query.agreement":
                self._rows.pop(node, None)
        if node not in self._rows or not len(self._rows[node]):
            self._rows[node] = _rows_of(self._grid._contexts[node])
        self.bytes += size
        rows = self._rows[node]
        if kind in ("train", "query.update") and not reply.has_error():
            self.models += 1
            moved = changes(content, separated(message.content)) if kind == "train" else [content]
            self.exposed += any(_along(each, rows) for each in _walk(moved) if isinstance(each, np.ndarray))
            rows = rows[:0]  # a change says so on the page
        self.found += [f"{kind}: {each}" for each in found_in(content, self._numbers, rows)]


# -- Configurations -----------------------------------------------------------------------------------------


def _choices(group: str, *without: str) -> list[str]:
    return sorted({path.stem for path in (CONF / group).glob("*.yaml")} - set(without))


_STRATEGIES = _choices("strategy", "centralised", "centralised_groups", "clust_psi_pfl_released")
_COLUMNS = ["dose", "pulse", "ward", "cause", "stage", "patient", "code", "note", "doctor", "vendor"]
_COLUMNS += ["cost", "days", "died", "ill"]
_ODD = ["(.*)", "([^/]*)$", "{id}", "**/{id}", "no", "onehot", "index", "crop", "p", "1", ";", "latin-1"]


def _drawn(draws: np.random.Generator, depth: int = 2) -> Any:
    """Draw a value of an option: columns, patterns, numbers, and lists and mappings of these."""
    kind = draws.integers(9 if depth else 5)
    if kind < 3:
        return str(draws.choice([*_COLUMNS, *_ODD]))
    if kind == 3:
        return int(draws.integers(-2, 60))
    if kind == 4:
        return [None, True, False, 0.5, 10**20][draws.integers(5)]
    if kind < 7:
        return [_drawn(draws, depth - 1) for _ in range(draws.integers(4))]
    keys = draws.choice([*_COLUMNS, "sep", "skiprows", "comment", "na_values"], draws.integers(1, 4))
    return {key: _drawn(draws, depth - 1) for key in keys.tolist()}


def _inputs(draws: np.random.Generator, label: str) -> list[str]:
    """Choose a table's input columns, or which to leave out; sometimes what must not be an input."""
    usual = [each for each in ("dose", "pulse", "ward", "cause") if each != label]
    more = [each for each in ("stage", "doctor", "cost", "days", "died", "ill") if each != label]
    if draws.random() < 0.4:
        taken = [each for each in usual if draws.random() < 0.8] or usual
        taken += [each for each in more if draws.random() < 0.15]
        numbers = [each for each in taken if each in ("dose", "pulse", "cost", "days", "died")]
        categories = [each for each in taken if each not in numbers]
        return [f"dataset.numbers=[{','.join(numbers)}]", f"dataset.categories=[{','.join(categories)}]"]
    ignored = ["patient", "code", "note", *(each for each in more if draws.random() < 0.7)]
    if draws.random() < 0.04:
        ignored.remove(str(draws.choice(["patient", "code", "note"])))
    return [f"dataset.ignore=[{','.join(ignored)}]"]


def _data(draws: np.random.Generator) -> tuple[str, type, list[str]]:
    """Choose what is predicted, of what."""
    kind = str(draws.choice(["classes", "amounts", "times", "text", "pictures"], p=[0.4, 0.2, 0.2, 0.1, 0.1]))
    if kind == "pictures":
        shape = str(draws.choice(["[3,4,4]", "[1,4,4]"]))
        return "pictures", Images, ["dataset=image_folder", f"dataset.input_shape={shape}", "model=linear"]
    if kind == "text":
        size = int(draws.choice([20, 200]))
        label = str(draws.choice([*["ill", "ward"] * 4, "stage"]))
        given = ["dataset=text", "dataset.text=note", f"dataset.label={label}", "dataset.input_shape=[8]"]
        return "table", Text, [*given, f"dataset.vocabulary_size={size}", "model=embedding_dense"]
    columns = [*["ill", "ward", "died"] * 5, "stage", "cause", "doctor"]
    label = {"amounts": str(draws.choice(["cost", "days", "dose"])), "times": "days"}.get(kind)
    label = label or str(draws.choice(columns))
    given = ["dataset=csv", f"dataset.label={label}", *_inputs(draws, label)]
    if kind == "amounts":
        error = draws.choice(["squared", "absolute", "huber"])
        given += ["dataset.target=amounts", f"dataset.error={error}", "dataset.unit=days"]
    if kind == "times":
        given += ["dataset.event=died"]
    if kind == "classes" and draws.random() < 0.15:
        given += ["dataset.encoding=index", "model=table_embedding"]
    else:
        given += [f"model={draws.choice(['mlp', 'mlp', 'linear'])}"]
    return "table", Tables, given


def _options(draws: np.random.Generator, kind: type) -> tuple[list[str], dict[str, Any]]:
    """Set a few options of the dataset at random, and any of them to anything."""
    given = []
    if draws.random() < 0.15:
        given.append(f"dataset.natural={draws.choice(['doctor', *['ward', 'vendor'] * 3, 'patient'])}")
    if draws.random() < 0.15:
        given.append("dataset.groups=vendor")
    if draws.random() < 0.2:
        given.append("partition.group=patient")
    names = sorted({field.name for field in dataclasses.fields(kind)} - {"name", "path"})
    return given, {name: _drawn(draws) for name in names if draws.random() < 0.005}


_NOT_HERE = ("fedbn", "encoder", "weighted_cross_entropy")  # what sites or small networks refuse


def configuration(seed: int) -> tuple[str, list[str], dict[str, Any], dict[str, str]]:
    """Draw a configuration: the kind of files, overrides, options of the dataset, and each site's rules."""
    draws = np.random.default_rng([seed, 42])
    files, kind, given = _data(draws)
    more, odd = _options(draws, kind)
    protected = draws.random() < 0.15  # client_dp refuses sites of their own
    strategy = "fedavg" if protected else str(draws.choice(_STRATEGIES))
    hidden = not protected and strategy != "auto" and draws.random() < 0.1
    proof = strategy == "auto" or (not protected and not hidden and draws.random() < 0.5)
    compared = ""
    if not protected and draws.random() < 0.15:
        compared = str(draws.choice([each for each in ("fedavg", *_STRATEGIES) if proof or each != "auto"]))
    given += [*more, f"strategy={strategy}", f"compare=[{compared}]", f"proof={str(proof).lower()}"]
    given += [f"rounds={draws.integers(1, 4)}", f"training.steps={draws.integers(2, 5)}"]
    given += [f"training.batch_size={draws.choice([4, 8, 32])}", f"seed={seed}"]
    given.append(f"privacy={'patient_dp' if protected else 'none'}")
    if hidden:
        given.append("privacy.label_counts=false")
    groups = {"personal": 0.4, "aggregator": 0.15, "selection": 0.15, "features": 0.05, "loss": 0.05}
    for group, share in () if protected else groups.items():
        if draws.random() < share:
            given.append(f"{group}={draws.choice(_choices(group, *_NOT_HERE))}")
    if draws.random() < 0.5:
        given.append(f"encoder={draws.choice(['pixels', 'random'])}")
    if not protected and draws.random() < 0.2:
        given.append("save_predictions=true")
    if draws.random() < 0.2:
        given.append("participation=0.5")
    if proof and compared == "fedavg" and draws.random() < 0.5:
        given.append("serve=best")
    return files, given, odd, {site: _rules(draws) for site in SITES if draws.random() < 0.4}


def _rules(draws: np.random.Generator) -> str:
    lines = [f"min_cell = {draws.choice([3, 5, 8, 10])}"]
    if draws.random() < 0.1:
        lines.append("own_models = false")
    if draws.random() < 0.15:
        lines += ["clip = 1.0", f"noise = {draws.choice([0.0, 0.1])}"]
    if draws.random() < 0.1:
        lines.append(f"questions = {json.dumps([each for each in OURS if draws.random() < 0.9])}")
    if draws.random() < 0.1:
        lines.append(f"max_values = {draws.choice([2, 3, 20])}")
    return "\n".join(lines)


# -- Runs ---------------------------------------------------------------------------------------------------


def run(
    folder: Path, seed: int, files: str, given: list[str], odd: dict[str, Any], rules: dict[str, str]
) -> dict[str, Any]:
    """Make the run of a :func:`configuration`; return what became of it."""
    out, made = folder / f"run-{seed}", make_sites(folder / "sites")[files]
    shutil.rmtree(out, ignore_errors=True)  # of a search that was broken off
    out.mkdir(parents=True)
    told: dict[str, Any] = {"seed": seed, "data": files, "given": given, "odd": odd, "rules": rules}
    grid = None
    try:
        waits = ["partition=own", "partition.settle=0", "wait=1", "max_outage=0", "tracker=none"]
        config = compose(expand([*given, *waits, "keep_matrices=false", f"output_dir={out}"]))
        for name, value in odd.items():
            OmegaConf.update(config, f"dataset.{name}", value, merge=False, force_add=True)
        if not odd:  # a hostile server checks nothing
            checks.check(config)
        nodes = LocalGrid(clients.app, to_run_config(config), len(SITES))
        for (site, path), context in zip(made.items(), nodes.contexts, strict=True):
            context.node_config = {"data": str(path), "name": site}
            if site in rules:
                (out / f"{site}.toml").write_text(rules[site], encoding="utf-8")
                context.node_config["rules"] = str(out / f"{site}.toml")
        grid = Searched(nodes)
        with (out / "log").open("w", encoding="utf-8") as log:
            federate(config, grid, out / "results", Console(file=log, width=400))
        told["end"] = "finished"
    except Exception as error:  # a refusal of the configuration, or of a site; or a run that failed
        told["end"] = f"{type(error).__name__}: {error}"[:300]
    finally:
        shutil.rmtree(out)
    if grid is None:
        return told | {"replies": 0, "bytes": 0, "found": [], "kinds": [], "models": 0, "exposed": 0}
    return told | {
        "replies": grid.replies,
        "bytes": grid.bytes,
        "models": grid.models,
        "exposed": grid.exposed,
        "found": grid.found,
        "kinds": sorted(grid.kinds),
    }


def _quiet() -> None:
    from fedclust.results.page.write import LivePage

    logging.disable(logging.CRITICAL)
    LivePage.write = lambda _: None  # type: ignore[method-assign]


def some(folder: Path, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """Make some runs, in a process of their own."""
    _quiet()
    os.environ["FEDCLUST_CACHE"] = str(folder / f"cache-{seeds[0]}")
    return [run(folder / f"of-{seeds[0]}", seed, *configuration(seed)) for seed in seeds]


def trained(row: Mapping[str, Any]) -> bool:
    """Say whether a site has trained in the run of a configuration, which then counts."""
    return "train" in row["kinds"]


def _page(rows: list[Mapping[str, Any]]) -> str:
    counted = [row for row in rows if trained(row)]
    kinds = {"table": "tables and texts", "pictures": "pictures"}
    lines = [
        [
            name,
            f"{len(of):,}",
            f"{sum(map(trained, of)):,}",
            f"{sum(row['replies'] for row in of):,}",
            f"{sum(row['bytes'] for row in of) / 1e6:,.0f}",
            f"{sum(len(row['found']) for row in of):,}",
        ]
        for kind, name in [*kinds.items(), ("", "all")]
        if (of := [row for row in rows if kind in ("", row["data"])])
    ]
    noisy = [row for row in rows if "privacy=patient_dp" in row["given"]]
    shown = [f"{sum(row[key] for row in of):,}" for of in (rows, noisy) for key in ("exposed", "models")]
    asked = sorted({kind.removeprefix("query.") for row in counted for kind in row["kinds"]})
    lines = table(["sites' data", "configurations", "that trained", "replies", "MB", "canaries"], lines)
    told = (
        "A vector of the change by training pointed where a row does in {} of {} replies with a model, "
        "and in {} of {} with `privacy=patient_dp`."
    )
    return f"{lines}\n\nReplies to: {', '.join(asked)}.\n\n{told.format(*shown)}"


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__, page="SECURITY", folder=True)
    parser.add_argument("--number", type=int, default=3000, help="configurations that train")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    note_commit(given.folder)
    kept = given.folder / "canaries.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    there = {row["seed"] for row in rows}
    first = given.seed
    while sum(map(trained, rows)) < given.number:
        seeds = [seed for seed in range(first, first + _BATCH * 20) if seed not in there]
        first += _BATCH * 20
        parts = [(given.folder, tuple(seeds[at : at + _BATCH])) for at in range(0, len(seeds), _BATCH)]
        for place, _, done in side_by_side(some, parts, given.workers):
            with kept.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in done)
            rows += done
            for row in done:
                for each in row["found"]:
                    print(row["seed"], each, flush=True)
            print(place, sum(map(trained, rows)), "of", len(rows), flush=True)
    show("canaries", _page(rows), given.write, given.folder)


if __name__ == "__main__":
    main()
