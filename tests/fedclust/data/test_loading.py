import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedclust.data import FederatedData, load, loading
from fedclust.data.dataset import Dataset
from fedclust.data.loading import make_builder, save_partition, sizes_in_data
from fedclust.data.partition import ClientRows, save_client_rows
from fedclust.data.shifts import Invert, Noise, Opposite, Relabel
from fedclust.data.source import SourceError
from fedclust.data.targets import KINDS, Amounts, to_text
from fedclust.settings.composition import ConfigError, compose, plain
from fedclust.support.rng import generator

DIGITS = {"_target_": "fedclust.data.digits.Digits", "name": "digits"}
DIGITS |= {"num_classes": 10, "input_shape": [1, 8, 8]}
IID = {"_target_": "fedclust.data.partitioners.Iid", "num_clients": 4, "file": None, "seed": None}
NATURAL = {"_target_": "fedclust.data.partitioners.Natural", "test": "holdout", "test_fraction": 0.5}

Load = Callable[..., FederatedData]


@pytest.fixture
def loaded(tmp_path: Path) -> Load:
    """Load data, digits unless said otherwise, with a partition's settings, through the test's cache."""

    def made(dataset: dict = DIGITS, seed: int = 0, **partition) -> FederatedData:
        return load(dataset, IID | partition, seed, tmp_path / "cache")

    return made


def written(tmp_path: Path) -> list[str]:
    (folder,) = (path for path in (tmp_path / "cache" / "federations").iterdir() if path.is_dir())
    return sorted(path.name for path in folder.iterdir())


def rows(data: FederatedData) -> list[list[int]]:
    return [part.tolist() for part in (*data.train, *data.test)]


def dealt(monkeypatch: pytest.MonkeyPatch, train: list[list[int]], test: list[list[int]], *shifts) -> None:
    def rows_of_clients(dataset: Dataset, partition, seed: int) -> ClientRows:
        held = [tuple(np.array(rows) for rows in part) for part in (train, test)]
        return ClientRows(*held, None, shifts or (None,) * len(train))

    monkeypatch.setattr(loading, "rows_of_clients", rows_of_clients)


def fixed(monkeypatch: pytest.MonkeyPatch, *shifts) -> None:
    """Let client k hold rows 10k … 10k + 2 for training and 10k + 3 for testing, shifted as given."""
    starts = [10 * client for client in range(len(shifts))]
    dealt(monkeypatch, [[a, a + 1, a + 2] for a in starts], [[a + 3] for a in starts], *shifts)


