import numpy as np

from fedclust.strategies import FMCL


def _two_looks(client: int) -> list[list[float]]:
    """Class prototypes along one axis for even clients, along another for odd ones, slightly apart."""
    tilt = 0.01 * client
    return [[1.0, tilt], [1.0, -tilt]] if client % 2 == 0 else [[tilt, 1.0], [-tilt, 1.0]]


def test_findings(started, watch) -> None:
    strategy = started(FMCL(), 1, 2, num_clients=4, counts=lambda _: [5, 5], prototypes=_two_looks)
    assert watch.assignments == [(0, [0, 1] * 2, "before round 1")]
    assert strategy.assignment.tolist() == [0, 1] * 2
    distances = strategy.findings(strategy.clusters).arrays["distances"]
    assert distances.shape == (4, 4)
    # Clients 0 and 2 share both classes with weight 1/2: cosine distance of (1, 0) and (1, 0.02), with
    # epsilon 1e-3 in the denominators; overlap 1 scales by 1.
    cosine = 1 - 1 / (np.sqrt(1 + 0.02**2) + 1e-3)
    np.testing.assert_allclose(distances[0, 2], cosine / (1 + 1e-3), rtol=1e-4)
    assert strategy.findings(strategy.clusters).summary["variation"] > 0


def test_it_warns_of_prototypes_of_single_examples() -> None:
    (caution,) = FMCL().cautions(10, 1)
    assert caution.startswith("the prototype of a class with one example is that example's embedding")
