"""Federations that methods are compared on: datasets, kinds of heterogeneity, and how their runs are made.

Shared by bench.py and proof.py. Every run is a folder DATASET/PARTITION/seed-S/METHOD, made by
``fedclust.run``; one that has finished is not made again. FedAvg comes first and is trained once for all.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import DATA, finished, note_commit, side_by_side

from fedclust.results.page import write_sweep_page

ROWS = 6000  # of Fashion-MNIST and CIFAR-10, drawn evenly over the classes with seed 0


@dataclass(frozen=True)
class Partition:
    """A kind of heterogeneity.

    Attributes
    ----------
    title
        What it is, for a reader.
    overrides
        What makes it.
    num_groups
        Number of known groups; 1 where there are none to find.
    """

    title: str
    overrides: tuple[str, ...]
    num_groups: int = 1


def _domains(title: str, groups: int, **shares: float) -> Partition:
    every = dict.fromkeys(("clean", "noise", "blur", "rotation", "invert"), 0.0) | shares
    given = tuple(f"partition.{name}={share}" for name, share in every.items())
    return Partition(title, ("partition=domains", "partition.num_clients=30", *given), groups)


def _conventions(title: str, *groups: int, alpha: float | None = None) -> Partition:
    skew = () if alpha is None else (f"partition.alpha={alpha}",)
    listed = ",".join(map(str, groups))
    return Partition(title, ("partition=conventions", f"partition.groups=[{listed}]", *skew), len(groups))


def _dirichlet(alpha: float) -> Partition:
    given = ("partition=dirichlet", "partition.num_clients=30", f"partition.alpha={alpha}")
    return Partition(f"Dirichlet, α = {alpha}", given)


PARTITIONS = {
    "iid": Partition("IID", ("partition=iid", "partition.num_clients=30")),
    "dirichlet-0.1": _dirichlet(0.1),
    "dirichlet-0.5": _dirichlet(0.5),
    "quantity": Partition("quantity skew", ("partition=quantity_skew", "partition.num_clients=30")),
    "conventions-20-10": _conventions("two labelling conventions, 20 and 10 clients", 20, 10),
    "conventions-15-15": _conventions("two labelling conventions, 15 and 15 clients", 15, 15),
    "conventions-three": _conventions("three labelling conventions", 10, 10, 10),
    "conventions-dirichlet": _conventions(
        "two labelling conventions over Dirichlet, α = 0.5", 20, 10, alpha=0.5
    ),
    "rotation": _domains("half of the clients' images rotated", 2, clean=0.5, rotation=0.5),
    "inversion": _domains("half of the clients' images inverted", 2, clean=0.5, invert=0.5),
    "noise-blur": _domains("clean, noisy and blurred clients", 3, clean=0.4, noise=0.3, blur=0.3),
}

DATASETS: dict[str, tuple[str, ...]] = {
    "digits": ("dataset=digits", "model=mlp", "rounds=60"),
    "fashion_mnist": ("dataset=fashion_mnist", "model=mlp", "rounds=60"),
    "cifar10": ("dataset=cifar10", "model=cnn_cifar10", "rounds=100"),
}


@dataclass(frozen=True)
class Method:
    """A method as it is run.

    Attributes
    ----------
    overrides
        What chooses it.
    told
        What it is told that the others are not.
    """

    overrides: tuple[str, ...]
    told: str = ""


@dataclass(frozen=True)
class Cell:
    """All methods on one federation.

    Attributes
    ----------
    dataset, partition, seed
        The federation.
    methods
        By name, with the overrides of each; FedAvg first.
    folder
        Of its runs.
    """

    dataset: str
    partition: str
    seed: int
    methods: Mapping[str, tuple[str, ...]]
    folder: Path

    def overrides(self, name: str, data: Path | None) -> list[str]:
        """List what makes a method's run."""
        compare = "[]" if name == "fedavg" else "[fedavg]"
        where = [] if data is None else [f"dataset.path={data}"]
        return [
            *DATASETS[self.dataset],
            *where,
            *PARTITIONS[self.partition].overrides,
            f"seed={self.seed}",
            "proof=true",
            "evaluate_every=5",
            "checkpoint_every=0",
            f"compare={compare}",
            *self.methods[name],
            f"output_dir={self.folder / name}",
        ]


def rows_of(dataset: str, folder: Path) -> Path | None:
    """Save the images that a dataset's federations share; None where the dataset is complete as it is."""
    if dataset in ("digits", "hospitals"):
        return None
    kept = folder / "data" / dataset
    if not (kept / "train.parquet").is_file():
        import pandas as pd

        source = DATA / dataset / "train.parquet"
        if not source.is_file():
            raise FileNotFoundError(f"{source} must exist for --datasets {dataset}")
        table = pd.read_parquet(source)
        draws = np.random.default_rng(0)
        classes = np.unique(table["label"])
        chosen = [
            draws.choice(np.flatnonzero(table["label"] == label), ROWS // len(classes), replace=False)
            for label in classes
        ]
        kept.mkdir(parents=True, exist_ok=True)
        table.iloc[np.sort(np.concatenate(chosen))].to_parquet(kept / "train.parquet")
    return kept


def _run_cell(cell: Cell, data: Path | None) -> list[str]:
    """Make the runs of a cell that are not there; return what failed."""
    import fedclust

    failed = []
    cell.folder.mkdir(parents=True, exist_ok=True)
    # A sweep's mark: FedAvg's run is then taken from beside and not made for each method anew.
    (cell.folder / "multirun.yaml").touch()
    for name in cell.methods:
        folder = cell.folder / name
        if finished(folder):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        try:
            fedclust.run(cell.overrides(name, data))
        except Exception as error:  # one method's failure is a gap in the table and not the end of the grid
            failed.append(f"{folder}: {error}")
            continue
    if not failed:
        for name in cell.methods:  # what no table reads; not before, as the others take FedAvg's models
            for leftover in ("checkpoints", "plots", "compare"):
                shutil.rmtree(cell.folder / name / leftover, ignore_errors=True)
    return failed


def run(cells: Sequence[Cell], folder: Path, workers: int) -> bool:
    """Make all runs that are not there, several cells at a time; say whether all are there."""
    note_commit(folder)
    data = {dataset: rows_of(dataset, folder) for dataset in {cell.dataset for cell in cells}}
    failed: list[str] = []
    work = [(cell, data[cell.dataset]) for cell in cells]
    for place, (cell, _), wrong in side_by_side(_run_cell, work, workers):
        failed += wrong
        print(f"{place} {cell.dataset} {cell.partition} seed {cell.seed}", flush=True)
    for line in failed:
        print(line, file=sys.stderr)
    write_sweep_page(folder)
    return not failed


def summaries(cells: Iterable[Cell]) -> Iterator[tuple[Cell, str, dict[str, Any]]]:
    """Read the summaries of all runs that have finished, with the figures of their models without layers.

    A method by its name has no layer of a client's own, and is compared with `auto` as it groups.
    """
    for cell in cells:
        for name in cell.methods:
            if finished(cell.folder / name):
                text = (cell.folder / name / "summary.json").read_text(encoding="utf-8")
                summary = json.loads(text)
                yield cell, name, summary | summary.get("without_layer", {})


def clients_trained(folder: Path) -> float | None:
    """Compute how many clients trained in a round of a run, on average; None without rounds."""
    path = folder / "rounds.jsonl"
    if not path.is_file():
        return None
    rounds = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    cohorts = [len(each["cohort"]) for each in rounds if "cohort" in each]
    return float(np.mean(cohorts)) if cohorts else None
