import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedclust.data import FederatedData, load, loading
from fedclust.data.dataset import Dataset
from fedclust.data.digits import Digits
from fedclust.data.loading import classes_in_data, save_partition
from fedclust.data.partition import ClientRows, save_client_rows
from fedclust.data.shifts import Invert, Noise, Relabel
from fedclust.data.source import SourceError
from fedclust.settings.composition import ConfigError, compose, plain
from fedclust.support.rng import generator

DIGITS: dict[str, Any] = {
    "_target_": "fedclust.data.digits.Digits",
    "name": "digits",
    "num_classes": 10,
    "input_shape": [1, 8, 8],
    "path": None,
    "hub": None,
}
IID: dict[str, Any] = {
    "_target_": "fedclust.data.partitioners.Iid",
    "num_clients": 4,
    "test": "holdout",
    "test_fraction": 0.2,
    "file": None,
    "seed": None,
}


def rows(data: FederatedData) -> list[list[int]]:
    return [part.tolist() for part in (*data.train, *data.test)]


def dealt(
    monkeypatch: pytest.MonkeyPatch, train: list[list[int]], test: list[list[int]], *shifts: Any
) -> None:
    def rows_of_clients(dataset: Dataset, partition: Any, seed: int) -> ClientRows:
        held = [tuple(np.array(rows) for rows in part) for part in (train, test)]
        return ClientRows(*held, None, shifts or (None,) * len(train))

    monkeypatch.setattr(loading, "rows_of_clients", rows_of_clients)


def fixed(monkeypatch: pytest.MonkeyPatch, *shifts: Any) -> None:
    """Let client k hold rows 10k … 10k + 2 for training and 10k + 3 for testing, shifted as given."""
    starts = [10 * client for client in range(len(shifts))]
    dealt(monkeypatch, [[a, a + 1, a + 2] for a in starts], [[a + 3] for a in starts], *shifts)


def test_a_federation_holds_every_row_once(tmp_path: Path) -> None:
    data = load(DIGITS, IID, seed=0, cache_dir=tmp_path)
    assert data.num_clients == 4
    assert sorted(row for part in rows(data) for row in part) == list(range(1797))
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert data.num_classes == 10
    assert data.groups is None
    assert data.label_counts().sum() + data.label_counts("test").sum() == 1797


def test_a_second_load_partitions_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(DIGITS, IID, seed=0, cache_dir=tmp_path)

    def rows_of_clients(*arguments: Any) -> ClientRows:
        raise AssertionError("partitioned a second time")

    monkeypatch.setattr(loading, "rows_of_clients", rows_of_clients)
    second = load(DIGITS, IID, seed=0, cache_dir=tmp_path)
    assert rows(first) == rows(second)
    assert first.fingerprint == second.fingerprint


def test_another_seed_or_partition_is_another_federation(tmp_path: Path) -> None:
    loaded = [
        load(DIGITS, IID, seed=0, cache_dir=tmp_path),
        load(DIGITS, IID, seed=1, cache_dir=tmp_path),
        load(DIGITS, IID | {"num_clients": 5}, seed=0, cache_dir=tmp_path),
    ]
    assert len({data.fingerprint for data in loaded}) == 3
    assert rows(loaded[0]) != rows(loaded[1])


def test_a_partitions_own_seed_goes_before_the_runs(tmp_path: Path) -> None:
    loaded = [load(DIGITS, IID | {"seed": 7}, seed=seed, cache_dir=tmp_path) for seed in (0, 1)]
    assert loaded[0].fingerprint == loaded[1].fingerprint
    assert loaded[0].fingerprint == load(DIGITS, IID, seed=7, cache_dir=tmp_path).fingerprint


def test_a_saved_partition_counts_by_its_content(tmp_path: Path) -> None:
    data = load(DIGITS, IID, seed=0, cache_dir=tmp_path)
    dataset = Digits(name="digits", num_classes=10, input_shape=[1, 8, 8]).load(tmp_path)
    for name, order in (("a", 1), ("b", 1), ("c", -1)):
        saved = ClientRows(data.train[::order], data.test[::order], None, (None,) * 4)
        save_client_rows(saved, dataset, tmp_path / f"{name}.parquet")
    loaded = [
        load(DIGITS, IID | {"file": str(tmp_path / f"{name}.parquet")}, seed=0, cache_dir=tmp_path)
        for name in "abc"
    ]
    assert rows(loaded[0]) == rows(data)
    assert loaded[0].fingerprint == loaded[1].fingerprint != loaded[2].fingerprint


