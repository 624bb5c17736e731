"""FedClust of ICPP 2024: clusters from the last layer that each client has after one round of training.

Islam, Javaherian, Xu, Yuan, Chen and Tzeng, "FedClust: Tackling Data Heterogeneity in Federated Learning
through Weight-Driven Client Clustering", ICPP 2024, arXiv:2407.07124. All clients train the first model once
and send the weights of its last layer; they are clustered agglomeratively by Euclidean distances up to a
threshold; then each cluster trains from the first model. This project has the same name but is not that
paper's.

All clients start from one model, so their weights are as far apart as the changes that training made, and
those changes are what they send here. The paper's threshold is set per data set; without one, the number of
clusters is the one with the best silhouette.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedclust.clustering.shared.grouping import Details, Grouping, group, lp_distances
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True)
class Parameters(Grouping):
    """Settings, besides those of :class:`~fedclust.clustering.shared.grouping.Grouping`.

    Attributes
    ----------
    layer
        Name of the layer whose weights are compared, such as ``"network.3"``; null: the model's last.

    Examples
    --------
    >>> Parameters(layer="network.3").layer
    'network.3'
    """

    layer: str | None = None


def last_layer(shapes: Mapping[str, Sequence[int]], layer: str | None = None) -> tuple[str, ...]:
    """List the arrays of a model's last layer, the last one with a weight matrix.

    Parameters
    ----------
    shapes
        Shape of each array of the model by name, in the model's order.
    layer
        Name of the layer to use instead; None for the last.

    Raises
    ------
    ValueError
        If there is no such layer, or no array has two axes.

    Examples
    --------
    >>> last_layer({"0.weight": (8, 4), "0.bias": (8,), "2.weight": (3, 8), "2.bias": (3,)})
    ('2.weight', '2.bias')
    """
    layers = [name.rpartition(".")[0] for name, shape in shapes.items() if len(shape) >= 2]
    if layer is None and not layers:
        raise ValueError(f"model must have a layer with a weight matrix, its arrays are {list(shapes)}")
    chosen = layers[-1] if layer is None else layer
    names = tuple(name for name in shapes if name.rpartition(".")[0] == chosen)
    if not names:
        raise ValueError(f"layer must be one of {', '.join(dict.fromkeys(layers))}, got {layer!r}")
    return names


def assign(weights: FloatArray, parameters: Parameters) -> tuple[IntArray, Details]:
    """Group clients by the Euclidean distances of their last layers. Nothing is random.

    Source: FedClust, Algorithm 1.

    Parameters
    ----------
    weights
        Weights of the layer, or their change by training, flattened, shape (K, d).
    parameters
        Settings.

    Returns
    -------
    labels
        Cluster of each client, numbered in order of first appearance, shape (K,).
    report
        Details for logs.

    Examples
    --------
    >>> labels, _ = assign(np.array([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0]]), Parameters(threshold=2.0))
    >>> labels
    array([0, 0, 1])
    """
    return group(lp_distances(np.asarray(weights), 2), parameters)
