"""ε of the releases that a client took part in; computed by the ``dp-accounting`` package.

All that a run releases about its clients are sums of bounded contributions with Gaussian noise. For one
client whose contributions are replaced by zeros, a release of sensitivity S and noise of standard deviation σ
is (S/σ)-Gaussian-private, and releases compose exactly, even if later ones depend on earlier ones: together,
releases of multipliers z₁, z₂, … are one of multiplier (Σ zᵢ⁻²)^(−1/2).

Source: Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B 84(1), 2022, Corollary 3.3; ε at a given δ:
Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8.

No amplification by sampling of clients is claimed. Cohorts of fixed size are drawn from the run's seed
without replacement and written to the results, so a bound that assumes that they are secret would not hold.
Patients are drawn by their site, independently and in secret; :func:`epsilon_of_steps` counts on that.

Source for these: Koskela, Jälkö and Honkela, "Computing Tight Differential Privacy Guarantees Using FFT",
AISTATS 2020, as the package composes them; rounded such that ε is never too small.
"""

import math
import os
from collections.abc import Callable, Iterable
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from fedclust.support.rng import generator
from fedclust.typing import FloatArray

_EXTRA = "privacy=client_dp and patient_dp need the package dp-accounting: pip install 'fedclust[privacy]'"


def require() -> None:
    """Check that ``dp-accounting`` is installed.

    Raises
    ------
    ModuleNotFoundError
        If it is not; the message names the extra that installs it.

    Examples
    --------
    >>> require()  # returns only if it is installed
    """
    try:
        import dp_accounting  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(_EXTRA) from error


def combined_multiplier(releases: Iterable[tuple[float, int]]) -> float:
    """Compute the noise multiplier of one release that reveals as much as several.

    Parameters
    ----------
    releases
        Pairs of a multiplier, noise over sensitivity, > 0, and how often it was released, >= 0.

    Returns
    -------
    (Σ count · multiplier⁻²)^(−1/2); infinite without a release.

    Examples
    --------
    >>> combined_multiplier([(2.0, 4)])  # four releases with noise 2 reveal as much as one with noise 1
    1.0
    """
    total = math.fsum(count / multiplier**2 for multiplier, count in releases)
    return math.inf if total == 0 else total**-0.5


def epsilon_of(releases: Iterable[tuple[float, int]], delta: float) -> float:
    """Compute ε of Gaussian releases at a given δ.

    Parameters
    ----------
    releases
        As for :func:`combined_multiplier`.
    delta
        δ, in (0, 1).

    Raises
    ------
    ModuleNotFoundError
        If ``dp-accounting`` is not installed.

    Examples
    --------
    >>> epsilon_of([], delta=1e-5)
    0.0
    >>> epsilon_of([(2.0, 4)], delta=1e-5) == epsilon_of([(1.0, 1)], delta=1e-5)
    True
    """
    require()
    from dp_accounting import get_epsilon_gaussian

    multiplier = combined_multiplier(releases)
    return 0.0 if math.isinf(multiplier) else float(get_epsilon_gaussian(multiplier, delta))


_GRID = 1e-3  # of privacy losses: ε is too large by some 1e-4
_CLOSE, _TINY = 1e-3, 1e-12


