import math
import sys

import pytest

from fedclust.privacy.accountant import combined_multiplier, epsilon_of


def _delta(multiplier: float, epsilon: float) -> float:
    """δ of a Gaussian release, Balle and Wang (ICML 2018), Theorem 8, with Φ by the error function."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    half, far = 1 / (2 * multiplier), epsilon * multiplier
    return phi(half - far) - math.exp(epsilon) * phi(-half - far)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.22])
def test_epsilon_is_where_the_published_delta_is_met(multiplier: float) -> None:
    assert _delta(multiplier, epsilon_of([(multiplier, 1)], 1e-5)) == pytest.approx(1e-5, rel=1e-6)


def test_a_published_pair() -> None:
    # The tests of dp-accounting (test_compute_epsilon_delta_gaussian): by Rényi DP, whose bound is not tight,
    # a multiplier of 4.530877117 is (1, 1e-6)-private. Exactly, it must be a little better, but not by far.
    assert 0.85 < epsilon_of([(4.530877117, 1)], 1e-6) < 1.0
    # Dwork and Roth (2014), Theorem A.1: for ε < 1, sqrt(2 ln(1.25/δ))/ε is enough.
    assert epsilon_of([(math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.9, 1)], 1e-5) < 0.9


def test_releases_compose_as_one_of_the_squares_sum() -> None:
    # 1/z² = 4/2² + 1/1² = 2.
    assert combined_multiplier([(2.0, 4), (1.0, 1)]) == pytest.approx(1 / math.sqrt(2))
    assert epsilon_of([(2.0, 4)], 1e-5) == pytest.approx(epsilon_of([(1.0, 1)], 1e-5))


def test_nothing_released_costs_nothing() -> None:
    assert combined_multiplier([(1.0, 0)]) == math.inf
    assert epsilon_of([(1.0, 0)], 1e-5) == 0.0


def test_composition_agrees_with_the_accountant_by_privacy_loss_distributions() -> None:
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    event = ComposedDpEvent([SelfComposedDpEvent(GaussianDpEvent(3.0), 9), GaussianDpEvent(2.0)])
    bound = PLDAccountant().compose(event).get_epsilon(1e-5)  # rounded up to its grid
    assert epsilon_of([(3.0, 9), (2.0, 1)], 1e-5) == pytest.approx(bound, abs=1e-3)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'fedclust\\[privacy\\]'"):
        epsilon_of([(1.0, 1)], 1e-5)