def test_a_federation_holds_every_row_once_and_is_kept(loaded: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    data = loaded()
    assert sorted(row for part in rows(data) for row in part) == list(range(1797))
    assert (data.num_clients, data.num_classes, data.groups) == (4, 10, None)
    assert data.inputs.shape == (1797, 1, 8, 8)
    assert data.label_counts().sum() + data.label_counts("test").sum() == 1797

    def rows_of_clients(*arguments) -> ClientRows:
        raise AssertionError("partitioned a second time")

    monkeypatch.setattr(loading, "rows_of_clients", rows_of_clients)
    again = loaded()
    assert (rows(again), again.fingerprint) == (rows(data), data.fingerprint)


def test_another_seed_or_partition_is_another_federation(loaded: Load) -> None:
    found = [loaded(), loaded(seed=1), loaded(num_clients=5)]
    assert len({data.fingerprint for data in found}) == 3
    assert rows(found[0]) != rows(found[1])


def test_a_partitions_own_seed_goes_before_the_runs(tmp_path: Path, loaded: Load) -> None:
    own = [load(DIGITS, IID | {"seed": 7}, seed, tmp_path / "cache").fingerprint for seed in (0, 1)]
    assert own == [loaded(seed=7).fingerprint] * 2


def test_a_saved_partition_counts_by_its_content(tmp_path: Path, loaded: Load) -> None:
    data, dataset = loaded(), make_builder(DIGITS).load(tmp_path / "cache")
    for name, order in (("a", 1), ("b", 1), ("c", -1)):
        saved = ClientRows(data.train[::order], data.test[::order], None, (None,) * 4)
        save_client_rows(saved, dataset, tmp_path / f"{name}.parquet")
    found = [loaded(file=str(tmp_path / f"{name}.parquet")) for name in "abc"]
    assert rows(found[0]) == rows(data)
    assert found[0].fingerprint == found[1].fingerprint != found[2].fingerprint


def test_shifts_are_in_labels_or_inputs_alone(tmp_path, loaded: Load, monkeypatch) -> None:
    original = make_builder(DIGITS).load(tmp_path)
    fixed(monkeypatch, None, Relabel(tuple(range(9, -1, -1))))
    renamed = loaded()
    assert written(tmp_path) == ["checksums.json", "clients.npz", "labels.npy"]
    expected = original.labels.clone()
    expected[10:14] = 9 - expected[10:14]  # the rows of client 1, training and test
    torch.testing.assert_close(renamed.labels, expected)
    torch.testing.assert_close(renamed.inputs, original.inputs)
    fixed(monkeypatch, Invert(), None, Noise(0.3))
    corrupted = loaded(seed=5)
    expected = original.inputs.clone()
    expected[:4] = 255 - expected[:4]
    noisy, _ = Noise(0.3).apply(expected[20:24], original.labels[20:24], generator(5, "shift", 2))
    expected[20:24] = noisy
    torch.testing.assert_close(corrupted.inputs, expected)
    torch.testing.assert_close(corrupted.labels, original.labels)
    assert not torch.equal(original.inputs[:4], corrupted.inputs[:4])  # the dataset itself is as it was


def test_a_saved_partition_draws_the_same_noise_under_any_seed(tmp_path: Path, loaded: Load) -> None:
    noisy = {"_target_": "fedclust.data.partitioners.Domains", "clean": 0.5, "noise": 0.5}
    path = tmp_path / "rows.parquet"
    save_partition(DIGITS, IID | noisy, 3, path, tmp_path / "cache")
    original, other = loaded(seed=3, **noisy), loaded(seed=9, **noisy)
    saved = loaded(seed=9, **noisy, file=str(path))
    assert rows(saved) == rows(original)
    torch.testing.assert_close(saved.inputs, original.inputs)
    assert not torch.equal(other.inputs, original.inputs)


def table(folder: Path, columns: dict[str, list], width: int, **changes) -> dict:
    pd.DataFrame(columns).to_parquet(folder / "data.parquet")
    node = {"_target_": "fedclust.data.tables.Tables", "name": "tiny", "num_classes": 2}
    return {**node, "input_shape": [width], "path": str(folder / "data.parquet"), **changes}


JOBS = {"age": [1.0, 900.0, 5.0, None, 700.0], "job": ["cook", "tailor", "baker", "cook", "cook"]}
JOBS["label"] = [0, 1, 0, 1, 0]


def test_a_table_is_fitted_on_training_rows_only(tmp_path, loaded: Load, monkeypatch) -> None:
    dealt(monkeypatch, [[0], [2]], [[1], [3]])  # nobody holds row 4
    # Training ages 1 and 5: mean 3, standard deviation 2, so 900 is 448.5, 700 is 348.5, and a missing age is
    # the mean. Columns are age, baker, cook, tailor; nobody trains on a tailor.
    expected = [[-1, 0, 1, 0], [448.5, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [348.5, 0, 1, 0]]
    assert loaded(table(tmp_path, JOBS, 4)).inputs.tolist() == expected
    indices = table(tmp_path, JOBS, 2, encoding="index", category_sizes=[4])
    assert loaded(indices).inputs[:, 1].tolist() == [2, 0, 1, 2, 2]
    # A shift starts from these.
    dealt(monkeypatch, [[0], [2]], [[1], [3]], None, Noise(0.5))
    data = loaded(table(tmp_path, JOBS, 4), seed=5)
    own = torch.tensor(expected, dtype=torch.float32)[[2, 3]]
    noisy, _ = Noise(0.5).apply(own, data.labels[[2, 3]], generator(5, "shift", 1))
    torch.testing.assert_close(data.inputs[[2, 3]], noisy)
    assert data.inputs[[0, 1, 4]].tolist() == [expected[row] for row in (0, 1, 4)]


def test_amounts_are_agreed_on_the_rows_that_clients_train_on(tmp_path, loaded: Load, monkeypatch) -> None:
    stay = {"age": [1.0] * 24, "label": [float(k) for k in range(22)] + [1000.0, 2000.0]}
    node = table(tmp_path, stay, 1, target="amounts", unit="days", error="absolute")
    # Rows 0 to 10 train; 22 and 23, which nobody trains on, would move every tenth.
    dealt(monkeypatch, [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]], [[11], [12, 22]])
    data = loaded(node)
    assert data.target == Amounts(1.0, 9.0, tuple(map(float, range(1, 10))), unit="days", error="absolute")
    assert data.values.tolist() == stay["label"]
    assert data.labels[:13].tolist() == [*range(10), 9, 9, 9]
    assert (data.num_classes, data.num_outputs, len(data.class_names)) == (10, 1, 10)
    assert data.label_counts().sum(axis=0).tolist() == [1] * 9 + [2]
    # The second client's are mirrored at the middle of all rows' tenths, 2.3 and 20.7: y becomes 23 − y.
    opposite = Opposite(to_text(make_builder(node).load(tmp_path / "cache").target))
    dealt(monkeypatch, [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9]], [[11], [12, 22]], None, opposite)
    turned = loaded(node, seed=1)
    assert turned.values[[0, 2, 11, 22]].tolist() == [0, 2, 11, -977]
    assert turned.values[[1, 3, 5, 7, 9]].tolist() == pytest.approx([22, 20, 18, 16, 14], abs=1e-5)
    # Training amounts 0, 2, 4, 6, 8, 10, 14, 16, 18, 20, 22: tenths 2 to 20.
    assert (turned.target.low, turned.target.high) == (2.0, pytest.approx(20.0))
    assert turned.labels.tolist() == turned.target.bins(turned.values.numpy()).tolist()


