"""CFL: a cluster is cut in two when training stands still on average but not for each of its clients.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
Under Privacy Constraints", IEEE Transactions on Neural Networks and Learning Systems 32(8), 2021
(arXiv:1910.01991), Algorithms 1 and 2. Δ_i is what training changed in client i's model. Where the mean
change is small and a client's is not, clients pull in different directions, and the cosines of the Δ_i show
which clients pull together.

Where the paper leaves something open, and where we depart from it:

- The method needs only lengths and angles, so they are those of a random projection of Δ_i to 4,096 numbers,
  whatever the size of the model (the length of a single Δ_i is exact). The cosine of two projections of m
  numbers has a standard error of at most √(2/m) = 0.022, the length of their mean one of 1 %
  (:mod:`fedclust.messages.training`).
- The paper has every client take part in every round. Here the two norms are those of the round's cohort,
  and a cluster is cut by the last Δ of each member, whatever round it is of.
- The limits of the authors' code are absolute, 0.4 and 1.6, and depend on the model and the learning rate.
  With ``relative`` they are shares of the mean and of the largest norm in the first round.
- The paper gives no numbers for ε₁, ε₂ and γ_max. The first two are those of the authors' code; γ_max is 0,
  with which any cut is made, as in that code, which leaves γ_max out.
- The authors' code cuts by complete linkage (``linkage``), not before round 21 (``min_rounds``), and no
  cluster of two.
- ``relative``, ``min_silhouette`` and ``min_cluster_size`` are ours and off.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from fedclust.clustering.shared.grouping import Linkage, agglomerate, cosine_distances
from fedclust.metrics import silhouette
from fedclust.support.checks import Checked
from fedclust.typing import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of CFL.

    Attributes
    ----------
    eps_1
        ε₁: the mean change must be shorter than this, > 0.
    eps_2
        ε₂: the longest change of a client must be longer than this, > 0.
    relative
        Whether both are shares of the mean and of the largest norm in the first round.
    gamma_max
        γ_max: bound on the noise of a client's change, in [0, 1]; a cluster is cut only if √((1 − α)/2) is
        above it, α the largest cosine across the cut.
    min_rounds
        Rounds before a cluster may be cut, >= 0; 20 in the authors' code.
    min_silhouette
        Least mean silhouette of a cut, in [-1, 1]; null: any.
    min_cluster_size
        Fewest clients of either part, >= 1.
    linkage
        Linkage on −cos by which clients are cut in two: ``"single"`` makes the largest cosine across the cut
        as small as it can be, which is what Algorithm 1 of the paper does; the authors' code has
        ``"complete"``.
    projection
        Length of the projection of its change that each client sends, >= 1.

    Raises
    ------
    ValueError
        If an attribute is outside its range.

    Examples
    --------
    >>> Parameters(gamma_max=1.5)
    Traceback (most recent call last):
        ...
    ValueError: gamma_max must be in [0, 1], got 1.5
    """

    eps_1: Annotated[float, "> 0"] = 0.4
    eps_2: Annotated[float, "> 0"] = 1.6
    relative: bool = False
    gamma_max: Annotated[float, "in [0, 1]"] = 0.0
    min_rounds: Annotated[int, ">= 0"] = 0
    min_silhouette: Annotated[float | None, "in [-1, 1] or None"] = None
    min_cluster_size: Annotated[int, ">= 1"] = 1
    linkage: Linkage = "single"
    projection: Annotated[int, ">= 1"] = 4096


@dataclass(frozen=True, eq=False)
class Changes:
    """The last change of each client.

    Attributes
    ----------
    values
        Projection of the last Δ of each client, float32, shape (K, m); 0 before its first.
    known
        Whether a client has answered yet, shape (K,).
    first_norms
        ‖Σ n_i Δ_i / Σ n_i‖ and max ‖Δ_i‖ of the first round, shape (2,); 0 before it.
    """

    values: FloatArray
    known: BoolArray
    first_norms: FloatArray = field(default_factory=lambda: np.zeros(2))


@dataclass(frozen=True, eq=False)
class Cut:
    """The result of a round for one cluster: ``labels``; the rest is for logs.

    Attributes
    ----------
    mean_norm, max_norm
        ‖Σ n_i Δ_i / Σ n_i‖ and max ‖Δ_i‖ over the cohort.
    silhouette
        Mean silhouette of the cut that was considered; NaN if there was none.
    labels
        Part of each member, 0 or 1; None if the cluster stays whole.
    """

    mean_norm: float
    max_norm: float
    silhouette: float = np.nan
    labels: IntArray | None = None


