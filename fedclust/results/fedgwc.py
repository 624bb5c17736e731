"""What FedGWC's figures show, from the files of a run; the plots and the page both draw it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclust.typing import FloatArray, IntArray

__all__ = ["Convergence", "Plane", "convergence_of", "planes_of_splits"]


@dataclass(frozen=True, eq=False)
class Plane:
    """The clients of a cluster that was split, in the plane of its spectral embedding.

    Attributes
    ----------
    round
        When it was split.
    clients
        Ids of its n clients, ascending.
    points
        Where each is, shape (n, 2); only distances within one plane mean something.
    clusters
        Cluster of each after the split, shape (n,).
    """

    round: int
    clients: IntArray
    points: FloatArray
    clusters: IntArray


@dataclass(frozen=True)
class Convergence:
    """Mean squared change of each cluster's interaction matrix over the rounds.

    Attributes
    ----------
    pieces
        By cluster, ascending, its rounds with their values: a piece for each time that it started anew.
    splits
        Round and cluster of each split.
    tolerance
        Below it a split is tried; None if unknown.
    """

    pieces: dict[int, list[list[tuple[int, float]]]]
    splits: list[tuple[int, int]]
    tolerance: float | None


def planes_of_splits(
    affinities: Mapping[int, FloatArray], changes: Sequence[Mapping[str, Any]]
) -> Iterator[Plane]:
    """Compute the plane of each split of more than three clients, in the order of rounds.

    Source: FedGWC, Figure 3. The coordinates are eigenvectors 2 and 3 of the affinities' normalised
    Laplacian, so two clients are near each other if the others perceive them alike.

    Parameters
    ----------
    affinities
        By round of a split, affinities before it, NaN for pairs outside the cluster, shape (K, K).
    changes
        Assignments over time, as in ``clusters.json``.
    """
    after = {change["round"]: np.asarray(change["assignment"]) for change in changes}
    for moment, affinity in sorted(affinities.items()):
        members = np.flatnonzero(np.isfinite(affinity.diagonal()))
        if moment not in after or len(members) <= 3:
            continue
        from sklearn.manifold import spectral_embedding  # half a second, which other methods' pages save

        from fedclust.clustering.spectral import SMALLEST

        graph = np.maximum(affinity[np.ix_(members, members)], SMALLEST)
        points = spectral_embedding(graph, n_components=2, random_state=0, drop_first=True)
        yield Plane(moment, members, points, after[moment][members])


def convergence_of(rounds: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Convergence | None:
    """Collect how far each interaction matrix changed; None if the run has none, as it is not FedGWC's.

    Source: FedGWC, Figure 4 and Section 4.3. A cluster that is split starts anew at 1.

    Parameters
    ----------
    rounds
        Lines of ``rounds.jsonl``.
    config
        ``config.yaml``.
    """
    pieces: dict[int, list[list[tuple[int, float]]]] = {}
    splits: list[tuple[int, int]] = []
    for line in rounds:
        for name, report in (line.get("strategy") or {}).items():
            if not isinstance(report, Mapping) or "mse" not in report:
                continue
            cluster = int(name)
            if "pair_coverage" in report and report["mse"] == 1 and cluster not in pieces:
                continue  # a cluster in which no two clients ever met stays at 1
            own = pieces.setdefault(cluster, [[]])
            own[-1].append((line["round"], report["mse"]))
            if report.get("split"):
                own.append([])
                splits.append((line["round"], cluster))
    if not pieces:
        return None
    tolerance = ((config.get("strategy") or {}).get("parameters") or {}).get("tolerance")
    kept = {cluster: [piece for piece in own if piece] for cluster, own in sorted(pieces.items())}
    return Convergence(kept, splits, tolerance)
