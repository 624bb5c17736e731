"""Place a client that comes later by the low-loss curves to the clusters' models; our rule for FedGMCC.

The paper has no rule for newcomers. Its criterion is kept: two models belong together if the chain between
them is flat (FedGMCC, Eqs. 3 to 5). The newcomer trains each cluster's model for one round; where the model
suits its data, what comes out is joined to what went in by a flat chain. It goes to the cluster of the
flattest one, or to none if even that is steeper than a chain between two clusters' models.
"""

import numpy as np
import torch
from torch import Tensor, nn

from fedclust.clustering.fedgmcc.algorithm import Parameters
from fedclust.clustering.fedgmcc.curve_fitting import fit_pairs
from fedclust.clustering.shared.placement import Placement
from fedclust.clustering.shared.placing import NONE, nearest
from fedclust.typing import FloatArray, IntArray, State

__all__ = ["chain_scores", "place"]


def chain_scores(
    network: nn.Module,
    clusters: State,
    trained: State,
    inputs: Tensor,
    parameters: Parameters,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> tuple[FloatArray, FloatArray]:
    """Score the chain from each cluster's model to what one client made of it, and those between clusters.

    Parameters
    ----------
    network, inputs, parameters, generator, device
        As for :func:`~fedclust.clustering.fedgmcc.curve_fitting.fit_pairs`.
    clusters
        Models of the clusters: full states, G on the first axis of every tensor.
    trained
        The same after the client trained each.

    Returns
    -------
    own
        Steepest slope to the client's model, shape (G,).
    apart
        Steepest slope between each two clusters' models, shape (G, G).
    """
    stacked = {name: torch.cat([clusters[name], trained[name]]) for name in clusters}
    number = len(next(iter(clusters.values())))
    each = np.arange(number)
    pairs: IntArray = np.concatenate(
        [np.stack([each, each + number], axis=1), np.stack(np.triu_indices(number, k=1), axis=1)]
    )
    scores = fit_pairs(network, stacked, inputs, parameters, generator, device, pairs).scores
    return scores[each, each + number], scores[:number, :number]


def place(own: FloatArray, apart: FloatArray, clusters: IntArray) -> Placement:
    """Place a client by the slopes of :func:`chain_scores`.

    Parameters
    ----------
    own, apart
        The slopes.
    clusters
        Indices of the clusters, shape (G,).
    """
    best = nearest(own, apart)
    # Infinite slopes, of models that overflow, have no form in JSON.
    told = {
        str(each): float(slope) if np.isfinite(slope) else None
        for each, slope in zip(clusters, own, strict=True)
    }
    if best == NONE or not np.isfinite(own[best]):
        why = f"the flattest chain from a cluster's model to the client's has slope {np.min(own):.3g}"
        return Placement(None, f"{why}: steeper than one between clusters", {"slopes": told})
    why = f"the chain from the model of cluster {clusters[best]} to the client's is the flattest"
    return Placement(int(clusters[best]), f"{why}, slope {own[best]:.3g}", {"slopes": told})