def test_times_that_no_client_trains_on_with_an_event(tmp_path: Path, loaded: Load, monkeypatch) -> None:
    rows = {"age": [1.0, 2.0, 3.0, 4.0], "label": [5.0, 6.0, 7.0, 8.0], "died": [0, 0, 1, 1]}
    dealt(monkeypatch, [[0, 1]], [[2, 3]])
    rule = "dataset.label of the 2 training rows: events must happen to some rows, all 2 are censored"
    with pytest.raises(SourceError, match=f"^{rule}$"):
        loaded(table(tmp_path, rows, 1, event="died"))


def test_an_impossible_partition_is_told_as_a_setting(loaded: Load) -> None:
    with pytest.raises(SourceError, match=r"^partition.test must be one of .*, got 'official'$"):
        loaded(test="official")


@pytest.mark.parametrize(
    "partition",
    [
        {"_target_": "fedclust.data.partitioners.Dirichlet", "num_clients": 4, "alpha": 0.3},
        {"_target_": "fedclust.data.partitioners.QuantitySkew", "num_clients": 4, "alpha": 0.5},
        {"_target_": "fedclust.data.partitioners.Conventions", "num_clients": 4, "groups": [2, 2]},
        {"_target_": "fedclust.data.partitioners.Domains", "num_clients": 4, "clean": 0.5, "noise": 0.5},
        {**NATURAL},
    ],
)
@pytest.mark.parametrize("kind", ["amounts", "times"])
def test_partitions_of_amounts_and_times(tmp_path: Path, partition: dict, kind: str) -> None:
    draws = np.random.default_rng(3)
    rows = {"x": draws.normal(size=400), "label": 1 + draws.exponential(50, 400), "died": [0, 1] * 200}
    rows["at"] = list("abcd") * 100
    about = {"event": "died"} if kind == "times" else {"target": "amounts", "ignore": ["died"]}
    node = table(tmp_path, {name: list(each) for name, each in rows.items()}, 1, natural="at", **about)
    data = load(node, {**partition, "test": "holdout", "test_fraction": 0.25}, 0, tmp_path / "cache")
    assert data.num_clients == 4
    held = np.concatenate([*data.train, *data.test])
    assert len(set(held.tolist())) == len(held)
    trained = np.concatenate(data.train)
    assert data.target == KINDS[kind].agreed(data.values[np.sort(trained)].double().numpy())
    assert data.labels.tolist() == data.target.bins(data.values.numpy()).tolist()
    before = torch.tensor(rows["label"], dtype=torch.float32)
    after = data.values if kind == "amounts" else data.values[:, 0]
    turned = [not torch.equal(after[rows], before[rows]) for rows in data.train]
    is_turned = partition["_target_"].endswith("Conventions")
    assert turned == (data.groups == 1).tolist() if is_turned else not any(turned)


def text_node(path: Path, **changes) -> dict:
    values = {"_target_": "fedclust.data.text.Text", "name": "tiny", "path": str(path), "input_shape": [4]}
    return {**values, "vocabulary_size": 10, **changes}


