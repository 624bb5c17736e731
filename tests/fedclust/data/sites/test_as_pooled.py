"""What sites agree on is what would have been fitted on their pooled rows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedclust import data
from fedclust.data import FederatedData
from fedclust.data.input_encoders import ImageEncoder, encoder_from, to_values
from fedclust.data.loading import make_builder
from fedclust.data.partition import ClientRows, save_client_rows
from fedclust.data.sites import OwnSitesPartition, SiteError
from fedclust.data.sites.agreement import Agreement, agree
from fedclust.data.sites.rows import (
    SiteRows,
    builder_of,
    describe,
    federated,
    prepare_site,
    read_site,
    wanted_of,
)
from fedclust.data.targets import to_values as target_values

TABLES = "fedclust.data.tables.Tables"


@dataclass(frozen=True)
class Shared:
    """Sites that have agreed, as one node's data."""

    agreement: Agreement
    rows: dict[str, SiteRows]
    data: FederatedData


def _agreed(dataset: Mapping, paths: Mapping[str, Path], own: OwnSitesPartition | None = None) -> Shared:
    settings = own or OwnSitesPartition()
    rows = {site: read_site(site, builder_of(dataset, path), settings, 0) for site, path in paths.items()}
    wanted = wanted_of(builder_of(dataset, Path()), None, None)
    outcome = agree({site: describe(each) for site, each in rows.items()}, wanted)
    assert not outcome.refused
    folders = [prepare_site(each, outcome.agreement, "t", []) for each in rows.values()]
    names = sorted(client for each in rows.values() for client in each.clients)
    ids = {name: client for client, name in enumerate(names)}
    found = federated(folders, outcome.agreement, ids, len(ids), {"name": "t", **dataset})
    return Shared(outcome.agreement, rows, found)


def _pooled(shared: Shared, dataset: dict, tmp_path: Path) -> FederatedData:
    """Load the pooled data, each client with the very rows that it has at its site."""
    agreed = shared.agreement.settings()
    node = {**{key.removeprefix("dataset."): value for key, value in agreed.items()}, **dataset}
    parts: dict[str, list] = {"train": [], "test": []}
    start = 0
    for site in shared.rows.values():
        for part, held in parts.items():
            held += [rows + start for rows in getattr(site, part)]
        start += len(site.labels)
    held = ClientRows(*map(tuple, parts.values()), None, (None,) * len(parts["train"]))
    save_client_rows(held, make_builder(node).load(), tmp_path / "rows.parquet")
    return data.load(node, {"file": str(tmp_path / "rows.parquet")}, 0)


def _assert_same(shared: Shared, pooled: FederatedData) -> None:
    assert shared.data.class_names == pooled.class_names
    assert shared.data.num_clients == pooled.num_clients
    np.testing.assert_allclose(shared.data.mean, pooled.mean, rtol=1e-12)
    np.testing.assert_allclose(shared.data.std, pooled.std, rtol=1e-12)
    for part in ("train", "test"):
        for here, there in zip(getattr(shared.data, part), getattr(pooled, part), strict=True):
            np.testing.assert_array_equal(shared.data.labels[here], pooled.labels[there])
            np.testing.assert_allclose(shared.data.inputs[here], pooled.inputs[there], rtol=1e-6, atol=1e-6)


def _assert_encodes_new_rows(shared: Shared, pooled: FederatedData, rows) -> None:
    """Rows as a site would send them are encoded as its own were, and as the pooled data's encoder does."""
    kept = shared.data.input_encoder()
    assert type(kept) is type(pooled.input_encoder())
    for each in (shared.data, pooled):  # in the order of the sites' files, to the bit
        np.testing.assert_array_equal(each.input_encoder().encode(rows), each.inputs.numpy())
    # A row alone, whose columns pandas may read as other types, is encoded alike.
    alone = rows.iloc[[7]].convert_dtypes(dtype_backend="numpy_nullable").astype(object)
    alone = pd.DataFrame(alone.to_dict("records"))
    np.testing.assert_array_equal(kept.encode(alone), shared.data.inputs[7:8].numpy())
    assert encoder_from(json.loads(json.dumps(to_values(kept)))) == kept


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))


