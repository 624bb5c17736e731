"""ε of the releases that a client took part in; computed by the ``dp-accounting`` package.

All that a run releases about its clients are sums of bounded contributions with Gaussian noise. For one
client whose contributions are replaced by zeros, a release of sensitivity S and noise of standard deviation σ
is (S/σ)-Gaussian-private, and releases compose exactly, even if later ones depend on earlier ones: together,
releases of multipliers z₁, z₂, … are one of multiplier (Σ zᵢ⁻²)^(−1/2).

Source: Dong, Roth and Su, "Gaussian Differential Privacy", JRSS B 84(1), 2022, Corollary 3.3; ε at a given δ:
Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, Theorem 8.

No amplification by sampling is claimed. Cohorts of fixed size are drawn from the run's seed without
replacement and written to the results, so a bound that assumes that they are secret would not hold.
"""

import math
import os
from collections.abc import Callable, Iterable

import numpy as np

from fedclust.support.rng import generator
from fedclust.typing import FloatArray

_EXTRA = "privacy=client_dp needs the package dp-accounting: pip install 'fedclust[privacy]'"


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


Noise = Callable[[str, int, int, int], FloatArray]
"""Draws standard normal numbers, given purpose, round, cluster and number."""


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
