"""What benchmarks/canaries.py finds in replies, and a few of its runs, in which it finds nothing."""

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.support.array_bytes import from_numpy

SCRIPT = "canaries"

NUMBERS, ROWS = np.array([5.0, 700_000.125]), np.array([[0.5, 0.5, 0.5, 0.5], [0.6, 0.8, 0.0, 0.0]])


def _arrays(values: object) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({"w": from_numpy(np.asarray(values))})})


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("ValueError: hunter2canary7", "ValueError: hunter2canary7"),
        (RecordDict({"names": ConfigRecord({"a": ["x", "hunter2canarycause"]})}), "hunter2canarycause"),
        (RecordDict({"hunter2canary": MetricRecord({"a": 1.0})}), "hunter2canary"),
        (RecordDict({"bodies": ConfigRecord({"b": '{"mean": [700000.125]}'})}), "number 700000.125"),
        (RecordDict({"metrics": MetricRecord({"rmse": 700_000.125})}), "number 700000.125"),
        (_arrays(np.float32([[1.0, 700_000.125]])), "number 700000.125"),
        (_arrays([[3.0, 4.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]]), "row 1 of the site in an array (2, 4)"),
        (_arrays([[-3.0, 1.0], [-4.0, 2.0], [0.0, 3.0], [0.0, 4.0]]), "row 1 of the site in an array (4, 2)"),
        (_arrays([[3.0, 4.0, 0.1, 0.0], [1.0, 2.0, 3.0, 4.0]]), None),
        (RecordDict({"metrics": MetricRecord({"rmse": 700_001.0})}), None),
    ],
)
def test_what_must_stay_is_found_wherever_it_is(
    script: ModuleType, content: object, found: str | None
) -> None:
    assert script.found_in(content, NUMBERS, ROWS) == ([] if found is None else [found])


def test_a_change_is_the_reply_less_what_was_sent(script: ModuleType) -> None:
    (change,) = script.changes(_arrays([4.0, 6.0]), _arrays([1.0, 2.0]))
    assert change.tolist() == [3.0, 4.0]


SEEDS = {"classes": 312, "amounts": 345, "times": 311, "text": 368, "pictures": 397}


@pytest.mark.parametrize("kind", SEEDS)
def test_no_reply_of_a_random_run_has_a_canary(script: ModuleType, kind: str, tmp_path: Path) -> None:
    row = script.run(tmp_path, SEEDS[kind], *script.configuration(SEEDS[kind]))
    assert script.trained(row), row["end"]
    assert row["replies"] > 15
    assert row["found"] == []


def test_a_class_of_one_row_is_found_where_rules_allow_it(script: ModuleType, tmp_path: Path) -> None:
    given = [
        "dataset=csv",
        "dataset.label=stage",
        "dataset.numbers=[dose,pulse]",
        "dataset.categories=[ward]",
    ]
    given += ["strategy=fmcl", "compare=[]", "proof=false", "rounds=1", "model=linear"]
    rules = dict.fromkeys(script.SITES, "min_cell = 1")
    found = " ".join(script.run(tmp_path, 0, "table", given, {}, rules)["found"])
    assert "query.statement" in found
    assert "hunter2canarystage" in found
    assert re.search(r"query.prototypes: row \d+ of the site in an array", found)
