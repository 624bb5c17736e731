"""Time and memory of the server's clustering by number of clients, each row in a process of its own.

    python benchmarks/server_side.py [--clients 100 1000 10000] [--repeats 3] [--write]

The peak is the process's, inputs included. What each row measures is the docstring of its function. Goals on
two cores: FedGWC at 10,000 clients 5 s.
"""

import argparse
import dataclasses
import json
import resource
import time
from collections.abc import Callable

import numpy as np
from common import answer_of, arguments, machine, show, spread, table

from fedclust.clustering import clust_psi_pfl, fedgwc, fmcl

# How clients of three kinds perceive each other; the noise is that of rewards averaged over some rounds.
PERCEPTION = np.array([[0.9, 0.3, 0.2], [0.4, 0.8, 0.2], [0.2, 0.3, 0.7]])
CLASSES, WIDTH = 10, 384


def fedgwc_update(clients: int, draws: np.random.Generator) -> Callable[[], object]:
    """FedGWC: one round's update of the interaction matrix, cohort of 10."""
    parameters = fedgwc.Parameters(patience=10**9).resolve(0.1)  # never tests
    state = fedgwc.start(np.arange(clients), parameters)

    def update() -> None:
        nonlocal state
        cohort = draws.choice(clients, 10, replace=False)
        state, _ = fedgwc.step(state, cohort, draws.random((10, 7)), parameters, seed=0)

    return update


def fedgwc_test(clients: int, draws: np.random.Generator) -> Callable[[], object]:
    """FedGWC: a whole test for a split, of three kinds of clients whose matrix has settled."""
    parameters = fedgwc.Parameters().resolve(0.1)
    state = fedgwc.start(np.arange(clients), parameters)
    kinds = draws.integers(0, 3, clients)
    noise = (0.02 * draws.standard_normal(clients) for _ in kinds)
    rows = (PERCEPTION[kind, kinds] + each for kind, each in zip(kinds, noise, strict=True))
    precise = tuple(np.clip(row, 0.0, 1.0).astype(state.rows[0].dtype) for row in rows)
    state = dataclasses.replace(state, rows=precise)
    return lambda: fedgwc.split(fedgwc.affinity_of(state, parameters), 5, parameters, seed=0)


def bare_product(clients: int, draws: np.random.Generator) -> Callable[[], object]:
    """The bare product of such a matrix with half of itself, which a test needs."""
    matrix = draws.random((clients, clients), dtype=np.float32)
    return lambda: matrix @ matrix[: clients // 2].T


def label_counts(clients: int, draws: np.random.Generator, alpha: float = 0.1) -> np.ndarray:
    """Draw the label counts of clients with 500 rows, Dirichlet by `alpha`."""
    return draws.multinomial(500, draws.dirichlet(np.full(CLASSES, alpha), size=clients))


def psi_search(clients: int, draws: np.random.Generator) -> Callable[[], object]:
    """Clust-PSI-PFL: the paper's search, to at most 50 clusters."""
    parameters = clust_psi_pfl.Parameters(max_clusters=min(50, clients - 1))
    return lambda: clust_psi_pfl.assign(label_counts(clients, draws), parameters, seed=0)


def fmcl_distances(clients: int, draws: np.random.Generator) -> Callable[[], object]:
    """FMCL: the paper's distances between prototypes of width 384, and clusters from them."""
    prototypes = draws.standard_normal((clients, CLASSES, WIDTH), dtype=np.float32)
    counts = label_counts(clients, draws, alpha=10.0)
    shares = counts / counts.sum(axis=1, keepdims=True)
    prototypes[shares == 0] = np.nan
    return lambda: fmcl.assign(prototypes, shares, fmcl.Parameters())


WORK = (fedgwc_update, fedgwc_test, bare_product, psi_search, fmcl_distances)


def measure(name: str, clients: int, repeats: int) -> dict[str, list[float]]:
    """Time one kind of work in this process, in seconds, and its peak memory in GiB."""
    work = next(each for each in WORK if each.__name__ == name)(clients, np.random.default_rng(0))
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "peak": [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]}


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one[0], *map(int, asked.one[1:]))))
        return
    rows = []
    for work in WORK:
        for clients in asked.clients:
            one = answer_of(__file__, work.__name__, clients, asked.repeats)
            what = (work.__doc__ or "").rstrip(".")
            rows.append([what, f"{clients:,}", *spread(one["seconds"], 3), f"{one['peak'][0]:.2f}"])
    head = ["work", "clients", "median, s", "minimum", "maximum", "peak, GiB"]
    show("server", f"{machine()}.\n\n{table(head, rows)}", asked.write)


if __name__ == "__main__":
    main()
