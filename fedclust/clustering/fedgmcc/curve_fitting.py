"""Fit chains between models so that outputs change little along them.

The curve finding of FedGMCC (Section IV-B), after Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast
Ensembling of DNNs", NeurIPS 2018. The inputs are drawn at random; L(u) is the mean squared
distance, in [0, 2], between the class probabilities of the model at u and those of one end of the chain.

The paper's only target is the end l, so its scores depend on the numbering of clients (``targets="later"``).
With ``targets="both"`` a bend minimises the mean of the distances to either end, and a pair's score is the
larger of the two directions'. Then no term depends on which end comes first:

- ½(‖f − f_k‖² + ‖f − f_l‖²) = ‖f − ½(f_k + f_l)‖² + ¼‖f_k − f_l‖², whose last term does not depend on the
  bend, so the fit takes as long as with one target;
- u runs from k to l, so a step at u alone would favour one end: a step uses u and 1 − u, with half of the
  mini-batch each, and takes as long as with one u;
- one pass through the network gives the distances to both ends, so scoring takes no longer either.

At each step all pairs use the same u and the same mini-batch. So the fit of a pair does not depend on the
other pairs, on the batching or on the numbering of clients, and differences between scores come from the
models, not from the draws. :mod:`.fitter` takes the steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedclust.clustering.fedgmcc.chains import curve_finding_loss, steepest
from fedclust.clustering.fedgmcc.fitter import Fitter, finite_models
from fedclust.clustering.fedgmcc.parameters import Parameters
from fedclust.support.devices import exact_kernels, thread_pool
from fedclust.typing import FloatArray, IntArray, State

__all__ = ["Chains", "Profile", "fit_pairs", "profile"]


@dataclass(frozen=True, eq=False)
class Chains:
    """The fitted chains between all pairs of models.

    Attributes
    ----------
    pairs
        Positions (k, l) of the two models, k < l, shape (P, 2).
    bends
        The bend θ of each chain, P on the first axis, on the device of the models.
    scores
        Steepest slope along the chain, max |∂L/∂u| >= 0; symmetric with diagonal 0,
        shape (n, n). ∞ where a model or the chain holds a value, or has an output, that is not finite.
    losses
        Curve-finding loss of each pair, E_u L(u) of the fitted chain, in [0, 2], shape (P,); ∞ where the
        score is.
    """

    pairs: IntArray
    bends: State
    scores: FloatArray
    losses: FloatArray


@dataclass(frozen=True, eq=False)
class Profile:
    """Distance to the outputs of model l along some chains, to draw the paper's Fig. 2.

    Attributes
    ----------
    pairs
        Positions (k, l) of the two models of each, shape (m, 2).
    u
        Where on the chain, from 0 at model k to 1 at model l, shape (points,).
    chain
        L(u) along the fitted chain, in [0, 2], shape (m, points); NaN where an output is not finite.
    line
        L(u) along the straight line between the same models, shape (m, points).
    """

    pairs: IntArray
    u: FloatArray
    chain: FloatArray
    line: FloatArray


def fit_pairs(
    network: nn.Module,
    models: State,
    inputs: Tensor,
    parameters: Parameters,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
    pairs: IntArray | None = None,
) -> Chains:
    """Fit and score a chain between each pair of models.

    Source: FedGMCC, Eqs. 3 to 5 and Algorithm 1, lines 12 to 17. The bend starts halfway (the paper's
    w_k + w_l is no average) and takes SGD steps on E_u L(u). Parameters bend; buffers, such as running
    statistics, go straight from one model's to the other's. Networks are in evaluation mode.

    A model that holds a value that is not finite, or whose outputs overflow, has score ∞ with every other; so
    has a pair whose chain overflows. This does not change the fit of the other pairs. A bend that diverges
    under SGD is reset to halfway. Time and the memory of the bends grow with the number of pairs, that of
    the fit only with ``parameters.pairs_per_batch``.

    Parameters
    ----------
    network
        The network, from inputs to logits with classes last. It is not changed.
    models
        Its full states, n on the first axis of every tensor.
    inputs
        Surrogate inputs X, shape (n_MC, *input shape), from :func:`draw_inputs`.
    parameters
        Settings of the fit.
    generator
        Random generator of u and the mini-batches, on the CPU.
    device
        Device to fit on.
    pairs
        Positions (k, l) of the models to join, k < l, shape (P, 2); all n (n − 1) / 2 pairs unless given.

    Returns
    -------
    The chains of the pairs; the scores of others are 0.

    Raises
    ------
    ValueError
        If the names in `models` are not the network's.
    """
    with exact_kernels(network):
        fitter = Fitter(network, models, inputs, parameters, torch.device(device))
        size = min(parameters.batch_size, len(inputs))
        schedule = [
            (
                float(torch.rand((), generator=generator)),
                torch.randperm(len(inputs), generator=generator)[:size],
            )
            for _ in range(parameters.steps)
        ]
        n = fitter.num_models
        pairs = np.stack(np.triu_indices(n, k=1), axis=1) if pairs is None else np.asarray(pairs)
        bends = {name: tensor.new_empty((len(pairs), *tensor.shape[1:])) for name, tensor in models.items()}
        scores, losses = np.zeros((n, n)), np.zeros(len(pairs))
        grid = torch.linspace(0, 1, parameters.num_points, dtype=torch.float64)

        def fitted(batch: slice) -> tuple[slice, State, FloatArray]:
            mine = fitter.of_this_thread()
            bend = mine.fit(pairs[batch], schedule)
            return batch, bend, mine.distances(pairs[batch], bend, grid)

        for batch, bend, distances in _each(fitted, list(fitter.batches(len(pairs))), fitter.num_threads):
            # Per pair the larger direction's slope, and the mean over the directions of what was minimised.
            slopes = np.where(finite_models(bend), steepest(distances).max(axis=1), np.inf)
            losses[batch] = curve_finding_loss(distances).mean(axis=1)
            scores[pairs[batch, 0], pairs[batch, 1]] = slopes
            scores[pairs[batch, 1], pairs[batch, 0]] = slopes
            for name, tensor in bend.items():
                bends[name][batch] = tensor.to(bends[name].device)
        finite = finite_models(models)
        scores[~finite] = scores[:, ~finite] = np.inf
        np.fill_diagonal(scores, 0)
        losses[np.isinf(scores[pairs[:, 0], pairs[:, 1]])] = np.inf
        return Chains(pairs=pairs, bends=bends, scores=scores, losses=losses)


def profile(
    network: nn.Module,
    models: State,
    inputs: Tensor,
    chains: Chains,
    which: Sequence[int],
    parameters: Parameters,
    device: torch.device | str = "cpu",
) -> Profile:
    """Compute the outputs' distances along fitted chains and along straight lines.

    Source: FedGMCC, Fig. 2.

    Parameters
    ----------
    network, models, inputs, parameters, device
        As for :func:`fit_pairs`.
    chains
        The result of :func:`fit_pairs`.
    which
        Rows of ``chains.pairs`` to use.

    Returns
    -------
    Distances to the outputs of model l on a grid of ``parameters.num_points`` points.

    Raises
    ------
    ValueError
        As for :func:`fit_pairs`.
    """
    with exact_kernels(network):
        fitter = Fitter(network, models, inputs, parameters, torch.device(device))
        rows = np.asarray(which, dtype=np.int64).reshape(-1)
        grid = torch.linspace(0, 1, parameters.num_points, dtype=torch.float64)
        curved, straight = np.empty((len(rows), len(grid))), np.empty((len(rows), len(grid)))
        for batch in fitter.batches(len(rows)):
            pairs = chains.pairs[rows[batch]]
            bend = {name: tensor[rows[batch]].to(fitter.device) for name, tensor in chains.bends.items()}
            # The last target is model l, whatever `targets` is.
            curved[batch] = fitter.distances(pairs, bend, grid)[:, -1]
            straight[batch] = fitter.distances(pairs, fitter.fit(pairs, []), grid)[:, -1]
        return Profile(pairs=chains.pairs[rows], u=grid.numpy(), chain=curved, line=straight)


def _each(work: Callable[[slice], Any], batches: Sequence[slice], num_threads: int) -> Iterator[Any]:
    """Process all batches on `num_threads` threads of one core each; yield the results in order."""
    if num_threads == 1 or len(batches) == 1:
        yield from map(work, batches)
        return
    with thread_pool(num_threads, inside=1) as pool:
        yield from pool.map(work, batches)
