"""Placement of a client that joins later: in the nearest cluster, or in none.

- By label counts: the centres are those of the K-means that formed the clusters, in the same features
  (Clust-PSI-PFL, Section III-B, and :mod:`fedclust.clustering.label_groups` for ours); the client's features
  are relative to the federation that was clustered, which it does not change.
- By class prototypes: the group whose pooled prototypes are nearest, by the distance e = Σ hD / Σ h beyond
  chance over the classes that both have, as in :func:`fedclust.clustering.prototype_groups.refine`. There is
  none if the evidence S = Σ h(D − ηb) is not negative for any group, that is e ≥ ηb: two such clients would
  not have been merged. Where label counts had split a group, they choose the part.
- By the paper's distances (FMCL, Algorithm 3) from the clusters' pooled prototypes.
- By the angles between subspaces (PACFL, Section 3.2, which lets newcomers send their singular vectors and
  join the cluster of the least distance; here that is the mean over clients, as in average linkage).
- By chains of models. FedGMCC has no rule for newcomers. Its criterion is kept: two models belong together if
  the chain between them has little loss (Fig. 1). The newcomer trains each cluster's model for one round; if
  a model suits its data, the chain from the model to its trained copy has little loss.

"None" is ours, see :func:`~fedclust.clustering.shared.placement.nearest`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclust.clustering import clust_psi_pfl, fmcl, label_groups, pacfl
from fedclust.clustering.prototype_groups import Prototypes, compare, sent_counts
from fedclust.clustering.shared.limits import limit_sizes
from fedclust.clustering.shared.placement import NONE, ONE_MODEL, Placement, nearest
from fedclust.proof import holm
from fedclust.typing import BoolArray, FloatArray, IntArray

_MOST_KEPT = 10  # clients of a cluster that newcomers are compared with


@dataclass(frozen=True, eq=False)
class LabelRule:
    """Places clients by label counts; holds those of the clusters' clients.

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
    paper: clust_psi_pfl.Parameters | None = None

    def centres(self) -> tuple[IntArray, FloatArray]:
        """Compute the mean features of each cluster's clients; our features weight clients by their examples.

        With our features a client counts for at most ten of median size, as when the clusters were formed.

        Returns
        -------
        Indices of the clusters, shape (G,), and their centres, shape (G, features).
        """
        counts, labels = self._known(), np.asarray(self.labels)[np.asarray(self.counts).any(axis=1)]
        rows = self._features(counts)
        weights = np.ones(len(rows)) if self.paper else counts.sum(axis=1)
        clusters = np.unique(labels)
        means = [
            np.average(rows[labels == each], axis=0, weights=weights[labels == each]) for each in clusters
        ]
        return clusters, np.array(means)

    def place(self, newcomer: IntArray) -> Placement:
        """Place a client.

        Parameters
        ----------
        newcomer
            Its training examples of each class, shape (C,).
        """
        from scipy.spatial.distance import cdist

        clusters, centres = self.centres()
        counts = np.asarray(newcomer)
        if len(clusters) == 1:
            return Placement(int(clusters[0]), ONE_MODEL)
        if not counts.any():
            return Placement(None, "the client has no training rows to count labels of")
        return _in_nearest(
            clusters,
            cdist(self._features(counts[None]), centres)[0],
            cdist(centres, centres),
            near="label counts are nearest to the centre of cluster {cluster}, {least:.3g}; "
            "the next is {second:.3g} away",
            far="label counts are {least:.3g} from the nearest centre, that of cluster {cluster}: "
            "farther than another cluster's is",
        )

    def _features(self, counts: IntArray) -> FloatArray:
        if self.paper is None:
            return label_groups.features(counts, self._known())
        return clust_psi_pfl.features(counts, self.paper.epsilon, self.paper.smoothing, self._known())

    def _known(self) -> IntArray:
        """Return the counts of the clients that have any; limited in size for our features."""
        counts = np.asarray(self.counts)
        counts = counts[counts.any(axis=1)]
        return counts if self.paper else limit_sizes(counts)


