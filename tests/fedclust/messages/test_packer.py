"""Tests of what writes dataclasses as arrays and scalars by path."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import ArrayRecord
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from fedclust.messages.packer import UNSAVED, pack, unpack
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
DEEP = {"~value/0/" * depth + "~kind": "list" for depth in range(2_000)}
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


@given(memories)
def test_what_is_packed_comes_back_to_the_bit(memory: Memory) -> None:
    packed = pack(memory)
    assert all(v is None or isinstance(v, bool | int | float | str | np.ndarray) for v in packed.values())
    assert same(unpack(Memory, packed), memory)


def test_paths_name_fields_keys_and_places() -> None:
    @dataclass(frozen=True, eq=False)
    class Outer:
        parts: tuple[Other, ...]
        by_name: dict[str, int]

    packed = pack(Outer((Other(3), Other(5)), {"a/b": 1}))
    assert packed == {"parts/0/number": 3, "parts/1/number": 5, "by_name/a~1b": 1}


def test_short_rows_are_two_arrays() -> None:
    packed = pack(tuple(np.arange(size) for size in (2, 0, 3)), tuple[IntArray, ...])
    assert packed["~rows"].tolist() == [0, 1, 0, 1, 2]
    assert packed["~lengths"].tolist() == [2, 0, 3]


def test_thousands_of_clients_are_as_few_entries_as_one() -> None:
    # A safetensors file's header holds 100 MB: 100,000 clients of seven arrays each would be more.
    parts = {
        client: Part("", np.arange(client % 3), known=None if client % 2 else SIX) for client in (7, 4, 5)
    }
    packed = pack(parts, dict[int, Part])
    assert {path: each for path, each in packed.items() if path.startswith("name/")} == {
        "name/0": "", "name/1": "", "name/2": "",
    }  # fmt: skip
    found = {path: each.tolist() for path, each in packed.items() if isinstance(each, np.ndarray)}
    assert found == {
        "~keys": [7, 4, 5],
        "labels/~rows": [0, 0, 0, 1],  # of lengths 7 % 3 = 1, 4 % 3 = 1 and 5 % 3 = 2
        "labels/~lengths": [1, 1, 2],
        "scale": [1.0, 1.0, 1.0],
        "known/~rows": [6],
        "known/~lengths": [-1, 1],
        "known/~which": [0, 1, 0],
    }
    read = unpack(dict[int, Part], packed)
    assert list(read) == [7, 4, 5]
    assert [each.known is None for each in read.values()] == [True, False, True]


def test_an_array_that_is_there_twice_is_written_once_and_shared_again() -> None:
    packed = pack((SIX, np.array([1, 2]), SIX), SHORT)
    assert {path: each.tolist() for path, each in packed.items() if isinstance(each, np.ndarray)} == {
        "~rows": [6, 1, 2],
        "~lengths": [1, 2],
        "~which": [0, 1, 0],
    }
    read = unpack(SHORT, packed)
    assert [each.tolist() for each in read] == [[6], [1, 2], [6]]
    assert read[0] is read[2]


def test_a_record_that_is_there_twice_is_written_once_and_shared_again() -> None:
    model, other = (ArrayRecord({"w": from_numpy(np.full(2, value))}) for value in (1.0, 1.0))
    hint = tuple[ArrayRecord, ...]
    packed = pack((model, other, model), hint)
    assert packed["2"] == "0"
    back = unpack(hint, packed)
    assert back[0] is back[2] is not back[1]


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
    assert type(pack(np.float64(2), Any)[""]) is np.ndarray  # keeps its precision in what is computed with it


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Other, Other("three"), "number must be int, got 'three'"),  # type: ignore[arg-type]
        (Other, Other(True), "number must be int, got True"),
        (Other, Part("a", np.zeros(1, int)), "the value must be Other, got Part"),
        (dict[str, FloatArray], {"a": [1.0]}, "a must be an array of numbers, got list"),
        (dict[str, FloatArray], {"a": np.array(["x"])}, "a must be an array of numbers, got an array of <U1"),
        (dict[str, FloatArray], {1: np.zeros(1)}, "must be a mapping with str keys"),
        (Literal["a", "b"], "c", "must be one of 'a', 'b', got 'c'"),
        (Nested, Nested(None), "a type to pack must not hold itself, got Nested"),
        (Any, object(), "must be bool or int or float or str or None, got object"),
        (Any, {"a": {"b": object()}}, "got object"),
        *((hint, None, "a type to pack must be made of") for hint in (object, tuple[int, str], Part | Other)),
    ],
)
def test_what_does_not_fit_its_hint_is_refused(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        pack(value, hint)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("hint", "entries", "message"),
    [
        (Other, {}, "the value must have number: number is missing"),
        (Other, {"number": 1, "more": 2}, "the value must have number: more is unknown"),
        (Other, {"number": "one"}, "number must be int, got 'one'"),
        (Other, {"number": 1.5}, "number must be int, got 1.5"),
        (Other, {"number/deep": 1}, "number must be int, got dict"),
        (Other, {"number": 1, "number/deep": 1}, "must be inside a container"),
        (dict[int, int], {"one": 1}, "one must be a whole number"),
        (tuple[Other, ...], {"1/number": 1}, "must be numbered from 0, got 1"),
        (tuple[int, ...], {"": np.array([0.5])}, "must hold int, got float64"),
        (SHORT, {"~rows": np.arange(3), "~lengths": np.array([1])}, "lengths of all its 3"),
        (SHORT, {"~rows": np.arange(3)}, "must be an array of numbers, got None"),
        (BY_CLIENT, {"~keys": SIX, "number": np.array([1, 2])}, "number must have 1 values, got 2"),
        (SHORT, {"~rows": SIX, "~lengths": SIX - 5, "~which": SIX}, "must number its 1 arrays, got an array"),
        (BY_CLIENT, {"~keys": SIX}, "the value must have ~keys, number: number is missing"),
        (ArrayRecord, {"": "elsewhere"}, "must be a container, got None"),
        (ArrayRecord, {"w": np.array(["x"])}, "w must be an array of numbers"),
        (IntArray, {"": 3}, "must be an array of numbers, got 3"),
        (Any, {"~kind": "code", "~value": "{"}, "got 'code'"),
        (Any, {"~kind": np.zeros(2), "~value": 0}, "must be one of record, mapping"),
        (Any, DEEP, "must not be nested so deeply"),
        (SHORT, {"~rows": np.array(3), "~lengths": np.array([1])}, "lengths of all its 1"),
        (SHORT, {"~rows": np.arange(3), "~lengths": np.array([-1, 4])}, "lengths of all its 3"),
    ],
)
def test_entries_that_are_not_what_was_packed_are_refused(hint, entries, message) -> None:
    with pytest.raises(ValueError) as error:
        unpack(hint, entries)
    assert message in str(error.value)
