import os
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from fedclust.data.dataset import DatasetBuilder
from fedclust.data.dna import Dna
from fedclust.data.images import Images
from fedclust.data.source import Part, Source, SourceError, find_column
from fedclust.data.tables import Tables
from fedclust.data.text import Text


def parquet(path: Path, rows: Mapping[str, list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(rows)), path)


def values(part: Part | None, name: str = "x") -> list[object]:
    return part.rows.to_table().column(name).to_pylist()


@dataclass(frozen=True)
class Pictures(Source):
    """Images, whose classes a pattern may read off their names."""

    label_pattern: str | None = None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("files", "options", "train", "test"),
    [
        # The words in their names part the files, in order; with test data, validation data is left out.
        ("d/train-1.parquet=3 d/train-0.parquet=1,2 test.parquet=4 validation-0.parquet=5", {}, "1 2 3", "4"),
        # Validation data is the test part where there is no other.
        ("train_40k.parquet=1 val_10k.parquet=2 unlabeled_150k.parquet=3", {}, "1", "2"),
        ("test.parquet=1,2", {}, "1 2", None),
        ("train.csv=1,2 test.csv=3", {}, "1 2", "3"),
        # An image's class is its folder, which may be called train.
        ("train/cat/1.jpg train/dog/2.PNG test/cat/3.jpg test/cat/.jpg test/.x/4.jpg", {}, "cat dog", "cat"),
        ("train/1.jpg bus/2.jpg", {}, "bus train", None),
        ("benign/1.png benign/1_mask.png benign/1_mask_2.png", {"exclude": ["*_mask*"]}, "benign", None),
        # A pattern reads the class off the name, and tables beside the images are not read.
        ("i/aca_1.jpg i/nor_2.jpg data.csv=1", {"label_pattern": "(?:^|/)(aca|nor)_"}, "aca nor", None),
        ("train/aca_1.jpg test/nor_2.jpg", {"label_pattern": "(aca|nor)_"}, "aca", "nor"),
    ],
)
def test_layouts(tmp_path: Path, files: str, options: dict, train: str, test: str | None) -> None:
    for name, _, rows in (each.partition("=") for each in files.split()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            parquet(path, {"x": rows.split(",")})
        else:
            path.write_text("\n".join(["x", *rows.split(",")]))
    found = [part and part.rows.to_table() for part in Pictures(str(tmp_path), **options).open()]
    shown = [part and " ".join(map(str, part.column(part.column_names[-1]).to_pylist())) for part in found]
    assert shown == [train, test]


def test_a_column_has_one_type_however_late_it_shows(tmp_path: Path) -> None:
    # Arrow's own reader would settle on whole numbers, then fail.
    (tmp_path / "data.csv").write_text("\n".join(["x", *["1"] * 100_000, "0.5"]))
    assert values(Source(str(tmp_path)).open()[0])[-1] == 0.5


def test_a_column_is_texts_in_all_files_if_it_is_in_one(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.csv").write_text("ward,dose\n01,1\nA1,2\n,3\n")
    (tmp_path / "train" / "b.csv").write_text("ward,dose\n02,4\n")
    (tmp_path / "test.csv").write_text("ward,dose\n01,0.5\n")
    train, test = Source(str(tmp_path)).open()
    assert train.rows.to_table().to_pydict() == {"ward": ["01", "A1", None, "02"], "dose": [1, 2, 3, 4]}
    assert test.rows.to_table().to_pydict() == {"ward": ["01"], "dose": [0.5]}
    # By themselves they look like numbers and truth values.
    (tmp_path / "rows.csv").write_text("ward,smokes\n01,true\n")
    alone, _ = Source(str(tmp_path / "rows.csv")).open()
    assert alone.rows.to_table().to_pydict() == {"ward": [1], "smokes": [True]}
    alone, _ = Source(str(tmp_path / "rows.csv")).open(["ward", "smokes"])
    assert alone.rows.to_table().to_pydict() == {"ward": ["01"], "smokes": ["true"]}


PATTERN = "label_pattern must match every image and have a group"


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"aca_1.jpg": b""}, {"label_pattern": "(scc)_"}, PATTERN),  # matches nothing
        ({"aca_1.jpg": b""}, {"label_pattern": "aca_"}, PATTERN),  # has no group
        ({"1.jpg": b""}, {}, r"image 1\.jpg must lie in a folder named after its class"),
        ({}, {}, r"holds no Parquet, CSV or image file; give dataset\.path=.*hub="),
        ({"b.parquet": b"no parquet"}, {}, r"cannot read .*/b\.parquet: .* give dataset\.path="),
        ({"data.xlsx": b""}, {"exclude": ["x"]}, "holds no Parquet, CSV or image file"),
        ({"a.csv": b"x"}, {"csv_options": {"encoding": "martian"}}, r"a\.csv: unknown encoding: martian"),
        ({"train.csv": b""}, {}, r"train\.csv must have rows, it is empty$"),
        ({"a.csv": b"x\n1\n", "b.csv": b""}, {}, r"/b\.csv must have rows, it is empty$"),
        ({"data.csv": b"x;y\n1;2\n"}, {}, r'data\.csv has one column, .*dataset\.csv_options\.sep=";"'),
        ({"data.csv": b"x;y\n1,5;2\n"}, {}, r'data\.csv has one column, .x;y.; set its separator, .*sep=";"'),
        (
            {"data.csv": b"Ward 3; 2024\nx,y\n1,2\n"},
            {},
            r"line 2 must have at most 1 .*csv_options\.skiprows=1",
        ),
        ({"data.csv": b"x\ty\n1\t2\n"}, {}, r'has one column, .*dataset\.csv_options\.sep="\\t"'),
    ],
)
def test_what_cannot_be_read_names_the_file_and_what_to_give(tmp_path, files, options, message) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        Pictures(str(tmp_path), **options).open()