def test_a_clients_other_convention_is_in_its_labels_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards = Relabel(tuple(range(9, -1, -1)))
    fixed(monkeypatch, None, backwards)
    data = load(DIGITS, IID, seed=0, cache_dir=tmp_path)
    original = Digits(name="digits", num_classes=10, input_shape=[1, 8, 8]).load(tmp_path)
    expected = original.labels.clone()
    expected[10:14] = 9 - expected[10:14]  # the rows of client 1, training and test
    torch.testing.assert_close(data.labels, expected)
    torch.testing.assert_close(data.inputs, original.inputs)
    (folder,) = (path for path in (tmp_path / "federations").iterdir() if path.is_dir())
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", "clients.npz", "labels.npy"]


def test_a_clients_corruption_is_in_its_inputs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed(monkeypatch, Invert(), None, Noise(0.3))
    data = load(DIGITS, IID, seed=5, cache_dir=tmp_path)
    original = Digits(name="digits", num_classes=10, input_shape=[1, 8, 8]).load(tmp_path)
    expected = original.inputs.clone()
    expected[:4] = 255 - expected[:4]
    noisy, _ = Noise(0.3).apply(expected[20:24], original.labels[20:24], generator(5, "shift", 2))
    expected[20:24] = noisy
    torch.testing.assert_close(data.inputs, expected)
    torch.testing.assert_close(data.labels, original.labels)
    assert not torch.equal(original.inputs[:4], data.inputs[:4])  # the dataset itself is as it was


def test_a_saved_partition_draws_the_same_noise_under_any_seed(tmp_path: Path) -> None:
    noisy = IID | {"_target_": "fedclust.data.partitioners.Domains", "clean": 0.5, "noise": 0.5, "blur": 0.0}
    path = tmp_path / "rows.parquet"
    save_partition(DIGITS, noisy, 3, path, tmp_path)
    original = load(DIGITS, noisy, seed=3, cache_dir=tmp_path)
    loaded = load(DIGITS, noisy | {"file": str(path)}, seed=9, cache_dir=tmp_path)
    assert rows(loaded) == rows(original)
    torch.testing.assert_close(loaded.inputs, original.inputs)
    assert not torch.equal(load(DIGITS, noisy, seed=9, cache_dir=tmp_path).inputs, original.inputs)


def table(folder: Path, columns: dict[str, list[Any]], width: int, **changes: Any) -> dict[str, Any]:
    pd.DataFrame(columns).to_parquet(folder / "data.parquet")
    return {
        "_target_": "fedclust.data.tables.Tables",
        "name": "tiny",
        "num_classes": 2,
        "input_shape": [width],
        "path": str(folder / "data.parquet"),
        **changes,
    }


JOBS = {
    "age": [1.0, 900.0, 5.0, None, 700.0],
    "job": ["cook", "tailor", "baker", "cook", "cook"],
    "label": [0, 1, 0, 1, 0],
}


def test_a_table_is_fitted_on_training_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt(monkeypatch, train=[[0], [2]], test=[[1], [3]])  # nobody holds row 4
    data = load(table(tmp_path, JOBS, 4), IID, seed=0, cache_dir=tmp_path / "cache")
    # Training ages 1 and 5: mean 3, standard deviation 2, so 900 is 448.5, 700 is 348.5, and a missing age is
    # the mean. Columns are age, baker, cook, tailor; nobody trains on a tailor.
    expected = [[-1, 0, 1, 0], [448.5, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [348.5, 0, 1, 0]]
    assert data.inputs.tolist() == expected
    indices = table(tmp_path, JOBS, 2, encoding="index", category_sizes=[4])
    data = load(indices, IID, seed=0, cache_dir=tmp_path / "cache")
    assert data.inputs[:, 1].tolist() == [2, 0, 1, 2, 2]


def test_a_tables_test_rows_are_not_used_for_fitting(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    columns = {"x": draws.normal(size=60).tolist(), "label": [0, 1] * 30}
    before = load(table(tmp_path, columns, 1), IID, seed=3, cache_dir=tmp_path / "cache")
    trained = np.concatenate(before.train)
    for row in np.concatenate(before.test).tolist():
        columns["x"][row] += 1000.0
    after = load(table(tmp_path, columns, 1), IID, seed=3, cache_dir=tmp_path / "cache")
    assert rows(after) == rows(before)
    assert before.fingerprint != after.fingerprint
    torch.testing.assert_close(after.inputs[trained], before.inputs[trained], rtol=0, atol=0)
    assert abs(float(after.inputs[trained].mean())) < 1e-6
    assert abs(float(after.inputs[trained].std(correction=0)) - 1) < 1e-6


def test_a_shift_starts_from_the_statistics_of_training_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealt(monkeypatch, [[0], [2]], [[1], [3]], None, Noise(0.5))
    data = load(table(tmp_path, JOBS, 4), IID, seed=5, cache_dir=tmp_path / "cache")
    own = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 0]])  # rows 2 and 3, as above
    noisy, _ = Noise(0.5).apply(own, data.labels[[2, 3]], generator(5, "shift", 1))
    torch.testing.assert_close(data.inputs[[2, 3]], noisy)
    assert data.inputs[[0, 1, 4]].tolist() == [[-1, 0, 1, 0], [448.5, 0, 0, 0], [348.5, 0, 1, 0]]


