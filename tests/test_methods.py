"""Every method finds known groups of clients on real digits, through the whole path."""

from pathlib import Path

import numpy as np
import pytest

import fedclust
from fedclust.data import save_partition
from fedclust.data.digits import Digits
from fedclust.data.partition import ClientRows, save_client_rows
from fedclust.results import SavedRun
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


@pytest.mark.usefixtures("charted")
@pytest.mark.parametrize(
    ("strategy", "plots"),
    [
        ("clust_psi_pfl", {"error_ratios"}),
        ("clust_psi_pfl_paper", {"silhouette"}),
        ("clust_psi_pfl_released", {"silhouette"}),
        ("fmcl", {"error_ratios", "evidence"}),
        ("fmcl_paper", {"distances", "silhouette"}),
    ],
)
def test_groups_with_disjoint_labels_are_found_exactly(
    strategy: str, plots: set[str], disjoint: Path, tmp_path: Path
) -> None:
    # For the two recommended: one model distinguishes 10 classes, a group's 3 or 4, so its error is predicted
    # at (9 clients · 2 + 3 · 3) / 12 / 9 = 0.25 of one model's, with as many examples of each class. Fewer
    # clusters have more classes to tell apart, more have fewer examples. (Digits differ a little in number.)
    summary = _run(tmp_path / "run", f"strategy={strategy}", f"partition.file={disjoint}", "rounds=2")
    assert summary["rand_index"] == 1.0
    assert summary["cluster_sizes"] == [5, 4, 3]
    drawn = {path.stem for path in (tmp_path / "run" / "plots").glob("*.png")}
    assert plots <= drawn
    if plots & {"error_ratios"}:
        ratios = summary.get("error_ratios") or summary["labels"]["0"]["error_ratios"]
        assert min(ratios, key=ratios.__getitem__) == "3"
        assert ratios["3"] == pytest.approx(0.25, abs=0.01)
        assert summary["decision"].startswith("3 clusters: ")


@pytest.mark.parametrize("strategy", ["clust_psi_pfl", "fmcl"])
def test_alike_clients_share_one_model(strategy: str, tmp_path: Path) -> None:
    summary = _run(tmp_path / "run", f"strategy={strategy}", "partition=iid", "rounds=1")
    assert summary["num_clusters"] == 1
    assert summary["decision"].startswith("one cluster: ")


def test_two_conventions_are_found_exactly_by_the_recommended_fmcl(tmp_path: Path) -> None:
    summary = _run(tmp_path / "run", "strategy=fmcl", "rounds=1")
    assert summary["adjusted_rand_index"] == 1.0


@pytest.mark.usefixtures("charted")
@pytest.mark.parametrize(("groups", "seed"), [([20, 10], 1), ([15, 15], 0)])
def test_fedgwc_finds_two_conventions_by_itself(groups: list[int], seed: int, tmp_path: Path) -> None:
    overrides = ["strategy=fedgwc", f"partition.groups={groups}", f"seed={seed}", "rounds=40"]
    summary = _run(tmp_path / "run", *overrides)
    assert summary["adjusted_rand_index"] == 1.0
    assert len(summary["split_rounds"]) == 1
    drawn = {path.stem for path in (tmp_path / "run" / "plots").glob("*.png")}
    assert {"separations", f"loss_trace_cluster_0_round_{summary['split_rounds'][0]}"} <= drawn


@pytest.mark.parametrize("partition", [["iid"], ["dirichlet", "partition.alpha=0.5"]])
def test_fedgwc_keeps_clients_of_one_kind_together(partition: list[str], tmp_path: Path) -> None:
    overrides = [f"partition={partition[0]}", *partition[1:], "partition.num_clients=30", "rounds=40"]
    summary = _run(tmp_path / "run", "strategy=fedgwc", *overrides)
    assert summary["num_clusters"] == 1
    assert summary["largest_separation"] < 1
    assert (tmp_path / "run" / "plots" / "loss_trace_cluster_0.png").is_file()


FEDGMCC = [
    "strategy=fedgmcc",
    "rounds=4",
    "participation=1",
    "partition.num_clients=10",
    "training.steps=null",
    "training.epochs=5",
    "proof=false",
]


@pytest.mark.usefixtures("charted")
def test_fedgmcc_separates_two_conventions_in_every_second_round(tmp_path: Path) -> None:
    summary = _run(tmp_path / "run", *FEDGMCC, "partition.groups=[6,4]", "serve=cluster")
    assert summary["adjusted_rand_index"] == 1.0
    sizes = [line["cluster_sizes"] for line in SavedRun(tmp_path / "run").rounds]
    assert sizes == [[10], [6, 4], [10], [6, 4]]
    assert summary["groupings_of_last_rounds"] == [
        {"rounds": 2, "assignment": [0] * 10},
        {"rounds": 2, "assignment": [0] * 6 + [1] * 4},
    ]
    drawn = {path.stem for path in (tmp_path / "run" / "plots").glob("*.png")}
    assert {"outputs_along_chains", "answers_between_clusters"} <= drawn
    with np.load(tmp_path / "run" / "matrices.npz") as arrays:
        confusion = arrays["confusion"]
    right = np.trace(confusion, axis1=2, axis2=3) / confusion.sum(axis=(2, 3))
    assert np.diagonal(right).min() > right[[0, 1], [1, 0]].max()  # each cluster's own model serves it best


@pytest.mark.parametrize(("connect", "sizes"), [("slope", [10]), ("absolute_slope", [1] * 10)])
def test_slopes_connect_everyone_or_no_one(connect: str, sizes: list[int], tmp_path: Path) -> None:
    """A loss that falls along the chain has a slope below, and an absolute slope above, any mean of it."""
    reading = f"strategy.parameters.connect={connect}"
    _run(tmp_path / "run", *FEDGMCC, "rounds=2", "partition=iid", reading)
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
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
