import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedclust.data import images
from fedclust.data.dataset import Dataset
from fedclust.data.images import Images
from fedclust.data.input_encoders import decode
from fedclust.data.source import SourceError

RED, BLUE = (255, 0, 0), (0, 0, 255)


def png(pixels, **options) -> bytes:
    """Encode pixels losslessly."""
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(buffer, "png", **options)
    return buffer.getvalue()


def grey(value: int, height: int = 2, width: int = 2) -> bytes:
    return png(np.full((height, width), value))


def write(path: Path, encoded: list[bytes | None], labels: list, **columns: list) -> None:
    """Write a Parquet file in the layout of the hub's Image feature."""
    cells = [{"bytes": value, "path": None} for value in encoded]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    pq.write_table(pa.table({"image": pa.array(cells, kind), "label": labels, **columns}), path)


def builder(path: Path, **changes) -> Images:
    values = {"name": "tiny", "num_classes": 2, "input_shape": [1, 2, 2], "path": str(path)}
    return Images(**(values | changes))


def load(path: Path, **changes) -> Dataset:
    return builder(path, **changes).load(path / "cache")


def test_parquet_with_image_bytes(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [png([[0, 51], [102, 153]]), grey(204)], [0, 1])
    write(tmp_path / "test.parquet", [grey(255)], [1])
    data = load(tmp_path)
    assert data.inputs.tolist() == [[[[0, 51], [102, 153]]], [[[204, 204], [204, 204]]], [[[255, 255]] * 2]]
    assert data.labels.tolist() == [0, 1, 1]
    assert data.num_train == 2
    # the training part's pixels in fifths: 0, 1, 2, 3 and four times 4: mean 22/8/5 = 0.55,
    # mean of squares (0 + 1 + 4 + 9 + 64)/8/25 = 0.39, variance 0.39 − 0.55² = 0.0875
    assert data.mean == pytest.approx([0.55])
    assert data.std == pytest.approx([0.0875**0.5])


def test_order_is_kept_over_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 3)
    write(tmp_path / "train.parquet", [grey(value) for value in range(50)], [0, 1] * 25)
    write(tmp_path / "test.parquet", [grey(value) for value in range(50, 61)], [0] * 11)
    data = load(tmp_path)
    assert data.inputs[:, 0, 0, 0].tolist() == list(range(61))
    assert data.mean == pytest.approx([24.5 / 255])  # of 0 … 49


def test_dropped_examples_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 2)
    write(tmp_path / "train.parquet", [grey(1), b"broken", grey(3), grey(4)], [0, 9, 1, 9])
    data = load(tmp_path, drop_labels=[9])
    assert data.inputs[:, 0, 0, 0].tolist() == [1, 3]
    assert data.mean == pytest.approx([2 / 255])


def test_colour(tmp_path: Path) -> None:
    write(tmp_path / "data.parquet", [png([[RED, BLUE]]), png([[BLUE, BLUE]])], [0, 1])
    data = load(tmp_path, input_shape=[3, 1, 2])
    assert data.inputs[0].tolist() == [[[255, 0]], [[0, 0]], [[0, 255]]]
    # one of four pixels is red, three are blue: variance 1/4 · 3/4; green is constant, and divides by 1
    assert data.mean == pytest.approx([0.25, 0, 0.75])
    assert data.std == pytest.approx([0.1875**0.5, 1, 0.1875**0.5])


def test_grey_becomes_colour_and_colour_grey(tmp_path: Path) -> None:
    write(tmp_path / "grey.parquet", [grey(7), grey(8)], [0, 1])
    data = load(tmp_path, input_shape=[3, 2, 2])
    assert data.inputs[0].unique().tolist() == [7]
    write(tmp_path / "grey.parquet", [png([[RED]]), png([[BLUE]])], [0, 1])
    data = load(tmp_path, input_shape=[1, 1, 1])
    assert data.inputs.ravel().tolist() == [76, 29]  # ITU-R 601: 0.299 of red, 0.114 of blue, times 255


@pytest.mark.parametrize(
    ("image_path", "folder"), [("img/{id[0]}/{id}.png", "img/7"), ("**/{id}.png", "some/where/deep")]
)
def test_table_of_image_ids_and_users(tmp_path: Path, image_path: str, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "71.png").write_bytes(grey(1))
    (tmp_path / folder / "72.png").write_bytes(grey(2))
    (tmp_path / "federated_train.csv").write_text("user_id,image_id,class\nb,72,0\na,71,1\n")
    (tmp_path / "test.csv").write_text("image_id,class\n71,1\n")
    data = load(tmp_path, image="image_id", image_path=image_path, label="class", natural="user_id")
    assert data.inputs[:, 0, 0, 0].tolist() == [2, 1, 1]
    assert data.natural.tolist() == [1, 0, -1]


UPRIGHT = Image.Exif()
UPRIGHT[274] = 6  # orientation: the top of the picture is at its right side


