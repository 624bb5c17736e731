import json

import numpy as np
import pandas as pd
import pytest

from fedclust.data.input_encoders import (
    ArrayEncoder,
    CategoryColumn,
    ImageEncoder,
    NumberColumn,
    TableEncoder,
    encoder_from,
    to_values,
)
from fedclust.data.loading import load

AGE = NumberColumn("age", fill=50.0, mean=50.0, scale=10.0)
SEX = CategoryColumn("sex", ("(missing)", "f", "m", "x"), (True, True, True, False))


def test_a_table_is_scaled_and_encoded_as_worked_out_by_hand() -> None:
    rows = pd.DataFrame({"sex": ["m", None, "x", "?"], "age": [60, 45, None, 50], "id": [1, 2, 3, 4]})
    onehot = TableEncoder((AGE,), (SEX,), "onehot").encode(rows)
    # (60 - 50) / 10 = 1, (45 - 50) / 10 = -0.5, missing = mean = 0; nobody trained on x, nobody knows ?
    assert onehot.tolist() == [[1, 0, 0, 1, 0], [-0.5, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    index = TableEncoder((AGE,), (SEX,), "index").encode(rows)
    assert index.tolist() == [[1, 3], [-0.5, 1], [0, 0], [0, 0]]
    notes = TableEncoder((AGE,), (SEX,), "index").notes(rows)
    assert notes == ["columns not used: id", "sex: 2 rows have an unknown category: x, ?"]


def test_a_category_that_is_a_number_is_found_with_and_without_a_point() -> None:
    grade = TableEncoder((), (CategoryColumn("grade", ("1", "2.0"), (True, True)),), "index")
    # A file with a missing value makes pandas read whole numbers as floats.
    assert grade.encode(pd.DataFrame({"grade": [1.0, 2.0, np.nan]})).tolist() == [[1], [2], [0]]
    assert grade.encode(pd.DataFrame({"grade": [1, 2]})).tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pd.DataFrame({"age": [1.0]}), "sex missing; got age"),
        (pd.DataFrame({"age": ["old"], "sex": ["f"]}), "column age must hold numbers"),
        (pd.DataFrame({"age": [np.inf], "sex": ["f"]}), "column age must hold finite numbers, got inf"),
        ([[1.0, "f"]], "pandas DataFrame, got list"),
        (pd.DataFrame([[1.0, 2.0, "f"]], columns=["age", "age", "sex"]), "each column once, got age"),
    ],
)
def test_rows_unlike_training_are_refused_with_the_column(rows, message) -> None:
    with pytest.raises(ValueError, match=message):
        TableEncoder((AGE,), (SEX,), "onehot").encode(rows)


@pytest.mark.parametrize("encoding", ["onehot", "index"])
def test_a_saved_encoder_gives_the_bits_that_clients_trained_on(tmp_path, encoding) -> None:
    draw = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "age": draw.normal(60, 10, 60).round(1),
            "dose": np.where(draw.random(60) < 0.2, np.nan, draw.random(60) * 1e-3),
            "old": draw.random(60) < 0.5,
            "city": draw.choice(["Bern", "Basel", "Chur", None], 60),
            "site": draw.choice(["n", "s"], 60),
            "ill": draw.choice(["yes", "no"], 60),
        }
    )
    frame.loc[0, "city"] = "Genf"  # one row, which may be a test row
    frame.to_csv(tmp_path / "rows.csv", index=False)
    settings = {"_target_": "fedclust.data.tables.Tables", "name": "rows", "path": str(tmp_path / "rows.csv")}
    settings |= {"label": "ill", "natural": "site", "num_classes": 2, "encoding": encoding}
    settings["input_shape"] = [8 if encoding == "onehot" else 4]
    partition = {"_target_": "fedclust.data.partitioners.Natural", "validation_fraction": 0.2}
    data = load(settings, partition, 0, tmp_path / "cache")
    assert sum(map(len, data.train)) < 60  # so the scaler was fitted anew, on some of the rows
    encoder = encoder_from(json.loads(json.dumps(to_values(data.input_encoder()))))
    read = pd.read_csv(tmp_path / "rows.csv")
    np.testing.assert_array_equal(encoder.encode(read), data.inputs.numpy())
    # A row alone, whose columns pandas may read as other types, is encoded alike.
    alone = read.iloc[[7]].convert_dtypes(dtype_backend="numpy_nullable").astype(object)
    np.testing.assert_array_equal(
        encoder.encode(pd.DataFrame(alone.to_dict("records"))), data.inputs[7:8].numpy()
    )


