"""Random generators that depend on the purpose of a draw, and the draws of a round's clients.

Every draw of a run comes from a generator derived from (seed, purpose, further keys such as round and
client). So the same seed gives the same draws in one process, on thirty nodes, or on a cluster, regardless of
which process draws, and when.
"""

import math
import zlib

import numpy as np
from numpy.typing import NDArray


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Return the random generator for one purpose.

    Parameters
    ----------
    seed
        The run's seed, >= 0.
    purpose
        Name of the purpose, such as ``"sample"`` or ``"batches"``; different purposes are independent.
    keys
        Keys that distinguish draws for one purpose, such as round and client; each >= 0.

    Returns
    -------
    A generator that depends only on the arguments.

    Raises
    ------
    ValueError
        If the seed or a key is negative.
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *keys)))


def torch_seed(seed: int, purpose: str, *keys: int) -> int:
    """Return a 63-bit seed, such as for ``torch.manual_seed``, derived as in :func:`generator`."""
    return int(_sequence(seed, purpose, *keys).generate_state(1, np.uint64)[0]) >> 1


def _sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    # The number of keys is included because (a,) and (a, 0) are the same entropy to SeedSequence.
    entropy = (seed, zlib.crc32(purpose.encode()), len(keys), *keys)
    if min(entropy) < 0:
        raise ValueError(f"seed and keys must be >= 0, got seed {seed}, keys {keys}")
    return np.random.SeedSequence(entropy)


_SMALL, _REPLICAS = 2, 4  # of Clust-PSI-PFL's released code


def cohort_size(num_clients: int, participation: float, at_least: int = 1) -> int:
    """Compute the number of a cluster's clients that take part in a round.

    Source: FedGWC, Theorem A.5, for at least 3; other methods use at least 1.

    Parameters
    ----------
    num_clients
        Number of clients in the cluster.
    participation
        Share ρ of them that takes part, in (0, 1].
    at_least
        Smallest cohort; in a smaller cluster, all clients take part.

    Returns
    -------
    max(⌈ρ · num_clients⌉, at_least), at most num_clients.

    Raises
    ------
    ValueError
        If ``participation`` is outside (0, 1].
    """
    if not 0 < participation <= 1:
        raise ValueError(f"participation must be in (0, 1], got {participation}")
    # Round first, so that 0.1 * 30 = 3.0000000000000004 does not become four clients.
    wanted = math.ceil(round(participation * num_clients, 9))
    return min(num_clients, max(wanted, at_least))


def number_of(asked: int | float, num_clients: int) -> int:
    """Convert a number (int) or a share (float) of clients to a number.

    Parameters
    ----------
    asked
        A whole number >= 1, or a share in (0, 1], rounded up; 1 is one client and 1.0 all.
    num_clients
        Number of clients K.

    Returns
    -------
    Number in 1 … K.
    """
    return min(asked, num_clients) if isinstance(asked, int) else cohort_size(num_clients, asked)


def draw(members: NDArray[np.integer], size: int, generator: np.random.Generator) -> NDArray[np.integer]:
    """Draw clients uniformly without replacement.

    Parameters
    ----------
    members
        Client ids to draw from, shape (K,).
    size
        Number of clients to draw, at most K.

    Returns
    -------
    Client ids, sorted, shape (size,).
    """
    return np.sort(generator.choice(members, size=size, replace=False))


def draw_least_sampled(
    members: NDArray[np.integer], counts: NDArray[np.integer], size: int, generator: np.random.Generator
) -> NDArray[np.integer]:
    """Draw clients without replacement; those that took part less often have a higher probability.

    Source: FedGWC, Section 4.1, "a dynamic adjustment process to prioritize clients that are infrequently
    sampled"; the probability is proportional to exp(−(count − smallest count)).

    Parameters
    ----------
    members
        Client ids to draw from, shape (K,).
    counts
        Number of rounds each has taken part in so far, shape (K,).
    size
        Number of clients to draw, at most K.

    Returns
    -------
    Client ids, sorted, shape (size,).
    """
    # Taking the largest of log weight + Gumbel noise draws without replacement in proportion to the weights;
    # unlike Generator.choice(p=…) it works when weights underflow to 0.
    keys = -(counts - counts.min()).astype(np.float64) + generator.gumbel(size=len(members))
    return np.sort(members[np.argsort(-keys, kind="stable")[:size]])


def draw_order(
    weights: NDArray[np.integer] | NDArray[np.floating], generator: np.random.Generator
) -> NDArray[np.integer]:
    """Draw all items one after another, without replacement, in proportion to weights.

    Parameters
    ----------
    weights
        Weight of each item, >= 0, shape (n,); those of weight 0 come last.

    Returns
    -------
    Positions in the order of the draw, shape (n,).
    """
    # As in `draw_least_sampled`. The log of 0 is minus infinity, which sorts last.
    noise = generator.gumbel(size=len(weights))
    with np.errstate(divide="ignore"):
        return np.argsort(-(np.log(np.asarray(weights, dtype=np.float64)) + noise), kind="stable")


def largest(values: NDArray[np.floating], size: int) -> NDArray[np.integer]:
    """Return the sorted positions of the `size` largest values; of equal values, the first."""
    return np.sort(np.argsort(-values, kind="stable")[:size])


def draw_replicas(
    members: NDArray[np.integer], participation: float, generator: np.random.Generator
) -> NDArray[np.integer]:
    """Draw the cohort of a cluster as in Clust-PSI-PFL's released code.

    Source: that code, which uses four copies of each client in a cluster of one or two, and rounds the cohort
    down, but not below two: at ρ = ½ a single client is drawn twice, and of a pair 4 of 8 copies are drawn.

    Parameters
    ----------
    members
        Client ids to draw from, shape (K,).
    participation
        Share ρ of them, including copies, that takes part, in (0, 1].

    Returns
    -------
    Client ids, sorted, shape (max(⌊ρ · K⌋, 2),) or, with copies, (max(⌊ρ · 4K⌋, 2),); a client occurs once
    per drawn copy.

    Raises
    ------
    ValueError
        If ``participation`` is outside (0, 1].
    """
    if not 0 < participation <= 1:
        raise ValueError(f"participation must be in (0, 1], got {participation}")
    copies = np.repeat(members, _REPLICAS) if len(members) <= _SMALL else members
    size = max(math.floor(round(participation * len(copies), 9)), 2)
    return draw(copies, size, generator)
