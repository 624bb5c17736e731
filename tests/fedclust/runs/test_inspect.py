"""``task=inspect``: the figures of a partition."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedclust import metrics
from fedclust.federation import Descriptions
from fedclust.runs import inspect as module
from fedclust.runs.inspect import inspect

# Three clients with 4, 6 and 10 training rows of two classes.
TRAIN, TEST = np.array([[4, 0], [0, 6], [5, 5]]), np.array([[1, 0], [0, 2], [2, 2]])


class _Recorder:
    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, []

    def summary(self, summary: dict[str, Any]) -> None:
        self.written.append(summary)


@pytest.mark.parametrize(("held_out", "listed"), [((0, 0, 0), {}), ((1, 0, 2), {"num_validation": 3})])
def test_sizes_and_heterogeneity_by_hand(monkeypatch, tmp_path: Path, held_out, listed) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(module, "save", lambda chart, path, title: drawn.append(path) or path)
    sizes = TRAIN.sum(axis=1), TEST.sum(axis=1)
    names = {"class_names": ("a", "b"), "num_validation": np.array(held_out)}
    described = Descriptions((TRAIN, TEST), *sizes, 2, None, (), (), **names)
    recorder, printed = _Recorder(tmp_path), io.StringIO()
    summary = inspect(recorder, described, "dirichlet", 3, Console(file=printed, width=60))  # type: ignore[arg-type]
    measures = ("weighted_psi", "hellinger", "jensen_shannon", "earth_movers")
    assert summary == {
        "task": "inspect", "partition": "dirichlet", "seed": 3, "num_clients": 3, "num_classes": 2,
        "num_train": 20, **listed, "num_test": 7, "smallest_client": 4, "median_client": 6.0,
        "largest_client": 10, **{name: getattr(metrics, name)(TRAIN) for name in measures},
    }  # fmt: skip
    assert recorder.written == [summary]
    assert drawn == [tmp_path / "plots" / "label_counts.png"]
    lines = printed.getvalue().splitlines()
    assert lines[0].strip() == "dirichlet, seed 3"
    rows = {line[1:-1].partition("│")[0].strip(): line.split()[-2] for line in lines if "│" in line}
    assert rows.keys() == {name.replace("_", " ") for name in [*summary][3:]}
    assert (rows["num clients"], rows["largest client"]) == ("3", "10")
    assert rows["weighted psi"] == f"{summary['weighted_psi']:.4g}"
    assert lines[-1] == f"picture: {drawn[0]}"