def test_a_text_encoder_gives_the_tokens_that_clients_trained_on(tmp_path) -> None:
    texts = ["Good day", "bad night!", None, "good NIGHT day day", "x y z"]
    frame = pd.DataFrame({"text": texts * 4, "label": [0, 1, 0, 1, 0] * 4})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    settings = {"_target_": "fedclust.data.text.Text", "name": "rows", "path": str(tmp_path / "rows.csv")}
    settings |= {"num_classes": 2, "input_shape": [3], "vocabulary_size": 8}
    partition = {"_target_": "fedclust.data.partitioners.Iid", "num_clients": 2, "test_fraction": 0.3}
    data = load(settings, partition, 0, tmp_path / "cache")
    encoder = encoder_from(json.loads(json.dumps(to_values(data.input_encoder()))))
    np.testing.assert_array_equal(encoder.encode(pd.read_csv(tmp_path / "rows.csv")), data.inputs.numpy())
    with pytest.raises(ValueError, match="rows must have a column text; columns are words"):
        encoder.encode(pd.DataFrame({"words": ["a"]}))


def test_images_and_arrays_must_have_the_shape_of_training(tmp_path) -> None:
    from PIL import Image

    images = ImageEncoder((1, 2, 3), "none", (0.5,), (0.25,))
    pixels = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
    Image.fromarray(pixels[0, 0]).save(tmp_path / "a.png")
    np.testing.assert_array_equal(images.encode([tmp_path / "a.png"]), pixels)
    np.testing.assert_array_equal(images.encode([(tmp_path / "a.png").read_bytes()]), pixels)
    Image.fromarray(pixels[0, 0].T).save(tmp_path / "b.png")
    with pytest.raises(ValueError, match=r"b.png\) must have shape \(1, 2, 3\), got \(1, 3, 2\)"):
        images.encode([tmp_path / "b.png"])
    with pytest.raises(ValueError, match="cannot read image"):
        images.encode([tmp_path / "none.png"])
    arrays = ArrayEncoder((2,), "float32")
    assert arrays.encode(pd.DataFrame({"a": [1], "b": [2]})).dtype == np.float32
    with pytest.raises(ValueError, match=r"rows must have shape \(n, 2\), got \(1, 3\)"):
        arrays.encode([[1, 2, 3]])
    with pytest.raises(ValueError, match="rows must be finite, got nan"):
        arrays.encode([[1, float("nan")]])
    with pytest.raises(ValueError, match="whole numbers"):
        ArrayEncoder((2,), "int64").encode([[1, 0.5]])


GOOD = to_values(TableEncoder((AGE,), (SEX,), "onehot"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "pickle"}, "encoder must be one of table, text, images, arrays"),
        ({"more": 1}, "must have the values categories, encoding, numbers"),
        ({"encoding": "exec"}, "must be one of onehot, index, got 'exec'"),
        ({"numbers": [{"name": "a", "fill": 0, "mean": 0, "scale": 0}]}, "scale other than 0"),
        ({"numbers": [{"name": "a", "fill": 0, "mean": float("nan"), "scale": 1}]}, "finite number"),
        ({"numbers": [{"name": "a"}]}, "cannot be read"),
        ({"categories": [{"name": "a", "values": ["x"], "known": []}]}, "a known for each of its values"),
        ({"categories": [{"name": "a", "values": ["x"], "known": ["yes"]}]}, "must be one of True, False"),
        ({"numbers": 3}, "cannot be read"),
    ],
)
def test_values_that_are_no_encoder_are_refused_in_one_line(change, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        encoder_from(GOOD | change)
    assert "\n" not in str(caught.value)