def test_another_encoding_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("name\nJosé\n", encoding="latin-1")
    message = r"cannot read .*/data\.csv: 'utf-8' codec .* dataset\.csv_options\.encoding=latin-1"
    with pytest.raises(SourceError, match=message):
        Source(str(tmp_path)).open()
    train, _ = Source(str(tmp_path), csv_options={"encoding": "latin-1"}).open()
    assert values(train, "name") == ["José"]


def test_parts_say_where_they_come_from(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "test"):
        parquet(tmp_path / f"{name}.parquet", {"x": [1]})
    places = [part and part.place for part in Source(str(tmp_path)).open()]
    assert places == [f"{tmp_path} (train-0.parquet, train-1.parquet)", str(tmp_path / "test.parquet")]
    (tmp_path / "data.xlsx").touch()
    with pytest.raises(SourceError, match=r"data\.xlsx must end in one of \.parquet, \.csv"):
        Source(str(tmp_path / "data.xlsx")).open()


def test_identity_changes_with_a_file_and_not_with_the_folder(tmp_path: Path) -> None:
    parquet(tmp_path / "a" / "train.parquet", {"x": [1]})
    before = Source(str(tmp_path / "a")).identity()
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Source(str(tmp_path / "b"))
    assert moved.identity() == before
    os.utime(tmp_path / "b" / "train.parquet", ns=(1, 1))
    assert moved.identity() != before


def test_identity_of_the_hub_is_its_id_and_options() -> None:
    plain = Source(hub="someone/tiny").identity()
    assert plain != Source(hub="other/tiny").identity()
    assert plain != Source(hub="someone/tiny", hub_options={"revision": "v2"}).identity()


