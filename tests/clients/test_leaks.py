"""Whatever a server sends to a deployed node, nothing comes back of what else lies on the node's disk."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedclust import clients
from fedclust.data.dataset import SourceError
from fedclust.data.sites import SiteError
from fedclust.data.sites.rows import private
from fedclust.data.tables import Tables
from fedclust.settings.composition import CONF, compose, to_run_config
from fedclust.support.flower import assume_identity
from fedclust.support.reasons import discreet

SECRET, PLACE = "hunter2canary", "placecanary"
POOLED = {"partition-id": 0, "num-partitions": 3}
OWN = {"data": "own.csv", "name": "north"}
READ = ("dataset", "partition", "model", "training", "loss", "metrics", "encoder", "seed", "device")
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
        return repr(clients.app(Message(RecordDict(), 2, kind), context).content)
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
