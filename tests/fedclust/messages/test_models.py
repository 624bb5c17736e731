"""Tests of models as records."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedclust.messages import models as records


def _model(**arrays: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


def test_state_there_and_back() -> None:
    state = {
        "b.weight": torch.tensor([[1.5, -2.0]]),
        "a.steps": torch.tensor(3),
        "half": torch.ones(2, dtype=torch.float16),
    }
    back = records.to_state(records.from_state(state))
    assert list(back) == list(state)
    for name, tensor in state.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert torch.equal(back[name], tensor)


def test_rows_of_stacked_models() -> None:
    stacked = {"w": torch.arange(6.0).reshape(3, 2), "n": torch.tensor([7, 8, 9])}
    last, first = records.from_stacked(stacked, [2, 0])
    assert [array.numpy().tolist() for array in last.values()] == [[4.0, 5.0], 9]
    assert [array.numpy().tolist() for array in first.values()] == [[0.0, 1.0], 7]
    assert records.from_stacked(stacked, []) == []


def test_models_joined_and_split() -> None:
    models = [_model(w=np.zeros(2), **{"a/b": np.ones(1)}), _model(w=np.full(2, 5.0))]
    joined = records.join_models(models)
    assert list(joined) == ["0/w", "0/a/b", "1/w"]
    split = records.split_models(joined)
    assert list(split) == [0, 1]
    assert list(split[0]) == ["w", "a/b"]
    np.testing.assert_array_equal(split[1]["w"].numpy(), [5.0, 5.0])


def test_like_restores_types_and_order() -> None:
    template = _model(w=np.zeros(2, dtype=np.float32), steps=np.zeros((), dtype=np.int64))
    mean = _model(steps=np.array(2.6), w=np.array([0.5, 1.5]))
    restored = records.like(mean, template)
    assert list(restored) == ["w", "steps"]
    assert restored["w"].numpy().dtype == np.float32
    assert restored["steps"].numpy() == 3  # the nearest integer
    assert restored["steps"].numpy().dtype == np.int64


def test_a_mean_between_two_floats_falls_the_same_way_whatever_its_round_off() -> None:
    # 1 + 2^-24 lies halfway between the float32 numbers 1 and 1 + 2^-23; ties go to the even one, 1. One bit
    # of float64 more, 2^-52, would send it up.
    template = _model(w=np.zeros(3, dtype=np.float32))
    tie = 1 + 2.0**-24
    settled = records.like(_model(w=np.array([tie, tie + 2.0**-52, tie - 2.0**-53])), template)
    np.testing.assert_array_equal(settled["w"].numpy(), np.ones(3, dtype=np.float32))
    assert np.float32(tie + 2.0**-52) != 1


def test_like_rounds_a_number_without_axes() -> None:
    restored = records.like(_model(scale=np.array(0.25)), _model(scale=np.zeros((), dtype=np.float32)))
    assert restored["scale"].numpy().shape == ()
    assert restored["scale"].numpy() == np.float32(0.25)


def test_like_refuses_another_model() -> None:
    template = _model(w=np.zeros(2))
    with pytest.raises(ValueError, match=r"arrays must be named \['w'\], got \['v'\]"):
        records.like(_model(v=np.zeros(2)), template)
    with pytest.raises(ValueError, match=r"array 'w' must have shape \(2,\), got \(3,\)"):
        records.like(_model(w=np.zeros(3)), template)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite(bad: float) -> None:
    assert records.is_finite(_model(w=np.zeros(2), steps=np.array(3)))
    assert not records.is_finite(_model(v=np.zeros(1), w=np.array([0.0, bad])))


def test_a_reason_does_not_quote_long_names() -> None:
    with pytest.raises(ValueError, match=r"must be named \['w'\], got \['xxx") as error:
        records.canonical(_model(**{"x" * 10**6: np.zeros(2)}), _model(w=np.zeros(2)))
    assert len(str(error.value)) < 300
