"""Feature skew of a chosen strength: k-means clusters, mixed down to a given earth mover's distance.

Source: FedGMCC, Appendix, "Artificial Partitioning" and Eqs. 7 to 9. Choices and differences here:

- The paper's features come from autoencoders; here they are principal components
  (:func:`fedclust.data.partition.features`).
- The signature of a set of examples is its share in each of `bins` k-means clusters of all examples; the
  ground distance is the Euclidean distance of their centroids, so the result is in units of the features.
- The paper moves examples of the farthest subset to the others. Moving them in one direction never brings
  that subset nearer, it only empties it; here they are swapped with equally many random examples of the other
  subsets.
- The paper keeps a partition if the distances of all pairs of subsets pass a Shapiro-Wilk test of normality.
  Here only the result is tested: mixing continues past the target until the test passes, while the distance
  stays above 95 % of the target. If the test never passes, the first partition at the target is used, with a
  warning.
"""

import warnings
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any

import numpy as np

from fedclust.data.partitioners import Assignment, ClientPartitioner, Examples
from fedclust.support.checks import check
from fedclust.typing import FloatArray, IntArray

_SLACK = 0.95
_NORMAL = 0.05
_MOST_SWEEPS = 200


@dataclass(frozen=True)
class EmdKMeans(ClientPartitioner):
    """Clients whose features differ by a given earth mover's distance.

    Attributes
    ----------
    num_clients
        Number of clients K.
    target
        Size-weighted mean distance of the clients to all examples (Eq. 9) at which mixing stops.
    relative
        True: `target` is a share of the distance of the k-means clusters themselves, in (0, 1]. False: it is
        in units of the features.
    step
        Share of the farthest client's examples that are swapped at a time; smaller near the target.
    bins
        Number of bins of the signatures.
    normality
        Whether the distances of all pairs should pass the Shapiro-Wilk test, see the module. With many
        clients they rarely do, and a test takes K²/2 optimal transports, a few seconds for 30 clients.
    min_samples
        Smallest allowed number of examples of a client; clients are as large as the k-means clusters.

    Raises
    ------
    ValueError
        If `target`, `step`, `bins` or `min_samples` is out of range.
    """

    num_clients: int
    target: float
    relative: bool = True
    step: Annotated[float, "in (0, 0.5]"] = 0.05
    bins: Annotated[int, ">= 2"] = 20
    normality: bool = True
    min_samples: Annotated[int, ">= 1"] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, target="in (0, 1]" if self.relative else "> 0")

    def assign(self, examples: Examples, draws: np.random.Generator) -> Assignment:
        """Cluster the examples, then mix the clusters until the target is reached."""
        features = examples.features()
        clients = _kmeans(features, self.num_clients, draws).labels_.astype(np.int64)
        sizes = np.bincount(clients, minlength=self.num_clients)
        if sizes.min() < self.min_samples:
            rule = f"every client must hold at least min_samples examples, {self.min_samples}"
            got = f"a k-means cluster of {sizes.min()} among {self.num_clients}; ask for fewer clients"
            raise ValueError(f"{rule}, got {got}")
        signature = _kmeans(features, min(self.bins, len(features)), draws)
        bins, centroids = signature.labels_.astype(np.int64), signature.cluster_centers_
        most, _ = earth_movers_distance(clients, bins, centroids)
        if self.num_clients == 1 and self.relative:  # `most` is 0 up to rounding
            return Assignment(clients)
        target = self.target * most if self.relative else self.target
        if target > most:
            raise ValueError(f"target must be at most the k-means clusters' {most:.4g}, got {target:g}")
        if target == most:
            return Assignment(clients)
        nearest, step = None, self.step
        for _ in range(_MOST_SWEEPS):
            clients = mix(clients, features, step, draws)
            distance, shares = earth_movers_distance(clients, bins, centroids)
            if distance <= target:
                nearest = clients if nearest is None else nearest
                if not self.normality or _pairs_look_normal(shares, centroids):
                    return Assignment(clients)
                if distance < _SLACK * target:
                    break
            # Smaller steps near the target, to avoid overshooting.
            step = self.step * float(np.clip(5 * (distance / target - 1), 0.2, 1.0))
        if nearest is None:
            still = f"it is still {distance:.4g} after {_MOST_SWEEPS} sweeps"
            raise ValueError(f"target must be a distance that mixing reaches, got {target:.4g}: {still}")
        what = "the clients' distances to each other are not normally distributed (Shapiro-Wilk test)"
        where = f"anywhere from {target:.4g} to {_SLACK * target:.4g}"
        warnings.warn(f"{what} {where}; the first partition at {target:.4g} is used", stacklevel=2)
        return Assignment(nearest)


def earth_movers_distance(
    clients: IntArray, bins: IntArray, centroids: FloatArray
) -> tuple[float, FloatArray]:
    """Compute the mean distance of the clients' examples to all examples.

    Source: FedGMCC, Eqs. 8 and 9.

    Parameters
    ----------
    clients
        Client of each example, shape (N,).
    bins
        Bin of each example, shape (N,).
    centroids
        Centroid of each bin, shape (B, d).

    Returns
    -------
    Size-weighted mean over the clients of the distance to all examples, in units of the features; and the
    share of each client's examples in each bin, shape (K, B).
    """
    from scipy.stats import wasserstein_distance_nd

    num_bins = len(centroids)
    cells = np.bincount(clients * num_bins + bins, minlength=(clients.max() + 1) * num_bins)
    counts = cells.reshape(-1, num_bins)
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    whole = counts.sum(axis=0) / sizes.sum()
    distances = [wasserstein_distance_nd(centroids, centroids, share, whole) for share in shares]
    return float(np.average(distances, weights=sizes)), shares


def mix(clients: IntArray, features: FloatArray, step: float, draws: np.random.Generator) -> IntArray:
    """Mix once per client: each time, swap examples of the farthest client with random others.

    Parameters
    ----------
    clients
        Client of each example, shape (N,).
    features
        Features of each example, shape (N, d).
    step
        Share of the farthest client's examples to swap.
    draws
        Random generator for the examples.

    Returns
    -------
    Client of each example, shape (N,); clients' sizes do not change.
    """
    clients = clients.copy()
    sizes = np.bincount(clients)
    sums = np.stack([features[clients == client].sum(axis=0) for client in range(len(sizes))])
    for _ in sizes:
        centres = sums / sizes[:, None]
        gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2).sum(axis=1)
        farthest = int(gaps.argmax())
        own = np.flatnonzero(clients == farthest)
        others = np.flatnonzero(clients != farthest)
        number = min(max(1, round(step * len(own))), len(own), len(others))
        leaving = draws.choice(own, number, replace=False)
        coming = draws.choice(others, number, replace=False)
        gain = features[leaving] - features[coming]
        np.add.at(sums, clients[coming], gain)
        sums[farthest] -= gain.sum(axis=0)
        clients[leaving], clients[coming] = clients[coming], farthest
    return clients


def _kmeans(features: FloatArray, clusters: int, draws: np.random.Generator) -> Any:
    from sklearn.cluster import KMeans

    return KMeans(clusters, n_init=1, random_state=int(draws.integers(2**31))).fit(features)


def _pairs_look_normal(shares: FloatArray, centroids: FloatArray) -> bool:
    """Test the distances of all pairs of clients for normality; too few pairs count as normal."""
    from scipy.stats import shapiro, wasserstein_distance_nd

    pairs = [wasserstein_distance_nd(centroids, centroids, *pair) for pair in combinations(shares, 2)]
    return len(pairs) < 3 or bool(shapiro(pairs).pvalue >= _NORMAL)
