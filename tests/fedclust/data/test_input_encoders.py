import numpy as np
import pandas as pd
import pytest

from fedclust.data import input_encoders

AGE = input_encoders.NumberColumn("age", fill=50.0, mean=50.0, scale=10.0)
SEX = input_encoders.CategoryColumn("sex", ("(missing)", "f", "m", "x"), (True, True, True, False))


def test_a_table_is_scaled_and_encoded_as_worked_out_by_hand() -> None:
    rows = pd.DataFrame({"sex": ["m", None, "x", "?"], "age": [60, 45, None, 50], "id": [1, 2, 3, 4]})
    onehot = input_encoders.TableEncoder((AGE,), (SEX,), "onehot").encode(rows)
    # (60 - 50) / 10 = 1, (45 - 50) / 10 = -0.5, missing = mean = 0; nobody trained on x, nobody knows ?
    assert onehot.tolist() == [[1, 0, 0, 1, 0], [-0.5, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    index = input_encoders.TableEncoder((AGE,), (SEX,), "index").encode(rows)
    assert index.tolist() == [[1, 3], [-0.5, 1], [0, 0], [0, 0]]
    old = input_encoders.TableEncoder((input_encoders.NumberColumn("old", 0.5, 0.5, 0.5),), (), "index")
    assert old.encode(pd.DataFrame({"old": [True, False]})).tolist() == [[1], [-1]]
    notes = input_encoders.TableEncoder((AGE,), (SEX,), "index").notes(rows)
    assert notes == ["columns not used: id", "sex: 2 rows have an unknown category: x, ?"]


def test_units_are_those_of_the_site_or_of_most() -> None:
    # Sites a to c in mg/dl, d in mmol/l. a's 100 is ten times d's 10, b's 90 is not.
    sizes = {"a": 100.0, "b": 90.0, "c": 400.0, "d": 10.0, "e": 0.0}
    assert input_encoders.other_units(sizes) == {"d": 100.0}  # two of three: a and c, of which a is the lower
    column = input_encoders.NumberColumn("glucose", 0.0, 0.0, 1.0).of_sites(sizes)
    assert column.sizes == {"d": 10.0}
    assert column.size == pytest.approx(np.sqrt(90 * 100))  # the median of four, on a logarithmic scale
    table = input_encoders.TableEncoder((column,), (), "onehot")
    about = "column glucose may be in another unit: its values are about"
    for values, site, line in (
        ([8.0, 6.0, None], "", f"{about} 7.07, those of the training rows 94.9"),  # √(100 / 2)
        ([90.0], "", None),
        ([8.0], "a", f"{about} 8, those of the training rows 94.9"),
        ([8.0], "d", None),
        ([180.0], "d/ward", f"{about} 180, those of d's training rows 10"),
        ([0.0, None], "d", None),
        ([1.0, 0.0, 1.0], "", None),  # zeros and ones have no unit
        ([None], "", None),
    ):
        assert table.notes(pd.DataFrame({"glucose": values}), site) == [line] * bool(line)


@pytest.mark.parametrize("draw", range(4))
def test_sites_in_another_unit_are_those_of_a_literal_loop(draw: int) -> None:
    sizes = dict(enumerate(np.random.default_rng(draw).choice([0, 0.03, 0.3, 3, 29, 30, 300], 8).tolist()))
    expected = {}
    for site, size in sizes.items():
        others = [other for each, other in sizes.items() if each != site and other > 0]
        far = sorted(other for other in others if size > 0 and max(size, other) >= 10 * min(size, other))
        if 2 * len(far) > len(others):
            expected[site] = far[(len(far) - 1) // 2]
    assert input_encoders.other_units(sizes) == expected
    assert all(input_encoders.other_unit("x", sizes[site], far) for site, far in expected.items())


def test_a_category_that_is_a_number_is_found_with_and_without_a_point() -> None:
    grade = input_encoders.TableEncoder(
        (), (input_encoders.CategoryColumn("grade", ("1", "2.0"), (True, True)),), "index"
    )
    # A file with a missing value makes pandas read whole numbers as floats.
    assert grade.encode(pd.DataFrame({"grade": [1.0, 2.0, np.nan]})).tolist() == [[1], [2], [0]]
    assert grade.encode(pd.DataFrame({"grade": [1, 2]})).tolist() == [[1], [2]]
    # No integer type holds these.
    assert grade.encode(pd.DataFrame({"grade": [1.0, 1e30, np.inf]})).tolist() == [[1], [0], [0]]


@pytest.mark.parametrize(
    ("known", "texts", "codes"),
    [
        (
            ("1", "10", "2", input_encoders.MISSING),
            ["01", "2", "+10", "3", "1_0", "x"],
            [0, 2, 1, -1, -1, -1],
        ),
        (("False", "True"), ["TRUE", "false", "True", "1"], [1, 0, 1, -1]),
        (("1.5", "2"), ["1.50", "2.0", "02", "inf"], [0, 1, 1, -1]),
        (("1", "A1"), ["01", "1", "A1"], [-1, 0, 1]),  # a column of texts: 01 is not 1
    ],
)
def test_a_category_is_found_as_training_read_its_column(known, texts, codes) -> None:
    """Training reads 01 of a column of numbers as 1; a file of new rows holds categories as texts."""
    column = input_encoders.CategoryColumn("ward", known, (True,) * len(known))
    assert column.codes(pd.Series(texts)).tolist() == codes


def test_a_missing_number_may_be_any_of_pandas() -> None:
    for missing in (None, np.nan, pd.NA, pd.NaT):
        found = input_encoders.numbers_of(pd.Series([1, missing, "2.5"], dtype=object))
        np.testing.assert_array_equal(found, [1.0, np.nan, 2.5])
    for dtype in (object, "string"):  # as a file's are read
        found = input_encoders.numbers_of(pd.Series(["True", "FALSE", "false", None], dtype=dtype))
        np.testing.assert_array_equal(found, [1.0, 0.0, 0.0, np.nan])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (pd.DataFrame({"age": [1.0]}), "sex missing; got age"),
        (pd.DataFrame({"age": ["old"], "sex": ["f"]}), "column age must hold numbers"),
        (pd.DataFrame({"age": [10**400], "sex": ["f"]}), "column age must hold numbers"),
        (
            pd.DataFrame({"age": [np.inf], "sex": ["f"]}),
            "column age must hold numbers that are finite as float32, got inf",
        ),
        # A float32 holds up to 3.4e38: as one it is infinite, and what is predicted would be no number.
        (
            pd.DataFrame({"age": [-1e39], "sex": ["f"]}),
            "column age must hold numbers that are finite as float32, got -inf",
        ),
        (pd.DataFrame({"age": ["4_0"], "sex": ["f"]}), "column age must hold numbers$"),
        ([[1.0, "f"]], "pandas DataFrame, got list"),
        (pd.DataFrame([[1.0, 2.0, "f"]], columns=["age", "age", "sex"]), "each column once, got age"),
    ],
)
def test_rows_unlike_training_are_refused_with_the_column(rows, message) -> None:
    with pytest.raises(ValueError, match=message):
        input_encoders.TableEncoder((AGE,), (SEX,), "onehot").encode(rows)


def test_a_number_must_be_finite_once_scaled() -> None:
    # 1e37 / 0.001 = 1e40 > 3.4e38
    tiny = input_encoders.NumberColumn("dose", fill=0.0, mean=0.0, scale=0.001)
    message = (
        "column dose must hold numbers that are finite as float32 once scaled by 1/0.001, got one that is"
    )
    with pytest.raises(ValueError, match=message):
        input_encoders.TableEncoder((tiny,), (), "onehot").encode(pd.DataFrame({"dose": [1.0, -1e37]}))


def test_names_and_categories_may_be_in_decomposed_form() -> None:
    town = input_encoders.CategoryColumn("größe", ("Zürich",), (True,))
    rows = pd.DataFrame({"gro\u0308ße": ["Zu\u0308rich"]})
    encoder = input_encoders.TableEncoder((), (town,), "index")
    assert encoder.encode(rows).tolist() == [[1]]
    assert encoder.notes(rows) == []


def test_a_column_of_texts_is_one_column() -> None:
    texts = input_encoders.TextEncoder(("text", "note"), 3, "{}")
    twice = pd.DataFrame([["good", "bad"], ["bad", "good"]], columns=["text", "text"])
    with pytest.raises(ValueError, match="rows must have each column once, got text several times"):
        texts.encode(twice)
    for wrong in (None, 3, "good"):
        with pytest.raises(ValueError, match="rows must be a list of texts or a table with a column of them"):
            texts.encode(wrong)


def test_images_and_arrays_must_have_the_shape_of_training(tmp_path) -> None:
    from PIL import Image

    images = input_encoders.ImageEncoder((1, 2, 3), "none", (0.5,), (0.25,))
    pixels = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
    Image.fromarray(pixels[0, 0]).save(tmp_path / "a.png")
    np.testing.assert_array_equal(images.encode([tmp_path / "a.png"]), pixels)
    np.testing.assert_array_equal(images.encode([(tmp_path / "a.png").read_bytes()]), pixels)
    Image.fromarray(pixels[0, 0].T).save(tmp_path / "b.png")
    with pytest.raises(ValueError, match=r"b.png\) must have shape \(1, 2, 3\), got \(1, 3, 2\)"):
        images.encode([tmp_path / "b.png"])
    with pytest.raises(ValueError, match="cannot read image"):
        images.encode([tmp_path / "none.png"])
    for wrong in (b"bytes", list(pixels), None):
        with pytest.raises(ValueError, match="images must be paths, encoded bytes, or an array of uint8"):
            images.encode(wrong)
    two = input_encoders.ImageEncoder((2, 2, 3), "none", (0.5, 0.5), (0.25, 0.25))
    with pytest.raises(ValueError, match=r"must be pixels of shape \(n, 2, 2, 3\), as files"):
        two.encode([tmp_path / "a.png"])
    arrays = input_encoders.ArrayEncoder((2,), "float32")
    assert arrays.encode(pd.DataFrame({"a": [1], "b": [2]})).dtype == np.float32
    with pytest.raises(ValueError, match=r"rows must have shape \(n, 2\), got \(1, 3\)"):
        arrays.encode([[1, 2, 3]])
    with pytest.raises(ValueError, match="rows must be finite as float32, got nan"):
        arrays.encode([[1, float("nan")]])
    with pytest.raises(ValueError, match=r"rows must be finite as float32, got 1e\+300"):
        arrays.encode([[1e300, 0.5]])
    with pytest.raises(ValueError, match="whole numbers"):
        input_encoders.ArrayEncoder((2,), "int64").encode([[1, 0.5]])


GOOD = input_encoders.to_values(input_encoders.TableEncoder((AGE,), (SEX,), "onehot"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "pickle"}, "encoder must be one of table, text, images, arrays"),
        ({"more": 1}, "must have the values categories, encoding, numbers"),
        ({"encoding": "exec"}, "must be one of onehot, index, got 'exec'"),
        ({"numbers": [{"name": "a", "fill": 0, "mean": 0, "scale": 0}]}, "scale must not be 0, got 0"),
        ({"numbers": [{"name": "a", "fill": 0, "mean": float("nan"), "scale": 1}]}, "finite number"),
        ({"numbers": [{"name": "a"}]}, "cannot be read"),
        ({"categories": [{"name": "a", "values": ["x"], "known": []}]}, "a known for each of its values"),
        ({"categories": [{"name": "a", "values": ["x"], "known": ["yes"]}]}, "must be one of True, False"),
        ({"numbers": 3}, "cannot be read"),
    ],
)
def test_values_that_are_no_encoder_are_refused_in_one_line(change, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        input_encoders.encoder_from(GOOD | change)
    assert "\n" not in str(caught.value)
