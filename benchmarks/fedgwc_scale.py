"""How long FedGWC's server-side work takes against the number of clients K, and how much memory.

    python benchmarks/fedgwc_scale.py [--clients 100 1000 2714] [--cohort 10] [--repeats 5] [--no-clusters]

An update is made every round, a test for a split (affinity, then a clustering per number of clusters) only
when the matrix has settled. Target at 2,714 clients (iNaturalist-Users): update and affinity under 1 s.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from fedclust.clustering import fedgwc
from fedclust.clustering.fedgwc import large
from fedclust.clustering.fedgwc.spectral import candidates

# How clients of three kinds perceive each other; the noise is that of rewards averaged over some rounds.
PERCEPTION = np.array([[0.9, 0.3, 0.2], [0.4, 0.8, 0.2], [0.2, 0.3, 0.7]])
NOISE = 0.02


def settled_matrix(num_clients: int, draws: np.random.Generator) -> np.ndarray:
    """Draw an interaction matrix of three kinds of clients after many rounds, in a run's precision."""
    kinds = draws.integers(0, 3, num_clients)
    precision = np.float32 if num_clients >= large.MANY else np.float64
    matrix = np.empty((num_clients, num_clients), dtype=precision)
    for row, kind in zip(matrix, kinds, strict=True):
        row[:] = np.clip(PERCEPTION[kind, kinds] + NOISE * draws.standard_normal(num_clients), 0.0, 1.0)
    return matrix


def rounds(num_clients: int, cohort_size: int, draws: np.random.Generator) -> Callable[[], object]:
    """Make a function that runs the next round of one cluster, its draw of the cohort included."""
    parameters = fedgwc.Parameters(patience=10**9).resolve(0.1)  # never tests
    state = fedgwc.start(np.arange(num_clients), parameters)

    def next_round() -> None:
        nonlocal state
        cohort = draws.choice(num_clients, cohort_size, replace=False)
        state, _ = fedgwc.step(state, cohort, draws.random((cohort_size, 7)), parameters, seed=0)

    return next_round


def whole_test(num_clients: int) -> Callable[[], object]:
    """Make a function that tests a cluster for a split, from the state that a run keeps of it."""
    parameters = fedgwc.Parameters().resolve(0.1)
    state = fedgwc.Interaction.from_arrays(
        fedgwc.start(np.arange(num_clients), parameters).to_arrays()
        | {"matrix": settled_matrix(num_clients, np.random.default_rng(0))}
    )
    return lambda: fedgwc.split(fedgwc.affinity_of(state, parameters), 5, seed=0)


def report(num_clients: int, what: str, action: Callable[[], object], repeats: int) -> None:
    """Print median, minimum and maximum of the milliseconds an action takes."""
    milliseconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        milliseconds.append(1000 * (time.perf_counter() - begin))
    figures = (statistics.median(milliseconds), min(milliseconds), max(milliseconds))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{num_clients:7d}  {what:24s}" + "".join(f"{figure:10.2f}" for figure in figures) + f"{peak:10.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 2714])
    parser.add_argument("--cohort", type=int, default=10, help="clients per round")
    parser.add_argument(
        "--repeats", type=int, default=5, help="times each test is run; updates 100 times more"
    )
    parser.add_argument("--no-clusters", action="store_true", help="stop before the spectral clustering")
    arguments = parser.parse_args()
    print("clients  what                       median   minimum   maximum ms  peak GiB so far")
    for num_clients in arguments.clients:
        draws = np.random.default_rng(0)
        size = min(arguments.cohort, num_clients)
        update = rounds(num_clients, size, draws)
        report(num_clients, f"update, cohort of {size}", update, 100 * arguments.repeats)
        del update
        matrix = settled_matrix(num_clients, draws)
        report(num_clients, "affinity", partial(fedgwc.affinity, matrix, 0.5), arguments.repeats)
        if arguments.no_clusters:
            continue
        affinities = fedgwc.affinity(matrix, 0.5)
        del matrix
        report(num_clients, "2 to 5 clusters", partial(candidates, affinities, 5, seed=0), arguments.repeats)
        del affinities
        report(num_clients, "whole test", whole_test(num_clients), arguments.repeats)


if __name__ == "__main__":
    main()
