"""From a dataset and a configuration node to who holds what, and who is tested on what."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset as TableDataset
from hydra import compose, initialize_config_dir
from hypothesis import given, settings, strategies as st
from omegaconf import OmegaConf

from fedclust import data
from fedclust.data import partition
from fedclust.data.arrays import from_arrays
from fedclust.data.dataset import Dataset
from fedclust.data.partition import ClientRows, load_client_rows, rows_of_clients, save_client_rows
from fedclust.data.shifts import Noise, Relabel
from fedclust.settings import composition

CONF = Path(__file__).parents[3] / "conf"
PROTOCOLS = ["holdout", "matched", "uniform"]


def node_of(rule: str, **settings) -> dict:
    module = "emd" if rule == "EmdKMeans" else "partitioners"
    return {"_target_": f"fedclust.data.{module}.{rule}", **settings}


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def dataset(size: int = 300, **changes) -> Dataset:
    """Return images of 3 classes by users with 10 each, the last fifth of them the official test part."""
    pixels = torch.from_numpy(draws().integers(0, 256, (size, 1, 2, 2), dtype=np.uint8))
    values: dict = {"name": "tiny", "inputs": pixels, "mean": (0.5,), "std": (0.3,), "fingerprint": "abc"}
    values |= {"labels": torch.arange(size) % 3, "num_classes": 3, "class_names": ("a", "b", "c")}
    values |= {"num_train": size * 4 // 5, "natural": np.arange(size) // 10}
    return Dataset(**(values | changes))


def dealt(rule: str, test: str = "holdout", seed: int = 0, data: Dataset | None = None, **settings):
    return rows_of_clients(data or dataset(), node_of(rule, test=test, **settings), seed)


def rows(found: ClientRows) -> list[list[int]]:
    return [part.tolist() for part in found.train + found.test]


def sizes(found: ClientRows) -> list[int]:
    return [len(train) + len(test) for train, test in zip(found.train, found.test, strict=True)]


def check(found: ClientRows, size: int) -> None:
    """Check that every client has both parts and no row is used twice or out of range."""
    used = np.concatenate(found.train + found.test)
    assert len(found.train) == len(found.test) == len(found.shifts)
    assert min(map(len, found.train + found.test)) >= 1
    assert 0 <= used.min() <= used.max() < size
    assert len(np.unique(used)) == len(used)


@pytest.mark.parametrize("test", ["matched", "uniform"])
def test_official_parts_stay_apart(test: str) -> None:
    found = dealt("Similarity", test, num_clients=3, similarity=0)
    check(found, 300)
    assert max(part.max() for part in found.train) < 240 <= min(part.min() for part in found.test)
    assert [len(part) for part in found.train] == [80] * 3
    # Each client trains on one class; of the 60 test rows it gets that class, or 20 mixed ones.
    mixes = [np.bincount(part % 3, minlength=3).tolist() for part in found.test]
    assert all(sum(mix) == 20 for mix in mixes)
    if test == "matched":
        assert mixes == [[20, 0, 0], [0, 20, 0], [0, 0, 20]]
    with pytest.raises(ValueError, match=rf"test={test} needs an official test part, tiny has none"):
        dealt("Iid", test, data=dataset(num_train=300), num_clients=2)


def test_natural_clients_need_users_and_others_none() -> None:
    found = dealt("Iid", num_clients=5, test_fraction=0.25)
    assert [len(part) for part in found.train] == [45] * 5  # 60 each, a quarter held out
    found = dealt("Natural")
    assert len(found.train) == 30
    assert sorted(np.concatenate([found.train[3], found.test[3]])) == list(range(30, 40))
    with pytest.raises(ValueError, match="needs writers, users or regions: dataset.natural= names"):
        dealt("Natural", data=dataset(natural=None))


def test_where_every_position_has_a_label_the_largest_counts() -> None:
    labels = torch.zeros(300, 4, dtype=torch.int64)
    labels[::2, 1] = 1  # every other read has one sensitive base
    found = dealt("Similarity", data=dataset(labels=labels), num_clients=2, similarity=0)
    held = [np.concatenate(parts) % 2 for parts in zip(found.train, found.test, strict=True)]
    assert held[0].all()
    assert not held[1].any()


def test_any_partitioner_of_flwr_datasets_will_do() -> None:
    node = {"_target_": "flwr_datasets.partitioner.LinearPartitioner", "num_partitions": 3}
    found = rows_of_clients(dataset(), node, seed=0)
    check(found, 300)
    assert sizes(found) == [50, 100, 150]  # in proportion to 1, 2, 3
    assert (found.groups, found.shifts) == (None, (None,) * 3)
    with pytest.raises(ValueError, match=r"must be a flwr-datasets Partitioner, got builtins\.dict"):
        rows_of_clients(dataset(), {"_target_": "builtins.dict"}, seed=0)


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


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (node_of("Iid", num_clients=200), "at least 2 rows, .* got 1 for 100 of 200 clients"),
        (node_of("Iid", num_clients=2, test="pooled"), "one of holdout, matched, uniform, got 'pooled'"),
        (
            node_of("Iid", num_clients=5, alpha=1, target=2),
            r"Iid takes file, .*num_clients, .* got alpha=1, target=2; to leave a key out: ~partition.alpha",
        ),
        (
            node_of("Domains", num_clients=5, clean=1.0, base=node_of("Iid", num_clients=5, target=1)),
            r"^partition.base Iid takes .* got target=1; to leave a key out: ~partition.base.target$",
        ),
    ],
)
def test_impossible_requests_are_refused_with_figures(node: dict, message: str) -> None:
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
@pytest.mark.parametrize("test", PROTOCOLS)
@pytest.mark.parametrize("rule", SETTINGS)
def test_same_seed_same_partition_and_every_row_once(rule: str, test: str) -> None:
    first, second, other = (dealt(rule, test, seed, num_clients=5, **SETTINGS[rule]) for seed in (4, 4, 5))
    check(first, 300)
    assert rows(first) == rows(second)
    assert first.shifts == second.shifts
    assert rows(first) != rows(other)


@settings(max_examples=40)
@given(
    rule=st.sampled_from([rule for rule in SETTINGS if rule != "EmdKMeans"]),
    labels=st.lists(st.integers(0, 3), min_size=60, max_size=90),
    test=st.sampled_from(PROTOCOLS),
    seed=st.integers(0, 9999),
)
def test_whatever_the_labels_every_row_is_used_once_or_the_request_refused(
    tmp_path_factory: pytest.TempPathFactory, rule: str, labels: list[int], test: str, seed: int
) -> None:
    size = len(labels)
    shape = {"num_classes": 4, "class_names": ("a", "b", "c", "d"), "num_train": size - 20, "natural": None}
    given = dataset(inputs=torch.zeros(size, 1), labels=torch.tensor(labels), **shape)
    try:
        found = dealt(rule, test, seed, given, num_clients=5, **SETTINGS[rule])
    except ValueError as error:
        assert any(word in str(error) for word in ("must", "needs")), error  # noqa: PT017
        return
    check(found, size)
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    save_client_rows(found, given, path)
    loaded = load_client_rows(path, given)
    assert (rows(loaded), loaded.shifts) == (rows(found), found.shifts)


@pytest.fixture(scope="module")
def large() -> Dataset:
    ten = {"num_classes": 10, "class_names": tuple("abcdefghij"), "labels": torch.arange(20_000) % 10}
    return dataset(20_000, **ten, num_train=240, natural=np.arange(20_000) // 100)


def composed(name: str, *overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose(f"partition/{name}", list(overrides)).partition, resolve=True)


@pytest.mark.filterwarnings("ignore:the clients' distances")
@pytest.mark.parametrize("name", sorted({p.stem for p in (CONF / "partition").glob("*.yaml")} - {"own"}))
def test_every_configuration_composes_and_partitions(large: Dataset, name: str) -> None:
    check(rows_of_clients(large, composed(name), seed=0), 20_000)


def test_domains_compose_over_another_choice() -> None:
    base = ("partition@partition.base=dirichlet", "partition.base.alpha=7", "partition.num_clients=10")
    node = composed("domains", *base)
    assert node["base"]["alpha"] == 7
    assert len(rows_of_clients(dataset(), node, seed=0).train) == 10


def test_features_of_images_and_numbers_keep_their_distances() -> None:
    # Images a·255 on four pixels: after division by 255 they lie on a line, 2 apart from a = 0 to a = 1.
    images = torch.tensor([0, 255, 0, 255], dtype=torch.uint8)[:, None, None, None].expand(4, 1, 2, 2)
    found = partition.features(images, 1, draws())
    assert (found.shape, found.dtype) == ((4, 1), np.float32)
    np.testing.assert_allclose(np.abs(found[0] - found[1]), 2.0, rtol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)
    numbers = draws().normal(size=(30, 3)).astype(np.float32)
    found = partition.features(torch.from_numpy(numbers), 3, draws())  # rotated, not rescaled
    apart = [np.linalg.norm(each[1:] - each[0], axis=1) for each in (found, numbers)]
    np.testing.assert_allclose(*apart, rtol=1e-4)
    assert partition.features(torch.eye(5)[:, :2], 32, draws()).shape == (5, 2)


def test_tokens_count_whatever_their_order() -> None:
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0], [3, 3, 3], [0, 0, 3]])
    found = partition.features(tokens, 3, draws())
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    assert np.abs(found[0] - found[2]).max() > 0.1
    single = torch.zeros(5, 3, dtype=torch.int64)
    assert partition.features(single, 32, draws()).shape == (5, 1)


# -- Saved partitions ----------------------------------------------------------------------------------------

LINES = {"client": [0, 0, 1, 1], "part": ["train", "test", "train", "test"], "row": [4, 1, 0, 3]}
TINY = dataset(6)


def client_rows(**changes) -> ClientRows:
    parts = {"train": (np.array([5, 2]), np.array([0])), "test": (np.array([1]), np.array([4, 3]))}
    values: dict = {**parts, "groups": np.array([0, 1]), "shifts": (None, Noise(0.2))}
    return ClientRows(**(values | changes))


def write(path: Path, lines: dict, about: dict | None = None) -> Path:
    """Write a file as another tool would."""
    about = {"version": 1, "dataset": "tiny", "fingerprint": "abc"} | (about or {})
    pq.write_table(pa.table(lines).replace_schema_metadata({"fedclust": json.dumps(about)}), path)
    return path


@pytest.mark.parametrize("changes", [{}, {"groups": None}, {"seed": 7}, {"shifts": (Relabel((1, 0)),) * 2}])
def test_saved_is_loaded(tmp_path: Path, changes: dict) -> None:
    saved = client_rows(**changes)
    save_client_rows(saved, TINY, tmp_path / "folder" / "rows.parquet")
    loaded = load_client_rows(tmp_path / "folder" / "rows.parquet", TINY)
    assert (rows(loaded), loaded.shifts, loaded.seed) == (rows(saved), saved.shifts, saved.seed)
    np.testing.assert_array_equal(loaded.groups, saved.groups)


def test_the_file_is_as_described(tmp_path: Path) -> None:
    save_client_rows(client_rows(), TINY, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.to_pydict() == {
        "client": [0, 0, 0, 1, 1, 1],
        "part": ["train", "train", "test", "train", "test", "test"],
        "row": [5, 2, 1, 0, 4, 3],
        "group": [0, 0, 0, 1, 1, 1],
        "shift": [None, None, None, 0, 0, 0],
    }
    shift = {"kind": "noise", "std": 0.2}
    about = {"version": 1, "dataset": "tiny", "fingerprint": "abc", "shifts": [shift], "seed": None}
    assert json.loads(table.schema.metadata[b"fedclust"]) == about


def test_a_shift_below_0_is_none(tmp_path: Path) -> None:
    shifts = [{"kind": "noise", "std": 0.2}]
    path = write(tmp_path / "rows.parquet", LINES | {"shift": [-2] * len(LINES["row"])}, {"shifts": shifts})
    assert load_client_rows(path, TINY).shifts == (None, None)


def test_another_tool_needs_three_columns(tmp_path: Path) -> None:
    loaded = load_client_rows(write(tmp_path / "rows.parquet", LINES), TINY)
    assert (rows(loaded), loaded.groups, loaded.shifts) == ([[4], [0], [1], [3]], None, (None, None))
    pd.DataFrame(LINES).to_parquet(tmp_path / "rows.parquet")
    with pytest.warns(UserWarning, match="names no dataset; it is assumed to be tiny"):
        assert len(load_client_rows(tmp_path / "rows.parquet", TINY).train) == 2


@pytest.mark.parametrize(
    ("changes", "about", "message"),
    [
        ({}, {"fingerprint": "xyz"}, "must belong to tiny with fingerprint abc, got one of tiny .* xyz"),
        ({}, {"version": 2}, "version must be 1, got 2"),
        ({}, {"shifts": ["noise"]}, r"rows\.parquet: must be a mapping, got 'noise'"),
        ({}, {"seed": -1}, "seed must be a whole number >= 0 or None, got -1"),
        ({"row": [4, 1, 0, 6]}, {}, r"row must be in \[0, 6\), got 6"),
        ({"row": [4, 1, 0, -1]}, {}, r"row must be in \[0, 6\), got -1"),
        ({"row": [4, 1, 0, 4]}, {}, "a row must belong to one part of one client, row 4 has two"),
        ({"row": [4.0, 1.0, 0.0, 3.5]}, {}, "row must hold whole numbers, got 4 of type float64"),
        ({"client": [0, 0, 2, 2]}, {}, "every client 0 to 2 must have train rows, got none for client 1"),
        ({"client": [0, 0, -1, 1]}, {}, r"client must be in \[0, 4\), got -1"),
        ({"part": ["train"] * 3 + ["test"]}, {}, "0 to 1 must have test rows, got none for client 0"),
        ({"part": ["train", "test", "test", "valid"]}, {}, "part must be 'train' or 'test', got .*'valid'"),
        ({"group": [0, 1, 0, 0]}, {}, "group must be the same in all lines of a client, and given"),
        ({"group": [0, 0, None, None]}, {}, "group must be the same in all lines of a client, and given"),
        ({"group": ["a", "a", "b", "b"]}, {}, "group must hold whole numbers, got a, b"),
        ({"group": [0.5, 0.5, 0.7, 0.7]}, {}, "group must hold whole numbers, got 0.5, 0.7"),
        ({"shift": [0, 0, 1, 1]}, {}, r"shift must be in \[0, 1\), the list of shifts, got 1"),
        ({"shift": [0, None, None, None]}, {}, "shift must be the same in all lines of a client"),
    ],
)
def test_lines_that_contradict_themselves_are_refused(tmp_path, changes, about, message) -> None:
    about = {"shifts": [{"kind": "noise", "std": 0.1}], **about}
    with pytest.raises(ValueError, match=message):
        load_client_rows(write(tmp_path / "rows.parquet", LINES | changes, about), TINY)


def test_files_that_are_no_saved_partition_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    with pytest.raises(FileNotFoundError, match=r"there is no file .*rows\.parquet"):
        load_client_rows(path, TINY)
    path.write_text("client,row")
    with pytest.raises(ValueError, match=r"partition.file .*rows\.parquet: .* not a parquet file"):
        load_client_rows(path, TINY)
    pq.write_table(pa.table(LINES).replace_schema_metadata({"fedclust": "[1]"}), path)
    with pytest.raises(ValueError, match=r"rows\.parquet: must be a mapping, got \[1\]"):
        load_client_rows(path, TINY)
    pd.DataFrame({"client": [0]}).to_parquet(path)
    with pytest.raises(ValueError, match=r"must have columns client, part and row, got \['client'\]"):
        load_client_rows(path, TINY)
    kinds = {"client": pa.int64(), "part": pa.string(), "row": pa.int64()}
    write(path, {name: pa.array([], type=kind) for name, kind in kinds.items()})
    with pytest.raises(ValueError, match="row must hold whole numbers, got 0 of type int64"):
        load_client_rows(path, TINY)


# -- Rows to be tested on, and rows held out for the proof ---------------------------------------------------


def cells(clients: np.ndarray, labels: np.ndarray) -> list[list[int]]:
    """Count the rows of each class that each client holds."""
    shape = (int(clients.max()) + 1, int(labels.max()) + 1)
    counts = np.zeros(shape, dtype=int)
    np.add.at(counts, (clients[clients >= 0], labels[clients >= 0]), 1)
    return counts.tolist()


def test_holdout_breaks_ties_between_classes_at_random() -> None:
    # 7 and 3 rows, a quarter: 1.75 and 0.75, in all 2; one row is class 0's, the other is drawn.
    labels = np.repeat([0, 1], [7, 3])
    held_out = [partition.holdout(np.zeros(10, dtype=int), labels, 0.25, draws(seed)) for seed in range(20)]
    assert {tuple(np.bincount(labels[rows], minlength=2)) for rows in held_out} == {(2, 0), (1, 1)}
    # Rows are drawn, and those without a client skipped.
    clients, labels = np.array([0, 0, 0, -1]), np.zeros(4, dtype=int)
    found = {tuple(partition.holdout(clients, labels, 0.3, draws(seed)).tolist()) for seed in range(30)}
    assert found == {(True, False, False, False), (False, True, False, False), (False, False, True, False)}


OWNED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=60)


@given(OWNED, st.floats(0.01, 0.99), st.integers(0, 99))
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


@pytest.mark.parametrize(
    ("clients", "labels", "expected"),
    [
        # Of 4 training rows of class 0 client 0 holds 3, client 1 one; of 2 of class 1 client 1 holds both.
        ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1] + [0] * 8 + [1] * 5, [[6, 0], [2, 5]]),
        # The share of rows that nobody trains on is left out.
        ([0, -1, -1, -1], [0, 0, 1, 1] + [0] * 4 + [1] * 4, [[2, 0]]),
        # Client 0 is due 0.8 of class 0 and 0.2 of class 1, client 1 the reverse: 1 row of its main class.
        ([0] * 4 + [1] + [0] + [1] * 4, [0] * 5 + [1] * 5 + [0, 1], [[1, 0], [0, 1]]),
        # 20 + 4 + 1 training rows, 15 test rows: due 12, 2.4 and 0.6. Everyone is served, and no row is left.
        ([0] * 20 + [1] * 4 + [2], [0] * 40, [[12], [2], [1]]),
        # 41 + 1 training rows, 21 test rows: due 20.5 and 0.5, which np.round takes for 20 and 0.
        ([0] * 41 + [1], [0] * 63, [[20], [1]]),
    ],
)
def test_matched_by_hand(clients: list[int], labels: list[int], expected: list[list[int]]) -> None:
    tested = np.array(labels)[len(clients) :]
    for seed in range(5):
        found = partition.matched(np.array(clients), np.array(labels), draws(seed))
        assert cells(found, tested) == expected


def test_matched_rounds_so_that_totals_come_out() -> None:
    # Two clients, each with half of both classes; 3 and 1 test rows: 1.5 + 0.5 is due to each, 2 in all.
    # After one row of class 0 each, one row of each class is left, and each client gets one of them.
    labels = np.array([0, 0, 1, 1, 0, 0, 0, 1])
    found = partition.matched(np.array([0, 1, 0, 1]), labels, draws())
    assert sorted(cells(found, labels[4:])) == [[1, 1], [2, 0]]


def test_uniform_gives_everyone_the_same_mix_within_one_row() -> None:
    labels = np.array([0, 1, 0, 1, 2, 2])
    assert cells(partition.uniform(labels, 2, draws()), labels) == [[1, 1, 1], [1, 1, 1]]
    labels = draws().integers(0, 3, 50)
    counts = np.array(cells(partition.uniform(labels, 4, draws()), labels))
    assert sorted(counts.sum(axis=1)) == [12, 12, 13, 13]
    assert (np.ptp(counts, axis=0) <= 1).all()


def test_rules_refuse_what_they_cannot_give() -> None:
    with pytest.raises(ValueError, match="got 1 for 2 of 3 clients, the first is client 0"):
        partition.holdout(np.array([0, 1, 1, 2]), np.zeros(4, dtype=int), 0.2, draws())
    with pytest.raises(ValueError, match="which has 1, got none for 2 of 3 clients, the first is client"):
        partition.matched(np.array([0, 1, 2]), np.zeros(4, dtype=int), draws())
    with pytest.raises(ValueError, match="at most the 2 rows of the official test part, got 3"):
        partition.uniform(np.array([0, 1]), 3, draws())


SHARES = {"test_fraction": [0.0, 1.0], "validation_fraction": [-0.1, 1.0, True, "a tenth"]}


@pytest.mark.parametrize("setting", [{name: each} for name, bad in SHARES.items() for each in bad])
def test_a_share_must_be_one(setting: dict) -> None:
    with pytest.raises(ValueError, match=rf"partition\.{next(iter(setting))} must be in .*, 1\), got"):
        partition.Protocol(**setting)


@pytest.mark.parametrize(
    ("num_rows", "fraction", "held"),
    [
        (30, 0.1, 3),
        (26, 0.1, 3),  # round(2.6)
        (16, 0.1, 2),  # round(1.6)
        (14, 0.1, 1),  # round(1.4)
        (3, 0.1, 1),  # round(0.3) = 0, but a client with three rows holds one out
        (3, 0.9, 2),  # round(2.7) = 3, but one must be left to train on
        (2, 0.9, 0),
        (30, 0.0, 0),
    ],
)
def test_so_many_rows_are_held_out(num_rows: int, fraction: float, held: int) -> None:
    assert len(partition.hold_out_client(num_rows, fraction, 0, 0)) == held


def test_a_client_draws_by_itself() -> None:
    train = dict(enumerate([np.arange(40), np.arange(40, 90), np.arange(90, 130)]))
    together = partition.hold_out(train, 0.2, 3)[1]
    assert together[2].tolist() == (90 + partition.hold_out_client(40, 0.2, 3, 2)).tolist()
    assert (together[2] - 90).tolist() != together[0].tolist()  # the same number of rows, another draw
    assert together[0].tolist() != partition.hold_out(train, 0.2, 4)[1][0].tolist()


def test_a_person_of_several_clients_is_held_out_of_all_or_of_none() -> None:
    persons = np.array([0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9])
    train, held = partition.hold_out({7: np.arange(6), 8: np.arange(6, 12)}, 0.5, 3, persons)
    drawn = partition.hold_out_client(6, 0.5, 3, 7)  # of persons 0 to 5
    assert held[0].tolist() == drawn.tolist()
    # Of the second client's persons 4 and 5 are drawn already, 6 to 9 are new.
    new = [6 + each for each in partition.hold_out_client(4, 0.5, 3, 8)]
    assert {*persons[held[1]]} == {*new, *({4, 5} & {*drawn})}
    assert not {*persons[np.concatenate(train)]} & {*persons[np.concatenate(held)]}


def _load(tmp_path: Path, *overrides: str, **keys: object) -> data.FederatedData:
    config = composition.compose(["partition=domains", "partition.num_clients=6", *overrides])
    return data.load(
        composition.plain(config.dataset), {**composition.plain(config.partition), **keys}, 0, tmp_path
    )


def test_only_training_rows_are_held_out(tmp_path: Path) -> None:
    without, with_rows = _load(tmp_path, "strategy=fedavg"), _load(tmp_path, "strategy=auto")
    assert without.validation == ()
    assert without.fingerprint != with_rows.fingerprint
    for client in range(6):
        assert with_rows.test[client].tolist() == without.test[client].tolist()
        both = [*with_rows.train[client], *with_rows.validation[client]]
        assert sorted(both) == sorted(without.train[client].tolist())
        assert len(with_rows.validation[client]) == round(0.1 * len(without.train[client])) >= 2
    # What is particular to a client, such as noise, is drawn as if nothing were held out.
    assert torch.equal(with_rows.inputs, without.inputs)


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
