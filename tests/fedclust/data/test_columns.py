from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from fedclust.data.source import Part, SourceError, encode_labels, encode_natural, find_column


def part(**columns: Any) -> Part:
    return Part(ds.dataset(pa.table(columns)))


def test_the_first_column_that_exists_is_found() -> None:
    assert find_column(part(img=[1], image=[1]), ["image", "img"], "image") == "image"
    assert find_column(part(img=[1]), ["image", "img"], "image") == "img"


def test_a_missing_column_lists_those_there_are() -> None:
    with pytest.raises(
        SourceError, match="label must be a column of the source, got y or z; columns are a, b"
    ):
        find_column(part(a=[1], b=[1]), ["y", "z"], "label")


def test_whole_numbers_below_the_number_of_classes_are_indices() -> None:
    labels = encode_labels([part(label=[2, 0]), part(label=[0])], "label", 3)
    np.testing.assert_array_equal(labels.indices, [2, 0, 0])  # though 1 does not occur
    assert labels.indices.dtype == np.int64
    assert labels.num_train == 2
    assert labels.class_names == ("0", "1", "2")
    np.testing.assert_array_equal(labels.kept, [True, True, True])


@pytest.mark.parametrize(
    ("values", "indices", "names"),
    [
        (["no", "yes", "maybe"], [1, 2, 0], ("maybe", "no", "yes")),
        ([1, 2, 3], [0, 1, 2], ("1", "2", "3")),
        ([-1, 1, 7], [0, 1, 2], ("-1", "1", "7")),
        ([2.0, 0.0, 1.0], [2, 0, 1], ("0", "1", "2")),
        ([0.5, 0.0, 1.5], [1, 0, 2], ("0.0", "0.5", "1.5")),
        (pa.array(["b", "a", "c"]).dictionary_encode(), [1, 0, 2], ("a", "b", "c")),
    ],
)
def test_other_values_become_their_ranks(values: Any, indices: list[int], names: tuple[str, ...]) -> None:
    labels = encode_labels([part(label=values)], "label", 3)
    np.testing.assert_array_equal(labels.indices, indices)
    assert labels.class_names == names


def test_truth_values() -> None:
    labels = encode_labels([part(label=[True, False])], "label", 2)
    np.testing.assert_array_equal(labels.indices, [1, 0])


def test_names_of_a_class_label_feature() -> None:
    features = datasets.Features({"label": datasets.ClassLabel(names=["cat", "dog"])})
    table = pa.table({"label": [1, 1]}).replace_schema_metadata(features.arrow_schema.metadata)
    labels = encode_labels([Part(ds.dataset(table))], "label", 2)
    assert labels.class_names == ("cat", "dog")
    with pytest.raises(SourceError, match="num_classes must be 2, as the classes are cat, dog, got 3"):
        encode_labels([Part(ds.dataset(table))], "label", 3)


def test_stated_names_go_first() -> None:
    labels = encode_labels([part(label=["<", ">"])], "label", 2, class_names=["low", "high"])
    assert labels.class_names == ("low", "high")


def test_dropped_labels_leave_both_parts() -> None:
    labels = encode_labels([part(label=[0, 2, 4]), part(label=[2, 4])], "label", 2, drop=[2])
    np.testing.assert_array_equal(labels.indices, [0, 1, 1])
    np.testing.assert_array_equal(labels.kept, [True, False, True, False, True])
    assert labels.num_train == 2


@pytest.mark.parametrize("values", [[[0, 1, 1], [1, 0, 0]], ["011", "100"]])
def test_labels_per_position(values: list[Any]) -> None:
    labels = encode_labels([part(label=values), part(label=values[:1])], "label", 2, per_position=True)
    np.testing.assert_array_equal(labels.indices, [[0, 1, 1], [1, 0, 0], [0, 1, 1]])
    assert labels.num_train == 2


@pytest.mark.parametrize("values", [[[0, 1], [1]], ["01", "1"]])
def test_uneven_labels_per_position_are_refused(values: list[Any]) -> None:
    with pytest.raises(SourceError, match="equally many labels in every example, got 1 to 2"):
        encode_labels([part(label=values)], "label", 2, per_position=True)


def test_one_label_where_each_position_should_have_one_is_refused() -> None:
    with pytest.raises(SourceError, match="label must hold a list of numbers .* got int64"):
        encode_labels([part(label=[0, 1])], "label", 2, per_position=True)


def test_several_labels_where_there_should_be_one_are_refused() -> None:
    with pytest.raises(
        SourceError, match=r"label must hold one label per example, got list.*per_position=true"
    ):
        encode_labels([part(label=[[0, 1], [1, 0]])], "label", 2)


@pytest.mark.parametrize(
    ("train", "test", "num_classes", "message"),
    [
        ([1, 2], ["1", "?"], 2, "labels must be all numbers or all text, got both"),
        ([0, None], None, 2, "1 examples have no label in label"),
        (["a", "b"], ["b", "c"], 3, "the test part has labels that the training part lacks: c; name them"),
        (["a", "b", "c"], None, 2, "num_classes must be 3, as the data has the labels a, b, c, got 2"),
        (list(range(1, 11)), None, 2, r"labels 1, 2, 3, 4, 5 and 5 more, got 2"),
        (pa.array([], pa.int64()), None, 2, "must hold at least one example, got none"),
    ],
)
def test_labels_that_contradict_the_configuration(
    train: Any, test: Any, num_classes: int, message: str
) -> None:
    parts = [part(label=train)] + ([part(label=test)] if test is not None else [])
    with pytest.raises(SourceError, match=message):
        encode_labels(parts, "label", num_classes)


def test_stated_names_must_be_as_many_as_classes() -> None:
    with pytest.raises(SourceError, match="num_classes must be 3, as the classes are a, b, c, got 2"):
        encode_labels([part(label=[0, 1])], "label", 2, class_names=["a", "b", "c"])


def test_natural_clients_are_numbered_in_the_order_of_their_names() -> None:
    parts = [part(user=["w9", "w1"]), part(user=["w5"])]
    found = encode_natural(parts, "user", np.array([True, True, True]))
    assert found is not None
    indices, names = found
    np.testing.assert_array_equal(indices, [2, 0, 1])
    assert indices.dtype == np.int64
    assert names == ("w1", "w5", "w9")


def test_natural_clients_of_kept_examples_only() -> None:
    found = encode_natural([part(user=[30, 10, 20])], "user", np.array([True, False, True]))
    assert found is not None
    np.testing.assert_array_equal(found[0], [1, 0])
    assert found[1] == ("20", "30")


def test_no_client_holds_an_example_without_a_user() -> None:
    parts = [part(user=pd.array(["b", None])), part(other=[1])]
    found = encode_natural(parts, "user", np.ones(3, dtype=bool))
    assert found is not None
    np.testing.assert_array_equal(found[0], [0, -1, -1])


def test_numbers_of_users_stay_whole_where_some_are_missing() -> None:
    found = encode_natural([part(user=[17.0, None, 4.0])], "user", np.ones(3, dtype=bool))
    assert found is not None
    assert found[1] == ("4", "17")


def test_no_natural_clients() -> None:
    assert encode_natural([part(user=[1])], None, np.array([True])) is None
    with pytest.raises(SourceError, match="natural must be a column"):
        encode_natural([part(user=[1])], "writer", np.array([True]))
