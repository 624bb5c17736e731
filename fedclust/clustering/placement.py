"""Placement of a client that joins later: in the nearest cluster, or in none.

- By label counts: the centres are those of the K-means that formed the clusters, in the same features
  (Clust-PSI-PFL, Section III-B); the client's features are relative to the federation that was clustered,
  which it does not change.
- Without labels, by confidence: the cluster on whose clients' rows the models are as certain.
- By the paper's distances (FMCL, Algorithm 3) from the clusters' pooled prototypes.
- By the angles between subspaces (PACFL, Section 3.2, which lets newcomers send their singular vectors and
  join the cluster of the least distance; here that is the mean over clients, as in average linkage).
- By chains of models. FedGMCC has no rule for newcomers. Its criterion is kept: two models belong together if
  the chain between them has little loss (Fig. 1). The newcomer trains each cluster's model for one round; if
  a model suits its data, the chain from the model to its trained copy has little loss.

"None" is ours, see :func:`~fedclust.clustering.shared.placement.nearest`.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedclust.clustering import clust_psi_pfl, fmcl, pacfl
from fedclust.clustering.shared.placement import NONE, ONE_MODEL, Placement, nearest
from fedclust.proof import holm
from fedclust.typing import FloatArray, IntArray

_MOST_KEPT = 10  # clients of a cluster that newcomers are compared with
_FEWEST = 3  # clients of a cluster from which its width is measured
_ALIKE, _UNLIKE = 1.25, 2.0  # times as far as the farthest client; ours, checked in docs/NEWCOMERS.md


@dataclass(frozen=True, eq=False)
class LabelRule:
    """Places clients by the label counts of the clusters' clients.

    Attributes
    ----------
    counts
        Training examples of each class on each client that was clustered, shape (K, C).
    labels
        Cluster of each of them, shape (K,).
    paper
        The paper's settings.

    Examples
    --------
    >>> counts, labels = np.array([[9, 1], [9, 1], [1, 9], [1, 9]]), np.array([0, 0, 1, 1])
    >>> LabelRule(counts, labels, clust_psi_pfl.Parameters()).place(np.array([10, 90])).cluster
    1
    """

    counts: IntArray
    labels: IntArray
    paper: clust_psi_pfl.Parameters

    def centres(self) -> tuple[IntArray, FloatArray]:
        """Compute the mean features of each cluster's clients.

        Returns
        -------
        Indices of the clusters, shape (G,), and their centres, shape (G, features).
        """
        labels = np.asarray(self.labels)[np.asarray(self.counts).any(axis=1)]
        rows, clusters = self._features(self._known()), np.unique(labels)
        means = [np.average(rows[labels == each], axis=0) for each in clusters]
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
        return clust_psi_pfl.features(counts, self.paper.epsilon, self.paper.smoothing, self._known())

    def _known(self) -> IntArray:
        """Return the counts of the clients that have any."""
        counts = np.asarray(self.counts)
        return counts[counts.any(axis=1)]


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

    Examples
    --------
    >>> means, shares = np.array([[[1.0, 0.0]], [[0.0, 1.0]]]), np.array([[1.0], [1.0]])
    >>> rule = DistanceRule(means, shares, fmcl.Parameters())
    >>> rule.place(np.array([[0.1, 1.0]]), counts=np.array([5])).cluster
    1
    """

    means: FloatArray
    shares: FloatArray
    parameters: fmcl.Parameters

    def place(self, means: FloatArray, counts: IntArray) -> Placement:
        """Place a client.

        Parameters
        ----------
        means
            Mean embedding of each of its classes, shape (C, d).
        counts
            Its training examples of each class, shape (C,).
        """
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
    """Places clients by the angles between their subspaces and those of some clients of each cluster.

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

    Examples
    --------
    >>> bases = np.array([[[[1.0], [0.0]]], [[[0.0], [1.0]]]])  # one class: the first axis, the second axis
    >>> rule = SubspaceRule(bases, np.array([0, 1]), measure="mean", input="pixels")
    >>> rule.place(np.array([[[0.6], [0.8]]])).cluster
    1
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

    Examples
    --------
    >>> place(np.array([0.1, 0.9]), np.array([[0.0, 0.5], [0.5, 0.0]]), np.arange(2)).cluster
    0
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


def remoteness(own: FloatArray, embeddings: FloatArray, labels: IntArray, clusters: IntArray) -> FloatArray:
    """Measure how far a new client's inputs are from those of each cluster's clients.

    Parameters
    ----------
    own
        The client's mean embedding, shape (d,).
    embeddings
        Those of the clients that were clustered, shape (K, d); NaN where unknown.
    labels
        Cluster of each of them, shape (K,).
    clusters
        Indices of the clusters, shape (G,).

    Returns
    -------
    Its distance from the mean of a cluster's clients, divided by the distance of the farthest of them from
    the mean of the others, shape (G,). A cluster with fewer than three clients is given the width of the
    widest; all NaN if every cluster has fewer.

    Examples
    --------
    >>> embeddings = np.array([[0.0], [1.0], [2.0]])  # mean 1; 2 is 1.5 from the mean of the others
    >>> remoteness(np.array([4.0]), embeddings, labels=np.zeros(3), clusters=np.array([0]))
    array([2.])
    """
    distances, widths = np.full(len(clusters), np.nan), np.full(len(clusters), np.nan)
    for place, cluster in enumerate(clusters):
        rows = np.asarray(embeddings, dtype=np.float64)[labels == cluster]
        rows = rows[np.isfinite(rows).all(axis=1)]
        if not len(rows):
            return distances * np.nan
        centre, size = rows.mean(axis=0), len(rows)
        distances[place] = np.linalg.norm(own - centre)
        if size >= _FEWEST:
            widths[place] = np.linalg.norm(rows - centre, axis=1).max() * size / (size - 1)
    return distances / np.where(np.isnan(widths), np.fmax.reduce(widths), widths)


def nearest_inputs(remote: FloatArray | None, clusters: IntArray) -> Placement:
    """Place a client whose targets are unknown by its inputs alone.

    It must be at most 1.25 times as far from its cluster's clients as those are from each other, and more
    than 2 times as far from those of all other clusters.

    Parameters
    ----------
    remote
        How far its inputs are from those of each cluster's clients, see :func:`remoteness`, shape (G,); None
        or NaN if unknown.
    clusters
        Indices of the clusters, shape (G,).

    Examples
    --------
    >>> nearest_inputs(np.array([5.0, 0.8]), np.arange(2)).cluster
    1
    >>> nearest_inputs(None, np.arange(2)).reason
    "without targets, the cluster is unknown: the clients' mean inputs are not here to compare with"
    >>> nearest_inputs(np.array([np.nan, np.nan]), np.arange(2)).reason.partition(": ")[2]
    "comparing inputs takes a cluster of 3 clients, and some clients' inputs of each"
    """
    if len(clusters) == 1:
        return Placement(int(clusters[0]), ONE_MODEL)
    if remote is None or not np.isfinite(remote).all():
        few = f"comparing inputs takes a cluster of {_FEWEST} clients, and some clients' inputs of each"
        why = "the clients' mean inputs are not here to compare with" if remote is None else few
        return Placement(None, f"without targets, the cluster is unknown: {why}")
    evidence = {"remoteness": {str(each): float(far) for each, far in zip(clusters, remote, strict=True)}}
    best = int(np.argmin(remote))
    if remote[best] > _ALIKE:
        return Placement(None, "the client's rows are unlike those of every cluster's clients", evidence)
    if np.sum(remote <= _UNLIKE) > 1:
        why = "without targets, the client's rows are like those of more than one cluster's clients"
        return Placement(None, why, evidence)
    why = f"the client's rows are like those of cluster {clusters[best]}'s clients alone"
    return Placement(int(clusters[best]), why, evidence)


def most_confident(
    confidences: FloatArray,
    clusters: IntArray,
    predicted: IntArray,
    counts: Mapping[int, IntArray],
    level: float = 0.001,
    remote: FloatArray | None = None,
    known: Sequence[FloatArray] | None = None,
) -> Placement:
    """Place a client without labels in the cluster by whose own clients' rows its rows look to the models.

    Models are less certain of rows unlike those that they were trained on. But one model may be more certain
    of any rows than another, as that of many clients is: it is in which rows a model is more certain of than
    another model is that clusters differ. So the client must be nearer to its cluster's clients than to any
    other's in how much more certain the one model is than the other, and differ from that other cluster's
    clients in Welch's t-test over the rows, with Holm's correction. And the label shares that the model
    predicts must not be farther from its cluster's than those of every client there, in total variation;
    otherwise the client is in no cluster. Clusters that name the same rows differently cannot be told apart
    in this way: of either's rows, their models are as certain.

    If the clients' inputs are known, they replace the check of label shares. The client's inputs must be at
    most 1.25 times as far from its cluster's as those of the clients there. If it is more than 2 times as far
    from all clusters but one, it is placed in that one, however certain the models are.

    Source of the score: Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution
    Examples in Neural Networks", ICLR 2017.

    Parameters
    ----------
    confidences
        Logarithm of the largest class probability of each row by each cluster's model, shape (G, n).
    clusters
        Indices of the clusters, shape (G,).
    predicted
        Rows that each cluster's model predicts to be of each class, shape (G, C).
    counts
        Training examples of each class on the clients of each cluster, shape (clients, C); clusters without
        an entry are not checked.
    level
        Level that all tests share.
    remote
        How far the client's inputs are from those of each cluster's clients, see :func:`remoteness`, shape
        (G,); None or NaN if unknown.
    known
        The same as `confidences` of rows of each cluster's clients that no model was trained on, G arrays of
        shape (G, rows); None if they are not here, and then models do not tell clusters apart.

    Examples
    --------
    >>> of_0 = np.array([[-0.1, -0.2, -0.1, -0.1], [-0.4, -0.5, -0.6, -0.4]])
    >>> of_1 = np.array([[-0.9, -1.0, -1.1, -1.0], [-0.4, -0.5, -0.4, -0.4]])
    >>> predicted, rows = np.array([[4, 0], [0, 4]]), np.array([[-1.1, -1.0, -0.9, -0.9], [-0.5] * 4])
    >>> most_confident(rows, np.arange(2), predicted, counts={}, known=[of_0, of_1]).cluster
    1
    """
    if len(clusters) == 1:
        return Placement(int(clusters[0]), ONE_MODEL)
    evidence: dict[str, Any] = {
        "confidences": {
            str(each): float(mean) for each, mean in zip(clusters, confidences.mean(axis=1), strict=True)
        }
    }
    if remote is not None and np.isfinite(remote).all():
        evidence["remoteness"] = {str(each): float(far) for each, far in zip(clusters, remote, strict=True)}
        if remote.min() > _ALIKE:
            return Placement(None, "the client's rows are unlike those of every cluster's clients", evidence)
    else:
        remote = None
    why = "the client's rows are like those of cluster {}'s clients alone"
    best, p_value = (None, 1.0) if known is None else _told_apart(confidences, known)
    if known is not None:
        evidence["p_value"] = p_value
    if best is not None and p_value <= level:
        why = (
            f"without labels, by how certain the models are the client is in cluster {{}} (p = {p_value:.2g})"
        )
        if remote is not None and remote[best] > _ALIKE:
            but = "but its rows are unlike those of the clients there"
            return Placement(None, f"{why.format(clusters[best])}, {but}", evidence)
    elif remote is not None and np.sum(remote <= _UNLIKE) == 1:
        best = int(remote.argmin())
    else:
        unknown = "without labels, the models do not tell in which cluster the client is"
        tested = f" (p = {p_value:.2g}, above {level:g})"
        if known is None:
            tested = ": how certain they are of their own clients' rows is not known here"
        return Placement(None, unknown + tested, evidence)
    if remote is None and (counted := counts.get(int(clusters[best]))) is not None:
        shares = counted / counted.sum(axis=1, keepdims=True)
        whole, own = counted.sum(axis=0) / counted.sum(), predicted[best] / predicted[best].sum()
        if np.abs(own - whole).sum() > np.abs(shares - whole).sum(axis=1).max():
            but = "but its model predicts label shares that no client there has"
            return Placement(None, f"{why.format(clusters[best])}, {but}", evidence)
    return Placement(int(clusters[best]), why.format(clusters[best]), evidence)


def _told_apart(confidences: FloatArray, known: Sequence[FloatArray]) -> tuple[int | None, float]:
    """Return the position of the cluster whose clients' rows a client's are nearest to, and the p-value.

    Between clusters a and b, rows are compared by the difference of their two models' confidences: the
    client must be nearer to the mean over a's rows than over b's, and differ from b's.
    """
    from scipy.stats import ttest_ind

    if min(confidences.shape[1], *(each.shape[1] for each in known)) < 2:
        return None, 1.0
    # A model that has overflowed is certain of nothing, and nobody is in its cluster.
    usable: list[int] = np.flatnonzero(
        np.isfinite([confidences.sum(axis=1), *(each.sum(axis=1) for each in known)]).all(axis=0)
    ).tolist()
    for a in usable:
        own = known[a]
        others = [b for b in usable if b != a]
        gains = [confidences[a] - confidences[b] for b in others]
        theirs = [known[b][a] - known[b][b] for b in others]
        if others and all(
            2 * gain.mean() > (own[a] - own[b]).mean() + their.mean()
            for b, gain, their in zip(others, gains, theirs, strict=True)
        ):
            with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of rows of which models are equally certain
                tests = [
                    ttest_ind(gain, their, equal_var=False, alternative="greater").pvalue
                    for gain, their in zip(gains, theirs, strict=True)
                ]
            return a, float(holm(np.nan_to_num(tests, nan=1.0)).max())
    return None, 1.0
