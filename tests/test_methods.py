"""Every method finds known groups of clients on real digits, through the whole path."""

from pathlib import Path

import numpy as np
import pytest

import fedclust
from fedclust.data import save_partition
from fedclust.data.digits import Digits
from fedclust.data.partition import ClientRows, save_client_rows
from fedclust.results import SavedRun, comparable
from fedclust.results.charts.run import pictures
from fedclust.settings.composition import compose, plain
from fedclust.support.rng import generator


def _run(folder: Path, *overrides: str) -> dict:
    return fedclust.run(["compare=[]", "evaluate_every=100", *overrides, f"output_dir={folder}"]).summary


@pytest.fixture(scope="module")
def disjoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a partition of the digits over 12 clients: 0-4 hold digits 0-2, 5-8 hold 3-5, 9-11 hold 6-9."""
    digits = Digits(name="digits", num_classes=10, input_shape=[1, 8, 8]).load()
    labels, draws = digits.labels.numpy(), generator(0, "test")
    groups = np.repeat([0, 1, 2], [5, 4, 3])
    train, test = [], []
    for group, classes in enumerate(([0, 1, 2], [3, 4, 5], [6, 7, 8, 9])):
        rows = draws.permutation(np.flatnonzero(np.isin(labels, classes)))
        for part in np.array_split(rows, (groups == group).sum()):
            train.append(np.sort(part[10:]))
            test.append(np.sort(part[:10]))
    path = tmp_path_factory.mktemp("rows") / "disjoint.parquet"
    save_client_rows(ClientRows(tuple(train), tuple(test), groups, (None,) * 12), digits, path)
    return path


@pytest.mark.parametrize(
    ("strategy", "charts"),
    [
        ("clust_psi_pfl", {"silhouette"}),
        ("clust_psi_pfl_released", {"silhouette"}),
        ("fmcl", {"distances", "silhouette"}),
    ],
)
def test_groups_with_disjoint_labels_are_found_exactly(
    strategy: str, charts: set[str], disjoint: Path, tmp_path: Path
) -> None:
    summary = _run(tmp_path / "run", f"strategy={strategy}", f"partition.file={disjoint}", "rounds=2")
    assert summary["rand_index"] == 1.0
    assert summary["cluster_sizes"] == [5, 4, 3]
    assert charts <= {each.name for each in pictures(SavedRun(tmp_path / "run"))}


FEDGMCC = [
    "strategy=fedgmcc",
    "rounds=4",
    "participation=1",
    "partition.num_clients=10",
    "training.steps=null",
    "training.epochs=5",
    "proof=false",
]


def test_fedgmcc_separates_two_conventions_in_every_second_round(tmp_path: Path) -> None:
    summary = _run(tmp_path / "run", *FEDGMCC, "partition.groups=[6,4]", "serve=cluster")
    assert summary["adjusted_rand_index"] == 1.0
    sizes = [line["cluster_sizes"] for line in SavedRun(tmp_path / "run").rounds]
    assert sizes == [[10], [6, 4], [10], [6, 4]]
    assert summary["groupings_of_last_rounds"] == [
        {"rounds": 2, "assignment": [0] * 10},
        {"rounds": 2, "assignment": [0] * 6 + [1] * 4},
    ]
    shown = {each.name for each in pictures(SavedRun(tmp_path / "run"))}
    assert {"outputs_along_chains", "answers_between_clusters"} <= shown
    with np.load(tmp_path / "run" / "matrices.npz") as arrays:
        confusion = arrays["confusion"]
    right = np.trace(confusion, axis1=2, axis2=3) / confusion.sum(axis=(2, 3))
    assert np.diagonal(right).min() > right[[0, 1], [1, 0]].max()  # each cluster's own model serves it best


@pytest.mark.parametrize(("connect", "sizes"), [("slope", [6]), ("absolute_slope", [1] * 6)])
def test_slopes_connect_everyone_or_no_one(connect: str, sizes: list[int], tmp_path: Path) -> None:
    """A loss that falls along the chain has a slope below, and an absolute slope above, any mean of it."""
    reading = f"strategy.parameters.connect={connect}"
    _run(tmp_path / "run", *FEDGMCC, "rounds=2", "partition=iid", "partition.num_clients=6", reading)
    assert [line["cluster_sizes"] for line in SavedRun(tmp_path / "run").rounds] == [sizes] * 2


def test_a_saved_partition_gives_the_very_same_run(tmp_path: Path) -> None:
    drawn = ["partition=dirichlet", "partition.num_clients=8", "partition.alpha=1"]
    config = compose(["task=partition", *drawn])
    save_partition(
        plain(config.dataset), plain(config.partition), config.seed, tmp_path / "partition.parquet"
    )
    saved = ["partition=iid", f"partition.file={tmp_path / 'partition.parquet'}"]
    first = _run(tmp_path / "drawn", "strategy=fedavg", "rounds=2", *drawn)
    second = _run(tmp_path / "saved", "strategy=fedavg", "rounds=2", *saved)
    assert comparable([first]) == comparable([second])
