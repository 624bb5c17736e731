"""Whatever a server sends to a deployed node, nothing comes back of what else lies on the node's disk."""

import dataclasses
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from omegaconf import OmegaConf
from PIL import Image

from fedclust import clients
from fedclust.data.dataset import SourceError
from fedclust.data.images import Images
from fedclust.data.sites import SiteError
from fedclust.data.sites.agreement import agree
from fedclust.data.sites.rows import builder_of, private, wanted_of
from fedclust.data.tables import Tables
from fedclust.data.text import Text
from fedclust.messages.codec import encode
from fedclust.messages.description import (
    Agreed,
    DescriptionQuestion,
    EncoderQuestion,
    PrototypesQuestion,
    Registered,
    Stated,
    read_from_node,
)
from fedclust.messages.evaluation import EvaluateQuestion
from fedclust.messages.models import from_state
from fedclust.models import construction
from fedclust.settings.allowed import known_of, node_settings
from fedclust.settings.composition import CONF, compose, to_run_config
from fedclust.support.flower import assume_identity
from fedclust.support.reasons import discreet

SECRET, PLACE = "hunter2canary", "placecanary"
POOLED = {"partition-id": 0, "num-partitions": 3}
OWN = {"data": "own.csv", "name": "north"}
READ = (
    "dataset",
    "partition",
    "features",
    "model",
    "training",
    "loss",
    "metrics",
    "encoder",
    "seed",
    "device",
)
LOOKED_UP = "${oc.env:CANARY}"


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a link to a node's folder, whose own path is a secret, like its files and environment."""
    inner = tmp_path / PLACE / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "credentials.yaml").write_text(f"db: {{user: admin, password: {SECRET}}}\n")
    (inner.parent / "broken.yaml").write_text(f"db: [{SECRET}\n")
    (inner.parent / "rows.csv").write_text(f"age,label\n{SECRET},1\n41,0\n{SECRET},\n")
    (inner / "own.csv").write_text("age,label\n40,1\n41,0\n5,0\n,1\n")
    (link := tmp_path / "link").symlink_to(inner.parent)
    monkeypatch.setenv("CANARY", SECRET)
    monkeypatch.setenv("FEDCLUST_CACHE", str(inner / "cache"))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.chdir(inner)
    assume_identity()
    logging.disable(logging.CRITICAL)  # the node's own log may have everything
    yield link
    logging.disable(logging.NOTSET)


def _hostile(disk: Path) -> list[Sequence[Any]]:
    """List hostile values of each kind."""
    files = [disk / n for n in ("credentials.yaml", "broken.yaml", "rows.csv", "no.yaml", "credentials")]
    nested: Any = LOOKED_UP
    for _ in range(300):
        nested = [nested]
    return [
        [f"../{file.name}" for file in files],
        [f"{start}{file}" for file in files for start in ("", "file:", "file://")],
        [LOOKED_UP, f"x{LOOKED_UP}", f"\\{LOOKED_UP}", "${oc.decode:${oc.env:CANARY}}", "${..password}"],
        [f"${{oc.create:{{a: {LOOKED_UP}}}}}", "${oc.dict.values:oc}", "${hydra:runtime.cwd}", "${", "???"],
        ["a" * 10_000, "\x00", "a\nb\x1b[2J", "é\u202e", "\ud800", "", "%s{0}", -1, 10**30, float("inf")],
        [[LOOKED_UP], {"a": LOOKED_UP}, {LOOKED_UP: 1}, nested],
        [{"_target_": name, "path": f"{disk}/rows.csv"} for name in ("builtins.open", LOOKED_UP)],
    ]  # fmt: skip


def _paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every group, option and nested value."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from _paths(value, (*path, key))


def _changed(config: dict[str, Any], path: tuple[Any, ...], value: Any) -> str:
    made = node = json.loads(json.dumps(config))
    for key in path[:-1]:
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
    node[path[-1]] = value
    return json.dumps(made)


def _answer(run_config: dict[str, str], node: dict[str, Any], kind: str = "query.clients") -> str:
    """Send a node a run's configuration; return what comes back, content or error."""
    context = Context(1, 2, dict(node), RecordDict(), run_config)
    try:
        return _sent(clients.app(Message(RecordDict(), 2, kind), context).content)
    except Exception as error:  # Flower sends its type and text
        return f"{type(error)} {error}"