class Touches:
    """A pickle that creates a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_reader_that_unpickles_is_no_id_of_the_hub(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # datasets.load_dataset("pandas", …) unpickles files, and this could come with a run.
    for name in ("pandas", "/a/b", "../a", "a/..", "~/a", "a/b/c", "a/b@c", "", "file:a/b"):
        with pytest.raises(SourceError, match=f"dataset.hub must be OWNER/NAME, got {re.escape(name)}$"):
            Source(hub=name)
    (hub / "rows.pkl").write_bytes(pickle.dumps(Touches(tmp_path / "gone")))
    with pytest.raises(SourceError, match="cannot be loaded"):
        Source(hub="someone/tiny").open()
    assert not (tmp_path / "gone").exists()
    # It would also read a folder of that name below the current one.
    (tmp_path / "someone" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"not name a local folder, got someone/tiny; use dataset\.path"):
        Source(hub="someone/tiny").open()


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"csv_options": {"seperator": ";"}}, r"csv_options takes sep, encoding, .*, got seperator"),
        *(
            ({"hub_options": {name: "x"}}, f"hub_options takes subset, .*, data_dir, got {name}")
            for name in ("cache_dir", "trust_remote_code", "storage_options", "data_files")
        ),
        *(
            ({"hub_options": {"data_dir": folder}}, f"must name a folder of the dataset, got {folder}")
            for folder in ("a/../../b", "~/b", "/b", "https://else/a")
        ),
    ],
)
def test_options_that_do_not_choose_rows_are_refused(settings: dict, rule: str) -> None:
    with pytest.raises(SourceError, match=rule):
        Source(hub="someone/tiny", **settings)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder in place of the hub's dataset, with a cache of its own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    load, folder = datasets.load_dataset, tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(datasets, "load_dataset", lambda _, **options: load(str(folder), **options))
    return folder


def test_hub_datasets_keep_their_parts_and_names(hub: Path) -> None:
    names = datasets.Features(
        {"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    for split, rows in (("train", [0, 1]), ("validation", [1])):
        made = datasets.Dataset.from_dict({"x": rows, "label": rows}, features=names)
        made.to_parquet(str(hub / "data" / f"{split}-00000-of-00001.parquet"))
    train, test = Source(hub="someone/tiny", hub_options={"data_dir": "data"}).open()
    assert values(train) == [0, 1]
    assert values(test) == [1]
    assert b'"names": ["no", "yes"]' in train.rows.schema.metadata[b"huggingface"]


def test_a_hub_id_that_cannot_be_loaded_names_both_ways(hub: Path) -> None:
    with pytest.raises(SourceError, match=r"hub id .* cannot be loaded .*; give dataset\.path="):
        Source(hub="someone/tiny").open()
    parquet(hub / "test.parquet", {"x": [1]})
    with pytest.raises(SourceError, match="cannot be loaded .*'train'"):
        Source(hub="someone/tiny").open()


# -- Columns


def part(**columns) -> Part:
    return Part(ds.dataset(pa.table(columns)))


def reader(num_classes: int = 2, **settings) -> Tables:
    return Tables(**{"name": "tiny", "num_classes": num_classes, "input_shape": [1], **settings})


def labels_of(*columns, num_classes: int = 2, **settings):
    return reader(num_classes, **settings).encode_labels([part(label=each) for each in columns])


def test_the_first_column_that_exists_is_found() -> None:
    assert find_column(part(img=[1], image=[1]), ["image", "img"], "image") == "image"
    assert find_column(part(img=[1]), ["image", "img"], "image") == "img"
    message = "label must be a column of the source, got y or z; columns are a, b"
    with pytest.raises(SourceError, match=message):
        find_column(part(a=[1], b=[1]), ["y", "z"], "label")


def test_whole_numbers_below_the_number_of_classes_are_indices() -> None:
    labels = labels_of([2, 0], [0], num_classes=3)
    np.testing.assert_array_equal(labels.indices, [2, 0, 0])  # though 1 does not occur
    assert labels.indices.dtype == np.int64
    assert labels.num_train == 2
    assert labels.class_names == ("0", "1", "2")
    np.testing.assert_array_equal(labels.kept, [True, True, True])


@pytest.mark.parametrize(
    ("values", "indices", "names"),
    [
        (["no", "yes", "maybe"], [1, 2, 0], ("maybe", "no", "yes")),
        ([1, 2, 3], [0, 1, 2], ("1", "2", "3")),
        ([-1, 1, 7], [0, 1, 2], ("-1", "1", "7")),
        ([2.0, 0.0, 1.0], [2, 0, 1], ("0", "1", "2")),
        ([0.5, 0.0, 1.5], [1, 0, 2], ("0.0", "0.5", "1.5")),
        (pa.array(["b", "a", "c"]).dictionary_encode(), [1, 0, 2], ("a", "b", "c")),
        ([True, False], [1, 0], ("0", "1")),
    ],
)
def test_other_values_become_their_ranks(values, indices: list[int], names: tuple[str, ...]) -> None:
    labels = labels_of(values, num_classes=len(names))
    np.testing.assert_array_equal(labels.indices, indices)
    assert labels.class_names == names


def test_names_of_a_class_label_feature_unless_others_are_stated() -> None:
    features = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"])})
    table = pa.table({"label": [1, 1]}).replace_schema_metadata(features.arrow_schema.metadata)
    parts = [Part(ds.dataset(table))]
    assert reader().encode_labels(parts).class_names == ("cat", "dog")
    assert reader(class_names=["low", "high"]).encode_labels(parts).class_names == ("low", "high")
    with pytest.raises(SourceError, match="num_classes must be 2, as classes are cat, dog, got 3"):
        reader(3).encode_labels(parts)


def test_dropped_labels_leave_both_parts() -> None:
    labels = labels_of([0, 2, 4], [2, 4], drop_labels=[2])
    np.testing.assert_array_equal(labels.indices, [0, 1, 1])
    np.testing.assert_array_equal(labels.kept, [True, False, True, False, True])
    assert labels.num_train == 2


@pytest.mark.parametrize("values", [["EHH", "HEE"], [["E", "H", "H"], ["H", "E", "E"]]])
def test_letters_per_position(values: list) -> None:
    labels = labels_of(values, per_position=True)
    np.testing.assert_array_equal(labels.indices, [[0, 1, 1], [1, 0, 0]])
    assert labels.class_names == ("E", "H")


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ([[[0, 1], [1]]], {"per_position": True}, "equally many labels .*, at least one, got 1 to 2"),
        ([["01", "1"]], {"per_position": True}, "equally many labels .*, at least one, got 1 to 2"),
        ([["", ""]], {"per_position": True}, "equally many labels .*, at least one, got 0 to 0"),
        ([[0, 1]], {"per_position": True}, "label must hold a list of numbers .* got int64"),
        ([[[0, 1], [1, 0]]], {}, "label must hold one label .* or .*per_position be true, got list"),
        ([[1, 2], ["1", "?"]], {}, "labels must be all numbers or all text, got both"),
        ([[0, None]], {}, "label must have a value in every row, 1 examples have none in label"),
        ([["a", "b"], ["b", "c"]], {"num_classes": 3}, "labels that the training part lacks: c; name them"),
        ([["a", "b", "c"]], {}, "num_classes must be 3, as the labels are a, b, c, got 2"),
        ([list(range(1, 11))], {}, r"labels are 1, 2, 3, 4, 5 and 5 more, got 2"),
        ([pa.array([], pa.int64())], {}, "must hold at least one example, got none"),
        ([[0, 1]], {"class_names": []}, "num_classes must be 0, as classes are , got 2"),
        ([[0, 1]], {"class_names": ["a", "b", "c"]}, "num_classes must be 3, as classes are a, b, c, got 2"),
    ],
)
def test_labels_that_contradict_the_configuration(columns: Sequence, settings: dict, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        labels_of(*columns, **settings)


@pytest.mark.parametrize(
    ("parts", "kept", "indices", "names"),
    [
        ([part(user=["w9", "w1"]), part(user=["w5"])], [1, 1, 1], [2, 0, 1], ("w1", "w5", "w9")),
        ([part(user=[30, 10, 20])], [1, 0, 1], [1, 0], ("20", "30")),  # of kept examples only
        ([part(user=pd.array(["b", None])), part(other=[1])], [1, 1, 1], [0, -1, -1], ("b",)),
        ([part(user=[17.0, None, 4.0])], [1, 1, 1], [1, -1, 0], ("4", "17")),  # whole though one is missing
    ],
)
def test_natural_clients_are_numbered_in_the_order_of_their_names(parts, kept, indices, names) -> None:
    found = reader(natural="user").encode_names(parts, np.array(kept, dtype=bool), "natural")
    assert (found[0].tolist(), found[0].dtype, found[1]) == (indices, np.int64, names)
    assert reader().encode_names(parts, np.array(kept, dtype=bool), "natural") is None
    with pytest.raises(SourceError, match="natural must be a column"):
        reader(natural="writer").encode_names(parts, np.array(kept, dtype=bool), "natural")


# -- Prepared once in the cache


def write(folder: Path, numbers: list[float]) -> Path:
    parquet(folder / "train.parquet", {"x": numbers, "label": [i % 2 for i in range(len(numbers))]})
    return folder


def folders(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "datasets").iterdir() if path.is_dir())


def test_a_second_load_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "source", [1, 2, 3])
    monkeypatch.setenv("FEDCLUST_CACHE", str(tmp_path / "cache"))
    first = reader(path=str(tmp_path / "source")).load()

    def decode(self: DatasetBuilder, folder: Path) -> None:
        raise AssertionError("decoded a second time")

    monkeypatch.setattr(Tables, "write", decode)
    second = reader(path=str(tmp_path / "source")).load(tmp_path / "cache")
    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.labels, second.labels)
    assert first.fingerprint == second.fingerprint
    assert first.class_names == second.class_names == ("0", "1")


def test_what_changes_a_tensor_is_decoded_anew(tmp_path: Path) -> None:
    source = write(tmp_path / "source", [1, 2, 3])
    first = reader(path=str(source)).load(tmp_path / "cache")
    elsewhere = reader(path=str(write(tmp_path / "b", [1, 2, 3]))).load(tmp_path / "cache b")
    assert first.fingerprint == elsewhere.fingerprint
    reader(path=str(source), encoding="index").load(tmp_path / "cache")
    reader(path=str(source), class_names=["no", "yes"]).load(tmp_path / "cache")
    assert len(folders(tmp_path / "cache")) == 3
    write(source, [1, 2, 7])
    os.utime(source / "train.parquet", ns=(1, 1))  # two writes may fall into one tick of the clock
    second = reader(path=str(source)).load(tmp_path / "cache")
    assert second.inputs[2] != first.inputs[2]
    assert second.fingerprint != first.fingerprint


# -- Settings of every kind of dataset


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (Tables, {"name": "a/b"}, "name must be letters, .* got 'a/b'"),
        (Tables, {"num_classes": 1}, "dataset.num_classes must be >= 2, got 1"),
        (Tables, {"input_shape": []}, r"input_shape must be sizes >= 1, got \[\]"),
        (Tables, {"input_shape": [0]}, r"got \[0\]"),
        (Tables, {"target": "sums"}, "target must be one of classes, amounts, times, got 'sums'"),
        (Tables, {"target": "times"}, "event must name the column of events, .*target=times, got None"),
        (
            Tables,
            {"target": "amounts", "event": "e"},
            "event must be None with .*target=amounts, got e",
        ),
        (
            Tables,
            {"event": "e", "per_position": True},
            "per_position must be false with .*=times, got true",
        ),
        (
            Images,
            {"target": "amounts", "class_names": ["a"]},
            "class_names must be null with .*=amounts, got a",
        ),
        (Tables, {"encoding": "hash"}, "encoding must be one of onehot, index, got 'hash'"),
        (Tables, {"numbers": ["a", "b"], "categories": ["b"]}, "must not share columns, got b"),
        (Images, {"input_shape": [2, 8, 8]}, r"must be \[1 or 3 channels, height, width\], got \[2, 8, 8\]"),
        (Images, {"input_shape": [8, 8]}, r"got \[8, 8\]"),
        (Images, {"resize": "pad"}, "resize must be one of none, stretch, crop, got 'pad'"),
        (Text, {"input_shape": [1, 4]}, r"must be \[number of tokens\], got \[1, 4\]"),
        (Text, {"vocabulary_size": 2}, "vocabulary_size must be >= 3"),
        (Dna, {"encoding": "word2vec"}, "encoding must be one of kmer, onehot, got 'word2vec'"),
        (Dna, {"padding": "full"}, "padding must be one of valid, same, got 'full'"),
        (Dna, {"k": 0}, r"k must be in \[1, 12\], got 0"),
        (Dna, {"k": 13}, "got 13"),
        (Dna, {"vocabulary_size": 16}, "vocabulary_size must be 17 for k = 2, got 16"),
        (Dna, {"encoding": "onehot", "by_frequency": True}, "by_frequency must be false for encoding=onehot"),
    ],
)
def test_settings_out_of_range(kind, changes: dict, message: str) -> None:
    own = {Images: {"input_shape": [1, 2, 2]}, Text: {"vocabulary_size": 9}}
    own[Dna] = {"k": 2, "vocabulary_size": 17}
    settings = {"name": "tiny", "num_classes": 2, "input_shape": [3], "path": "x", **own.get(kind, {})}
    with pytest.raises(ValueError, match=message):
        kind(**(settings | changes))
