"""FedGMCC's chains between models: fitted so that outputs change little along them, and averaged.

The curve finding of FedGMCC (Section IV-B; :mod:`fedclust.clustering.fedgmcc` names the paper), after Garipov
et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018. A chain is two straight
pieces in weight space, joined by a bend. The inputs are drawn at random, in place of the clients' data; L(u)
is the mean squared distance, in [0, 2], between the class probabilities of the model at u and those of the
later model of the pair, at u = 1.

At each step all pairs use the same u and the same mini-batch. So the fit of a pair does not depend on the
other pairs or on the batching, and differences between pairs come from the models, not from the draws.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedclust.clustering.fedgmcc import (
    Parameters,
    budget,
    components,
    curve_finding_loss,
    next_percentile,
    scores,
)
from fedclust.support.devices import exact_kernels, thread_pool
from fedclust.typing import BoolArray, FloatArray, IntArray, State

Point = TypeVar("Point", float, FloatArray, Tensor)


def chain(start: Point, end: Point, bend: Point, u: float) -> Point:
    """Compute the model at `u` on the chain from one model over a bend to another.

    Source: FedGMCC, Eq. 3, with the misplaced bracket of its second line corrected: γ(0) = w_k,
    γ(1/2) = θ, γ(1) = w_l, straight in between.

    Parameters
    ----------
    start, end, bend
        w_k, w_l and θ: numbers, arrays or tensors of any one shape.
    u
        Position on the chain, in [0, 1].

    Returns
    -------
    γ(u), of the same type.

    Examples
    --------
    >>> chain(0.0, 4.0, bend=1.0, u=0.25), chain(0.0, 4.0, bend=1.0, u=0.75)
    (0.5, 2.5)
    """
    if u < 0.5:
        return (1 - 2 * u) * start + 2 * u * bend
    return (2 - 2 * u) * bend + (2 * u - 1) * end


def chain_mean(start: Point, end: Point, bend: Point) -> Point:
    """Compute the exact mean of all models of a chain.

    Source: FedGMCC, Proposition 1.2: E_u γ(u) for u ~ U(0, 1). Each half is straight, so its mean is that of
    its ends.

    Parameters
    ----------
    start, end, bend
        w_k, w_l and θ: numbers, arrays or tensors of any one shape.

    Returns
    -------
    (w_k + 2θ + w_l) / 4, of the same type.

    Examples
    --------
    >>> chain_mean(0.0, 4.0, bend=1.0)  # (0 + 2·1 + 4)/4
    1.5
    """
    return (start + 2 * bend + end) / 4


def output_distance(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the distance between two models' outputs on the same inputs.

    Source: FedGMCC, Eq. 5 and Algorithm 1, line 15: E_x ‖f(x, w) − f(x, γ(u))‖².

    Parameters
    ----------
    probabilities, target
        Class probabilities f, classes last, shape (inputs, …, C). For a network that labels every position,
        the mean is over positions too.

    Returns
    -------
    L in [0, 2], a scalar; NaN if an output is not a number.

    Examples
    --------
    >>> output_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])).item()
    0.5
    """
    return (probabilities - target).square().sum(dim=-1).mean()


def draw_inputs(
    num_inputs: int,
    input_shape: Sequence[int],
    generator: torch.Generator,
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    vocabulary_size: int | None = None,
) -> Tensor:
    """Draw the random inputs.

    Source: FedGMCC, Section IV-B, X_MC ~ U(0, 1). If clients normalise their images, the inputs must be
    normalised too: on inputs unlike the training data, even models of similar clients disagree. The paper
    embeds its DNA before the network; for networks that take tokens, every token is equally likely.

    Parameters
    ----------
    num_inputs
        Number of inputs, >= 1.
    input_shape
        Shape of one input; channels first in an image.
    generator
        Random generator, on the CPU, so that all devices give the same inputs.
    mean, std
        The clients' normalisation per channel; empty if they do not normalise.
    vocabulary_size
        Number of tokens, for a network that takes tokens; None for one that takes numbers.

    Returns
    -------
    Float32, U(0, 1) before normalisation, or int64 tokens, shape (num_inputs, *input_shape).

    Examples
    --------
    >>> draw_inputs(2, (1, 8, 8), torch.Generator()).shape
    torch.Size([2, 1, 8, 8])
    >>> draw_inputs(2, (3,), torch.Generator(), vocabulary_size=1)  # the only token is 0
    tensor([[0, 0, 0],
            [0, 0, 0]])
    """
    shape = (num_inputs, *input_shape)
    if vocabulary_size is not None:
        return torch.randint(vocabulary_size, shape, generator=generator)
    inputs = torch.rand(shape, generator=generator)
    if not mean:
        return inputs
    across = (-1, *[1] * (len(shape) - 2))
    return (inputs - torch.tensor(mean).reshape(across)) / torch.tensor(std).reshape(across)


