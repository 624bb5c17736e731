import numpy as np
import pytest

from fedclust.clustering.shared import weighted_sums as module
from fedclust.clustering.shared.weighted_sums import weighted_sums


@pytest.mark.parametrize("block", [1, 4, 1 << 22])
def test_sums_by_hand_whatever_the_block(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    values = [np.array([[1, 2]], np.float32), np.array([[3, 5]], np.float32), np.array([[0, 7]], np.float32)]
    # 2·1 + 1·3 + 4·0 = 5 and 2·2 + 1·5 + 4·7 = 37; the middle one alone.
    np.testing.assert_array_equal(weighted_sums(values, np.array([2.0, 1.0, 4.0])), [[5, 37]])
    several = weighted_sums(values, np.array([[2.0, 1.0, 4.0], [0.0, 1.0, 0.0]]))
    np.testing.assert_array_equal(several, [[[5, 37]], [[3, 5]]])


def test_sums_are_in_float64_and_of_numbers_without_a_shape() -> None:
    # In float32, 2²⁴ + 1 is 2²⁴.
    total = weighted_sums([np.array(2.0**24, np.float32), np.array(1.0, np.float32)], np.array([1.0, 1.0]))
    assert total.dtype == np.float64
    assert total == 2.0**24 + 1
