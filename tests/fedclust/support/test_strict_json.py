import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from omegaconf import OmegaConf

from fedclust.support.checks import dumps, dumps_by_key, plain, replace_file

nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(nested)
def test_json_values_come_back_as_they_were(value: object) -> None:
    assert json.loads(dumps(value)) == value
    assert "\n" not in dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float64(0.1), "0.1"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.bool_(True), "true"),
        (np.array([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
        (torch.tensor([1.5, 2.5]), "[1.5, 2.5]"),
        (Path("a/b"), '"a/b"'),
        ({np.int64(1): (2, 3)}, '{"1": [2, 3]}'),
        (OmegaConf.create({"a": [1, {"b": None}]}), '{"a": [1, {"b": null}]}'),
        (float("nan"), "null"),
        ({"x": [float("inf"), 1.0]}, '{"x": [null, 1.0]}'),
        (np.array([np.nan, 1.0]), "[null, 1.0]"),
        ({"x": np.float32("nan")}, '{"x": null}'),
        (torch.tensor(float("-inf")), "null"),
    ],
)
def test_values_that_json_does_not_know(value: object, text: str) -> None:
    assert dumps(value) == text


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, (number for number in range(3))])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="value must be something JSON can hold, got"):
        dumps(value)


def test_booleans_stay_booleans() -> None:
    assert plain({True: True, "n": 1}) == {"True": True, "n": 1}


def test_a_line_per_key() -> None:
    text = dumps_by_key({"a": [1, 2], "b": {"c": float("nan")}})
    assert text == '{\n  "a": [1, 2],\n  "b": {"c": null}\n}\n'
    assert json.loads(dumps_by_key({})) == {}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    replace_file(tmp_path / "x", "old, and longer")
    replace_file(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