@dataclass(frozen=True, eq=False)
class Fitting:
    """The network, inputs and settings with which chains are fitted and scored.

    Attributes
    ----------
    network
        The network, from inputs to logits with classes last. It is copied, and not changed.
    inputs
        Surrogate inputs X, shape (n_MC, *input shape), from :func:`draw_inputs`.
    parameters
        Settings of the fit, and of the grouping.
    generator
        Random generator of u and the mini-batches, on the CPU.
    device
        Device to fit on.
    """

    network: nn.Module
    inputs: Tensor
    parameters: Parameters
    generator: torch.Generator
    device: torch.device | str = "cpu"


@dataclass(frozen=True, eq=False)
class Chains:
    """The fitted chains between some pairs of models.

    Attributes
    ----------
    pairs
        Positions (k, l) of the two models, k < l, shape (P, 2).
    bends
        The bend θ of each chain, P on the first axis, on the device of the models.
    distances
        L on a uniform grid over u in [0, 1], in [0, 2], shape (P, ``parameters.num_points``). A row is ∞ if
        a model or the chain holds a value, or has an output, that is not finite.
    """

    pairs: IntArray
    bends: State
    distances: FloatArray


def fit_pairs(fitting: Fitting, models: State, pairs: IntArray | None = None) -> Chains:
    """Fit a chain between each pair of models, and evaluate it.

    Source: FedGMCC, Eqs. 3 and 4 and Algorithm 1, lines 12 to 16. The bend starts halfway (the paper's
    w_k + w_l is no average) and takes SGD steps on E_u L(u). Parameters bend; buffers, such as running
    statistics, and frozen parameters have their bend halfway. Networks are in evaluation mode.

    A model that overflows does not change the fit of pairs without it. A bend that diverges under SGD is
    reset to halfway. Time and the memory of the bends grow with the number of pairs, that of the fit does
    not.

    Parameters
    ----------
    fitting
        Network, inputs and settings.
    models
        Full states of the network, n on the first axis of every tensor.
    pairs
        Positions (k, l) of the models to join, k < l, shape (P, 2); all n (n − 1) / 2 pairs unless given.

    Examples
    --------
    >>> models = {"weight": torch.zeros(2, 2, 1), "bias": torch.tensor([[0.0, 0.0], [4.0, 0.0]])}
    >>> settings = Parameters(steps=0)  # bends stay halfway
    >>> fitting = Fitting(nn.Linear(1, 2), torch.zeros(8, 1), settings, torch.Generator())
    >>> fit_pairs(fitting, models).bends["bias"]
    tensor([[2., 0.]])
    """
    if pairs is None:
        pairs = np.stack(np.triu_indices(len(next(iter(models.values()))), k=1), axis=1)
    with exact_kernels(fitting.network):
        fitter = _Fitter(fitting, models)
        batches = [pairs[at : at + fitter.pairs_at_once] for at in range(0, len(pairs), fitter.pairs_at_once)]
        # Batches are small: they use several cores better side by side than one after the other.
        threads = min(torch.get_num_threads(), len(batches)) if fitter.device.type == "cpu" else 1
        if threads > 1:
            with thread_pool(threads, inside=1) as pool:
                parts = list(pool.map(fitter.fitted, batches))
        else:
            parts = [fitter.fitted(batch) for batch in batches]
    bends = {
        name: torch.cat([tensor[:0], *(bend[name] for bend, _ in parts)]) for name, tensor in models.items()
    }
    distances = np.vstack([np.zeros((0, fitting.parameters.num_points)), *(losses for _, losses in parts)])
    sound = _finite_models(bends) & _finite_models(models)[pairs].all(axis=1)
    sound &= np.isfinite(distances).all(axis=1)
    return Chains(pairs, bends, np.where(sound[:, None], distances, np.inf))