@dataclass(frozen=True, eq=False)
class EvidenceRule:
    """Places clients by class prototypes; holds the groups' prototypes and the clusters in the groups.

    Attributes
    ----------
    prototypes
        Pooled prototypes of each group, of the classes in `used`, shapes (G, C', d).
    used
        Which of the C classes count, shape (C,).
    threshold
        ηb: least squared distance at which clients differ.
    groups
        Group of each client that was clustered, shape (K,).
    labels
        The rule that chooses a cluster within a group, by label counts.
    min_examples
        Examples that a class must have for its prototype to be sent and to count.
    """

    prototypes: Prototypes
    used: BoolArray
    threshold: float
    groups: IntArray
    labels: LabelRule
    min_examples: int = 1

    def place(self, means: FloatArray, counts: IntArray) -> Placement:
        """Place a client.

        Parameters
        ----------
        means
            Mean embedding of each of its classes, shape (C, d).
        counts
            Its training examples of each class, shape (C,).
        """
        clusters = np.unique(self.labels.labels)
        if len(clusters) == 1:
            return Placement(int(clusters[0]), ONE_MODEL)
        used = np.asarray(self.used, dtype=bool)
        sent = sent_counts(counts, self.min_examples).astype(np.float64)
        own = Prototypes(np.asarray(means)[None, used], sent[None, used], self.prototypes.variances)
        comparison = compare(own, self.prototypes)
        distances = comparison.distance(self.threshold)[0]
        best = int(distances.argmin())
        evidence = {
            "distances": _by_number(distances),
            "threshold": float(self.threshold),
            "evidence": _by_number(comparison.evidence(self.threshold)[0]),
        }
        several, least = len(distances) > 1, f"{distances[best]:.3g}"
        limit = f"; clients of one group are less than {self.threshold:.3g}"
        if several and not distances[best] < self.threshold:
            why = f"prototypes are {least} from the nearest group, beyond chance{limit}"
            return Placement(None, why, evidence)
        why = f"prototypes are nearest to group {best}, {least} beyond chance{limit if several else ''}"
        inside = self.groups == best
        part = LabelRule(self.labels.counts[inside], self.labels.labels[inside])
        if len(np.unique(part.labels)) == 1:
            return Placement(int(part.labels[0]), why, evidence)
        inner = part.place(counts)
        return Placement(inner.cluster, f"{why}; {inner.reason}", evidence | {"labels": inner.evidence})

    def place_unlabelled(self, embeddings: FloatArray, level: float = 0.001) -> Placement:
        """Place a client whose classes are unknown, by the distances of its rows from the groups' prototypes.

        A row's distance from a group is that from the group's nearest prototype, minus the part due to
        chance. The nearest group must beat every other one in a paired t-test over the rows, with Holm's
        correction; otherwise there is none. This cannot distinguish groups that name the same images
        differently, nor clusters that were split by label counts.

        Parameters
        ----------
        embeddings
            Embedding of each row, shape (n, d).
        level
            Level of the tests together.
        """
        from scipy.special import stdtr

        if len(np.unique(self.labels.labels)) == 1:
            return Placement(int(self.labels.labels[0]), ONE_MODEL)
        rows = np.asarray(embeddings, dtype=np.float64)
        distances = np.stack([self._distances(rows, group) for group in range(len(self.prototypes))], axis=1)
        means = distances.mean(axis=0)
        best = int(means.argmin())
        others = np.delete(distances, best, axis=1) - distances[:, [best]]
        evidence: dict[str, Any] = {"distances": _by_number(means)}
        unknown = "without classes, rows do not tell the groups apart"
        if len(rows) < 2 or not len(others[0]):
            return Placement(None, unknown, evidence)
        spread = others.std(axis=0, ddof=1) / np.sqrt(len(rows))
        ratios = np.divide(others.mean(axis=0), spread, out=np.zeros(len(spread)), where=spread > 0)
        largest = float(holm(stdtr(len(rows) - 1, -ratios)).max())
        evidence["p_value"] = largest
        inside = np.unique(self.labels.labels[self.groups == best])
        if largest > level:
            return Placement(None, f"{unknown} (p = {largest:.2g})", evidence)
        if len(inside) > 1:
            why = f"rows are nearest to group {best}, whose clusters only label counts tell apart"
            return Placement(None, f"{why} (p = {largest:.2g})", evidence)
        why = f"rows are nearest to the prototypes of group {best} (p = {largest:.2g})"
        return Placement(int(inside[0]), why, evidence)

    def _distances(self, rows: FloatArray, group: int) -> FloatArray:
        """Compute each row's squared distance from the nearest prototype of a group, shape (n,)."""
        from scipy.spatial.distance import cdist

        counts = self.prototypes.counts[group]
        having = counts > 0
        chance = self.prototypes.variances[having] / counts[having]
        rows = cdist(rows, self.prototypes.means[group][having], "sqeuclidean")
        return np.asarray((rows - chance).min(axis=1))


@dataclass(frozen=True, eq=False)
class DistanceRule:
    """Places clients by the paper's distance from the clusters' pooled prototypes.

    Attributes
    ----------
    means
        Mean embedding of each class in each cluster, shape (G, C, d).
    shares
        Share of each class among a cluster's examples, shape (G, C).
    parameters
        Settings of the distances.
    """

    means: FloatArray
    shares: FloatArray
    parameters: fmcl.Parameters

    def place(self, means: FloatArray, counts: IntArray) -> Placement:
        """Place a client, see :meth:`EvidenceRule.place`."""
        shares = np.asarray(counts) / max(1, int(np.sum(counts)))
        matrix = fmcl.distances(
            np.concatenate([self.means, np.asarray(means)[None]]),
            np.concatenate([self.shares, shares[None]]),
            self.parameters,
        )
        return _in_nearest(
            np.arange(len(self.means)),
            matrix[-1, :-1],
            matrix[:-1, :-1],
            near="prototypes are nearest to those of cluster {cluster}",
            far="prototypes are {least:.3g} from the nearest cluster's: farther than another cluster's are",
        )