@pytest.mark.parametrize(
    ("encoded", "shape", "resize", "expected"),
    [
        # 8 rows, the upper 4 black, the lower 4 at 140, become 2. A triangle of half-width 4 at row 2 gives
        # the rows' centres 0.5 … 5.5 the weights 5, 7, 7, 5, 3, 1 eighths: 4 of 28 are lower: 140/7 = 20.
        (png([[0] * 4] * 4 + [[140] * 4] * 4), (1, 2, 2), "stretch", [[20, 20], [120, 120]]),
        # 4 high, 8 wide: two columns go at each side.
        (png([[10] * 2 + [90] * 4 + [10] * 2] * 4), (1, 4, 4), "crop", [[90] * 4] * 4),
        (png([[1, 2, 3]], exif=UPRIGHT), (1, 3, 1), "none", [[1], [2], [3]]),
    ],
)
def test_images_are_scaled_cropped_and_turned(encoded: bytes, shape: tuple, resize, expected: list) -> None:
    assert decode(encoded, shape, resize).tolist() == [expected]


def test_another_size_is_refused_with_both(tmp_path: Path) -> None:
    write(tmp_path / "data.parquet", [grey(1), grey(1, 3, 4)], [0, 1])
    message = r"image 1 must have shape \(1, 2, 2\), got \(1, 3, 4\); set dataset.input_shape or .resize"
    with pytest.raises(SourceError, match=message):
        load(tmp_path)
    assert load(tmp_path, resize="stretch").inputs.shape[1:] == (1, 2, 2)


@pytest.mark.parametrize("image_path", ["{id}.png", "**/{id}.png"])
def test_a_broken_or_missing_image_is_named(tmp_path: Path, image_path: str) -> None:
    (tmp_path / "data.csv").write_text("image,label\na,0\nb,1\n")
    with pytest.raises(SourceError, match=r"image of example 0 must be the path of a file"):
        load(tmp_path, image_path=image_path)
    (tmp_path / "a.png").write_bytes(grey(1))
    (tmp_path / "b.png").write_bytes(grey(1)[:40])
    with pytest.raises(SourceError, match=r"cannot read image 1 \(.*b\.png\): .*dataset\.path or \.hub"):
        load(tmp_path, image_path=image_path)
    write(tmp_path / "data.parquet", [None, grey(1)], [0, 1])
    with pytest.raises(SourceError, match="image of example 0 must be an image, got none"):
        load(tmp_path)


@pytest.mark.parametrize("beside", ["labels.csv", "metadata.csv", "index.parquet", "dark/labels.csv"])
def test_a_table_beside_images_in_folders_is_not_read(tmp_path: Path, beside: str) -> None:
    for name in ("dark/1.png", "light/2.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(grey(9))
    if beside.endswith("parquet"):
        pq.write_table(pa.table({"file": ["1.png"], "label": ["light"]}), tmp_path / beside)
    else:
        (tmp_path / beside).write_text("file,label\n1.png,light\n")
    part, _ = builder(tmp_path).open()
    assert part.rows.to_table().column("label").to_pylist() == ["dark", "light"]


def test_an_image_that_is_a_program_is_not_opened() -> None:
    # Pillow has Ghostscript run PostScript, whatever the file's name is.
    encoded = io.BytesIO()
    Image.new("RGB", (2, 2)).save(encoded, "EPS")
    with pytest.raises(ValueError, match="^cannot read image: no image in a format that is read$"):
        decode(encoded.getvalue(), (3, 2, 2))


@pytest.mark.parametrize(
    "image_path",
    [
        "/home/else/{id}.png",  # another folder than the table's
        "**//home/else/{id}.png",  # of which the beginning is taken away
        "**/",
        "~/{id}.png",
        "../else/{id}.png",
        "img/../../else/{id}.png",
        "img\\..\\{id}.png",
        "else.png",  # one image for every row
        "{id.__class__}/{id}.png",
        "{id:>99999999999}.png",
        "",
    ],
)
def test_an_image_path_stays_below_the_table_and_is_made_of_its_text(tmp_path: Path, image_path: str) -> None:
    with pytest.raises(ValueError, match=r"dataset.image_path must be a path below the table's folder, with"):
        builder(tmp_path, image_path=image_path)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_grey_images_of_more_than_8_bits_are_refused_rather_than_made_white(format: str) -> None:
    def decoded(largest: int) -> list[list[list[int]]]:
        encoded = io.BytesIO()
        Image.fromarray(np.array([[0, largest]], dtype=np.uint16)).save(encoded, format)
        return decode(encoded.getvalue(), (1, 1, 2)).tolist()

    assert decoded(255) == [[[0, 255]]]
    with pytest.raises(ValueError, match=r"must have 8 bits per channel, it has more \(mode I"):
        decoded(256)
    floats = io.BytesIO()
    Image.fromarray(np.array([[0.0, 0.5]], dtype=np.float32)).save(floats, "TIFF")
    with pytest.raises(ValueError, match=r"must have 8 bits per channel, it has more \(mode F\)"):
        decode(floats.getvalue(), (1, 1, 2))