class _Fitter:
    """Fits pairs on one device; holds the models, the surrogate inputs and the models' outputs on them."""

    def __init__(self, fitting: Fitting, models: State) -> None:
        self.device, self.parameters, self.models = torch.device(fitting.device), fitting.parameters, models
        self.network = copy.deepcopy(fitting.network).to(self.device).eval()
        # A tied parameter has one name here and further names, its aliases, in the state.
        once = dict(self.network.named_parameters())
        names = {id(tensor): name for name, tensor in once.items()}
        self.bending = [name for name, each in once.items() if each.requires_grad]  # so it is floating point
        others = (*once, *dict(self.network.named_buffers()))
        self.straight = [name for name in others if name in models and name not in self.bending]
        every = self.network.named_parameters(remove_duplicate=False)
        self.aliases = {name: names[id(tensor)] for name, tensor in every if name != names[id(tensor)]}
        self.pairs_at_once = _pairs_at_once(self.network, self.device)
        self.inputs = fitting.inputs.to(self.device)
        # On the CPU channels-last convolutions take a third to two thirds of the time; vmap cannot use them.
        self.channels_last = self.pairs_at_once == 1 and self.device.type == "cpu" and self.inputs.ndim == 4
        if self.channels_last:
            self.inputs = self.inputs.to(memory_format=torch.channels_last)
        generator, parameters = fitting.generator, fitting.parameters
        self.schedule = [
            (
                float(torch.rand((), generator=generator)),
                torch.randperm(len(self.inputs), generator=generator)[: parameters.batch_size],
            )
            for _ in range(parameters.steps)
        ]
        self.outputs = torch.stack([self._outputs(each) for each in range(len(next(iter(models.values()))))])

    def fitted(self, pairs: IntArray) -> tuple[State, FloatArray]:
        """Fit the bends of some pairs, and compute L on the grid, shape (pairs, points)."""
        # Functional calls swap a network's parameters, so each thread needs its own network.
        network = copy.deepcopy(self.network)
        start, end = self._gathered(pairs[:, 0]), self._gathered(pairs[:, 1])
        target, rate = self.outputs[pairs[:, 1]], self.parameters.learning_rate
        halfway = {name: _midpoint(start[name], end[name]) for name in start}
        bend = {name: halfway[name] for name in self.bending}

        def losses(u: float, inputs: Tensor, wanted: Tensor) -> Tensor:
            return self._losses(network, self._at(start, end, halfway | bend, u), inputs, wanted)

        for u, rows in self.schedule:
            with torch.enable_grad():
                bend = {name: tensor.requires_grad_() for name, tensor in bend.items()}
                total = losses(u, self.inputs[rows], target[:, rows]).sum()  # each bend is in one term only
                slopes = torch.autograd.grad(total, list(bend.values()), materialize_grads=True)
            both = zip(bend.items(), slopes, strict=True)
            bend = {name: each.detach() - rate * slope for (name, each), slope in both}
        for name, tensor in bend.items():
            kept = _finite(tensor).reshape(-1, *[1] * (tensor.ndim - 1))
            bend[name] = torch.where(kept, tensor, halfway[name])
        with torch.no_grad():
            distances = self._along(losses, pairs)
        bend = halfway | bend
        bend |= {alias: bend[name] for alias, name in self.aliases.items()}
        return {name: each.to(self.models[name].device) for name, each in bend.items()}, distances

    def _along(self, losses: Callable[[float, Tensor, Tensor], Tensor], pairs: IntArray) -> FloatArray:
        """Compute L on the grid; both ends follow from the models' outputs."""
        first, target = self.outputs[pairs[:, 0]], self.outputs[pairs[:, 1]]
        distances = torch.zeros(len(pairs), self.parameters.num_points, dtype=torch.float64)  # 0 at u = 1
        parts = self.inputs.split(_ROWS_AT_ONCE), target.split(_ROWS_AT_ONCE, dim=1)
        distances[:, 0] = vmap(output_distance)(first, target)
        for column, u in enumerate(np.linspace(0, 1, self.parameters.num_points).tolist()[1:-1], start=1):
            for inputs, wanted in zip(*parts, strict=True):
                distances[:, column] += len(inputs) * losses(u, inputs, wanted).cpu().double()
            distances[:, column] /= len(self.inputs)
        return distances.numpy()

    def _gathered(self, positions: IntArray) -> State:
        return {name: tensor[positions].to(self.device) for name, tensor in self.models.items()}

    def _at(self, start: State, end: State, bend: State, u: float) -> State:
        return {
            name: chain(start[name], end[name], bend[name], u)
            if bend[name].is_floating_point()
            else bend[name]
            for name in (*self.bending, *self.straight)
        }

    def _losses(self, network: nn.Module, models: State, inputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of each model, shape (pairs,)."""

        def loss(model: State, target: Tensor) -> Tensor:
            return output_distance(functional_call(network, model, (inputs,)).softmax(dim=-1), target)

        if self.pairs_at_once > 1:
            return vmap(loss)(models, targets)
        return loss(self._formatted(models, 0), targets[0])[None]

    @torch.no_grad()
    def _outputs(self, position: int) -> Tensor:
        state = {name: self.models[name] for name in (*self.bending, *self.straight)}
        model = {name: each.to(self.device) for name, each in self._formatted(state, position).items()}
        parts = [functional_call(self.network, model, (part,)) for part in self.inputs.split(_ROWS_AT_ONCE)]
        return torch.cat(parts).softmax(dim=-1)

    def _formatted(self, models: State, position: int) -> State:
        model = {name: tensor[position] for name, tensor in models.items()}
        if not self.channels_last:
            return model
        return {
            name: each.to(memory_format=torch.channels_last) if each.ndim == 4 else each
            for name, each in model.items()
        }


_ROWS_AT_ONCE = 128  # inputs of which outputs are computed at once


def _pairs_at_once(network: nn.Module, device: torch.device) -> int:
    layers = list(network.modules())
    # torch cannot vectorise these, nor, on a GPU, the single operation that a GRU's step is there.
    recurrent = nn.LSTM if device.type == "cpu" else nn.RNNBase
    if any(isinstance(layer, recurrent | nn.MultiheadAttention) for layer in layers):
        return 1
    if device.type != "cpu":
        return 64
    convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in layers)
    return 1 if convolutional else 24  # measured: the fastest on two cores


def _midpoint(start: Tensor, end: Tensor) -> Tensor:
    if start.is_floating_point():
        return (start + end) / 2
    return ((start.double() + end.double()) / 2).round().to(start.dtype)  # counters


def _finite(stack: Tensor) -> Tensor:
    return stack.isfinite()[..., None].flatten(1).all(dim=1)  # the added axis is for stacks of numbers


def _finite_models(models: State) -> BoolArray:
    return torch.stack([_finite(tensor).cpu() for tensor in models.values()]).all(dim=0).numpy()


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a round: `labels` and `models`; the rest is for logs and plots.

    Attributes
    ----------
    labels
        Cluster of each model, numbered in order of first appearance, shape (n,).
    models
        The clusters' model states, one per cluster on the first axis of every tensor.
    chains
        The fitted chains.
    losses
        Curve-finding loss of each pair, in [0, 2], shape (P,); ∞ where something is not finite.
    scores
        What is compared with ε, shape (P,): the losses, or slopes.
    connected
        Which of ``chains.pairs`` are connected, and were averaged, shape (P,).
    epsilon
        Largest score at which a pair connects, ε.
    """

    labels: IntArray
    models: State
    chains: Chains
    losses: FloatArray
    scores: FloatArray
    connected: BoolArray
    epsilon: float


def step(percentile: float, fitting: Fitting, models: State) -> tuple[float, Outcome]:
    """Cluster and average the models of one round.

    Source: FedGMCC, Algorithm 1.

    Parameters
    ----------
    percentile
        Percentile of the curve-finding losses that is this round's budget ε, in [5, 95].
    fitting
        The network, this round's inputs, and settings of the fit and the grouping.
    models
        The round's client models: full states, n >= 1 on the first axis of every tensor.

    Returns
    -------
    percentile
        Percentile of the next round. After several clusters more pairs connect next time, after one cluster
        fewer (Section V-A).
    outcome
        Clusters, their models, and values for logs.

    Examples
    --------
    >>> models = {"weight": torch.zeros(2, 2, 1), "bias": torch.tensor([[0.0, 0.0], [4.0, 0.0]])}
    >>> settings = Parameters(steps=0)  # bends stay halfway
    >>> fitting = Fitting(nn.Linear(1, 2), torch.zeros(8, 1), settings, torch.Generator())
    >>> percentile, outcome = step(50.0, fitting, models)  # the loss of the only pair is the median
    >>> percentile, outcome.labels.tolist(), outcome.models["bias"].tolist()
    (45.0, [0, 0], [[2.0, 0.0]])
    """
    parameters, chains = fitting.parameters, fit_pairs(fitting, models)
    losses, compared = curve_finding_loss(chains.distances), scores(chains.distances, parameters.connect)
    epsilon = budget(losses, percentile)
    connected = compared <= epsilon
    labels = components(chains.pairs, connected, len(next(iter(models.values()))))
    averaged = cluster_models(models, chains, connected, labels)
    outcome = Outcome(labels, averaged, chains, losses, compared, connected, epsilon)
    return next_percentile(percentile, int(labels.max()) + 1, parameters.percentile_step), outcome


def cluster_models(models: State, chains: Chains, connected: BoolArray, labels: IntArray) -> State:
    """Average every cluster's models along its chains.

    Source: FedGMCC, Eq. 6, as a mean instead of a sum: the mean over connected pairs of E_u γ(u), which is
    (w_k + 2θ + w_l) / 4. Whole numbers, such as counters, become the largest of the cluster. What is the same
    in all its models, such as a frozen layer, stays so to the bit.

    Parameters
    ----------
    models
        Full states, n on the first axis of every tensor.
    chains
        The chains between them.
    connected
        Which of ``chains.pairs`` to average, shape (P,).
    labels
        Cluster of each model, 0…M − 1, shape (n,): the components of the connected pairs.

    Returns
    -------
    One state per cluster, M on the first axis. The model of a single-client cluster does not change.

    Examples
    --------
    >>> models, pairs = {"w": torch.tensor([0.0, 4.0, 9.0])}, np.array([[0, 1], [0, 2], [1, 2]])
    >>> chains = Chains(pairs, {"w": torch.tensor([1.0, 5.0, 6.0])}, np.zeros((3, 5)))
    >>> cluster_models(models, chains, np.array([True, False, False]), np.array([0, 0, 1]))
    {'w': tensor([1.5000, 9.0000])}
    """

    def averaged(name: str, cluster: int) -> Tensor:
        stack, members = models[name], np.flatnonzero(labels == cluster)
        if not stack.is_floating_point():  # a counter, such as BatchNorm's
            return stack[members].amax(dim=0)
        rows = np.flatnonzero(connected & (labels[chains.pairs[:, 0]] == cluster))
        if not len(rows) or bool((stack[members] == stack[members[0]]).all()):
            return stack[members[0]]
        first, second = chains.pairs[rows].T
        return chain_mean(stack[first], stack[second], chains.bends[name][rows]).mean(dim=0)

    clusters = range(int(labels.max()) + 1)
    return {name: torch.stack([averaged(name, each) for each in clusters]) for name in models}


def chain_scores(fitting: Fitting, clusters: State, trained: State) -> tuple[FloatArray, FloatArray]:
    """Compute the losses of chains from clusters' models to a client's trained copies, and between clusters.

    Parameters
    ----------
    fitting
        As for :func:`fit_pairs`.
    clusters
        Models of the clusters: full states, G on the first axis of every tensor.
    trained
        The same models after the client trained each.

    Returns
    -------
    own
        Curve-finding loss of the chain to the client's model, shape (G,).
    apart
        Curve-finding loss between any two clusters' models, shape (G, G).

    Examples
    --------
    >>> models = {"weight": torch.zeros(2, 2, 1), "bias": torch.tensor([[0.0, 0.0], [4.0, 0.0]])}
    >>> fitting = Fitting(nn.Linear(1, 2), torch.zeros(8, 1), Parameters(steps=0), torch.Generator())
    >>> own, apart = chain_scores(fitting, models, trained=models)
    >>> own.round(9), bool(apart[0, 1] > 0)
    (array([0., 0.]), True)
    """
    stacked = {name: torch.cat([clusters[name], trained[name]]) for name in clusters}
    number = len(next(iter(clusters.values())))
    each, across = np.arange(number), np.triu_indices(number, k=1)
    pairs = np.concatenate([np.stack([each, each + number], axis=1), np.stack(across, axis=1)])
    losses = curve_finding_loss(fit_pairs(fitting, stacked, pairs).distances)
    apart = np.zeros((number, number))
    apart[across] = losses[number:]
    return losses[:number], apart + apart.T