@dataclass(frozen=True, eq=False)
class SubspaceRule:
    """Places clients by the angles between subspaces; holds some clients of each cluster to compare with.

    Source: PACFL, Section 3.2, which lets newcomers send their singular vectors and join the cluster of the
    least distance. Here that is the mean over clients, as in average linkage; "none" is ours, see
    :func:`~fedclust.clustering.shared.placement.nearest`.

    Attributes
    ----------
    bases
        Orthonormal columns per client and class, shape (n, C, d, p).
    labels
        Cluster of each of these clients, shape (n,).
    measure, input
        As in :class:`fedclust.clustering.pacfl.Parameters`.
    """

    bases: FloatArray
    labels: IntArray
    measure: pacfl.Measure
    input: pacfl.Input

    @classmethod
    def of(
        cls, bases: FloatArray, labels: IntArray, matrix: FloatArray, parameters: pacfl.Parameters
    ) -> "SubspaceRule":
        """Keep each cluster's ten clients that are nearest to its others, by their distances (K, K)."""
        kept: list[int] = []
        for each in np.unique(labels):
            members = np.flatnonzero(labels == each)
            inner = matrix[np.ix_(members, members)].sum(axis=1)
            kept += np.sort(members[np.argsort(inner, kind="stable")[:_MOST_KEPT]]).tolist()
        return cls(bases[kept].astype(np.float32), labels[kept], parameters.measure, parameters.input)

    def place(self, newcomer: FloatArray) -> Placement:
        """Place a client by its bases, shape (C, d, p)."""
        clusters, labels = np.unique(self.labels, return_inverse=True)
        matrix = pacfl.distances(np.concatenate([self.bases, np.asarray(newcomer)[None]]), self.measure)
        means = np.stack(
            [matrix[:, :-1][:, labels == each].mean(axis=1) for each in range(len(clusters))], axis=1
        )
        return _in_nearest(
            clusters,
            means[-1],
            np.stack([means[:-1][labels == each].mean(axis=0) for each in range(len(clusters))]),
            near="the client's classes are nearest to those of cluster {cluster}, {least:.3g} degrees",
            far="the client's classes are {least:.3g} degrees from the nearest cluster's: "
            "farther than another cluster's are",
            unit="degrees",
        )


def place(own: FloatArray, apart: FloatArray, clusters: IntArray) -> Placement:
    """Place a client by the losses of :func:`~fedclust.clustering.curve_fitting.chain_scores`.

    Parameters
    ----------
    own, apart
        The losses.
    clusters
        Indices of the clusters, shape (G,).
    """
    return _in_nearest(
        clusters,
        own,
        apart,
        near="the chain from the model of cluster {cluster} to the client's has the least loss, {least:.3g}",
        far="the least loss of a chain from a cluster's model to the client's is {least:.3g}: "
        "more than between clusters",
        unit="losses",
    )


def _by_number(values: FloatArray) -> dict[str, float]:
    return {str(number): float(each) for number, each in enumerate(values)}


def _in_nearest(
    clusters: IntArray, distances: FloatArray, apart: FloatArray, near: str, far: str, unit: str = "distances"
) -> Placement:
    """Place a client in the nearest cluster, or in none, see :func:`nearest`.

    Parameters
    ----------
    clusters
        Indices of the clusters, shape (G,).
    distances
        Distance of the client from each, shape (G,); infinite for models that overflow, which are never near.
    apart
        Distance between each two, shape (G, G).
    near, far
        Reasons, with {cluster} for the nearest cluster and {least} and {second} for the smallest distances.
    unit
        Name of the distances in the evidence, where None stands for infinity, which JSON lacks.
    """
    if len(clusters) == 1:
        return Placement(int(clusters[0]), ONE_MODEL)
    pairs = zip(clusters, distances, strict=True)
    evidence = {
        unit: {str(each): float(distance) if np.isfinite(distance) else None for each, distance in pairs}
    }
    least, second = np.sort(distances)[:2]
    reason = {"cluster": clusters[distances.argmin()], "least": least, "second": second}
    best = nearest(distances, apart)
    if best == NONE or not np.isfinite(distances[best]):
        return Placement(None, far.format(**reason), evidence)
    return Placement(int(clusters[best]), near.format(**reason), evidence)
