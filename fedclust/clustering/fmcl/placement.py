"""Place a client that comes later by its class prototypes: the group with the least evidence against it.

Our rule is the refinement of :mod:`.prototype_merging`: the group whose pooled prototypes are nearest, by
e = Σ hD / Σ h over the classes that both have, beyond what is due to chance. It is none if the evidence
S = Σ h(D − ηb) is not negative for any group, that is e ≥ ηb: two such clients would not have been merged.
Where label counts had split a group, :class:`~fedclust.clustering.clust_psi_pfl.placement.LabelRule` chooses
the part. For the paper's distances (FMCL, Algorithm 3) the nearest pooled cluster counts, and none if the
client is farther from it than another cluster is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import stdtr

from fedclust.clustering.clust_psi_pfl.placement import LabelRule
from fedclust.clustering.fmcl import algorithm
from fedclust.clustering.fmcl.prototype_evidence import Prototypes, compare, sent_counts
from fedclust.clustering.shared.placement import Placement
from fedclust.clustering.shared.placing import NONE, nearest
from fedclust.proof import holm
from fedclust.typing import BoolArray, FloatArray, IntArray

__all__ = ["DistanceRule", "EvidenceRule"]


@dataclass(frozen=True, eq=False)
class EvidenceRule:
    """The groups of prototypes, and the clusters in them.

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
        The clusters, by label counts.
    min_examples
        Examples that a class must have for its prototype to be sent and to count.
    max_norm
        Length to which each embedding is clipped before the mean; None for none.
    """

    prototypes: Prototypes
    used: BoolArray
    threshold: float
    groups: IntArray
    labels: LabelRule
    min_examples: int = 1
    max_norm: float | None = None

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
            return Placement(int(clusters[0]), "there is one model for all")
        used = np.asarray(self.used, dtype=bool)
        sent = sent_counts(counts, self.min_examples).astype(np.float64)
        own = Prototypes(np.asarray(means)[None, used], sent[None, used], self.prototypes.variances)
        found = compare(own, self.prototypes)
        distances = found.distance(self.threshold)[0]
        best = int(distances.argmin())
        evidence = {
            "distances": {str(group): float(each) for group, each in enumerate(distances)},
            "threshold": float(self.threshold),
            "evidence": {
                str(group): float(each) for group, each in enumerate(found.evidence(self.threshold)[0])
            },
        }
        several = len(distances) > 1
        if several and not distances[best] < self.threshold:
            why = f"prototypes are {distances[best]:.3g} from the nearest group, beyond chance"
            return Placement(
                None, f"{why}; clients of one group are less than {self.threshold:.3g}", evidence
            )
        why = f"prototypes are nearest to group {best}, {distances[best]:.3g} beyond chance"
        why += f"; clients of one group are less than {self.threshold:.3g}" if several else ""
        inside = self.groups == best
        part = LabelRule(self.labels.counts[inside], self.labels.labels[inside])
        if len(np.unique(part.labels)) == 1:
            return Placement(int(part.labels[0]), why, evidence)
        by_labels = part.place(counts)
        return Placement(
            by_labels.cluster, f"{why}; {by_labels.reason}", evidence | {"labels": by_labels.evidence}
        )

    def place_unlabelled(self, embeddings: FloatArray, level: float = 0.001) -> Placement:
        """Place a client whose classes are not known, by how far its rows are from the groups' prototypes.

        A row's distance from a group is that from the nearest of its prototypes, less what chance adds to the
        latter. The nearest group must beat each other one by a paired t-test over the rows, all at one level
        by Holm's correction; else it is none. Groups that name the same images differently cannot be told
        apart so, and groups split by label counts cannot either.

        Parameters
        ----------
        embeddings
            Embedding of each row, shape (n, d).
        level
            Level of the tests together.
        """
        if len(np.unique(self.labels.labels)) == 1:
            return Placement(int(self.labels.labels[0]), "there is one model for all")
        rows = np.asarray(embeddings, dtype=np.float64)
        distances = np.stack([self._distances(rows, group) for group in range(len(self.prototypes))], axis=1)
        means = distances.mean(axis=0)
        best = int(means.argmin())
        others = np.delete(distances, best, axis=1) - distances[:, [best]]
        evidence: dict[str, Any] = {
            "distances": {str(group): float(each) for group, each in enumerate(means)}
        }
        if len(rows) < 2 or not len(others[0]):
            return Placement(None, "without classes, rows do not tell the groups apart", evidence)
        spread = others.std(axis=0, ddof=1) / np.sqrt(len(rows))
        ratios = np.divide(others.mean(axis=0), spread, out=np.zeros(len(spread)), where=spread > 0)
        largest = float(holm(stdtr(len(rows) - 1, -ratios)).max())
        evidence["p_value"] = largest
        inside = np.unique(self.labels.labels[self.groups == best])
        if largest > level:
            why = "without classes, rows do not tell the groups apart"
        elif len(inside) > 1:
            why = f"rows are nearest to group {best}, whose clusters only label counts tell apart"
        else:
            return Placement(
                int(inside[0]),
                f"rows are nearest to the prototypes of group {best} (p = {largest:.2g})",
                evidence,
            )
        return Placement(None, f"{why} (p = {largest:.2g})", evidence)

    def _distances(self, rows: FloatArray, group: int) -> FloatArray:
        """Compute each row's squared distance from the nearest prototype of a group, shape (n,)."""
        counts = self.prototypes.counts[group]
        having = counts > 0
        chance = self.prototypes.variances[having] / counts[having]
        return np.asarray(
            (cdist(rows, self.prototypes.means[group][having], "sqeuclidean") - chance).min(axis=1)
        )

    def pack(self) -> dict[str, np.ndarray]:
        """List the rule as arrays by name; :meth:`unpack` reads it."""
        return {
            "prototypes": self.prototypes.means.astype(np.float32),
            "prototype_counts": self.prototypes.counts,
            "prototype_variances": self.prototypes.variances,
            "used": np.asarray(self.used),
            "threshold": np.asarray(self.threshold),
            "groups": np.asarray(self.groups),
            "min_examples": np.asarray(self.min_examples),
            "max_norm": np.asarray(np.nan if self.max_norm is None else self.max_norm),
            **self.labels.pack(),
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, np.ndarray]) -> "EvidenceRule":
        """Make the rule from the result of :meth:`pack`."""
        means, counts, variances = (
            packed[name] for name in ("prototypes", "prototype_counts", "prototype_variances")
        )
        return cls(
            Prototypes(means, counts, variances),
            packed["used"],
            float(packed["threshold"]),
            packed["groups"],
            LabelRule.unpack(packed),
            int(packed["min_examples"]),
            None if np.isnan(packed["max_norm"]) else float(packed["max_norm"]),
        )


