"""How long FMCL takes, and how much memory, from prototypes to an assignment.

    python benchmarks/prototype_distances_scale.py [clients] [classes] [width]

Target for 1,000 clients × 100 classes × 384 dimensions on two cores: 60 s and 4 GB, the prototypes included.
"""

import resource
import sys
import time

import numpy as np

from fedclust.clustering import fmcl


def main(num_clients: int = 1000, num_classes: int = 100, width: int = 384) -> None:
    """Print seconds of each step and the peak memory, with most classes on every client, then with few."""
    for alpha in (10.0, 0.1):
        draws = np.random.default_rng(0)
        prototypes = draws.standard_normal((num_clients, num_classes, width), dtype=np.float32)
        counts = draws.multinomial(500, draws.dirichlet(np.full(num_classes, alpha), size=num_clients))
        shares = counts / counts.sum(axis=1, keepdims=True)
        prototypes[shares == 0] = np.nan
        start = time.perf_counter()
        matrix = fmcl.distances(prototypes, shares)
        measured = time.perf_counter()
        labels = fmcl.cluster(matrix)
        grouped = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{num_clients} clients, {(counts > 0).mean():4.0%} of {num_classes} classes, width {width}: "
            f"distances {measured - start:.1f} s, {labels.max() + 1} clusters {grouped - measured:.1f} s, "
            f"peak {peak:.2f} GiB"
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
