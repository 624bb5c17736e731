"""FeSEM: expectation maximisation on weights; a client belongs to the nearest of k centres.

Source: Long, Xie, Shen, Zhou, Wang and Jiang, "Multi-center federated learning: clients clustering for better
personalization", World Wide Web 26, 2023. The E-step assigns each client's last local model to the nearest
centre (L2); the M-step makes a centre the mean of its members' models, weighted by their samples; clients
then train from their centre. The first centres come from k-means++ on the models of the first round.

Only the models that clients return in a round are needed: a client is assigned to a centre when it has just
trained, and only its centre is remembered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedclust.clustering.shared.grouping import in_order_of_appearance, kmeans
from fedclust.clustering.shared.number import KnownNumber
from fedclust.typing import FloatArray, IntArray

Model = Mapping[str, FloatArray]
"""A model's arrays, by name."""


@dataclass(frozen=True)
class Parameters(KnownNumber):
    """Settings of FeSEM.

    Attributes
    ----------
    num_clusters
        Number of centres k, >= 1; None for a guess of 2, which the run names.
    num_starts
        Number of starts of k-means++ after round 1, >= 1; the best is kept.

    Raises
    ------
    ValueError
        If a number is below 1.

    Examples
    --------
    >>> Parameters(num_clusters=0)
    Traceback (most recent call last):
        ...
    ValueError: num_clusters must be >= 1 or None, got 0
    """

    num_starts: Annotated[int, ">= 1"] = 10


def distances(models: Sequence[Model], centres: Sequence[Model]) -> FloatArray:
    """Compute the squared L2 distance of each model from each centre.

    Source: FeSEM, Eq. 6.

    Parameters
    ----------
    models, centres
        Models with the same arrays; arrays of whole numbers do not count.

    Returns
    -------
    Shape (models, centres).

    Examples
    --------
    >>> distances([{"w": np.array([3.0, 4.0])}], [{"w": np.zeros(2)}])
    array([[25.]])
    """
    names = [name for name, array in centres[0].items() if np.issubdtype(array.dtype, np.floating)]
    points = np.stack([_flat(centre, names) for centre in centres])
    total = np.empty((len(models), len(centres)))
    for row, model in zip(total, models, strict=True):  # not stacked: one more model in float64 is enough
        apart = points - _flat(model, names)
        np.einsum("cp,cp->c", apart, apart, out=row)
    return total


def _flat(model: Model, names: Sequence[str]) -> FloatArray:
    return np.concatenate([model[name].ravel() for name in names], dtype=np.float64)


def nearest(models: Sequence[Model], centres: Sequence[Model]) -> IntArray:
    """Find the nearest centre of each model, the E-step; the lowest index on a tie.

    Parameters
    ----------
    models, centres
        Models with the same arrays.

    Returns
    -------
    Shape (models,).

    Examples
    --------
    >>> models = [{"w": np.array([1.0])}, {"w": np.array([9.0])}]
    >>> nearest(models, centres=[{"w": np.array([0.0])}, {"w": np.array([8.0])}])
    array([0, 1])
    """
    return np.argmin(distances(models, centres), axis=1)


def first_groups(models: Sequence[Model], parameters: Parameters, seed: int) -> IntArray:
    """Group the models of the first round with k-means++.

    k-means is given points that have the models' distances from each other, but only as many coordinates as
    there are models, whatever the size of a model: ``points · pointsᵀ`` is the matrix of inner products of
    the models minus their mean.

    Parameters
    ----------
    models
        The models, shape (n,).
    parameters
        Number of groups and of starts.
    seed
        Seed of k-means, in 0 … 2³² − 1.

    Returns
    -------
    Group of each model, numbered in order of first appearance, shape (n,); fewer than k groups where
    fewer models differ.

    Examples
    --------
    >>> first_groups([{"w": np.array([value])} for value in (0.0, 1.0, 9.0)], Parameters(), seed=0)
    array([0, 0, 1])
    """
    products = np.zeros((len(models), len(models)))
    for name, array in models[0].items():
        if np.issubdtype(array.dtype, np.floating):
            flat = np.stack([model[name].ravel() for model in models]).astype(np.float64)
            flat -= flat.mean(axis=0)
            products += flat @ flat.T
    values, vectors = np.linalg.eigh(products)
    points = vectors * np.sqrt(np.maximum(values, 0))
    scale = np.sqrt(max(float(values[-1]), np.finfo(float).tiny))
    num_distinct = len(np.unique(np.round(points / scale, 9), axis=0))
    number = min(parameters.number, num_distinct)
    return in_order_of_appearance(kmeans(points, number, seed, parameters.num_starts, tolerance=0))
