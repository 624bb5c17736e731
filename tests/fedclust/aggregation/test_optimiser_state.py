from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
)

from fedclust.aggregation.flower import pack_state, restored
from fedclust.grids.local_grid import assume_identity
from fedclust.messages.packer import pack, unpack

FEW = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class OneClient:
    def get_node_ids(self) -> list[int]:
        return [0]


def _arrays(value: float) -> ArrayRecord:
    record = ArrayRecord()
    record["layer/weight{0}"] = Array(np.full((2, 3), value, dtype=np.float32))  # marks may stand in names
    record["b"] = Array(np.array([value], dtype=np.float32))
    return record


def _round(strategy, server_round: int, sent: float, returned: float) -> ArrayRecord:
    assume_identity(1)
    (asked,) = strategy.configure_train(server_round, _arrays(sent), ConfigRecord(), OneClient())
    content = RecordDict({"arrays": _arrays(returned), "metrics": MetricRecord({"num-examples": 1})})
    arrays, _ = strategy.aggregate_train(server_round, [Message(content, reply_to=asked)])
    return arrays


@pytest.mark.parametrize(
    "make",
    [
        FedAvg,
        partial(FedAvgM, server_momentum=0.9, server_learning_rate=0.5),
        FedAdam,
        FedYogi,
        FedAdagrad,
    ],
)
def test_a_restored_strategy_continues_like_the_old_one(make) -> None:
    make = partial(make, **FEW)
    old, new = make(), make()
    _round(old, 1, 0.0, 1.0)
    _round(old, 2, 0.5, 0.75)
    state = dict[str, Any]
    restored(new, unpack(state, pack(pack_state(old, make()), state)))
    expected, got = _round(old, 3, 0.6, 0.9), _round(new, 3, 0.6, 0.9)
    assert list(expected) == list(got)
    for name in expected:
        np.testing.assert_array_equal(expected[name].numpy(), got[name].numpy())


def test_a_strategy_inside_another_is_restored_too() -> None:
    def make() -> DifferentialPrivacyServerSideAdaptiveClipping:
        inner = FedAvgM(server_momentum=0.9, **FEW)
        return DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.0, 1, initial_clipping_norm=0.5)

    old, new = make(), make()
    _round(old, 1, 0.0, 1.0)
    packed = pack_state(old, make())
    assert packed["strategy"].keys() >= {"momentum_vector"}
    restored(new, packed)
    momentum = [vector.tolist() for vector in old.strategy.momentum_vector]
    assert [vector.tolist() for vector in new.strategy.momentum_vector] == momentum
    assert new.clipping_norm == old.clipping_norm != 0.5


def test_nothing_is_listed_before_the_first_round() -> None:
    assert pack_state(FedAdam(), FedAdam()) == {}


def test_what_cannot_be_kept_is_named() -> None:
    strategy = FedAvg()
    strategy.history = object()
    with pytest.raises(TypeError, match="aggregator FedAvg cannot be resumed: attribute 'history' must hold"):
        pack_state(strategy, FedAvg())
