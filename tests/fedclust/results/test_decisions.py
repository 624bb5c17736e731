import numpy as np
import pytest

from fedclust.metrics import outcomes
from fedclust.results.decisions import client_decisions, decision_lines, summarise_decisions


def counted(labels, predicted, num_classes):
    return outcomes(np.array(labels), np.array(predicted), np.eye(num_classes)[predicted] * 0.98 + 0.01)


def test_columns_of_three_classes_by_hand() -> None:
    clients = {0: counted([0, 0, 1, 2], [0, 1, 1, 1], 3), 2: counted([1], [1], 3)}
    found = client_decisions(clients, 3, seed=0)
    # Client 0: sensitivities 1/2, 1, 0; specificities 2/2, 1/3, 3/3.
    assert found["sensitivity"][0] == pytest.approx(0.5)
    assert found["specificity"][0] == pytest.approx(7 / 9)
    assert found["confusion"] == [[1, 1, 0, 0, 1, 0, 0, 1, 0], None, [0, 0, 0, 0, 1, 0, 0, 0, 0]]
    assert 0 <= found["accuracy_low"][0] < 0.5 < found["accuracy_high"][0] <= 1
    assert np.isnan(found["accuracy_low"][1])
    assert found["accuracy_low"][2] == found["accuracy_high"][2] == 1
    assert "sensitivity_low" not in found
    assert client_decisions({}, 3, seed=0) == {}


def test_the_summary_and_its_lines_by_hand() -> None:
    clients = {0: counted([0, 0, 1, 2], [0, 1, 1, 1], 3), 1: counted([2, 2], [2, 0], 3)}
    found = summarise_decisions(clients, np.array([1, 0]), ("a", "b", "c"), seed=0)
    assert found["confusion"] == [[1, 1, 0], [0, 1, 0], [1, 1, 1]]
    assert [each["sensitivity"] for each in found["classes"]] == pytest.approx([1 / 2, 1, 1 / 3])
    assert [each["specificity"] for each in found["classes"]] == pytest.approx([3 / 4, 3 / 5, 1])
    assert [each["cluster"] for each in found["clusters"]] == [0, 1]
    assert found["clusters"][0]["confusion"] == [[0, 0, 0], [0, 0, 0], [1, 0, 1]]
    assert found["positive"] is None
    first, second = decision_lines({"decisions": found})
    assert first.startswith("least sensitivity: c, 0.333 [")
    assert first.endswith("], of 3 test rows")
    assert second.startswith("Brier score ")
    assert summarise_decisions({}, np.array([0]), (), seed=0) is None
    assert decision_lines({}) == []
