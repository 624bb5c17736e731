import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fedclust.support import checks


@pytest.mark.parametrize(
    ("rule", "kept", "broken"),
    [
        ("> 0", [0.1, float("inf")], [0, -1, float("nan"), None]),
        (">= 2 or None", [2, None], [1]),
        ("< 3", [2], [3]),
        ("<= 3", [3], [4]),
        ("in [0, 1)", [0, 0.5], [1, -0.1, float("nan")]),
        ("in (0, 0.5]", [0.5, 0.1], [0, 0.51]),
        ("> 0 and finite or None", [1.0, None], [float("inf"), 0]),
        ("numbers >= 1 or None", [[2, 1], (), None], [[2, 0], 2, ["2"]]),
        (Literal["a", "b"], ["a", "b"], ["c", None]),
    ],
)
def test_rules_hold_or_are_named_with_the_value(rule, kept: list, broken: list) -> None:
    for value in kept:
        checks.check(SimpleNamespace(size=value), size=rule)
    told = rule if isinstance(rule, str) else "one of a, b"
    for value in broken:
        with pytest.raises(ValueError, match="size must be") as error:
            checks.check(SimpleNamespace(size=value), size=rule)
        shown = value if isinstance(rule, str) else repr(value)
        assert str(error.value) == f"size must be {told}, got {shown}"


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("True or False", "False"),
        (">= 1 or None", "None"),
        (">= 1", [2]),
        ("in [0, 1)", []),
        ("a whole number >= 1 or a share in (0, 1]", [0.5]),
    ],
)
def test_a_word_is_its_value_and_a_list_is_no_number(rule: str, broken: object) -> None:
    with pytest.raises(ValueError, match="size must be") as error:
        checks.check(SimpleNamespace(size=broken), size=rule)
    assert str(error.value) == f"size must be {rule}, got {broken!r}"


@checks.checked
def grown(size: Annotated[int, ">= 1"], by: Annotated[float, "> 0"] | None = None, to: int = 0) -> float:
    """Add to a size."""
    return size + (by or 0) + to


def test_the_rules_in_the_types_of_arguments() -> None:
    assert grown(2, to=-5) == -3  # an argument without a rule, and one that is not given
    assert grown(size=2, by=0.5) == 2.5
    assert grown(2, None) == 2
    with pytest.raises(ValueError, match="^size must be >= 1, got 0$"):
        grown(0)
    with pytest.raises(ValueError, match="^by must be > 0, got -1$"):
        grown(1, by=-1)
    assert grown.__doc__ == "Add to a size."


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(ValueError, match="^must be a finite number, got 1000"):
        checks.read_as(float, 10**400)


def test_a_value_that_may_be_missing_is_refused_by_its_type() -> None:
    with pytest.raises(ValueError, match="^must be a text, got 3$"):
        checks.read_as(str | None, 3)
    assert checks.read_as(str | None, None) is None


def test_the_first_entry_that_breaks_a_rule_is_named() -> None:
    checks.check_entries("in (0, 1]", kept=np.array([[0.5, 1.0]]), empty=np.zeros(0), number=0.5)
    for broken, shown in ((np.array([0.5, 0.0, np.nan]), "0.0"), (np.float64(0), "0.0"), (2, "2")):
        with pytest.raises(ValueError, match=rf"^broken must be in \(0, 1\], got {shown}$"):
            checks.check_entries("in (0, 1]", kept=np.ones(2), broken=broken)
    with pytest.raises(ValueError, match="^a must be finite and >= 0, got inf$"):
        checks.check_entries("finite and >= 0", a=np.array([1, np.inf, -1]))


def test_axes_of_one_name_are_of_one_length() -> None:
    table, row = np.zeros((2, 3)), np.zeros(3)
    checks.check_shapes(
        table=(table, "clients classes"), row=(row, "classes"), none=(np.zeros((0, 3)), "rows? 3")
    )
    for array, axes, shown in (
        (table, "rows rows", "rows, rows"),
        (row, "clients", "2"),
        (table, "classes", "3"),
        (table, "clients 4", "2, 4"),
        (np.zeros((2, 0)), "clients rows", "2, rows"),
    ):
        with pytest.raises(ValueError, match=rf"^array must have shape \({shown}\), got "):
            checks.check_shapes(table=(table, "clients classes"), array=(array, axes))


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
    assert checks.dumps(value) == text


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, (number for number in range(3))])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="value must be something JSON can hold, got"):
        checks.dumps(value)


def test_booleans_stay_booleans() -> None:
    assert checks.plain({True: True, "n": 1}) == {"True": True, "n": 1}


def test_a_line_per_key() -> None:
    text = checks.dumps_by_key({"a": [1, 2], "b": {"c": float("nan")}})
    assert text == '{\n  "a": [1, 2],\n  "b": {"c": null}\n}\n'
    assert json.loads(checks.dumps_by_key({})) == {}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    checks.replace_file(tmp_path / "x", "old, and longer")
    checks.replace_file(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):  # as a full disk would, it leaves no part
        checks.replace_file(tmp_path / "folder", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "x"]


@pytest.mark.parametrize(
    ("value", "suggested"), [("fedwgc", "fedgwc"), ("FedGWC", "fedgwc"), ("CLUST-PSI-PFL", "clust_psi_pfl")]
)
def test_a_misspelt_choice_gets_the_nearest_one(value: str, suggested: str) -> None:
    known = ["fedgwc", "clust_psi_pfl"]
    told = f"strategy must be one of fedgwc, clust_psi_pfl, got '{value}' (did you mean '{suggested}'?)"
    assert checks.none_of("strategy", value, known) == told
    with pytest.raises(ValueError, match="did you mean 'train'"):
        checks.check(SimpleNamespace(task="trian"), task="train or inspect")
    assert checks.none_of("strategy", "x", known).endswith("got 'x'")


@dataclass(frozen=True)
class Step(checks.Checked):
    rate: Annotated[float, "> 0"]
    kind: Literal["sgd", "adam"] = "sgd"
    anything: object = None


def test_fields_have_the_rules_of_their_types() -> None:
    assert Step(0.5, "adam", "x").rate == 0.5
    for given, said in (
        ((0.0,), "^rate must be > 0, got 0.0$"),
        ((1.0, "lbfgs"), "^kind must be one of sgd, "),
    ):
        with pytest.raises(ValueError, match=said):
            Step(*given)
