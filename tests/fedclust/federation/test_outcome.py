import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord

from fedclust.results.outcome import Outcome


def test_it_prints_as_flowers_result_does() -> None:
    model = ArrayRecord({"w": Array(np.zeros(2))})
    outcome = Outcome(model, evaluate_metrics_clientapp={1: MetricRecord({"loss": 0.5})})
    assert "Aggregated ClientApp-side Evaluate Metrics:\n{1: {'loss': '5.0000e-01'}}" in repr(outcome)
    assert len(outcome.assignment) == 0
    assert outcome.verdict is None