def start(num_clients: int, parameters: Parameters) -> Changes:
    """Create the state before any client has reported a change.

    Examples
    --------
    >>> start(2, Parameters(projection=3)).values
    array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    return Changes(
        np.zeros((num_clients, parameters.projection), dtype=np.float32), np.zeros(num_clients, dtype=bool)
    )


def norms(values: FloatArray, lengths: FloatArray, num_examples: IntArray) -> FloatArray:
    """Compute the length of a cohort's mean change and of its longest change.

    Source: CFL, Algorithm 2, lines 15 and 16 (the two norms of the stopping criterion).

    Parameters
    ----------
    values
        Change of each client, or a projection of it, shape (n, m).
    lengths
        ‖Δ_i‖, shape (n,).
    num_examples
        n_i, shape (n,).

    Returns
    -------
    ‖Σ n_i Δ_i / Σ n_i‖ and max ‖Δ_i‖, shape (2,).

    Examples
    --------
    >>> changes = np.array([[3.0, 0.0], [0.0, 4.0]])  # mean (1.5, 2), of length 2.5
    >>> norms(changes, np.array([3.0, 4.0]), np.array([1, 1]))
    array([2.5, 4. ])
    """
    weights = np.asarray(num_examples, dtype=np.float64)
    mean = np.average(np.asarray(values, dtype=np.float64), axis=0, weights=weights)
    return np.array([np.linalg.norm(mean), np.max(lengths)])


def is_stationary(current: FloatArray, first: FloatArray, parameters: Parameters) -> bool:
    """Return whether a cluster's mean change is small while a client's is not.

    Source: CFL, Algorithm 2.

    Parameters
    ----------
    current
        The two :func:`norms` of this round, shape (2,).
    first
        Those of the first round, shape (2,).
    parameters
        The limits.

    Examples
    --------
    >>> is_stationary(np.array([0.1, 2.0]), np.zeros(2), Parameters(eps_1=0.4, eps_2=1.6))
    True
    >>> is_stationary(np.array([0.1, 1.0]), np.zeros(2), Parameters(eps_1=0.4, eps_2=1.6))
    False
    """
    limits = np.array([parameters.eps_1, parameters.eps_2])
    if parameters.relative:
        limits = limits * first
    return bool(current[0] < limits[0] and current[1] > limits[1])


def bipartition(distances: FloatArray, linkage: Linkage = "single") -> IntArray:
    """Cut clients in two by the cosines of their changes.

    Source: CFL, Algorithm 1: the most similar clients are joined first until two groups are left. That is
    single linkage, and of all cuts the one with the least largest cosine across it. Complete linkage, which
    the authors' code has, is another cut in general.

    Parameters
    ----------
    distances
        1 − cos of any two clients' changes, or of projections of them, shape (n, n), n >= 2; linkage is the
        same as on −cos.
    linkage
        See :class:`Parameters`.

    Returns
    -------
    Part of each client, 0 or 1, the first client's 0, shape (n,).

    Examples
    --------
    >>> bipartition(np.array([[0.0, 0.1, 1.0], [0.1, 0.0, 1.0], [1.0, 1.0, 0.0]]))
    array([0, 0, 1])
    """
    return agglomerate(distances, 2, None, linkage)


def is_separated(distances: FloatArray, parts: IntArray, gamma_max: float) -> bool:
    """Return whether changes across a cut differ by more than noise.

    Source: CFL, Theorem 1 and Algorithm 2: √((1 − α_cross^max)/2) > γ_max.

    Parameters
    ----------
    distances
        1 − cos of any two clients' changes, shape (n, n).
    parts
        Part of each client, 0 or 1, neither of them empty, shape (n,).
    gamma_max
        γ_max, in [0, 1].

    Examples
    --------
    >>> distances = np.array([[0.0, 0.5], [0.5, 0.0]])  # √(0.5/2) = 0.5
    >>> is_separated(distances, np.array([0, 1]), gamma_max=0.4)
    True
    >>> is_separated(distances, np.array([0, 1]), gamma_max=0.6)
    False
    """
    across = distances[np.not_equal.outer(parts, parts)].min()
    return bool(np.sqrt(max(float(across), 0.0) / 2) > gamma_max)


def update(
    changes: Changes, clients: IntArray, values: FloatArray, first_norms: FloatArray | None = None
) -> Changes:
    """Update the last changes of some clients.

    Parameters
    ----------
    changes
        The last changes so far.
    clients
        Client ids, shape (n,).
    values
        Projections of their changes, shape (n, m).
    first_norms
        The two norms of the first round; None in others.

    Examples
    --------
    >>> changes = update(start(2, Parameters(projection=1)), np.array([1]), np.array([[5.0]]))
    >>> changes.values.tolist(), changes.known.tolist()
    ([[0.0], [5.0]], [False, True])
    """
    values_now, known = changes.values.copy(), changes.known.copy()
    values_now[clients], known[clients] = values, True
    return Changes(values_now, known, changes.first_norms if first_norms is None else first_norms)


def cut(changes: Changes, members: IntArray, current: FloatArray, parameters: Parameters) -> Cut:
    """Cut a cluster in two if it stands still, by the last change of each member.

    Parameters
    ----------
    changes
        The last changes of all clients.
    members
        Ids of the cluster's clients, sorted, shape (n,).
    current
        The two norms of this round's cohort, shape (2,).
    parameters
        Limits that a cut must keep.

    Returns
    -------
    The result. A member that has never answered goes with the larger part.

    Examples
    --------
    >>> parameters, clients = Parameters(projection=1), np.arange(3)
    >>> changes = update(start(3, parameters), clients, np.array([[2.0], [2.0], [-4.0]]))
    >>> cut(changes, clients, np.array([0.0, 4.0]), parameters).labels
    array([0, 0, 1])
    """
    uncut = Cut(float(current[0]), float(current[1]))
    answered = np.flatnonzero(changes.known[members])
    if len(answered) < 2 or not is_stationary(current, changes.first_norms, parameters):
        return uncut
    distances = cosine_distances(changes.values[members[answered]])
    parts = bipartition(distances, parameters.linkage)
    score = silhouette(distances, parts)
    alike = not is_separated(distances, parts, parameters.gamma_max)
    labels = np.full(len(members), np.argmax(np.bincount(parts)), dtype=np.int64)
    labels[answered] = parts
    small = np.bincount(labels, minlength=2).min() < parameters.min_cluster_size
    weak = parameters.min_silhouette is not None and score < parameters.min_silhouette
    return replace(uncut, silhouette=score, labels=None if alike or small or weak else labels)
