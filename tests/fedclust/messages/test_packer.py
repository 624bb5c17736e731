"""Tests of what turns dataclasses into plain values, and plain values into arrays and JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays
from typing_extensions import TypeAliasType

from fedclust.messages.packer import UNSAVED, join_arrays, pack, split_arrays, unpack
from fedclust.support.array_bytes import from_numpy, to_numpy
from fedclust.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Part:
    name: str
    labels: IntArray
    scale: float = 1.0
    known: IntArray | None = None


@dataclass(frozen=True, eq=False)
class Other:
    number: int


@dataclass(frozen=True, eq=False)
class Nested:
    inside: "Nested | None"


@dataclass(frozen=True, eq=False)
class Memory:
    scores: FloatArray
    known: BoolArray | None
    rows: tuple[IntArray, ...]
    parts: tuple[Part, ...]
    by_client: Mapping[int, Part]
    figures: Mapping[str, float]
    ids: Sequence[int]
    alone: Mapping[str, Sequence[int]]
    which: Part | None
    mode: Literal["one", "two"]
    either: int | str | None
    told: dict[str, Any]
    models: tuple[ArrayRecord, ...]
    served: IntArray | None = field(default=None, metadata=UNSAVED)


SHORT = tuple[IntArray, ...]
SIX = np.array([6])
BY_CLIENT = dict[int, Other]
W = np.arange(3)
texts = st.text(max_size=4) | st.sampled_from(["", "~", "/", "a/b", "~kind", "~1", "~rows"])
whole = st.integers(-(2**62), 2**62)
reals = st.floats(width=64)
some = arrays.arrays(st.sampled_from([np.int64, np.float32, np.bool_]), arrays.array_shapes(min_dims=0))
ints = arrays.arrays(st.sampled_from([np.int64, np.int32]), st.integers(0, 3).map(lambda size: (size,)))
json_values = st.recursive(
    st.none() | st.booleans() | whole | reals | texts,
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(texts, inside, max_size=2),
    max_leaves=4,
)
parts = st.builds(Part, texts, ints, reals, st.none() | ints)
records = st.dictionaries(texts, some, max_size=2).map(
    lambda values: ArrayRecord({name: from_numpy(array) for name, array in values.items()})
)
memories = st.builds(
    Memory,
    scores=some,
    known=st.none() | some,
    rows=st.lists(ints, max_size=3).map(tuple),
    parts=st.lists(parts, max_size=2).map(tuple),
    by_client=st.dictionaries(whole, parts, max_size=2),
    figures=st.dictionaries(texts, reals, max_size=2),
    ids=st.lists(whole, max_size=3).map(tuple),
    alone=st.dictionaries(texts, st.lists(whole, max_size=2).map(tuple), max_size=2),
    which=st.none() | parts,
    mode=st.sampled_from(["one", "two"]),
    either=st.none() | whole | texts,
    told=st.dictionaries(texts, json_values | some | st.dictionaries(texts, some, max_size=2), max_size=2),
    models=st.lists(records, max_size=2).map(tuple),
)


def same(one: Any, other: Any) -> bool:
    """Compare to the bit; a sequence is its entries, whatever holds them."""
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, ArrayRecord):
        return same({k: to_numpy(v) for k, v in one.items()}, {k: to_numpy(v) for k, v in other.items()})
    if is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)


def written(value: Any, hint: Any = None) -> tuple[Any, dict[str, Any]]:
    """Return what a file has of a value: JSON, and lists in place of arrays."""
    text, arrays = split_arrays(pack(value, hint))
    return json.loads(text), {name: array.tolist() for name, array in arrays.items()}


def read_again(value: Any, hint: Any = None) -> Any:
    """Take a value through what a file can hold."""
    return unpack(hint or type(value), join_arrays(*split_arrays(pack(value, hint))))


@given(memories)
def test_what_is_packed_comes_back_to_the_bit(memory: Memory) -> None:
    assert same(read_again(memory), memory)
    assert same(unpack(Memory, pack(memory)), memory)


def test_paths_name_fields_keys_and_places() -> None:
    @dataclass(frozen=True, eq=False)
    class Outer:
        models: tuple[ArrayRecord, ...]
        by_name: dict[str, IntArray]
        size: int

    model = ArrayRecord({"net.w": from_numpy(SIX)})
    rest, arrays = written(Outer((model,), {"a": W, "b/c": SIX}, 7))
    assert arrays == {"models/0/net.w": [6], "by_name/a": [0, 1, 2], "by_name/b/c": [6]}
    by_name = {"a": {"~array": "by_name/a"}, "b/c": {"~array": "by_name/b/c"}}
    assert rest == {"models": [{"~record": [["net.w"], ["models/0/net.w"]]}], "by_name": by_name, "size": 7}


def test_the_same_path_twice_is_two_arrays() -> None:
    nested = {"a/b": W, "a": {"b": SIX}}
    assert written(nested, Any)[1] == {"a/b": [0, 1, 2], "a/b~": [6]}
    assert same(read_again(nested, Any), nested)


def test_short_rows_are_one_array() -> None:
    rest, arrays = written(tuple(np.arange(size) for size in (2, 0, 3)), SHORT)
    assert arrays == {"": [0, 1, 0, 1, 2]}
    assert rest == {"~rows": ["", [2, 0, 3], [0, 1, 2]]}


def test_thousands_of_clients_are_as_few_arrays_as_one() -> None:
    # A safetensors file's header holds 100 MB: 100,000 clients of seven arrays each would be more.
    parts = {
        client: Part("", np.arange(client % 3), known=None if client % 2 else SIX) for client in (7, 4, 5)
    }
    rest, arrays = written(parts, dict[int, Part])
    # Of lengths 7 % 3 = 1, 4 % 3 = 1 and 5 % 3 = 2.
    assert arrays == {"labels": [0, 0, 0, 1], "known": [6]}
    rows = {
        "labels": {"~rows": ["labels", [1, 1, 2], [0, 1, 2]]},
        "known": {"~rows": ["known", [1], [None, 0, None]]},
    }
    columns = {"name": ["", "", ""], "scale": [1.0, 1.0, 1.0]} | rows
    assert rest == {"~keys": [7, 4, 5], "values": {"~columns": columns}}
    read = read_again(parts, dict[int, Part])
    assert list(read) == [7, 4, 5]
    assert [each.known is None for each in read.values()] == [True, False, True]


def test_an_array_that_is_there_twice_is_written_once_and_shared_again() -> None:
    shared = (SIX, np.array([1, 2]), SIX)
    assert written(shared, SHORT) == ({"~rows": ["", [1, 2], [0, 1, 0]]}, {"": [6, 1, 2]})
    read = read_again(shared, SHORT)
    assert [each.tolist() for each in read] == [[6], [1, 2], [6]]
    assert read[0] is read[2]


def test_a_record_that_is_there_twice_is_written_once_and_shared_again() -> None:
    model, other = (ArrayRecord({"w": from_numpy(np.full(2, value))}) for value in (1.0, 1.0))
    shared, hint = (model, other, model), tuple[ArrayRecord, ...]
    assert list(written(shared, hint)[1]) == ["0/w", "1/w"]
    back = read_again(shared, hint)
    assert back[0] is back[2] is not back[1]


def test_a_type_may_hold_itself() -> None:
    assert pack(Nested(Nested(None))) == {"inside": {"inside": None}}


def test_what_is_unsaved_has_its_default_again() -> None:
    @dataclass(frozen=True, eq=False)
    class Some:
        kept: int
        lost: dict[int, int] = field(default_factory=dict, metadata=UNSAVED)
        made: int = field(init=False, default=7)

    assert pack(Some(1, {2: 3})) == {"kept": 1}
    assert unpack(Some, {"kept": 1}).lost == {}


def test_numbers_of_numpy_become_plain_where_the_hint_says_so() -> None:
    number = pack(Other(np.int64(3)))["number"]  # type: ignore[arg-type]
    assert type(number) is int
    assert unpack(Other, {"number": np.array(3)}).number == 3
    assert type(pack({np.int64(3): Other(1)}, BY_CLIENT).popitem()[0]) is int
    assert type(pack(np.float64(2), Any)) is np.ndarray  # keeps its precision in what is computed with it


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Other, Other("three"), "number must be int, got 'three'"),  # type: ignore[arg-type]
        (Other, Other(True), "number must be int, got True"),
        (Other, Part("a", np.zeros(1, int)), "the value must be Other, got Part"),
        (dict[str, FloatArray], {"a": [1.0]}, "a must be an array of numbers, got list"),
        (dict[str, FloatArray], {1: np.zeros(1)}, "the value must have str keys, got [1]"),
        (dict[str, Any], {"a": {1.5: 2}}, "a must have str or int keys, got [1.5]"),
        (SHORT, (SIX, "six"), "1 must be an array of numbers, got 'six'"),
        (Literal["a", "b"], "c", "must be one of 'a', 'b', got 'c'"),
        (
            Any,
            object(),
            "must be a number, a text, None, an array, or a list or mapping of these, got object",
        ),
        (Any, {"a": [{"b": object()}]}, "a/0/b must be a number, a text, None, an array"),
        *((hint, None, "a type to pack must be made of") for hint in (object, tuple[int, str], Part | Other)),
    ],
)
def test_what_does_not_fit_its_hint_is_refused(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        pack(value, hint)
    assert message in str(error.value)


@pytest.mark.parametrize("values", [np.array(["x"]), np.array([None]), np.array([1j])])
def test_arrays_of_other_values_than_numbers_are_refused(values) -> None:
    for nested in ([values, values], [values]):
        with pytest.raises(TypeError, match="a must be an array of numbers, got an array of .*, shape"):
            split_arrays({"a": nested})


@pytest.mark.parametrize(
    ("hint", "plain", "message"),
    [
        (Other, {}, "the value must have number: number is missing"),
        (Other, {"number": 1, "more": 2}, "the value must have number: more is unknown"),
        (Other, {"number": "one"}, "number must be int, got 'one'"),
        (Other, {"number": 1.5}, "number must be int, got 1.5"),
        (Other, {"number": {"deep": 1}}, "number must be int, got dict"),
        (dict[int, int], {"one": 1}, "the value must have int keys, got ['one']"),
        (tuple[Other, ...], [{"number": 1}, 2], "1 must be Other, got 2"),
        (tuple[int, ...], [1, 0.5], "1 must be int, got 0.5"),
        (tuple[int, ...], "12", "the value must be a list, got '12'"),
        (BY_CLIENT, {6: {}}, "6 must have number: number is missing"),
        (ArrayRecord, "elsewhere", "must be an ArrayRecord, got 'elsewhere'"),
        (IntArray, 3, "must be an array of numbers, got 3"),
        (IntArray | None, "x", "must be an array of numbers or None, got 'x'"),
    ],
)
def test_plain_values_that_are_not_what_was_packed_are_refused(hint, plain, message) -> None:
    with pytest.raises(ValueError) as error:
        unpack(hint, plain)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "arrays", "message"),
    [
        ("{", {}, "Expecting property name"),
        ({"a": {"~array": "a"}}, {}, "array a is missing"),
        ({"a": 1}, {"a": W}, "array a is unknown"),
        ([{"~array": "a"}, {"~array": "a"}], {"a": W}, "array a is missing"),
        ({"~array": ["a"]}, {"a": W}, "text must say where the arrays are"),
        ({"~record": [["w"], ["w"]]}, {}, "array w is missing"),
        ({"~record": 1}, {}, "text must say where the arrays are"),
        ({"~rows": ["a", [1], [0]]}, {}, "array a is missing"),
        ({"~rows": ["a", [1], [0]]}, {"a": W}, "array a must be of 1 parts, 1 rows"),
        ({"~rows": ["a", [-1, 4], [0]]}, {"a": W}, "array a must be of"),
        ({"~rows": ["a", [1.5, 1.5], [0]]}, {"a": W}, "text must say where the arrays are"),
        ({"~rows": ["a", [3], [1]]}, {"a": W}, "array a must be of"),
        ({"~rows": ["a", [3], [-1]]}, {"a": W}, "array a must be of"),
        ({"~rows": ["a", [3], [0]]}, {"a": np.array(3)}, "text must say where the arrays are"),
        ({"~rows": ["a", [], []]}, {"a": W}, "min()"),
        ({"~rows": ["a"]}, {"a": W}, "not enough values"),
        ({"~columns": {"a": [1, 2], "b": [1]}}, {}, "shorter"),
        ({"~columns": [1]}, {}, "text must say where the arrays are"),
        ({"~keys": [1, 2], "values": [1]}, {}, "shorter"),
        ({"~keys": [1]}, {}, "text must say where the arrays are"),
        ("[" * 100_000, {}, "text must say where the arrays are"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(text, arrays, message) -> None:
    with pytest.raises(ValueError) as error:
        join_arrays(text if isinstance(text, str) else json.dumps(text), arrays)
    assert message in str(error.value)


def test_an_alias_of_a_type_stands_for_it() -> None:
    """NumPy's NDArray is made by the statement ``type`` since 2.5."""
    kind = TypeVar("kind", bound=np.generic)
    alias = TypeAliasType("alias", np.ndarray[Any, np.dtype[kind]], type_params=(kind,))
    made = make_dataclass("Made", [("rows", alias[np.float64])], frozen=True, eq=False)
    read = unpack(made, pack(made(np.array([1.5, 2.5]))))
    assert read.rows.tolist() == [1.5, 2.5]
