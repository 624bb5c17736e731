"""Random generators that depend on what is drawn, never on where or when it is drawn.

Every draw of a run comes from a generator derived from (seed, purpose, further keys such as round and
client). So the same seed gives the same draws in one process, on thirty nodes, or on a cluster.
"""

import zlib

import numpy as np

__all__ = ["generator", "torch_seed"]


def generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Make the generator of one purpose.

    Parameters
    ----------
    seed
        The run's seed, >= 0.
    purpose
        What is drawn, such as ``"sample"`` or ``"batches"``; different purposes are independent.
    keys
        What distinguishes draws of one purpose: round, client, cluster; each >= 0.

    Returns
    -------
    A generator that depends on the arguments alone.

    Raises
    ------
    ValueError
        If the seed or a key is negative.
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, *keys)))


def torch_seed(seed: int, purpose: str, *keys: int) -> int:
    """Derive a 63-bit seed for ``torch.manual_seed`` and the like, as :func:`generator` does."""
    return int(_sequence(seed, purpose, *keys).generate_state(1, np.uint64)[0] >> 1)


def _sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    # The number of keys takes part because SeedSequence reads (a,) and (a, 0) as the same entropy.
    entropy = (seed, zlib.crc32(purpose.encode()), len(keys), *keys)
    if min(entropy) < 0:
        raise ValueError(f"seed and keys must be >= 0, got seed {seed}, keys {keys}")
    return np.random.SeedSequence(entropy)