@pytest.mark.parametrize(("overrides", "node"), [([], POOLED), (["dataset=csv", "partition=own"], OWN)])
def test_no_setting_brings_back_what_lies_on_a_node(overrides: list[str], node, disk: Path) -> None:
    composed = json.loads(to_run_config(compose(overrides))["config"])
    config = {key: composed[key] for key in READ if key in composed}
    paths = list(_paths(config if node is POOLED else {key: config[key] for key in ("dataset", "partition")}))
    kinds = _hostile(disk)
    refused = 0
    for number, path in enumerate([*paths, ("dataset", "path"), ("dataset", "csv_options", "sep")]):
        for kind in kinds[number % 4 :: 4]:
            sent = {"config": _changed(config, path, kind[number % len(kind)])}
            came = _answer(sent, node) + (_answer(sent, node, "query.statement") if node is OWN else "")
            assert SECRET not in came, (path, kind, came)
            assert PLACE not in came, (path, kind, came)
            refused += "<class" in came or "refused" in came
    assert refused > len(paths) / 2


# -- A site's own rows --------------------------------------------------------------------------------------

ROWS = 60


def _patients(folder: Path) -> str:
    """Write a table of which every cell that one patient alone has, and every rare one, is a canary."""
    draws = np.random.default_rng(0)
    number = np.arange(ROWS)
    table = pd.DataFrame(
        {
            "age": np.round(30 + 50 * draws.random(ROWS), 5),
            "sex": draws.choice(["f", "m"], ROWS),
            "stage": [f"{SECRET}stage" if row < 2 else "AB"[row % 2] for row in number],
            "tests": [7_654_321 if row == 3 else row % 2 for row in number],
            "patient": [f"{SECRET}{row}" for row in number],
            "code": 4_200_000 + draws.permutation(ROWS),
            "cause": [f"{SECRET}cause" if row < 4 else "XYZ"[row % 3] for row in number],
            "note": [f"seen {SECRET}{row} in ward {'one' if row % 2 else 'two'}" for row in number],
            "ill": np.where(draws.random(ROWS) < 0.5, "yes", "no"),
        }
    )
    table.to_csv(folder / "patients.csv", index=False)
    return "patients.csv"


def _pictures(folder: Path) -> str:
    for number in range(12):
        kind = folder / "pictures" / ("ill" if number % 2 else "well")
        kind.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number * 20, 0, 0)).save(kind / f"{SECRET}{number}.png")
    return "pictures"


SITES = {
    Tables: (_patients, ["dataset=csv", "dataset.label=ill", "dataset.ignore=[patient,note,code]"]),
    Text: (
        _patients,
        ["dataset=text", "dataset.text=note", "dataset.label=ill", "model=embedding_dense"],
    ),
    Images: (_pictures, ["dataset=image_folder", "dataset.input_shape=[3,4,4]", "model=linear"]),
}


def _drawn(option: str, disk: Path, number: int) -> list[Any]:
    """Draw values of an option: columns, patterns, formats, files, and lists and mappings of these."""
    draws = np.random.default_rng(crc32(option.encode()))
    columns = ["age", "sex", "stage", "tests", "patient", "code", "cause", "note", "ill", "image", "label"]
    texts = [*columns, "(.*)", "(.).*", "([^/]*)$", "{id}", "**/{id}", "../{id}", "no", "onehot", "index"]
    texts += [
        "crop",
        "stretch",
        "p",
        "1",
        ";",
        "3",
        "latin-1",
        "utf-16",
        "a,b",
        LOOKED_UP,
        f"{disk}/rows.csv",
    ]
    texts += ["*.csv", "patients.csv", f"{disk}", "x/y", "\x00", ""]
    keys = [*columns, "sep", "encoding", "decimal", "thousands", "quotechar", "comment", "na_values"]

    def value(depth: int) -> Any:
        kind = draws.integers(9 if depth else 5)
        if kind < 3:
            return str(draws.choice(texts))
        if kind == 3:
            return int(draws.integers(-2, ROWS))
        if kind == 4:
            return [None, True, False, 0.5, 10**20][draws.integers(5)]
        if kind < 7:
            return [value(depth - 1) for _ in range(draws.integers(4))]
        chosen = draws.choice([*keys, "skiprows"], draws.integers(1, 4)).tolist()
        return {key: value(depth - 1) for key in chosen}

    drawn = [value(2) for _ in range(number)]
    return [*{json.dumps(each): each for each in drawn}.values()]


def _sent(content: RecordDict) -> str:
    """Write all that a message holds as text, arrays with the digits of what they were made from."""
    arrays = [each.numpy() for record in content.array_records.values() for each in record.values()]
    numbers = [f"{number:.5f}" for array in arrays for number in array.ravel().tolist()]
    records = {**content.config_records, **content.metric_records}  # their own repr is shortened
    return f"{ {name: dict(record) for name, record in records.items()} } {numbers}"


