import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedclust.data.source import Part, Source, SourceError, walk

Rows = Mapping[str, list[object]]


def parquet(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(rows)), path)


def values(part: Part | None, name: str = "x") -> list[object]:
    assert part is not None
    return part.rows.to_table().column(name).to_pylist()


def test_parquet_files_are_parted_by_the_words_in_their_names(tmp_path: Path) -> None:
    parquet(tmp_path / "data" / "train-00001-of-00002.parquet", {"x": [3]})
    parquet(tmp_path / "data" / "train-00000-of-00002.parquet", {"x": [1, 2]})
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", {"x": [4]})
    parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", {"x": [5]})
    train, test = Source(path=str(tmp_path)).open()
    assert values(train) == [1, 2, 3]
    assert values(test) == [4]  # there is test data, so validation data is left out


def test_validation_data_is_the_test_part_where_there_is_no_other(tmp_path: Path) -> None:
    parquet(tmp_path / "train_40k.parquet", {"x": [1]})
    parquet(tmp_path / "val_10k.parquet", {"x": [2]})
    parquet(tmp_path / "unlabeled_150k.parquet", {"x": [3]})
    train, test = Source(path=str(tmp_path)).open()
    assert values(train) == [1]
    assert values(test) == [2]


def test_one_file_is_all_training_data(tmp_path: Path) -> None:
    parquet(tmp_path / "test.parquet", {"x": [1, 2]})
    train, test = Source(path=str(tmp_path / "test.parquet")).open()
    assert values(train) == [1, 2]
    assert test is None


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("x,y\n1,a\n2,b\n")
    (tmp_path / "test.csv").write_text("x,y\n3,c\n")
    train, test = Source(path=str(tmp_path)).open()
    assert values(train) == [1, 2]
    assert values(test, "y") == ["c"]


def test_a_csv_column_has_one_type_however_late_it_shows(tmp_path: Path) -> None:
    rows = ["x", *["1"] * 100_000, "0.5"]  # Arrow's own reader would settle on whole numbers, then fail
    (tmp_path / "data.csv").write_text("\n".join(rows))
    train, _ = Source(path=str(tmp_path)).open()
    assert values(train)[-1] == 0.5


