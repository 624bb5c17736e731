"""From a dataset and a configuration node to who holds what."""

import json
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

from fedclust.data.dataset import Dataset
from fedclust.data.partition import (
    ClientRows,
    _clients,
    features,
    load_client_rows,
    rows_of_clients,
    save_client_rows,
)
from fedclust.data.shifts import Noise, Relabel

CONF = Path(__file__).parents[3] / "conf"
RULES = "fedclust.data.partitioners"


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
    found = rows_of_clients(
        dataset(), {"_target_": f"{RULES}.Iid", "num_clients": 5, "test_fraction": 0.25}, seed=0
    )
    check(found, 300)
    assert [len(part) for part in found.train] == [45] * 5  # 60 each, a quarter held out
    assert [len(part) for part in found.test] == [15] * 5
    assert found.groups is None
    assert found.shifts == (None,) * 5


@pytest.mark.parametrize("test", ["matched", "uniform"])
def test_official_parts_stay_apart(test: str) -> None:
    node = {"_target_": f"{RULES}.Similarity", "num_clients": 3, "similarity": 0, "test": test}
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
    node = {"_target_": f"{RULES}.Iid", "num_clients": 2, "test": test}
    with pytest.raises(
        ValueError, match=rf"partition\.test={test} needs an official test part, tiny has none"
    ):
        rows_of_clients(dataset(num_train=300), node, seed=0)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of holdout, matched, uniform, got 'pooled'"):
        rows_of_clients(dataset(), {"_target_": f"{RULES}.Iid", "num_clients": 2, "test": "pooled"}, seed=0)


def test_a_base_partition_needs_no_keys_of_the_protocol() -> None:
    base = {"_target_": f"{RULES}.Dirichlet", "num_clients": 9, "alpha": 5.0, "file": None, "seed": None}
    node = {"_target_": f"{RULES}.Domains", "num_clients": 4, "clean": 0.5, "noise": 0.5, "base": base}
    found = rows_of_clients(dataset(), node, seed=0)
    check(found, 300)
    assert found.shifts == (None, None, Noise(0.2), Noise(0.2))
    assert len({len(part) for part in found.train}) > 1


def test_natural_clients_need_users() -> None:
    node = {"_target_": f"{RULES}.Natural"}
    found = rows_of_clients(dataset(), node, seed=0)
    assert found.num_clients == 30
    assert sorted(np.concatenate([found.train[3], found.test[3]])) == list(range(30, 40))
    with pytest.raises(ValueError, match="needs writers, users or regions, tiny has none"):
        rows_of_clients(dataset(natural=None), node, seed=0)


def test_feature_skew_separates_what_looks_different() -> None:
    images = torch.zeros(300, 1, 2, 2, dtype=torch.uint8)
    images[150:] = 255
    images[:, 0, 0, 0] = torch.arange(300) % 30  # so that there are bins enough
    node = {"_target_": f"{RULES}.EmdKMeans", "num_clients": 2, "target": 1.0}
    found = rows_of_clients(dataset(inputs=images), node, seed=0)
    held = sorted(sorted(np.concatenate(parts)) for parts in zip(found.train, found.test, strict=True))
    assert held == [list(range(150)), list(range(150, 300))]


def test_where_every_position_has_a_label_the_largest_counts() -> None:
    labels = torch.zeros(300, 4, dtype=torch.int64)
    labels[::2, 1] = 1  # every other read has one sensitive base
    node = {"_target_": f"{RULES}.Similarity", "num_clients": 2, "similarity": 0}
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
        _clients(Other())


def test_what_is_no_partitioner_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a flwr-datasets Partitioner, got builtins\.dict"):
        rows_of_clients(dataset(), {"_target_": "builtins.dict"}, seed=0)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": f"{RULES}.Iid", "num_clients": 301}, "at most the number of examples, 300, got 301"),
        (
            {"_target_": f"{RULES}.Iid", "num_clients": 200},
            "at least 2 rows, .* got 1 for 100 of 200 clients",
        ),
        ({"_target_": f"{RULES}.Dirichlet", "num_clients": 5, "alpha": 0}, "alpha must be > 0"),
        (
            {"_target_": f"{RULES}.Iid", "num_clients": 5, "alpha": 1, "target": 2},
            r"Iid takes file, .*num_clients, .* got alpha=1, target=2; to leave a key out: ~partition.alpha",
        ),
        ({"_target_": f"{RULES}.Similarity", "num_clients": 5, "similarity": 2}, "similarity must be in"),
        ({"_target_": f"{RULES}.Pathological", "num_clients": 5, "classes_per_client": 4}, "the 3 classes"),
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
    node = {"_target_": f"{RULES}.{rule}", "num_clients": 5, "test": test} | SETTINGS[rule]
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
    node = {"_target_": f"{RULES}.{rule}", "num_clients": 5, "test": test} | SETTINGS[rule]
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
    found = features(images, 1, np.random.default_rng(0))
    assert found.shape == (4, 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.abs(found[0] - found[1]), 2.0, rtol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_numbers_are_rotated_not_rescaled() -> None:
    numbers = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32))
    found = features(numbers, 3, np.random.default_rng(0))
    for projected, raw in zip(found[1:] - found[0], (numbers[1:] - numbers[0]).numpy(), strict=True):
        assert np.linalg.norm(projected) == pytest.approx(np.linalg.norm(raw), rel=1e-4)


def test_tokens_count_whatever_their_order() -> None:
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0], [3, 3, 3], [0, 0, 3]])
    found = features(tokens, 3, np.random.default_rng(0))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    assert np.abs(found[0] - found[2]).max() > 0.1


def test_no_more_components_than_there_can_be() -> None:
    assert features(torch.eye(5)[:, :2], 32, np.random.default_rng(0)).shape == (5, 2)
    assert features(torch.zeros(5, 3, dtype=torch.int64), 32, np.random.default_rng(0)).shape == (
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