def test_a_vocabulary_is_made_from_training_rows_only(tmp_path, loaded: Load, monkeypatch) -> None:
    texts = ["b b c", "a a a a é", "c b", None, "a"]
    pd.DataFrame({"text": texts, "label": [0, 1, 0, 1, 0]}).to_parquet(tmp_path / "data.parquet")
    dealt(monkeypatch, [[0], [2, 3]], [[1], [4]])
    data = loaded(text_node(tmp_path / "data.parquet", num_classes=2))
    # b 3 times, c twice; 1 is any other word
    assert data.inputs.tolist() == [[2, 2, 3, 0], [1, 1, 1, 1], [3, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_where_all_official_training_rows_are_trained_on_nothing_is_written_twice(
    tmp_path: Path, loaded: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, ages in (("train", [1.0, 3.0]), ("test", [5.0, 7.0])):
        pd.DataFrame({"age": ages, "label": [0, 1]}).to_parquet(tmp_path / f"{name}.parquet")
    dealt(monkeypatch, [[1], [0]], [[2], [3]])
    node = table(tmp_path, {}, 1, path=str(tmp_path), exclude=["data.parquet"])
    assert loaded(node).inputs.tolist() == [[-1], [1], [3], [5]]
    assert written(tmp_path) == ["checksums.json", "clients.npz"]


def hospitals(tmp_path: Path, names: Sequence[str | None]) -> dict:
    labels = ([0, 1] * len(names))[: len(names)]
    columns = {"x": list(range(len(names))), "label": labels, "hospital": list(names)}
    return table(tmp_path, columns, 1, natural="hospital", class_names=["well", "ill"])


def test_clients_have_the_names_of_their_data(tmp_path: Path, loaded: Load) -> None:
    node, path = hospitals(tmp_path, "bbbbaaaacd"), tmp_path / "saved.parquet"
    for _ in ("prepared", "from the cache"):
        data = load(node, NATURAL, seed=0, cache_dir=tmp_path / "cache")
        assert (data.client_names, data.class_names) == (("a", "b"), ("well", "ill"))
        assert data.left_out == {"c": 1, "d": 1}
    save_partition(node, NATURAL, 0, path, tmp_path / "cache")
    assert loaded(node, file=str(path)).client_names == ("a", "b")
    gaps = hospitals(tmp_path, [*"bbbbaaaacd", None, None, None])
    assert load(gaps, NATURAL, seed=0, cache_dir=tmp_path / "cache").left_out == {"": 3, "c": 1, "d": 1}


def test_clients_of_several_hospitals_have_no_names(tmp_path: Path, loaded: Load) -> None:
    mixed = loaded(hospitals(tmp_path, "abababab"))
    assert (mixed.client_names, mixed.left_out) == (None, {})
    # Two clients of one hospital each have its rows alone, but its name says not which is which.
    assert loaded(hospitals(tmp_path, "aaaaaaaa")).client_names is None
    assert loaded().client_names is None


def write_stars(folder: Path, stars: list, name: str = "train.csv") -> dict:
    (folder / name).write_text("\n".join(["text,stars", *(f"word,{value}" for value in stars), ""]))
    return text_node(folder, label="stars")


def test_different_labels_of_the_training_part_are_counted(tmp_path: Path) -> None:
    write_stars(tmp_path, [4], "test.csv")
    node = write_stars(tmp_path, [1, 5, 3, 1])
    assert sizes_in_data(node) == {"num_classes": 3}
    assert sizes_in_data({**node, "drop_labels": [3]}) == {"num_classes": 2}
    write_stars(tmp_path, ["a", "b", "c", "d"])  # a file that has changed is counted anew
    os.utime(tmp_path / "train.csv", ns=(1, 1))
    assert sizes_in_data(node) == {"num_classes": 4}


def test_what_cannot_be_counted(tmp_path: Path) -> None:
    node = write_stars(tmp_path, ["a", "a"])
    with pytest.raises(SourceError, match="stars must hold at least 2 different labels, got 1"):
        sizes_in_data(node)
    with pytest.raises(SourceError, match=r"label must be a column .* got star; .*train\.csv\)"):
        sizes_in_data({**node, "label": "star"})
    with pytest.raises(SourceError, match=r"dataset digits: dataset\.num_classes must be given"):
        sizes_in_data(DIGITS)


def test_a_configuration_of_texts_needs_the_path_and_the_columns_only(tmp_path: Path) -> None:
    write_stars(tmp_path, [1, 5, 3, 1])
    choices = ["dataset=text", f"dataset.path={tmp_path}", "dataset.label=stars"]
    config = compose([*choices, "model=embedding_dense"])
    assert plain(config)["dataset"]["num_classes"] == plain(config.model)["num_classes"] == 3
    assert plain(compose([*choices, "dataset.num_classes=7"]))["dataset"]["num_classes"] == 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "^dataset text: has no source; give dataset.path="),
        (["dataset.path=nowhere.csv"], "^dataset text: .*nowhere.csv must be a file or folder that exists; "),
    ],
)
def test_errors_in_the_data_are_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plain(compose(["dataset=text", *overrides]))
