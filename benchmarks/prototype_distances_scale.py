"""How long FMCL takes, and how much memory, from prototypes to an assignment.

    python benchmarks/prototype_distances_scale.py [--clients 1000] [--classes 100] [--width 384]

Targets on two cores, prototypes included, 60 s and 4 GiB: 1,000 clients × 100 classes × 384 dimensions, and
10,000 clients × 10 classes × 384 dimensions. The CPU time is of both steps and all threads.
"""

import argparse
import resource
import time

import numpy as np

from fedclust.clustering import fmcl


def main() -> None:
    """Print seconds of each step and the peak memory, with most classes on every client, then with few."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--width", type=int, default=384)
    arguments = parser.parse_args()
    num_clients, num_classes, width = arguments.clients, arguments.classes, arguments.width
    for alpha in (10.0, 0.1):
        draws = np.random.default_rng(0)
        prototypes = draws.standard_normal((num_clients, num_classes, width), dtype=np.float32)
        counts = draws.multinomial(500, draws.dirichlet(np.full(num_classes, alpha), size=num_clients))
        shares = counts / counts.sum(axis=1, keepdims=True)
        prototypes[shares == 0] = np.nan
        start, began = time.perf_counter(), time.process_time()
        matrix = fmcl.distances(prototypes, shares)
        measured = time.perf_counter()
        labels = fmcl.cluster(matrix)
        grouped, used = time.perf_counter(), time.process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{num_clients} clients, {(counts > 0).mean():4.0%} of {num_classes} classes, width {width}: "
            f"distances {measured - start:.1f} s, {labels.max() + 1} clusters {grouped - measured:.1f} s, "
            f"CPU time {used:.1f} s, peak {peak:.2f} GiB"
        )


if __name__ == "__main__":
    main()
