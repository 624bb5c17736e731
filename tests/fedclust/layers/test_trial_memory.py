import numpy as np
from flwr.app import Array, ArrayRecord

from fedclust.clustering.loss_traces import Trace
from fedclust.layers.trial_memory import Trial, TrialMemory
from fedclust.layers.trials import Trainee


def test_memory_comes_back_from_a_checkpoint() -> None:
    model = ArrayRecord({"layer/w": Array(np.arange(3, dtype=np.float32))})
    part = Trainee(model, {"m_t{layer/w": np.ones(3), "current_round": 2, "empty{": None})
    labels = np.array([0, 1, -1, 0])
    trial = Trial(1, "update", labels, (part, Trainee(model)), 2, 5, 0.0125, 1, 9, 77, {"gain": 0.1})
    trace = Trace.start(np.arange(4)).recorded(np.array([1, 3]), np.array([0.5, -0.5]))
    memory = TrialMemory(
        (trace,), 2, (trial,), ({"kept": False, "why": "no gain"},), 31, 1000, 500, {"labels": [2, 7]}
    )
    again = TrialMemory.unpack(memory.pack())
    assert (again.looks, again.spent, again.bytes_down, again.bytes_up) == (2, 31, 1000, 500)
    assert again.history == memory.history
    assert again.alone == {"labels": [2, 7]}
    assert again.traces[0].positions[0].tolist() == [1, 3]
    (other,) = again.trials
    assert other.entry() == trial.entry()
    assert other.entry()["sizes"] == [2, 1]  # the unknown client is in neither
    assert (other.proposals, other.level) == (5, 0.0125)
    np.testing.assert_array_equal(other.labels, labels)
    np.testing.assert_array_equal(other.parts[1].model["layer/w"].numpy(), [0, 1, 2])
    assert other.parts[0].optimiser.keys() == part.optimiser.keys()
    np.testing.assert_array_equal(other.parts[0].optimiser["m_t{layer/w"], np.ones(3))
    assert again.by_cluster() == {1: [other]}


def test_an_empty_memory_comes_back() -> None:
    again = TrialMemory.unpack(TrialMemory((Trace.start(np.arange(2)),)).pack())
    assert (again.looks, again.trials, again.history) == (0, (), ())
