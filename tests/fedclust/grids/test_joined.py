"""All arrays of a message travel as one and come back as they were; a layout that does not fit is refused."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from fedclust.grids import joined as module
from fedclust.grids.joined import is_joined, joined, separated
from fedclust.support.array_bytes import from_numpy, to_numpy

VALUES = hnp.arrays(
    st.sampled_from([np.float32, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, max_dims=2, min_side=0)
)


@pytest.fixture(autouse=True)
def _any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 0)


def test_many_small_arrays_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 3)
    small = {str(number): from_numpy(np.zeros(1)) for number in range(4)}  # of 136 bytes
    assert is_joined(joined(RecordDict({"a": ArrayRecord(small)})))
    large = small | {"0": from_numpy(np.zeros(2**16))}  # of 2¹⁹ + 128 bytes, more than 4 · 2¹⁶
    few = {number: small[number] for number in "012"}
    for arrays in (few, large):
        content = RecordDict({"a": ArrayRecord(arrays)})
        assert joined(content) is content


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), VALUES, max_size=3), max_size=3)
)
def test_arrays_come_back_as_they_were(records) -> None:
    content = RecordDict(
        {
            name: ArrayRecord({key: from_numpy(each) for key, each in of.items()})
            for name, of in records.items()
        }
    )
    content["said"] = ConfigRecord({"round": 3})
    content["measured"] = MetricRecord({"loss": 0.5})
    content["other"] = ArrayRecord({"torch": Array("float32", (1,), "torch", b"bytes")})
    sent = joined(content)
    assert is_joined(sent) == any(map(len, records.values()))
    assert sum(map(len, sent.array_records.values())) <= 2  # all that are NumPy's as one, and the other
    back = separated(sent)
    assert {*back} == {*content}
    for name, record in content.items():
        assert {*back[name]} == {*record}
        if isinstance(record, ArrayRecord):
            for key, array in record.items():
                assert back[name][key].data == array.data
                assert (back[name][key].dtype, back[name][key].shape) == (array.dtype, tuple(array.shape))
        else:
            assert back[name] == record


def test_a_content_without_arrays_is_sent_as_it_is() -> None:
    content = RecordDict({"said": ConfigRecord({"round": 3}), "empty": ArrayRecord()})
    assert joined(content) is content
    assert separated(content) is content


def sent(sizes: object = None) -> RecordDict:
    """A message with the arrays a/x and a/y, with another layout if one is given."""
    message = joined(
        RecordDict({"a": ArrayRecord({"x": from_numpy(np.zeros(1)), "y": from_numpy(np.ones(2))})})
    )
    if sizes is not None:
        told = sizes if isinstance(sizes, str) else json.dumps(sizes)
        message["fedclust-layout"] = ConfigRecord({"sizes": told})
    return message


@pytest.mark.parametrize(
    "sizes",
    [
        {"a": {"x": 136, "y": 145}},  # one more than 136 + 144: a header of 128 bytes and numbers of 8
        {"a": {"x": 136, "y": 143}},
        {"a": {"x": 280, "y": 0}},
        {"a": {"x": 281, "y": -1}},
        {"a": {"x": 136.0, "y": 144.0}},
        {"a": {"x": True, "y": 279}},
        {"a": {"x": 10**30, "y": 1}},
        {"a": {"x": 280}, "b": {}},
        {"a": [136, 144]},
        [280],
        {},
        280,
        '{"a": {"x": 136, "x": 144}}',
        "[" * 10**6,
        "not JSON",
        "",
    ],
)
def test_a_layout_that_does_not_fit_is_refused(sizes) -> None:
    assert [len(array.data) for array in separated(sent())["a"].values()] == [136, 144]
    with pytest.raises(ValueError, match="arrays must be joined as their layout says"):
        separated(sent(sizes))


def test_more_arrays_than_asked_for_and_other_records_are_refused() -> None:
    assert len(separated(sent(), most=2)["a"]) == 2
    with pytest.raises(ValueError, match="at most 1 arrays"):
        separated(sent(), most=1)
    with pytest.raises(ValueError, match="at most 1024 characters"):
        separated(sent('{"a":[' + "[]," * 512 + "[]]}"), most=2)
    twice = sent()
    twice["a"] = ConfigRecord({"round": 3})
    with pytest.raises(ValueError, match="'a' must be a new record"):
        separated(twice)
    for missing in ("fedclust-arrays", "fedclust-layout"):
        broken = sent()
        broken[missing] = MetricRecord({"loss": 0.5})
        with pytest.raises(ValueError, match="arrays must be joined"):
            separated(broken)
    del broken["fedclust-arrays"]
    with pytest.raises(ValueError, match="arrays must be joined"):
        separated(broken)


def test_a_damaged_array_is_refused_when_it_is_read() -> None:
    message = sent()
    values = to_numpy(message["fedclust-arrays"]["all"]).copy()
    values[0] ^= 1  # the first byte of the magic number of a/x
    message["fedclust-arrays"] = ArrayRecord({"all": from_numpy(values)})
    found = separated(message)["a"]
    np.testing.assert_array_equal(to_numpy(found["y"]), [1, 1])
    with pytest.raises(ValueError, match="must be in NumPy's format"):
        to_numpy(found["x"])
