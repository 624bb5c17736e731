import numpy as np
import pytest

from fedclust.federation import Measured
from fedclust.federation.questions import prior_shifts


def test_each_model_is_corrected_by_the_shares_it_was_trained_on() -> None:
    # One model for all has seen both classes alike. Clients with mostly class 0 get a shift above
    # 0 for class 0 and below for class 1.
    counts = np.array([[90, 10], [90, 10], [10, 90], [10, 90]])
    common = prior_shifts(counts, np.zeros(4, dtype=int))
    assert (common[:2, 0] > 0).all()
    assert (common[:2, 1] < 0).all()
    np.testing.assert_allclose(common[2:], common[:2, ::-1])
    # Within the groups all clients are alike: nothing is left to correct.
    assert not prior_shifts(counts, np.array([0, 0, 1, 1])).any()


def test_a_client_without_examples_is_not_corrected() -> None:
    counts = np.array([[90, 10], [0, 0], [10, 90]])
    shifts = prior_shifts(counts, np.zeros(3, dtype=int))
    assert not shifts[1].any()
    np.testing.assert_allclose(shifts[[0, 2]], prior_shifts(counts[[0, 2]], np.zeros(2, dtype=int)))
    assert not prior_shifts(np.zeros((2, 3), dtype=int), np.zeros(2, dtype=int)).any()


def test_measured_by_the_model_that_serves() -> None:
    own = Measured({"accuracy": np.array([0.1, 0.2, 0.3])}, {})
    common = Measured({"accuracy": np.array([0.7, 0.8, np.nan]), "auc": np.array([0.5, 0.5, 0.5])}, {})
    served = own.served(common, np.array([True, False, True]))
    assert served.figures["accuracy"][:2].tolist() == [0.7, 0.2]
    assert np.isnan(served.figures["accuracy"][2])
    assert served.figures["auc"][0] == pytest.approx(0.5)
    assert np.isnan(served.figures["auc"][1])


def test_clients_of_no_cluster_do_not_count_among_what_a_model_was_trained_on() -> None:
    counts = np.array([[90, 10], [10, 90], [50, 50], [80, 20]])
    shifts = prior_shifts(counts, np.array([0, 0, -1, -1]))
    assert not shifts[2:].any()
    np.testing.assert_allclose(shifts[:2], prior_shifts(counts[:2], np.zeros(2, dtype=int)))
