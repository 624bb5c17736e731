"""Constructors that are called from the source of their module, before anything large is imported."""

import json
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fedclust.settings import CONF, compose, ranges
from fedclust.settings.ranges import out_of_range

MODULE = """
from __future__ import annotations
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar
import math
import os
import torch
from {name}_rules import LIMIT, check_even
import {name}_large

TWICE = 2 * LIMIT

def plain(outputs: torch.Tensor) -> torch.Tensor:
    return torch.relu(outputs)

@dataclass(frozen=True)
class Base:
    kind: ClassVar[str] = "base"
    size: int = TWICE

    def __post_init__(self) -> None:
        if self.size > TWICE:
            raise ValueError(f"size must be <= {{TWICE}}, got {{self.size}}")

@dataclass(frozen=True)
class Settings(Base):
    count: int = 2
    share: float = field(default=0.5)
    loss: Callable[[torch.Tensor], torch.Tensor] = plain

    def __post_init__(self) -> None:
        super().__post_init__()
        check_even("count", self.count)
        if not callable(self.loss):
            raise ValueError(f"loss must be a function, got {{self.loss}}")
        if not math.isfinite(self.share):
            raise ValueError(f"share must be finite, got {{self.share}}")

@dataclass
class Needs:
    count: int = 1

    def __post_init__(self) -> None:
        torch.zeros(1)
        raise ValueError("count must never be seen")

@dataclass
class Reads:
    count: int = int(os.environ["NOBODY_HAS_SET_THIS"])

@dataclass
class Names:
    loss: object = None

    def __post_init__(self) -> None:
        if not hasattr(self.loss, "name"):
            raise ValueError("loss must have a name")
"""
RULES = """
LIMIT = 4
def check_even(name, value):
    if value % 2:
        raise ValueError(f"{name} must be even,\\n got {value}")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Name of a module that cannot be imported: a library that it imports is not there."""
    name = f"mine{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=name))
    (tmp_path / f"{name}_rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(ranges, "_is_own", lambda module: module.startswith(name))
    return name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, None),
        ({"count": 4, "size": 8}, None),
        ({"count": 3}, "here.count must be even, got 3"),
        ({"size": 9}, "here.size must be <= 8, got 9"),  # twice the limit of 4
        ({"share": float("inf")}, "here.share must be finite, got inf"),
        ({"loss": 3}, "here.loss must be a function, got 3"),
        ({"loss": {"a": 1}}, "here.loss must be a function, got {'a': 1}"),  # a mapping that nobody builds
        ({"loss": [1, {"b": [2]}]}, "here.loss must be a function, got [1, {'b': [2]}]"),
        ({"loss": ["${nowhere}"]}, None),
        ({"loss": {"_target_": "mine.plain", "_partial_": True}}, None),
        (
            {"loss": {"_target_": "mine.plain", "_partial_": True}, "count": 1},
            "here.count must be even, got 1",
        ),
        ({"unheard_of": 3}, None),  # named elsewhere
        ({"count": "???"}, None),
    ],
)
def test_the_rules_are_those_of_the_source(module: str, given: dict, said: str | None) -> None:
    config = OmegaConf.create({"here": {"_target_": f"{module}.Settings", **given}})
    assert out_of_range(config) == said
    assert module not in sys.modules


@pytest.mark.parametrize("name", ["Needs", "Reads", "Names", "NotThere", "plain"])
def test_what_cannot_be_told_without_an_import_is_left_to_the_constructor(module: str, name: str) -> None:
    node = {"_target_": f"{module}.{name}", "loss": {"_target_": "mine.plain"}}
    if name == "Needs":
        del node["loss"]
    assert out_of_range(OmegaConf.create({"here": node})) is None


def test_values_that_stand_elsewhere_are_looked_up_if_they_stand_there(module: str) -> None:
    def refused(count: str) -> str | None:
        config = {
            "odd": 3,
            "far": {"odd": "${odd}"},
            "here": {"_target_": f"{module}.Settings", "count": count},
        }
        return out_of_range(OmegaConf.create(config))

    assert refused("${odd}") == "here.count must be even, got 3"
    assert refused("${far.odd}") is None  # not said there, but again elsewhere
    assert refused("${classes_in_data:}") is None
    assert refused("${far.open}") is None
    assert refused("${nowhere.count}") is None


@pytest.mark.parametrize("sites", ["[north,south]", "{north: a.csv, south: b.csv}", "folder"])
def test_a_list_and_a_mapping_are_plain_as_they_are_later(sites: str) -> None:
    own = ["dataset=csv", "dataset.label=diagnosis", "partition=own", f"partition.sites={sites}"]
    assert out_of_range(compose(own)) is None


def test_an_imported_dataclass_is_asked_itself() -> None:
    import fedclust.training  # noqa: F401

    config = compose(["training.learning_rate=-1"])
    assert out_of_range(config) == "training.learning_rate must be > 0 and finite, got -1"


PARTITIONS = """
from fedclust.settings import compose
from fedclust.settings.ranges import out_of_range
for overrides in (
    ["partition=dirichlet", "partition.alpha=-1"],
    ["partition=dirichlet", "partition.alpha=-1", "partition.file=rows.parquet"],
    ["partition@partition.base=iid", "partition.base.num_clients=0"],
    ["partition@partition.base=iid", "partition.base.num_clients=0", "partition.file=rows.parquet"],
    ["partition=iid", "partition.num_clients=0"],
):
    print(out_of_range(compose(overrides)))
"""


def test_a_partitioner_is_asked_unless_the_clients_come_from_a_file() -> None:
    # In a process of its own, where none is imported yet.
    done = subprocess.run([sys.executable, "-c", PARTITIONS], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "partition.alpha must be > 0 and finite, got -1",
        "None",
        "partition.base.num_clients must be >= 1, got 0",
        "None",
        "partition.num_clients must be >= 1, got 0",
    ], done.stderr


SCRIPT = """
import json, sys
from fedclust.settings import compose
from fedclust.settings.ranges import out_of_range

told = {" ".join(overrides): out_of_range(compose(overrides)) for overrides in json.loads(sys.argv[1])}
large = [name for name in ("torch", "flwr", "scipy", "sklearn", "pandas") if name in sys.modules]
print(json.dumps([told, large]))
"""


def test_no_choice_of_the_configuration_is_refused_by_mistake() -> None:
    # In a process of its own, where no dataclass is imported yet.
    groups = (
        "strategy",
        "training",
        "dataset",
        "partition",
        "personal",
        "privacy",
        "aggregator",
        "selection",
    )
    choices = [
        [f"{group}={path.stem}" for path in sorted((CONF / group).glob("[a-z]*.yaml"))] for group in groups
    ]
    assert sum(map(len, choices)) > 60
    # One choice of each group at a time, which no group's checks notice, as composing takes the longest.
    together = [[choice for choice in each if choice] for each in zip_longest(*choices)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(together)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    told, large = json.loads(done.stdout)
    assert {choice: said for choice, said in told.items() if said is not None} == {}
    assert large == []
