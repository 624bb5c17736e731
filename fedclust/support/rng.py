"""Random generators that depend on the purpose of a draw, not on the process or time of the draw.

Every draw of a run comes from a generator derived from (seed, purpose, further keys such as round and
client). So the same seed gives the same draws in one process, on thirty nodes, or on a cluster.
"""

import zlib

import numpy as np

__all__ = ["generator", "torch_seed"]


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
    return int(_sequence(seed, purpose, *keys).generate_state(1, np.uint64)[0] >> 1)


def _sequence(seed: int, purpose: str, *keys: int) -> np.random.SeedSequence:
    # The number of keys is included because (a,) and (a, 0) are the same entropy to SeedSequence.
    entropy = (seed, zlib.crc32(purpose.encode()), len(keys), *keys)
    if min(entropy) < 0:
        raise ValueError(f"seed and keys must be >= 0, got seed {seed}, keys {keys}")
    return np.random.SeedSequence(entropy)