@lru_cache(maxsize=64)
def _loss_of_step(multiplier: float, sampling: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as losses

    return losses.from_gaussian_mechanism(
        multiplier, value_discretization_interval=_GRID, sampling_prob=sampling
    )


@lru_cache(maxsize=4096)
def epsilon_of_steps(multiplier: float, sampling: float, steps: int, delta: float) -> float:
    """Compute ε of steps that each draw every patient with some probability and release a noisy sum.

    Neighbours differ in a patient whose rows are not there.

    Parameters
    ----------
    multiplier
        Standard deviation of the noise over the largest length of a patient's share, z > 0.
    sampling
        Probability that a step draws a patient, in (0, 1].
    steps
        Number of steps, >= 0.
    delta
        δ, in (0, 1).

    Raises
    ------
    ModuleNotFoundError
        If ``dp-accounting`` is not installed.

    Examples
    --------
    >>> epsilon_of_steps(2.0, 1.0, 4, delta=1e-5) == epsilon_of([(2.0, 4)], delta=1e-5)
    True
    >>> round(epsilon_of_steps(4.0, 0.25, 20, delta=1e-4), 3)
    0.951
    """
    require()
    if sampling == 1 or not steps:
        return epsilon_of([(multiplier, steps)], delta)
    return float(_loss_of_step(multiplier, sampling).self_compose(steps).get_epsilon_for_delta(delta))


def epsilon_of_runs(spent: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Compute ε of all steps and figures that a patient may have taken part in, of any settings.

    Parameters
    ----------
    spent
        Noise multiplier, probability of being drawn, and number, each as for :func:`epsilon_of_steps`.
    delta
        δ, in (0, 1).

    Raises
    ------
    ModuleNotFoundError
        If ``dp-accounting`` is not installed.

    Examples
    --------
    >>> epsilon_of_runs([(4.0, 0.25, 15), (4.0, 0.25, 5)], 1e-4) == epsilon_of_steps(4.0, 0.25, 20, 1e-4)
    True
    >>> epsilon_of_runs([(2.0, 1.0, 4)], 1e-5) == epsilon_of_steps(2.0, 1.0, 4, 1e-5)
    True
    """
    require()
    number: dict[tuple[float, float], int] = {}
    for multiplier, sampling, count in spent:
        number[multiplier, sampling] = number.get((multiplier, sampling), 0) + count
    # Releases of everyone are one release, see the module.
    whole = combined_multiplier((noise, count) for (noise, share), count in number.items() if share == 1)
    drawn = {key: count for key, count in number.items() if key[1] < 1 and count}
    if not drawn:
        return 0.0 if math.isinf(whole) else epsilon_of([(whole, 1)], delta)
    losses = [_loss_of_step(*key).self_compose(count) for key, count in drawn.items()]
    losses += [] if math.isinf(whole) else [_loss_of_step(whole, 1.0)]
    return float(reduce(lambda all_of, each: all_of.compose(each), losses).get_epsilon_for_delta(delta))


def multiplier_of(epsilon: float, sampling: float, steps: int, delta: float) -> float:
    """Compute the noise multiplier by which steps cost at most ε, and not a thousandth less.

    Parameters
    ----------
    epsilon
        ε, > 0.
    sampling, steps, delta
        As for :func:`epsilon_of_steps`; steps >= 1.

    Raises
    ------
    ModuleNotFoundError
        If ``dp-accounting`` is not installed.
    ValueError
        If no noise is needed, as δ is at least the probability that a patient is drawn at all.

    Examples
    --------
    >>> multiplier = multiplier_of(2.0, 0.25, 20, delta=1e-4)
    >>> 1.998 < epsilon_of_steps(multiplier, 0.25, 20, delta=1e-4) <= 2.0
    True
    """
    require()
    from dp_accounting import get_sigma_gaussian

    high = float(get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)
    if sampling == 1:
        return high
    from scipy.optimize import brentq

    if delta >= (drawn := -math.expm1(steps * math.log1p(-sampling))):
        rule = f"below {drawn:.3g}, the probability that {steps} steps draw a patient"
        raise ValueError(f"privacy.delta must be {rule}, got {delta:g}")

    def excess(logarithm: float) -> float:  # nearly linear; 0 where ε is a little less than allowed
        spent = epsilon_of_steps(math.exp(logarithm), sampling, steps, delta)
        return math.log(max(spent, _TINY) / epsilon) + _CLOSE / 2

    low = high * max(sampling, 0.1)  # what sampling is worth at most, in long runs
    while excess(math.log(low)) < 0:
        low, high = low / 2, low
    while excess(math.log(high)) > 0:  # of a small ε, the grid's error is a large part
        high *= 2
    return math.exp(brentq(excess, math.log(low), math.log(high), xtol=_CLOSE / 10))


Noise = Callable[[str, int, int, int], FloatArray]
"""Draws standard normal numbers, given purpose, round, cluster or client, and number."""


def seeded(seed: int) -> Noise:
    """Return a source of noise that depends on the run's seed alone: repeatable, and not secret.

    Examples
    --------
    >>> one, same = (seeded(7)("mean", 1, 0, 3) for _ in range(2))  # purpose, round, cluster, number
    >>> np.array_equal(one, same), len(one)
    (True, 3)
    """

    def draw(purpose: str, server_round: int, cluster: int, number: int) -> FloatArray:
        return generator(seed, f"dp {purpose}", server_round, cluster).standard_normal(number)

    return draw


def system(purpose: str, server_round: int, cluster: int, number: int) -> FloatArray:  # noqa: ARG001
    """Draw noise from the operating system's cryptographic source; it cannot be reproduced.

    Examples
    --------
    >>> len(system("mean", 1, 0, 3))
    3
    """
    from scipy.special import ndtri  # imported here because few runs draw noise

    whole = np.frombuffer(os.urandom(8 * number), dtype=np.uint64) >> np.uint64(12)
    uniform = (whole.astype(np.float64) + 0.5) * 2.0**-52  # in (0, 1): with 53 bits the largest would be 1
    drawn: FloatArray = ndtri(uniform)
    return drawn
