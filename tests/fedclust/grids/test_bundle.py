import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedclust.federation import is_bundle, pack, unpack


def _arrays(value: float) -> ArrayRecord:
    return ArrayRecord([np.full(3, value)])


def test_what_is_packed_comes_out() -> None:
    contents = {
        4: RecordDict({"arrays": _arrays(1.0), "metrics": MetricRecord({"loss": 0.5})}),
        9: RecordDict({"arrays": _arrays(2.0)}),
    }
    unpacked, errors = unpack(pack(contents, {2: "no data"}))
    assert errors == {2: "no data"}
    assert list(unpacked) == [4, 9]
    assert list(unpacked[4]) == ["arrays", "metrics"]
    assert unpacked[4].metric_records["metrics"]["loss"] == 0.5
    np.testing.assert_array_equal(unpacked[9].array_records["arrays"]["0"].numpy(), [2.0, 2.0, 2.0])


def test_a_shared_record_travels_once_and_is_shared_again() -> None:
    shared = _arrays(1.0)
    contents = {
        client: RecordDict({"arrays": shared, "config": ConfigRecord({"c": client})}) for client in range(5)
    }
    bundle = pack(contents)
    assert len(bundle.array_records) == 1
    assert len(bundle.config_records) == 5 + 1  # the clients' and the index
    unpacked, _ = unpack(bundle)
    assert len({id(content["arrays"]) for content in unpacked.values()}) == 1
    assert [content.config_records["config"]["c"] for content in unpacked.values()] == list(range(5))


def test_a_shared_content_is_shared_again() -> None:
    content = RecordDict({"arrays": _arrays(1.0)})
    unpacked, _ = unpack(pack({0: content, 1: content}))
    assert unpacked[0] is unpacked[1]


def test_an_empty_bundle() -> None:
    assert unpack(pack({})) == ({}, {})


def test_only_a_bundle_is_one() -> None:
    assert is_bundle(pack({}))
    content = RecordDict({"arrays": _arrays(1.0)})
    assert not is_bundle(content)
    with pytest.raises(ValueError, match=r"must be a bundle .* its records are \['arrays'\]"):
        unpack(content)


def test_a_client_with_content_and_error_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clients \[3\] have both"):
        pack({3: RecordDict()}, {3: "failed"})