def _asked(sent: dict[str, Any], node: dict[str, Any], seen: set[str]) -> str:
    """Ask a node all that a server asks before round 1, and for figures; return all that comes back."""
    needed = {key: sent[key] for key in ("dataset", "partition", "seed")}  # parsing the rest takes longest
    context = Context(1, 2, dict(node), RecordDict(), {"config": json.dumps(needed)})
    texts: list[str] = []

    def ask(content: RecordDict, kind: str) -> RecordDict:
        try:
            answer = clients.app(Message(content, 2, kind), context).content
        except Exception as error:  # Flower sends its type and text
            texts.append(f"{type(error)} {error}")
            raise
        texts.append(_sent(answer))
        return answer

    with suppress(Exception):  # its text is kept
        registered = read_from_node(Registered, ask(RecordDict(), "query.clients"))
        statements = read_from_node(Stated, ask(RecordDict(), "query.statement")).statements
        if texts[-1] in seen:  # the rest has been asked
            return " ".join(texts)
        seen.add(texts[-1])
        dataset = known_of(OmegaConf.create(needed))["dataset"]
        context.run_config["config"] = json.dumps(sent)
        agreed = agree(statements, wanted_of(builder_of(dataset, Path()), None, None)).agreement
        names = registered.clients["north"]
        content = Agreed(agreed, {name: number for number, name in enumerate(names)}, len(names))
        ask(encode(content), "query.agreement")
        network = node_settings(context.run_config, "", agreed.settings())["model"]
        model = from_state(construction.build(network, 0).state_dict())
        for question in (
            DescriptionQuestion(),
            EncoderQuestion(),
            PrototypesQuestion("pixels"),
            EvaluateQuestion(model, full=True),
        ):
            with suppress(Exception):
                ask(encode(question), question.kind)
        seen.add("answered")
    return " ".join(texts)


@pytest.mark.parametrize("kind", SITES)
def test_no_option_of_a_dataset_brings_back_a_row_of_a_site(kind: type, disk: Path) -> None:
    write, overrides = SITES[kind]
    node = {"data": write(disk / "inner"), "name": "north"}
    composed = json.loads(to_run_config(compose([*overrides, "partition=own"]))["config"])
    config = {key: composed[key] for key in (*READ, "rounds") if key in composed}
    canaries = [SECRET, PLACE, "7654321"]
    if kind is not Images:
        table = pd.read_csv(disk / "inner" / "patients.csv")
        canaries += [f"{value:.5f}" for value in table["age"]] + [f"{value}" for value in table["code"]]
    seen: set[str] = set()
    _asked(config, node, seen)
    assert "answered" in seen
    # What all kinds have is tried with tables.
    shared = {field.name for field in dataclasses.fields(Tables)} - {"label"} if kind is not Tables else ()
    for option in [field.name for field in dataclasses.fields(kind) if field.name not in shared]:
        for value in _drawn(option, disk, 20):
            came = _asked(json.loads(_changed(config, ("dataset", option), value)), node, seen)
            assert not [canary for canary in canaries if canary in came], (option, value, came)
    assert len(seen) > (1 if kind is Images else 10)


@pytest.mark.parametrize("kind", [ValueError, SourceError])
def test_a_refused_site_quotes_no_row(kind: type[ValueError], disk: Path) -> None:
    builder = Tables(name="t", path=str(disk / "rows.csv"), label="label", num_classes=2, input_shape=[1])

    def read() -> None:
        try:
            raise ValueError(f"could not convert {SECRET}")  # as pandas and pyarrow say it
        except ValueError as error:
            raise kind(f"age: {error}") from (error if kind is SourceError else None)

    for private_node, expected in ((False, f"age: could not convert {SECRET}"), (True, "reading the data")):
        with discreet(private_node), pytest.raises(SiteError, match=expected) as caught, private(builder):
            read()
        assert (SECRET in str(caught.value)) != private_node


def test_no_override_brings_back_what_lies_on_a_node(disk: Path) -> None:
    keys = [*sorted(folder.name for folder in CONF.iterdir() if folder.is_dir()), "dataset.path"]
    for number, key in enumerate(
        [*keys, "hydra.searchpath", "dataset@model", "partition._target_", "hydra/launcher"]
    ):
        for place, kind in enumerate(_hostile(disk)[:5]):
            value = str(kind[number % len(kind)])
            for written in (f"{key}={value}", f"+{key}='{value}'")[(number + place) % 2 :: 2]:
                came = _answer({"overrides": written}, POOLED)
                assert SECRET not in came, (written, came)
                assert PLACE not in came, (written, came)