@dataclass(frozen=True, eq=False)
class DistanceRule:
    """The clusters' pooled prototypes, compared by the paper's distance.

    Attributes
    ----------
    means
        Mean embedding of each class in each cluster, shape (G, C, d).
    shares
        Share of each class among a cluster's examples, shape (G, C).
    alpha, beta, epsilon, overlap
        As for :func:`~fedclust.clustering.fmcl.algorithm.distances`.
    """

    means: FloatArray
    shares: FloatArray
    alpha: float
    beta: float
    epsilon: float
    overlap: bool

    def place(self, means: FloatArray, counts: IntArray) -> Placement:
        """Place a client, see :meth:`EvidenceRule.place`."""
        if len(self.means) == 1:
            return Placement(0, "there is one model for all")
        shares = np.asarray(counts) / max(1, int(np.sum(counts)))
        matrix = algorithm.distances(
            np.concatenate([self.means, np.asarray(means)[None]]),
            np.concatenate([self.shares, shares[None]]),
            self.alpha,
            self.beta,
            self.epsilon,
            self.overlap,
        )
        distances = matrix[-1, :-1]
        best = nearest(distances, matrix[:-1, :-1])
        evidence = {"distances": {str(each): float(distance) for each, distance in enumerate(distances)}}
        if best == NONE:
            why = f"prototypes are {distances.min():.3g} from the nearest cluster's"
            return Placement(None, f"{why}: farther than another cluster's are", evidence)
        return Placement(best, f"prototypes are nearest to those of cluster {best}", evidence)

    def pack(self) -> dict[str, np.ndarray]:
        """List the rule as arrays by name; :meth:`unpack` reads it."""
        return {
            "prototypes": self.means.astype(np.float32),
            "shares": self.shares,
            "settings": np.array([self.alpha, self.beta, self.epsilon, self.overlap]),
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, np.ndarray]) -> "DistanceRule":
        """Make the rule from the result of :meth:`pack`."""
        alpha, beta, epsilon, overlap = packed["settings"].tolist()
        return cls(packed["prototypes"], packed["shares"], alpha, beta, epsilon, bool(overlap))
