"""FLUX: clients are clustered once by moments of a model's latent features, over all rows and per class.

Source: Fenoglio et al., "FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary
Distribution Shifts", NeurIPS 2025 (arXiv 2511.22305), as its released code (dariofenoglio98/FLUX) has it. One
model for all is trained until a round gains less than 0.05 in accuracy (:func:`levelled`). Under that model
each client describes its rows: mean and standard deviation of the latent features, projected to as many axes
as there are classes, over all rows, P(X), and over those of each class (:func:`moments`). These are the axes
of a PCA of uniform noise, which all clients draw alike (:func:`noise_axes`). The descriptors are scaled
(:func:`scaled`) and clustered by DBSCAN with two points to a core, whose radius is at the knee of the sorted
nearest distances (:func:`clusters`; Satopää, Albrecht, Irwin and Raghavan, "Finding a Kneedle in a Haystack",
2011, as kneed has it); a client apart is a cluster of its own. From then on each cluster trains alone. A
newcomer goes to the cluster whose mean descriptor of P(X), which needs no labels, is nearest.

Two things are ours. The latent features are the inputs of the last linear layer. The accuracy is that on
clients' training rows: in the released code each client keeps a part of its rows for it.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedclust.support.checks import Checked
from fedclust.typing import FloatArray, IntArray

_POINTS, _SEED, _WIDER = 200, 1, 1.02
ABSENT = -1.0
"""Stands for the moments of a class of which a client has fewer than two rows."""


@dataclass(frozen=True)
class Parameters(Checked):
    """Settings of FLUX.

    Attributes
    ----------
    min_rounds
        Fewest rounds of one model for all, >= 2.
    min_gain
        Clients are clustered once a round has gained less in accuracy, in [0, 1].

    Raises
    ------
    ValueError
        If a number is outside its range.

    Examples
    --------
    >>> Parameters(min_gain=2.0)
    Traceback (most recent call last):
        ...
    ValueError: min_gain must be in [0, 1], got 2.0
    """

    min_rounds: Annotated[int, ">= 2"] = 3
    min_gain: Annotated[float, "in [0, 1]"] = 0.05


def levelled(accuracies: FloatArray, parameters: Parameters) -> bool:
    """Return whether it is time to cluster, by the accuracy after each round so far, NaN where unknown.

    Examples
    --------
    >>> levelled(np.array([0.5, 0.7, 0.72]), Parameters()), levelled(np.array([0.5, 0.7, 0.8]), Parameters())
    (True, False)
    """
    known = accuracies[~np.isnan(accuracies)]
    return len(accuracies) >= parameters.min_rounds and bool((np.diff(known) < parameters.min_gain).any())


def noise_axes(width: int, components: int) -> tuple[FloatArray, FloatArray]:
    """Return the axes of a PCA of uniform noise in [0, 1), and the noise's mean on them.

    Parameters
    ----------
    width
        Number of latent features d.
    components
        Number of axes wanted; there are no more than d.

    Returns
    -------
    axes
        Shape (c, d), c the lesser of both.
    centre
        Shape (c,).

    Examples
    --------
    >>> axes, centre = noise_axes(width=5, components=3)
    >>> axes.shape, centre.shape
    ((3, 5), (3,))
    """
    points = np.random.default_rng(_SEED).uniform(0, 1, (_POINTS, width))
    middle = points.mean(axis=0)
    axes = np.linalg.svd(points - middle)[2][:components]
    return axes, axes @ middle


def moments(latent: FloatArray, labels: IntArray, num_classes: int) -> FloatArray:
    """Compute a client's means and standard deviations on the axes, over all rows and over each class.

    Parameters
    ----------
    latent
        Latent features, shape (n, d).
    labels
        Classes of the rows, shape (n,).
    num_classes
        Number of classes C, and of axes.

    Returns
    -------
    Mean and deviation of all rows, then those of each class, -1 with fewer than two rows; shape (2 + 2 C, c).

    Examples
    --------
    >>> moments(np.array([[1.0], [3.0], [8.0]]), np.array([0, 0, 1]), num_classes=2).shape
    (6, 1)
    """
    points = latent @ noise_axes(latent.shape[1], num_classes)[0].T
    parts = [points, *(points[labels == label] for label in range(num_classes))]
    blank = np.full(points.shape[1], ABSENT)
    return np.concatenate(
        [(part.mean(axis=0), part.std(axis=0)) if len(part) > 1 else (blank, blank) for part in parts]
    )


def centred(found: FloatArray, most: float, width: int) -> FloatArray:
    """Move clients' means so that the noise, whose range is that of the latent features, has mean 0.

    Parameters
    ----------
    found
        Moments of each client, shape (clients, 2 + 2 C, c).
    most
        The largest latent feature of all.
    width
        Number of latent features d.

    Examples
    --------
    >>> found = np.array([[[2.0], [0.0], [-1.0], [-1.0]]])
    >>> centre = noise_axes(1, 1)[1]
    >>> bool(np.isclose(centred(found, 1.0, 1)[0, 0, 0], 2 - 1.02 * centre[0]))
    True
    """
    means, deviations = found[:, ::2], found[:, 1::2]
    shift = _WIDER * most * noise_axes(width, found.shape[2])[1]
    moved = found.copy()
    moved[:, ::2] = np.where(deviations < 0, means, means - shift)
    return moved


def ranges(found: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest number of each of the 2 + 2 C moments, each of shape (2 + 2 C, 1).

    Examples
    --------
    >>> low, high = ranges(np.array([[[1.0, 4.0]], [[2.0, 3.0]]]))
    >>> low.tolist(), high.tolist()
    ([[1.0]], [[4.0]])
    """
    return found.min(axis=(0, 2))[:, np.newaxis], found.max(axis=(0, 2))[:, np.newaxis]


def scaled(found: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Scale each moment to [0, 1] over all clients and axes, see :func:`ranges`.

    Examples
    --------
    >>> scaled(np.array([[[1.0, 4.0]]]), np.array([[1.0]]), np.array([[5.0]])).tolist()
    [[[0.0, 0.75]]]
    """
    return (found - low) / np.maximum(high - low, 1e-12)


def clusters(described: FloatArray) -> IntArray:
    """Cluster clients by DBSCAN with two points to a core; a client apart is a cluster of its own.

    Parameters
    ----------
    described
        Scaled descriptors, shape (clients, …), at least two clients.

    Returns
    -------
    Cluster of each, in order of first appearance, shape (clients,).

    Examples
    --------
    >>> clusters(np.array([[0.0], [0.1], [5.0], [5.1], [9.9]]))
    array([0, 0, 1, 1, 2])
    """
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial.distance import cdist

    rows = described.reshape(len(described), -1)
    apart = cdist(rows, rows)
    nearest = np.sort((apart + np.diag(np.full(len(apart), np.inf))).min(axis=0))
    found: IntArray = connected_components(apart <= nearest[_knee(nearest)])[1].astype(np.int64)
    return found


def _knee(values: FloatArray) -> int:
    """Return the position of the knee of increasing convex values, by Kneedle with sensitivity 1."""
    spread = (values - values[0]) / max(np.ptp(values), 1e-12)
    below = (np.linspace(0, 1, len(values)) - spread)[::-1]  # from the largest down
    knee, least = int(below.argmax()), -np.inf
    for place in range(1, len(below) - 1):
        if below[place] >= max(below[place - 1], below[place + 1]):
            knee, least = place, below[place] - 1 / (len(below) - 1)
        elif below[place] <= min(below[place - 1], below[place + 1]):
            least = 0
        if below[place + 1] < least:
            break
    return len(values) - 1 - knee
