"""From a dataset and a configuration node to who holds what, and who is tested on what."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset as TableDataset
from hydra import compose, initialize_config_dir
from hypothesis import given, strategies as st
from omegaconf import OmegaConf

from fedclust import data
from fedclust.data import partition
from fedclust.data.arrays import from_arrays
from fedclust.data.dataset import Dataset
from fedclust.data.partition import ClientRows, load_client_rows, rows_of_clients, save_client_rows
from fedclust.data.shifts import Noise, Relabel
from fedclust.settings import composition

CONF = Path(__file__).parents[3] / "conf"


def node_of(rule: str, **settings: Any) -> dict[str, Any]:
    module = "emd" if rule == "EmdKMeans" else "partitioners"
    return {"_target_": f"fedclust.data.{module}.{rule}", **settings}


def dataset(**changes: Any) -> Dataset:
    """Return 300 images of 3 classes by 30 users, the last 60 of them the official test part."""
    draws = np.random.default_rng(0)
    values: dict[str, Any] = {
        "name": "tiny",
        "inputs": torch.from_numpy(draws.integers(0, 256, (300, 1, 2, 2), dtype=np.uint8)),
        "labels": torch.arange(300) % 3,
        "num_classes": 3,
        "mean": (0.5,),
        "std": (0.3,),
        "class_names": ("a", "b", "c"),
        "num_train": 240,
        "natural": np.arange(300) // 10,
        "fingerprint": "abc",
    }
    return Dataset(**(values | changes))


def rows(found: ClientRows) -> list[list[int]]:
    return [part.tolist() for part in found.train + found.test]


def check(found: ClientRows, size: int) -> None:
    """Check that every client has both parts and no row is used twice or out of range."""
    used = np.concatenate(found.train + found.test)
    assert len(found.train) == len(found.test) == len(found.shifts) == found.num_clients
    assert min(map(len, found.train + found.test)) >= 1
    assert 0 <= used.min() <= used.max() < size
    assert len(np.unique(used)) == len(used)


def test_holdout_partitions_all_rows() -> None:
    found = rows_of_clients(dataset(), node_of("Iid", num_clients=5, test_fraction=0.25), seed=0)
    check(found, 300)
    assert [len(part) for part in found.train] == [45] * 5  # 60 each, a quarter held out
    assert [len(part) for part in found.test] == [15] * 5
    assert found.groups is None
    assert found.shifts == (None,) * 5


@pytest.mark.parametrize("test", ["matched", "uniform"])
def test_official_parts_stay_apart(test: str) -> None:
    node = node_of("Similarity", num_clients=3, similarity=0, test=test)
    found = rows_of_clients(dataset(), node, seed=0)
    check(found, 300)
    assert max(part.max() for part in found.train) < 240 <= min(part.min() for part in found.test)
    assert [len(part) for part in found.train] == [80] * 3
    # Each client trains on one class; of the 60 test rows it gets that class, or 20 mixed ones.
    mixes = [np.bincount(part % 3, minlength=3).tolist() for part in found.test]
    assert all(sum(mix) == 20 for mix in mixes)
    if test == "matched":
        assert mixes == [[20, 0, 0], [0, 20, 0], [0, 0, 20]]


@pytest.mark.parametrize("test", ["matched", "uniform"])
def test_without_an_official_test_part_only_holdout_is_left(test: str) -> None:
    node = node_of("Iid", num_clients=2, test=test)
    with pytest.raises(
        ValueError, match=rf"partition\.test={test} needs an official test part, tiny has none"
    ):
        rows_of_clients(dataset(num_train=300), node, seed=0)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of holdout, matched, uniform, got 'pooled'"):
        rows_of_clients(dataset(), node_of("Iid", num_clients=2, test="pooled"), seed=0)


def test_a_base_partition_needs_no_keys_of_the_protocol() -> None:
    base = node_of("Dirichlet", num_clients=9, alpha=5.0, file=None, seed=None)
    node = node_of("Domains", num_clients=4, clean=0.5, noise=0.5, base=base)
    found = rows_of_clients(dataset(), node, seed=0)
    check(found, 300)
    assert found.shifts == (None, None, Noise(0.2), Noise(0.2))
    assert len({len(part) for part in found.train}) > 1


def test_natural_clients_need_users() -> None:
    node = node_of("Natural")
    found = rows_of_clients(dataset(), node, seed=0)
    assert found.num_clients == 30
    assert sorted(np.concatenate([found.train[3], found.test[3]])) == list(range(30, 40))
    with pytest.raises(ValueError, match="needs writers, users or regions, tiny has none"):
        rows_of_clients(dataset(natural=None), node, seed=0)


def test_feature_skew_separates_what_looks_different() -> None:
    images = torch.zeros(300, 1, 2, 2, dtype=torch.uint8)
    images[150:] = 255
    images[:, 0, 0, 0] = torch.arange(300) % 30  # so that there are bins enough
    node = node_of("EmdKMeans", num_clients=2, target=1.0)
    found = rows_of_clients(dataset(inputs=images), node, seed=0)
    held = sorted(sorted(np.concatenate(parts)) for parts in zip(found.train, found.test, strict=True))
    assert held == [list(range(150)), list(range(150, 300))]


def test_where_every_position_has_a_label_the_largest_counts() -> None:
    labels = torch.zeros(300, 4, dtype=torch.int64)
    labels[::2, 1] = 1  # every other read has one sensitive base
    node = node_of("Similarity", num_clients=2, similarity=0)
    found = rows_of_clients(dataset(labels=labels), node, seed=0)
    held = [np.concatenate(parts) % 2 for parts in zip(found.train, found.test, strict=True)]
    assert held[0].all()
    assert not held[1].any()


def test_any_partitioner_of_flwr_datasets_will_do() -> None:
    node = {"_target_": "flwr_datasets.partitioner.LinearPartitioner", "num_partitions": 3}
    found = rows_of_clients(dataset(), node, seed=0)
    check(found, 300)
    sizes = [len(train) + len(test) for train, test in zip(found.train, found.test, strict=True)]
    assert sizes == [50, 100, 150]  # in proportion to 1, 2, 3
    assert found.shifts == (None,) * 3
    assert found.groups is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], []], "every client must hold an example, got none for client 1"),
        ([[0, 1], [1]], "an example must belong to one client, some of client 1's have another"),
    ],
)
def test_other_partitioners_are_checked(parts: list[list[int]], message: str) -> None:
    class Other:
        dataset = TableDataset.from_dict({"row": [0, 1, 2]})
        num_partitions = 2

        def load_partition(self, client: int) -> TableDataset:
            return self.dataset.select(parts[client])

    with pytest.raises(ValueError, match=message):
        partition._clients(Other())


def test_what_is_no_partitioner_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a flwr-datasets Partitioner, got builtins\.dict"):
        rows_of_clients(dataset(), {"_target_": "builtins.dict"}, seed=0)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (node_of("Iid", num_clients=301), "at most the number of examples, 300, got 301"),
        (
            node_of("Iid", num_clients=200),
            "at least 2 rows, .* got 1 for 100 of 200 clients",
        ),
        (node_of("Dirichlet", num_clients=5, alpha=0), "alpha must be > 0"),
        (
            node_of("Iid", num_clients=5, alpha=1, target=2),
            r"Iid takes file, .*num_clients, .* got alpha=1, target=2; to leave a key out: ~partition.alpha",
        ),
        (node_of("Similarity", num_clients=5, similarity=2), "similarity must be in"),
        (node_of("Pathological", num_clients=5, classes_per_client=4), "the 3 classes"),
    ],
)
def test_impossible_requests_are_refused_with_figures(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows_of_clients(dataset(), node, seed=0)


SETTINGS = {
    "Iid": {},
    "Dirichlet": {"alpha": 0.5},
    "Similarity": {"similarity": 0.3},
    "Pathological": {"classes_per_client": 2},
    "QuantitySkew": {"alpha": 0.5},
    "Conventions": {"groups": [3, 2]},
    "Domains": {"clean": 0.6, "noise": 0.4, "alpha": 1.0},
    "Heterogeneity": {"groups": [3, 2], "alphas": [10, 0]},
    "EmdKMeans": {"target": 0.7, "bins": 3},
}


@pytest.mark.filterwarnings("ignore:the clients' distances")
@pytest.mark.parametrize("test", ["holdout", "matched", "uniform"])
@pytest.mark.parametrize("rule", SETTINGS)
def test_same_seed_same_partition_and_every_row_once(rule: str, test: str) -> None:
    node = node_of(rule, num_clients=5, test=test, **SETTINGS[rule])
    first, second, other = (rows_of_clients(dataset(), node, seed) for seed in (4, 4, 5))
    check(first, 300)
    assert rows(first) == rows(second)
    assert first.shifts == second.shifts
    assert rows(first) != rows(other)


@given(
    rule=st.sampled_from([rule for rule in SETTINGS if rule != "EmdKMeans"]),
    labels=st.lists(st.integers(0, 3), min_size=60, max_size=90),
    test=st.sampled_from(["holdout", "matched", "uniform"]),
    seed=st.integers(0, 9999),
)
def test_whatever_the_labels_every_row_is_used_once_or_the_request_refused(
    tmp_path_factory: pytest.TempPathFactory, rule: str, labels: list[int], test: str, seed: int
) -> None:
    size = len(labels)
    data = dataset(
        inputs=torch.zeros(size, 1),
        labels=torch.tensor(labels),
        num_classes=4,
        class_names=("a", "b", "c", "d"),
        num_train=size - 20,
        natural=None,
    )
    node = node_of(rule, num_clients=5, test=test, **SETTINGS[rule])
    try:
        found = rows_of_clients(data, node, seed)
    except ValueError as error:
        assert any(word in str(error) for word in ("must", "needs")), error  # noqa: PT017
        return
    check(found, size)
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    save_client_rows(found, data, path)
    loaded = load_client_rows(path, data)
    assert rows(loaded) == rows(found)
    assert loaded.shifts == found.shifts


@pytest.mark.filterwarnings("ignore:the clients' distances")
@pytest.mark.parametrize(
    "name", sorted({path.stem for path in (CONF / "partition").glob("*.yaml")} - {"own"})
)
def test_every_configuration_composes_and_partitions(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = OmegaConf.to_container(compose(f"partition/{name}").partition, resolve=True)
    large = dataset(
        inputs=torch.from_numpy(np.random.default_rng(0).integers(0, 256, (20_000, 1, 2, 2), dtype=np.uint8)),
        labels=torch.arange(20_000) % 10,
        num_classes=10,
        class_names=tuple("abcdefghij"),
        natural=np.arange(20_000) // 100,
    )
    check(rows_of_clients(large, node, seed=0), 20_000)  # type: ignore[arg-type]


def test_domains_compose_over_another_choice() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        overrides = [
            "partition@partition.base=dirichlet",
            "partition.base.alpha=7",
            "partition.num_clients=10",
        ]
        node = OmegaConf.to_container(compose("partition/domains", overrides).partition, resolve=True)
    assert isinstance(node, dict)
    assert node["base"]["alpha"] == 7
    assert rows_of_clients(dataset(), node, seed=0).num_clients == 10


def test_images_on_one_line_keep_their_distances() -> None:
    # Images a·255 on four pixels: after division by 255 they lie on a line, 2 apart from a = 0 to a = 1.
    images = torch.tensor([0, 255, 0, 255], dtype=torch.uint8)[:, None, None, None].expand(4, 1, 2, 2)
    found = partition.features(images, 1, np.random.default_rng(0))
    assert found.shape == (4, 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.abs(found[0] - found[1]), 2.0, rtol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_numbers_are_rotated_not_rescaled() -> None:
    numbers = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32))
    found = partition.features(numbers, 3, np.random.default_rng(0))
    for projected, raw in zip(found[1:] - found[0], (numbers[1:] - numbers[0]).numpy(), strict=True):
        assert np.linalg.norm(projected) == pytest.approx(np.linalg.norm(raw), rel=1e-4)


def test_tokens_count_whatever_their_order() -> None:
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0], [3, 3, 3], [0, 0, 3]])
    found = partition.features(tokens, 3, np.random.default_rng(0))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    assert np.abs(found[0] - found[2]).max() > 0.1


def test_no_more_components_than_there_can_be() -> None:
    assert partition.features(torch.eye(5)[:, :2], 32, np.random.default_rng(0)).shape == (5, 2)
    assert partition.features(torch.zeros(5, 3, dtype=torch.int64), 32, np.random.default_rng(0)).shape == (
        5,
        1,
    )  # a single token


LINES = {
    "client": [0, 0, 1, 1],
    "part": ["train", "test", "train", "test"],
    "row": [4, 1, 0, 3],
}


def tiny(rows: int = 6, fingerprint: str = "abc") -> Dataset:
    return Dataset(
        name="tiny",
        inputs=torch.zeros(rows, 1),
        labels=torch.zeros(rows, dtype=torch.int64),
        num_classes=1,
        mean=(),
        std=(),
        class_names=("only",),
        num_train=rows,
        natural=None,
        fingerprint=fingerprint,
    )


def client_rows(**changes: Any) -> ClientRows:
    values: dict[str, Any] = {
        "train": (np.array([5, 2]), np.array([0])),
        "test": (np.array([1]), np.array([4, 3])),
        "groups": np.array([0, 1]),
        "shifts": (None, Noise(0.2)),
    }
    return ClientRows(**(values | changes))


def write(path: Path, lines: dict[str, Any], about: dict[str, Any] | None = None) -> Path:
    """Write a file as another tool would."""
    table = pa.table(lines)
    about = {"version": 1, "dataset": "tiny", "fingerprint": "abc"} | (about or {})
    pq.write_table(table.replace_schema_metadata({"fedclust": json.dumps(about)}), path)
    return path


def same(one: ClientRows, other: ClientRows) -> bool:
    return (
        all(np.array_equal(a, b) for a, b in zip(one.train + one.test, other.train + other.test, strict=True))
        and one.num_clients == other.num_clients
        and (
            one.groups is other.groups is None
            or (one.groups is not None and np.array_equal(one.groups, other.groups))  # type: ignore[arg-type]
        )
        and one.shifts == other.shifts
        and one.seed == other.seed
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"groups": None},
        {"seed": 7},
        {"shifts": (None, None)},
        {"shifts": (Relabel((1, 0)), Relabel((1, 0)))},
    ],
)
def test_saved_is_loaded(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved = client_rows(**changes)
    save_client_rows(saved, tiny(), tmp_path / "folder" / "rows.parquet")
    assert same(load_client_rows(tmp_path / "folder" / "rows.parquet", tiny()), saved)


def test_the_file_is_as_described(tmp_path: Path) -> None:
    save_client_rows(client_rows(), tiny(), tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.to_pydict() == {
        "client": [0, 0, 0, 1, 1, 1],
        "part": ["train", "train", "test", "train", "test", "test"],
        "row": [5, 2, 1, 0, 4, 3],
        "group": [0, 0, 0, 1, 1, 1],
        "shift": [None, None, None, 0, 0, 0],
    }
    assert json.loads(table.schema.metadata[b"fedclust"]) == {
        "version": 1,
        "dataset": "tiny",
        "fingerprint": "abc",
        "shifts": [{"kind": "noise", "std": 0.2}],
        "seed": None,
    }


def test_another_tool_needs_three_columns(tmp_path: Path) -> None:
    loaded = load_client_rows(write(tmp_path / "rows.parquet", LINES), tiny())
    assert same(
        loaded,
        ClientRows((np.array([4]), np.array([0])), (np.array([1]), np.array([3])), None, (None, None)),
    )


def test_a_file_that_does_not_name_its_dataset_is_loaded_with_a_warning(tmp_path: Path) -> None:
    pd.DataFrame(LINES).to_parquet(tmp_path / "rows.parquet")
    with pytest.warns(UserWarning, match="does not name its dataset; it is assumed to be tiny"):
        assert load_client_rows(tmp_path / "rows.parquet", tiny()).num_clients == 2


def test_a_partition_of_another_dataset_or_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", LINES)
    with pytest.raises(ValueError, match="must belong to tiny with fingerprint xyz, got one of tiny .* abc"):
        load_client_rows(path, tiny(fingerprint="xyz"))
    with pytest.raises(ValueError, match="version must be 1, got 2"):
        load_client_rows(write(path, LINES, {"version": 2}), tiny())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": [4, 1, 0, 6]}, r"row must be in \[0, 6\), got 0 to 6"),
        ({"row": [4, 1, 0, -1]}, r"row must be in \[0, 6\), got -1 to 4"),
        ({"row": [4, 1, 0, 4]}, "a row must belong to one part of one client, row 4 has two"),
        ({"row": [4.0, 1.0, 0.0, 3.5]}, "row must hold whole numbers, got 4 of type float64"),
        ({"client": [0, 0, 2, 2]}, "every client 0 to 2 must have train rows, got none for client 1"),
        ({"client": [0, 0, -1, 1]}, r"client must be in \[0, 4\), got -1 to 1"),
        (
            {"part": ["train", "train", "train", "test"]},
            "every client 0 to 1 must have test rows, got none for client 0",
        ),
        ({"group": [0, 1, 0, 0]}, "group must be the same in all lines of a client, and given"),
        ({"group": [0, 0, None, None]}, "group must be the same in all lines of a client, and given"),
        ({"shift": [0, 0, 1, 1]}, r"shift must be in \[0, 1\), the list of shifts, got 1"),
        ({"shift": [0, None, None, None]}, "shift must be the same in all lines of a client"),
    ],
)
def test_lines_that_contradict_themselves_are_refused(
    tmp_path: Path, changes: dict[str, list], message: str
) -> None:
    path = write(tmp_path / "rows.parquet", LINES | changes, {"shifts": [{"kind": "noise", "std": 0.1}]})
    with pytest.raises(ValueError, match=message):
        load_client_rows(path, tiny())


def test_another_part_than_train_and_test_is_refused(tmp_path: Path) -> None:
    lines = {
        "client": [0, 0, 0],
        "part": ["train", "test", "valid"],
        "row": [0, 1, 2],
    }
    with pytest.raises(ValueError, match="part must be 'train' or 'test', got .*'valid'"):
        load_client_rows(write(tmp_path / "rows.parquet", lines), tiny())


def test_an_empty_partition_is_refused(tmp_path: Path) -> None:
    lines = {
        name: pa.array([], type=kind)
        for name, kind in (("client", pa.int64()), ("part", pa.string()), ("row", pa.int64()))
    }
    with pytest.raises(ValueError, match="row must hold whole numbers, got 0 of type int64"):
        load_client_rows(write(tmp_path / "rows.parquet", lines), tiny())


def test_files_that_are_no_saved_partition_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nowhere\.parquet"):
        load_client_rows(tmp_path / "nowhere.parquet", tiny())
    (tmp_path / "rows.parquet").write_text("client,row")
    with pytest.raises(ValueError, match="must be a Parquet file, got"):
        load_client_rows(tmp_path / "rows.parquet", tiny())
    pd.DataFrame({"client": [0]}).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"must have columns client, part and row, got \['client'\]"):
        load_client_rows(tmp_path / "rows.parquet", tiny())


# -- Rows to be tested on, and rows held out for the proof ---------------------------------------------------


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cells(clients: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    """Count the rows of each class that each client holds."""
    shape = (int(clients.max()) + 1, int(labels.max()) + 1)
    counts = np.zeros(shape, dtype=int)
    np.add.at(counts, (clients[clients >= 0], labels[clients >= 0]), 1)
    return counts.tolist()


@pytest.mark.parametrize(
    ("held", "fraction", "expected"),
    [
        ([[10, 0], [5, 5]], 0.2, [[2, 0], [1, 1]]),
        ([[3, 0]], 0.2, [[1, 0]]),  # 0.6 rounds to 1
        ([[2, 0]], 0.2, [[1, 0]]),  # 0.4 would be none: at least one
        ([[2, 0]], 0.9, [[1, 0]]),  # 1.8 would be all: one is left
        ([[8, 2]], 0.25, [[2, 0]]),  # 2.5 rounds to 2, and class 0 is due 2.0 of it
    ],
)
def test_holdout_by_hand(held: list[list[int]], fraction: float, expected: list[list[int]]) -> None:
    clients = np.concatenate([np.full(sum(row), client) for client, row in enumerate(held)])
    labels = np.concatenate([np.repeat([0, 1], row) for row in held])
    held_out = partition.holdout(clients, labels, fraction, draws())
    found = [
        [int((held_out & (clients == k) & (labels == c)).sum()) for c in (0, 1)] for k in range(len(held))
    ]
    assert found == expected


def test_holdout_breaks_ties_between_classes_at_random() -> None:
    # 7 and 3 rows, a quarter: 1.75 and 0.75, in all 2; one row is class 0's, the other is drawn.
    labels = np.repeat([0, 1], [7, 3])
    held_out = [partition.holdout(np.zeros(10, dtype=int), labels, 0.25, draws(seed)) for seed in range(20)]
    assert {tuple(np.bincount(labels[rows], minlength=2)) for rows in held_out} == {(2, 0), (1, 1)}


def test_holdout_draws_rows_and_skips_those_without_a_client() -> None:
    clients = np.array([0, 0, 0, -1])
    labels = np.zeros(4, dtype=int)
    found = {tuple(partition.holdout(clients, labels, 0.3, draws(seed))) for seed in range(30)}
    assert found == {(True, False, False, False), (False, True, False, False), (False, False, True, False)}


def test_holdout_refuses_single_rows_and_no_shares() -> None:
    with pytest.raises(ValueError, match="got 1 for 2 of 3 clients, the first is client 0"):
        partition.holdout(np.array([0, 1, 1, 2]), np.zeros(4, dtype=int), 0.2, draws())
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match=rf"partition.test_fraction must be in \(0, 1\), got {fraction}"):
            partition.Protocol(test_fraction=fraction)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 99),
)
def test_holdout_is_the_rounded_share_of_each_client_and_within_one_in_each_class(
    rows: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    _, clients = np.unique([client for client, _ in rows] * 2, return_inverse=True)  # at least two rows each
    labels = np.array([label for _, label in rows] * 2)
    held_out = partition.holdout(clients, labels, fraction, draws(seed))
    for client in range(clients.max() + 1):
        size = int((clients == client).sum())
        assert held_out[clients == client].sum() == min(max(round(fraction * size), 1), size - 1)
        for label in range(4):
            mine = (clients == client) & (labels == label)
            assert abs(held_out[mine].sum() - fraction * mine.sum()) < 1 + 1e-6


def test_matched_gives_the_share_of_each_class() -> None:
    # Of 4 training rows of class 0 client 0 holds 3 and client 1 one; of 2 of class 1 client 1 holds both.
    clients = np.array([0, 0, 0, 1, 1, 1])
    labels = np.array([0, 0, 0, 0, 1, 1] + [0] * 8 + [1] * 5)
    assert cells(partition.matched(clients, labels, draws()), labels[6:]) == [[6, 0], [2, 5]]


def test_matched_leaves_out_the_share_of_rows_nobody_trains_on() -> None:
    labels = np.array([0, 0, 1, 1] + [0] * 4 + [1] * 4)
    dealt = partition.matched(np.array([0, -1, -1, -1]), labels, draws())
    assert cells(dealt, labels[4:]) == [[2, 0]]
    assert (dealt == -1).sum() == 6


def test_matched_rounds_so_that_totals_come_out() -> None:
    # Two clients, each with half of both classes; 3 and 1 test rows: 1.5 + 0.5 is due to each, 2 in all.
    # After one row of class 0 each, one row of each class is left, and each client gets one of them.
    clients = np.array([0, 1, 0, 1])
    labels = np.array([0, 0, 1, 1, 0, 0, 0, 1])
    assert sorted(cells(partition.matched(clients, labels, draws()), labels[4:])) == [[1, 1], [2, 0]]


def test_matched_prefers_large_remainders() -> None:
    # Client 0 is due 0.8 of class 0 and 0.2 of class 1, client 1 the reverse: 1 row each, of its main class.
    clients = np.array([0] * 4 + [1] + [0] + [1] * 4)
    labels = np.array([0] * 5 + [1] * 5 + [0, 1])
    for seed in range(5):
        assert cells(partition.matched(clients, labels, draws(seed)), labels[10:]) == [[1, 0], [0, 1]]


def test_matched_first_gives_rows_to_clients_that_would_have_none() -> None:
    # 20 + 4 + 1 training rows, 15 test rows: due 12, 2.4 and 0.6. Everyone is served, and no row is left.
    clients = np.repeat([0, 1, 2], [20, 4, 1])
    labels = np.zeros(25 + 15, dtype=int)
    assert np.bincount(partition.matched(clients, labels, draws())).tolist() == [12, 2, 1]
    # 41 + 1 training rows, 21 test rows: due 20.5 and 0.5, which np.round takes for 20 and 0.
    clients = np.repeat([0, 1], [41, 1])
    labels = np.zeros(42 + 21, dtype=int)
    assert np.bincount(partition.matched(clients, labels, draws())).tolist() == [20, 1]


def test_matched_refuses_a_client_without_test_rows() -> None:
    with pytest.raises(ValueError, match="which has 1, got none for 2 of 3 clients, .* with 1 training rows"):
        partition.matched(np.array([0, 1, 2]), np.zeros(4, dtype=int), draws())


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=4, max_size=40), st.integers(0, 99))
def test_matched_is_within_one_of_the_due_in_each_class(rows: list[tuple[int, int]], seed: int) -> None:
    _, clients = np.unique([client for client, _ in rows], return_inverse=True)
    train = np.array([label for _, label in rows])
    test = np.tile(train, 3)  # enough for all clients
    dealt = partition.matched(clients, np.concatenate([train, test]), draws(seed))
    for client in range(clients.max() + 1):
        for label in range(3):
            due = 3 * ((clients == client) & (train == label)).sum()
            assert ((dealt == client) & (test == label)).sum() == due


def test_uniform_gives_everyone_the_same_mix() -> None:
    labels = np.array([0, 1, 0, 1, 2, 2])
    assert cells(partition.uniform(labels, 2, draws()), labels) == [[1, 1, 1], [1, 1, 1]]


def test_uniform_differs_by_one_at_most() -> None:
    labels = np.random.default_rng(0).integers(0, 3, 50)
    counts = np.array(cells(partition.uniform(labels, 4, draws()), labels))
    assert sorted(counts.sum(axis=1)) == [12, 12, 13, 13]
    assert (np.ptp(counts, axis=0) <= 1).all()


def test_uniform_refuses_more_clients_than_rows() -> None:
    with pytest.raises(ValueError, match="at most the 2 rows of the official test part, got 3"):
        partition.uniform(np.array([0, 1]), 3, draws())


@pytest.mark.parametrize(
    ("num_rows", "fraction", "held"),
    [
        (30, 0.1, 3),
        (26, 0.1, 3),  # round(2.6)
        (16, 0.1, 2),  # round(1.6)
        (14, 0.1, 0),  # round(1.4) = 1, and one row proves nothing
        (3, 0.9, 2),  # round(2.7) = 3, but one must be left to train on
        (2, 0.9, 0),
        (30, 0.0, 0),
    ],
)
def test_so_many_rows_are_held_out(num_rows: int, fraction: float, held: int) -> None:
    assert len(partition.hold_out_client(num_rows, fraction, 0, 0)) == held


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    fraction=st.floats(0, 0.99),
    seed=st.integers(0, 5),
)
def test_rows_are_divided(sizes: list[int], fraction: float, seed: int) -> None:
    ends = np.cumsum([0, *sizes])
    train = [np.arange(first, last) for first, last in pairwise(ends)]
    kept, held = partition.hold_out(train, fraction, seed)
    for rows, left, out in zip(train, kept, held, strict=True):
        assert sorted([*left, *out]) == rows.tolist()
        assert len(left) >= 1
        assert len(out) != 1


def test_a_client_draws_by_itself() -> None:
    train = [np.arange(40), np.arange(40, 90), np.arange(90, 130)]
    together = partition.hold_out(train, 0.2, 3)[1]
    assert together[2].tolist() == (90 + partition.hold_out_client(40, 0.2, 3, 2)).tolist()
    assert (together[2] - 90).tolist() != together[0].tolist()  # the same number of rows, another draw
    assert together[0].tolist() != partition.hold_out(train, 0.2, 4)[1][0].tolist()


@pytest.mark.parametrize("fraction", [-0.1, 1.0, True, "a tenth"])
def test_a_share_must_be_one(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"partition.validation_fraction must be in \[0, 1\), got"):
        partition.Protocol(validation_fraction=fraction)


def _load(tmp_path: Path, *overrides: str, **keys: object) -> data.FederatedData:
    config = composition.compose(["partition=domains", "partition.num_clients=6", *overrides])
    return data.load(
        composition.plain(config.dataset), {**composition.plain(config.partition), **keys}, 0, tmp_path
    )


def test_only_training_rows_are_held_out(tmp_path: Path) -> None:
    without, with_rows = _load(tmp_path, "proof=false"), _load(tmp_path, "proof=true")
    assert without.validation == ()
    for client in range(6):
        assert with_rows.test[client].tolist() == without.test[client].tolist()
        both = [*with_rows.train[client], *with_rows.validation[client]]
        assert sorted(both) == sorted(without.train[client].tolist())
        assert len(with_rows.validation[client]) == round(0.1 * len(without.train[client])) >= 2
    # What is particular to a client, such as noise, is drawn as if nothing were held out.
    assert torch.equal(with_rows.inputs, without.inputs)


def test_without_the_proof_data_is_what_it_was(tmp_path: Path) -> None:
    off = _load(tmp_path, "proof=false")
    config = composition.compose(["partition=domains", "partition.num_clients=6"])
    node = {
        key: value
        for key, value in composition.plain(config.partition).items()
        if key != "validation_fraction"
    }
    before = data.load(composition.plain(config.dataset), node, 0, tmp_path)
    assert before.fingerprint == off.fingerprint  # the same place in the cache
    on = [_load(tmp_path, "proof=true"), _load(tmp_path, "proof=true", validation_fraction=0.3)]
    assert len({off.fingerprint, *(each.fingerprint for each in on)}) == 3


def test_pairs_give_rows_by_the_same_rule_and_triples_bring_theirs() -> None:
    x, y = torch.arange(50.0).view(50, 1), torch.arange(50) % 2
    triple = ((x[:30], y[:30]), (x[30:34], y[30:34]), (x[34:], y[34:]))
    clients = [(x, y), triple, (triple[0], None, triple[2])]
    plain_data = from_arrays(clients, seed=1)
    proven = from_arrays(clients, seed=1, validation_fraction=0.1)
    assert [len(rows) for rows in plain_data.validation] == [0, 4, 0]
    # 50 rows: a fifth of them, 10, test; of the 40 left a tenth, 4, is held out.
    assert [len(rows) for rows in proven.validation] == [4, 4, 0]
    assert [len(rows) for rows in proven.train] == [36, 30, 30]

    def values(found: data.FederatedData, rows: np.ndarray) -> list[float]:
        return sorted(found.inputs[rows].flatten().tolist())

    assert values(proven, proven.test[0]) == values(plain_data, plain_data.test[0])
    held_out = np.concatenate([proven.train[0], proven.validation[0]])
    assert values(proven, held_out) == values(plain_data, plain_data.train[0])