def test_image_folder_takes_the_class_from_the_folder(tmp_path: Path) -> None:
    for name in ("train/cat/1.jpg", "train/dog/2.PNG", "test/cat/3.jpg", "test/cat/.hidden.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train, test = Source(path=str(tmp_path)).open()
    assert values(train, "image") == ["train/cat/1.jpg", "train/dog/2.PNG"]
    assert values(train, "label") == ["cat", "dog"]
    assert values(test, "image") == ["test/cat/3.jpg"]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train/1.jpg", "bus/2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train, test = Source(path=str(tmp_path)).open()
    assert values(train, "label") == ["bus", "train"]
    assert test is None


def test_excluded_files_are_left_out(tmp_path: Path) -> None:
    for name in ("benign/1.png", "benign/1_mask.png", "benign/1_mask_2.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train, _ = Source(path=str(tmp_path), exclude=["*_mask*"]).open()
    assert values(train, "image") == ["benign/1.png"]


def test_label_pattern_reads_the_class_off_the_file_name(tmp_path: Path) -> None:
    for name in ("images/aca_bd_20x_1.jpg", "images/nor_40x_2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "data.csv").write_text("image\n1\n")  # next to the images, and not requested
    source = Source(path=str(tmp_path), label_pattern=r"(?:^|/)(aca|nor|scc)_")
    train, test = source.open()
    assert values(train, "label") == ["aca", "nor"]
    assert test is None


def test_label_pattern_with_parts(tmp_path: Path) -> None:
    for name in ("train/aca_1.jpg", "test/nor_2.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    train, test = Source(path=str(tmp_path), label_pattern="(aca|nor)_").open()
    assert values(train, "label") == ["aca"]
    assert values(test, "label") == ["nor"]


@pytest.mark.parametrize("pattern", ["(scc)_", "aca_"])  # matches nothing; has no group
def test_label_pattern_that_does_not_fit_is_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "aca_1.jpg").touch()
    with pytest.raises(SourceError, match="label_pattern must match every image and have a group"):
        Source(path=str(tmp_path), label_pattern=pattern).open()


def test_an_image_outside_any_class_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").touch()
    with pytest.raises(SourceError, match=r"image 1\.jpg must lie in a folder named after its class"):
        Source(path=str(tmp_path)).open()


def test_a_missing_path_names_both_ways_to_provide_the_data(tmp_path: Path) -> None:
    source = Source(path=str(tmp_path / "nowhere"), hub="someone/tiny")
    for act in (source.open, source.identity):
        with pytest.raises(
            SourceError, match=r"no file or folder .*nowhere; give dataset\.path=.*someone/tiny"
        ):
            act()


def test_an_empty_folder_names_both_ways(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no Parquet, CSV or image file; give dataset\.path=.*hub="):
        Source(path=str(tmp_path)).open()


def test_no_source_names_both_ways() -> None:
    for act in (Source().open, Source().identity):
        with pytest.raises(SourceError, match=r"has no source; give dataset\.path=.*hub="):
            act()


@pytest.mark.parametrize(("name", "content"), [("train.parquet", b"no parquet"), ("train.csv", b"")])
def test_an_unreadable_file_names_both_ways(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=r"cannot read .* give dataset\.path="):
        Source(path=str(tmp_path)).open()


@pytest.mark.parametrize(("name", "content"), [("b.parquet", b"no parquet"), ("b.csv", b"")])
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    parquet(tmp_path / "a.parquet", {"x": [1]}) if name == "b.parquet" else (tmp_path / "a.csv").write_text(
        "x\n1\n"
    )
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=rf"cannot read .*/{name}: .* give dataset\.path="):
        Source(path=str(tmp_path)).open()


def test_another_encoding_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("name\nJosé\n", encoding="latin-1")
    message = r"cannot read .*/data\.csv: 'utf-8' codec .* dataset\.csv_options\.encoding=latin-1"
    with pytest.raises(SourceError, match=message):
        Source(path=str(tmp_path)).open()
    train, _ = Source(path=str(tmp_path), csv_options={"encoding": "latin-1"}).open()
    assert values(train, "name") == ["José"]
    with pytest.raises(SourceError, match=r"data\.csv: unknown encoding: martian"):
        Source(path=str(tmp_path), csv_options={"encoding": "martian"}).open()


@pytest.mark.parametrize(("separator", "said"), [(";", ";"), ("\t", r"\\t"), ("|", r"\|")])
def test_another_separator_is_asked_for(tmp_path: Path, separator: str, said: str) -> None:
    (tmp_path / "data.csv").write_text(f"x{separator}y\n1{separator}2\n")
    with pytest.raises(SourceError, match=rf'data\.csv has one column, .*dataset\.csv_options\.sep="{said}"'):
        Source(path=str(tmp_path)).open()


def test_unknown_csv_options_are_refused() -> None:
    with pytest.raises(SourceError, match=r"csv_options takes sep, encoding, .*, got seperator"):
        Source(path="x", csv_options={"seperator": ";"})


def test_parts_say_where_they_come_from(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "test"):
        parquet(tmp_path / f"{name}.parquet", {"x": [1]})
    train, test = Source(path=str(tmp_path)).open()
    assert train.place == f"{tmp_path} (train-0.parquet, train-1.parquet)"
    assert test is not None
    assert test.place == str(tmp_path / "test.parquet")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.xlsx").touch()
    with pytest.raises(SourceError, match=r"data\.xlsx must end in one of \.parquet, \.csv"):
        Source(path=str(tmp_path / "data.xlsx")).open()


def test_identity_changes_with_a_file_and_not_with_the_folder(tmp_path: Path) -> None:
    parquet(tmp_path / "a" / "train.parquet", {"x": [1]})
    before = Source(path=str(tmp_path / "a")).identity()
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Source(path=str(tmp_path / "b"))
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


def test_a_reader_that_unpickles_is_no_id_of_the_hub(tmp_path: Path) -> None:
    # datasets.load_dataset("pandas", data_files=...) unpickles them, and this could come with a run.
    (tmp_path / "rows.pkl").write_bytes(pickle.dumps(Touches(tmp_path / "gone")))
    files = {"data_files": str(tmp_path / "rows.pkl")}
    with pytest.raises(SourceError, match="dataset.hub must be OWNER/NAME, got pandas"):
        Source(hub="pandas", hub_options=files).open()
    (tmp_path / "hub").mkdir()
    with pytest.raises(SourceError, match="cannot be loaded"):
        Source(hub=str(tmp_path / "hub"), hub_options=files).open()
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("option", ["cache_dir", "trust_remote_code", "storage_options"])
def test_options_of_the_hub_that_do_not_choose_rows_are_refused(option: str) -> None:
    rule = f"hub_options takes subset, revision, data_dir, data_files, got {option}"
    with pytest.raises(SourceError, match=rule):
        Source(hub="someone/tiny", hub_options={option: "x"})


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``datasets`` keep what it loads beside the test's files."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("own_cache")
def test_hub_datasets_come_through_flwr_datasets(tmp_path: Path) -> None:
    # load_dataset takes a folder in place of an id, so the whole path runs without a network
    names = datasets.Features(
        {"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    for split, rows in (("train", [0, 1]), ("validation", [1])):
        made = datasets.Dataset.from_dict({"x": rows, "label": rows}, features=names)
        made.to_parquet(str(tmp_path / "hub" / "data" / f"{split}-00000-of-00001.parquet"))
    train, test = Source(hub=str(tmp_path / "hub")).open()
    assert values(train) == [0, 1]
    assert values(test) == [1]
    assert b'"names": ["no", "yes"]' in train.rows.schema.metadata[b"huggingface"]


def test_a_hub_id_that_cannot_be_loaded_names_both_ways(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    with pytest.raises(SourceError, match=r"hub id .* cannot be loaded .*; give dataset\.path="):
        Source(hub=str(tmp_path / "hub")).open()


@pytest.mark.usefixtures("own_cache")
def test_a_hub_id_without_training_data_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "hub" / "test.parquet", {"x": [1]})
    with pytest.raises(SourceError, match="cannot be loaded .*'train' is not present"):
        Source(hub=str(tmp_path / "hub")).open()


def test_walk_is_sorted_and_leaves_hidden_files_out(tmp_path: Path) -> None:
    for name in ("b/2", "b/1", "a", ".git/x", "b/.y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert walk(tmp_path) == ["a", "b/1", "b/2"]
