"""Place a client that comes later by its label counts: the nearest cluster centre, or none.

The centres are those of the K-means that formed the clusters, in the same features (Clust-PSI-PFL, Section
III-B, and :mod:`.label_groups` for ours); the client is described beside the federation that was clustered,
and changes nothing of it. "None" is ours, see :func:`~fedclust.clustering.shared.placing.nearest`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from fedclust.clustering.clust_psi_pfl import algorithm, label_groups
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.clustering.shared.placement import Placement
from fedclust.clustering.shared.placing import NONE, nearest
from fedclust.typing import FloatArray, IntArray

__all__ = ["LabelRule"]


@dataclass(frozen=True, eq=False)
class LabelRule:
    """The clusters, as their clients' label counts describe them.

    Attributes
    ----------
    counts
        Training examples of each class on each client that was clustered, shape (K, C).
    labels
        Cluster of each of them, shape (K,).
    paper
        The paper's settings; None for our features.
    """

    counts: IntArray
    labels: IntArray
    paper: algorithm.Parameters | None = None

    def centres(self) -> tuple[IntArray, FloatArray]:
        """Compute the mean features of each cluster's clients; ours weights clients by their examples.

        There, as when the clusters were formed, a client counts for at most ten of median size.

        Returns
        -------
        Indices of the clusters, shape (G,), and their centres, shape (G, features).
        """
        counts, labels = self._known(), np.asarray(self.labels)[np.asarray(self.counts).any(axis=1)]
        rows = self._features(counts)
        weights = np.ones(len(rows)) if self.paper else counts.sum(axis=1)
        found = np.unique(labels)
        means = [np.average(rows[labels == each], axis=0, weights=weights[labels == each]) for each in found]
        return found, np.array(means)

    def place(self, newcomer: IntArray) -> Placement:
        """Place a client.

        Parameters
        ----------
        newcomer
            Its training examples of each class, shape (C,).
        """
        clusters, centres = self.centres()
        if len(clusters) == 1:
            return Placement(int(clusters[0]), "there is one model for all")
        counts = np.asarray(newcomer)
        if not counts.any():
            return Placement(None, "the client has no training rows to count labels of")
        distances = cdist(self._features(counts[None]), centres)[0]
        best = nearest(distances, cdist(centres, centres))
        evidence = {
            "distances": {
                str(each): float(distance) for each, distance in zip(clusters, distances, strict=True)
            }
        }
        if best == NONE:
            near = int(clusters[distances.argmin()])
            why = f"label counts are {distances.min():.3g} from the nearest centre, that of cluster {near}"
            return Placement(None, f"{why}: farther than another cluster's is", evidence)
        why = f"label counts are nearest to the centre of cluster {clusters[best]}, {distances[best]:.3g}"
        return Placement(
            int(clusters[best]), f"{why}; the next is {np.sort(distances)[1]:.3g} away", evidence
        )

    def pack(self) -> dict[str, np.ndarray]:
        """List the rule as arrays by name; :meth:`unpack` reads it."""
        packed = {"counts": np.asarray(self.counts), "labels": np.asarray(self.labels)}
        if self.paper is None:
            return packed
        return packed | {
            "epsilon": np.asarray(self.paper.epsilon),
            "smoothing": np.asarray(self.paper.smoothing),
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, np.ndarray]) -> "LabelRule":
        """Make the rule from the result of :meth:`pack`."""
        paper = None
        if "epsilon" in packed:
            smoothing = str(packed["smoothing"])
            paper = algorithm.Parameters(float(packed["epsilon"]), smoothing)  # type: ignore[arg-type]
        return cls(packed["counts"], packed["labels"], paper)

    def _features(self, counts: IntArray) -> FloatArray:
        if self.paper is None:
            return label_groups.features(counts, self._known())
        return algorithm.features(counts, self.paper.epsilon, self.paper.smoothing, self._known())

    def _known(self) -> IntArray:
        """Return the counts of the clients that have any, as far as they count."""
        counts = np.asarray(self.counts)
        counts = counts[counts.any(axis=1)]
        return counts if self.paper else limit_sizes(counts)