def test_a_vocabulary_is_made_from_training_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["b b c", "a a a a é", "c b", None, "a"]
    pd.DataFrame({"text": texts, "label": [0, 1, 0, 1, 0]}).to_parquet(tmp_path / "data.parquet")
    node = {
        "_target_": "fedclust.data.text.Text",
        "name": "tiny",
        "num_classes": 2,
        "input_shape": [4],
        "vocabulary_size": 10,
        "path": str(tmp_path / "data.parquet"),
    }
    dealt(monkeypatch, [[0], [2, 3]], [[1], [4]])
    data = load(node, IID, seed=0, cache_dir=tmp_path / "cache")
    # b 3 times, c twice; 1 is any other word
    assert data.inputs.tolist() == [[2, 2, 3, 0], [1, 1, 1, 1], [3, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_where_all_official_training_rows_are_trained_on_nothing_is_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, ages in (("train", [1.0, 3.0]), ("test", [5.0, 7.0])):
        pd.DataFrame({"age": ages, "label": [0, 1]}).to_parquet(tmp_path / f"{name}.parquet")
    node = table(tmp_path, {}, 1, path=str(tmp_path), exclude=["data.parquet"])
    dealt(monkeypatch, [[1], [0]], [[2], [3]])
    assert load(node, IID, seed=0, cache_dir=tmp_path / "cache").inputs.tolist() == [[-1], [1], [3], [5]]
    (folder,) = (path for path in (tmp_path / "cache" / "federations").iterdir() if path.is_dir())
    assert sorted(path.name for path in folder.iterdir()) == ["checksums.json", "clients.npz"]


def hospitals(tmp_path: Path, names: str) -> dict[str, Any]:
    frame = pd.DataFrame(
        {"x": range(len(names)), "label": ([0, 1] * len(names))[: len(names)], "hospital": list(names)}
    )
    frame.to_parquet(tmp_path / "data.parquet")
    return {
        "_target_": "fedclust.data.tables.Tables",
        "name": "hospitals",
        "num_classes": 2,
        "input_shape": [1],
        "path": str(tmp_path / "data.parquet"),
        "natural": "hospital",
        "class_names": ["well", "ill"],
    }


NATURAL = {"_target_": "fedclust.data.partitioners.Natural", "test": "holdout", "test_fraction": 0.5}


def test_clients_have_the_names_of_their_data(tmp_path: Path) -> None:
    table = hospitals(tmp_path, "bbbbaaaacd")
    for _ in ("prepared", "from the cache"):
        data = load(table, NATURAL, seed=0, cache_dir=tmp_path / "cache")
        assert data.client_names == ("a", "b")
        assert data.class_names == ("well", "ill")
        assert data.left_out == {"c": 1, "d": 1}


def test_a_saved_partition_keeps_the_names(tmp_path: Path) -> None:
    table, path = hospitals(tmp_path, "bbbbaaaac"), tmp_path / "saved.parquet"
    save_partition(table, NATURAL, 0, path, tmp_path / "cache")
    data = load(table, {"file": str(path)}, seed=0, cache_dir=tmp_path / "cache")
    assert data.client_names == ("a", "b")


def test_clients_of_several_hospitals_have_no_names(tmp_path: Path) -> None:
    mixed = load(hospitals(tmp_path, "abababab"), IID, seed=0, cache_dir=tmp_path / "cache")
    assert mixed.client_names is None
    assert mixed.left_out == {}
    # Two clients of one hospital each have its rows alone, but its name says not which is which.
    one = load(hospitals(tmp_path, "aaaaaaaa"), IID, seed=0, cache_dir=tmp_path / "cache")
    assert one.client_names is None
    assert load(DIGITS, IID, seed=0, cache_dir=tmp_path / "cache").client_names is None


def test_impossible_requests_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1797"):
        load(DIGITS, IID | {"num_clients": 5000}, seed=0, cache_dir=tmp_path)
    assert [path for path in (tmp_path / "federations").iterdir() if path.is_dir()] == []
    with pytest.raises(SourceError, match="comes with scikit-learn"):
        load(DIGITS | {"path": "somewhere"}, IID, seed=0, cache_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load(DIGITS, IID | {"file": str(tmp_path / "nowhere")}, seed=0, cache_dir=tmp_path)


def test_importing_the_package_is_quick() -> None:
    code = "import sys, fedclust.data; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {
        "datasets",
        "flwr",
        "flwr_datasets",
        "transformers",
        "sklearn",
        "pandas",
        "pyarrow",
        "PIL",
        "torch",
    }
    assert heavy & set(found.split()) == set()


def stars_node(path: Path, **changes: Any) -> dict[str, Any]:
    values = {"_target_": "fedclust.data.text.Text", "name": "tiny", "path": str(path), "input_shape": [4]}
    return {**values, "vocabulary_size": 9, "text": "text", "label": "stars", **changes}


def write_stars(folder: Path, stars: list[Any], name: str = "train.csv") -> Path:
    rows = [f"word,{value}" for value in stars]
    (folder / name).write_text("\n".join(["text,stars", *rows, ""]))
    return folder


def test_different_labels_of_the_training_part_are_counted(tmp_path: Path) -> None:
    write_stars(write_stars(tmp_path, [1, 5, 3, 1]), [4], "test.csv")
    assert classes_in_data(stars_node(tmp_path)) == 3
    assert classes_in_data(stars_node(tmp_path, drop_labels=[3])) == 2


def test_a_file_that_has_changed_is_counted_anew(tmp_path: Path) -> None:
    write_stars(tmp_path, ["a", "b"])
    assert classes_in_data(stars_node(tmp_path)) == 2
    write_stars(tmp_path, ["a", "b", "c"])
    os.utime(tmp_path / "train.csv", ns=(1, 1))
    assert classes_in_data(stars_node(tmp_path)) == 3


def test_what_cannot_be_counted(tmp_path: Path) -> None:
    write_stars(tmp_path, ["a", "a"])
    with pytest.raises(SourceError, match="stars must hold at least 2 different labels, got 1"):
        classes_in_data(stars_node(tmp_path))
    with pytest.raises(SourceError, match=r"label must be a column .* got star; .*train\.csv\)"):
        classes_in_data(stars_node(tmp_path, label="star"))
    digits = {"_target_": "fedclust.data.digits.Digits", "name": "digits", "input_shape": [1, 8, 8]}
    with pytest.raises(SourceError, match=r"dataset digits: dataset\.num_classes must be given"):
        classes_in_data(digits)


def test_a_configuration_of_texts_needs_the_path_and_the_columns_only(tmp_path: Path) -> None:
    write_stars(tmp_path, [1, 5, 3, 1])
    config = compose(
        ["dataset=text", f"dataset.path={tmp_path}", "dataset.label=stars", "model=embedding_dense"]
    )
    assert plain(config)["dataset"]["num_classes"] == 3
    assert plain(config.model)["num_classes"] == 3
    assert (
        plain(compose(["dataset=text", f"dataset.path={tmp_path}", "dataset.num_classes=7"]))["dataset"][
            "num_classes"
        ]
        == 7
    )


def test_errors_in_the_data_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^dataset text: has no source; give dataset.path="):
        plain(compose(["dataset=text"]))
    missing = tmp_path / "nowhere.csv"
    with pytest.raises(ConfigError, match="^dataset text: there is no file or folder .*nowhere.csv; "):
        plain(compose(["dataset=text", f"dataset.path={missing}"]))