def _csv(path: Path, columns: list[str], rows: list[dict]) -> Path:
    lines = [",".join(columns), *(",".join(str(row[name]) for name in columns) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _patients(size: int, seed: int, stages: list[str], first: str) -> list[dict]:
    """Make rows with missing values; the label `first` comes first."""
    draws = np.random.default_rng(seed)
    labels = [first, *draws.choice(["benign", "malignant"], size - 1)]
    return [
        {
            "age": "" if draws.random() < 0.1 else round(float(draws.normal(50 + seed, 10)), 1),
            "weight": round(float(draws.normal(1e6, 3)), 2),  # squares of which cancel
            "scar": "yes",  # constant
            "stage": "" if draws.random() < 0.1 else str(draws.choice(stages)),
            "empty": "",
            "diagnosis": label,
        }
        for label in labels
    ]


@pytest.fixture
def tables(tmp_path: Path) -> tuple[dict[str, Path], Path]:
    """Three sites: another order of columns, a category that others lack, another first class."""
    columns = ["age", "weight", "scar", "stage", "empty", "diagnosis"]
    sites = {
        "east": (columns, _patients(30, 1, ["I", "II"], "malignant")),
        "north": (columns[::-1], _patients(25, 2, ["II", "III"], "benign")),
        "south": (columns, _patients(41, 3, ["I", "IV"], "malignant")),
    }
    paths = {site: _csv(tmp_path / f"{site}.csv", *each) for site, each in sites.items()}
    return paths, _csv(tmp_path / "pooled.csv", columns, [row for _, rows in sites.values() for row in rows])


@pytest.mark.parametrize("encoding", ["onehot", "index"])
def test_tables_are_encoded_as_pooled(tables: tuple[dict[str, Path], Path], tmp_path, encoding: str) -> None:
    paths, pooled = tables
    dataset = {"_target_": TABLES, "name": "t", "label": "diagnosis", "encoding": encoding}
    shared = _agreed(dataset, paths)
    # 2 numbers and the empty column; "yes"; four stages and none: 3 + 1 + 5, or 3 + 2 by index.
    assert shared.agreement.input_shape == ((9,) if encoding == "onehot" else (5,))
    if encoding == "index":
        dataset["category_sizes"] = shared.agreement.settings()["dataset.category_sizes"]
        assert dataset["category_sizes"] == [2, 6]
    from_pool = _pooled(shared, {**dataset, "path": str(pooled)}, tmp_path)
    _assert_same(shared, from_pool)
    _assert_encodes_new_rows(shared, from_pool, pd.read_csv(pooled))
    rows = pd.read_csv(pooled).assign(stage="V", age=np.nan)  # a stage that nobody has, and no ages
    encoded = shared.data.input_encoder().encode(rows)
    assert not encoded[:, -1 if encoding == "index" else slice(-5, None)].any()
    assert not encoded[:, 0].any()  # the mean, scaled


@pytest.mark.parametrize(
    "predicted",
    [
        {"label": "age", "target": "amounts", "unit": "years", "error": "huber", "ignore": ["died"]},
        {"label": "age", "event": "died"},
    ],
    ids=["amounts", "times"],
)
def test_amounts_and_times_are_agreed_on_as_pooled(tmp_path: Path, predicted: dict) -> None:
    paths, everything = {}, []
    for number, (site, size) in enumerate({"east": 60, "north": 45, "south": 80}.items()):
        rows = _patients(size, number, ["I", "II"], "benign")
        for place, row in enumerate(rows):
            row |= {"age": round(20 + number * 5 + (place * 37 % size) * 0.7, 1), "died": place * 7 % 3 % 2}
        everything += rows
        paths[site] = _csv(tmp_path / f"{site}.csv", list(rows[0]), rows)
    pooled = _csv(tmp_path / "pooled.csv", list(everything[0]), everything)
    dataset = {"_target_": TABLES, "name": "t", **predicted}
    shared = _agreed(dataset, paths)
    loaded = _pooled(shared, {**dataset, "path": str(pooled)}, tmp_path)
    _assert_same(shared, loaded)
    assert target_values(shared.data.target) == target_values(loaded.target)  # blocks of one row
    assert shared.data.target.unit == predicted.get("unit", "")
    assert getattr(shared.data.target, "error", None) == predicted.get("error")
    for here, there in zip(shared.data.train, loaded.train, strict=True):
        np.testing.assert_array_equal(shared.data.values[here], loaded.values[there])


def test_clients_of_a_natural_column_are_encoded_as_pooled(tmp_path: Path) -> None:
    sites = {}
    everything = []
    for number, site in enumerate(("a", "b")):
        patients = enumerate(_patients(24, number, ["I"], "benign"))
        rows = [{**row, "ward": f"{site}/w{k % 2}"} for k, row in patients]
        everything += rows
        own = [{**row, "ward": row["ward"][2:]} for row in rows]
        sites[site] = _csv(tmp_path / f"{site}.csv", list(own[0]), own)
    pooled = _csv(tmp_path / "pooled.csv", list(everything[0]), everything)
    dataset = {"_target_": TABLES, "name": "t", "label": "diagnosis", "natural": "ward"}
    shared = _agreed(dataset, sites)
    assert shared.data.client_names == ("a/w0", "a/w1", "b/w0", "b/w1")
    loaded = _pooled(shared, {**dataset, "path": str(pooled)}, tmp_path)
    assert loaded.client_names == shared.data.client_names
    _assert_same(shared, loaded)


def test_images_are_normalised_as_pooled(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for site, classes in (("a", ("cat", "dog")), ("b", ("emu", "cat"))):
        for k in range(8):
            pixels = draws.integers(0, 256 if site == "a" else 90, (4, 5, 3), dtype=np.uint8)
            folder = tmp_path / site / classes[k % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{k}.png")
    dataset = {"_target_": "fedclust.data.images.Images", "name": "t", "input_shape": [3, 4, 5]}
    shared = _agreed(dataset, {site: tmp_path / site for site in "ab"})
    assert shared.agreement.class_names == ("cat", "dog", "emu")
    every = np.asarray(shared.data.inputs, dtype=np.float64) / 255
    np.testing.assert_allclose(shared.data.mean, every.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(shared.data.std, every.std(axis=(0, 2, 3)), rtol=1e-12)
    files = sorted((tmp_path / "b").rglob("*.png"))
    assert shared.data.input_encoder() == ImageEncoder((3, 4, 5), "none", shared.data.mean, shared.data.std)
    np.testing.assert_array_equal(
        np.sort(shared.data.input_encoder().encode(files), axis=0), np.sort(shared.data.inputs[8:], axis=0)
    )


def test_texts_get_the_pooled_vocabulary(tmp_path: Path) -> None:
    words = [f"word{k}" for k in range(30)] + ["Don't", "ÄRGER", "x-ray", "5%"]
    draws = np.random.default_rng(0)

    def texts(size: int, low: int, high: int) -> list[dict]:
        drawn = (" ".join(draws.choice(words[low:high], 6)) for _ in range(size))
        return [{"text": text, "label": ("bad", "good")[k % 2]} for k, text in enumerate(drawn)]

    rows = {"a": texts(20, 0, 20), "b": texts(30, 10, 34)}
    sites = {site: _csv(tmp_path / f"{site}.csv", ["text", "label"], each) for site, each in rows.items()}
    pooled = _csv(tmp_path / "pooled.csv", ["text", "label"], rows["a"] + rows["b"])
    dataset = {"_target_": "fedclust.data.text.Text", "name": "t", "input_shape": [8]}
    dataset["vocabulary_size"] = 20  # of more words: ties at the end must be broken alike
    shared = _agreed(dataset, sites)
    assert len(shared.agreement.words) == 18
    from_pool = _pooled(shared, {**dataset, "path": str(pooled)}, tmp_path)
    _assert_same(shared, from_pool)
    _assert_encodes_new_rows(shared, from_pool, pd.read_csv(pooled))
    with pytest.raises(ValueError, match="rows must have a column text; columns are words"):
        shared.data.input_encoder().encode(pd.DataFrame({"words": ["a"]}))


def test_parts_of_a_site_do_not_depend_on_others(tables: tuple[dict[str, Path], Path]) -> None:
    paths, _ = tables
    dataset = {"_target_": TABLES, "name": "t", "label": "diagnosis"}
    alone = _agreed(dataset, {"south": paths["south"]}, OwnSitesPartition(validation_fraction=0.2))
    among = _agreed(dataset, paths, OwnSitesPartition(validation_fraction=0.2))
    for part in ("train", "test", "validation"):
        (here,) = getattr(alone.rows["south"], part)
        np.testing.assert_array_equal(here, getattr(among.rows["south"], part)[0])
    # 41 rows: round(0.2·41) = 8 to test; of 33, round(0.2·33) = 7 held out, 26 to train.
    south = alone.rows["south"]
    assert [len(part[0]) for part in (south.train, south.test, south.validation)] == [26, 8, 7]


def test_persons_are_known_at_their_site(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.csv" for name in ("a", "b")}
    for shift, path in enumerate(paths.values()):
        rows = [f"{k % 7},{'xy'[k % 2]},p{(k + shift) % 10}" for k in range(30)]
        path.write_text("\n".join(["dose,label,person", *rows]))
    dataset = {"_target_": TABLES, "name": "t", "label": "label", "numbers": ["dose"]}
    persons = _agreed(dataset, paths, OwnSitesPartition(group="person")).data.persons
    assert persons is not None
    # Each of ten persons of a site has every tenth row.
    for site in (persons[:30], persons[30:]):
        assert [site.tolist() == site[:10].tolist() * 3, len(set(site.tolist()))] == [True, 10]
    assert _agreed(dataset, paths).data.persons is None


def test_a_person_of_several_wards_trains_or_tests_or_is_held_out_in_all_of_them(tmp_path: Path) -> None:
    rows = [f"{k % 7},{'xy'[k % 2]},p{k % 12},{'abc'[k // 20]}" for k in range(60)]
    (path := tmp_path / "a.csv").write_text("\n".join(["dose,label,person,ward", *rows]))
    dataset = {"_target_": TABLES, "name": "t", "label": "label", "numbers": ["dose"], "natural": "ward"}
    own = OwnSitesPartition(group="person", validation_fraction=0.2)
    site = _agreed(dataset, {"a": path}, own).rows["a"]
    assert [site.clients, site.shared_persons] == [("a/a", "a/b", "a/c"), True]
    parts = [
        {*site.persons[np.concatenate(each)].tolist()} for each in (site.train, site.test, site.validation)
    ]
    assert sorted(person for part in parts for person in part) == list(range(12))  # each in one part
    # Twelve persons, all of them in each ward: round(0.2 * 12) = 2 to test, round(0.2 * 10) = 2 held out.
    assert [len(each) for each in parts] == [8, 2, 2]


def test_a_person_may_not_train_in_one_ward_and_test_in_another(tmp_path: Path) -> None:
    for part in ("train", "test"):
        wards = "ab" if part == "train" else "ba"
        rows = [f"{k % 7},{'xy'[k % 2]},p{k},{wards[k % 2]}" for k in range(20)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["dose,label,person,ward", *rows]))
    dataset = {"_target_": TABLES, "name": "t", "label": "label", "numbers": ["dose"], "natural": "ward"}
    with pytest.raises(SiteError, match="^a person must be in the training file or in the test file"):
        _agreed(dataset, {"a": tmp_path}, OwnSitesPartition(group="person", test="official"))


def test_saved_datasets_agree_by_the_names_of_their_labels(tmp_path: Path) -> None:
    import datasets

    for site, names in (("a", ["ill", "well"]), ("b", ["well", "ill"])):
        features = {"dose": datasets.Value("float64"), "label": datasets.ClassLabel(names=names)}
        columns = {"dose": [0.0, 1.0] * 10, "label": [names.index(each) for each in ("ill", "well")] * 10}
        saved = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        saved.save_to_disk(str(tmp_path / site))
    found = _agreed({"_target_": TABLES, "name": "t"}, {site: tmp_path / site for site in "ab"}).data
    assert found.class_names == ("ill", "well")
    assert found.labels.tolist() == [0, 1] * 20  # as the dose, at both


def test_a_row_is_known_by_its_number_in_its_sites_own_file(tmp_path: Path) -> None:
    # Of 12 rows a third are left out: 2, 5, 8 and 11 at a, and 0, 3, 6 and 9 at b.
    for site, labels in (("a", ["ill", "well", "lost"]), ("b", ["lost", "ill", "well"])):
        table = pd.DataFrame({"x": np.arange(12.0) ** 2 % 7, "y": labels * 4})
        table.to_csv(tmp_path / f"{site}.csv", index=False)
    dataset = {"_target_": TABLES, "name": "t", "label": "y", "drop_labels": ["lost"]}
    paths = {site: tmp_path / f"{site}.csv" for site in "ab"}
    found = _agreed(dataset, paths).data
    assert found.source_rows is not None
    assert found.source_rows.tolist() == [0, 1, 3, 4, 6, 7, 9, 10, 1, 2, 4, 5, 7, 8, 10, 11]
    whole = _agreed({**dataset, "drop_labels": []}, paths).data
    assert whole.source_rows.tolist() == [*range(12), *range(12)]
