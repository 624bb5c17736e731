"""FedGMCC's chains between models: fitted so that outputs change little along them, scored and averaged.

The curve finding of FedGMCC (Section IV-B; :mod:`fedclust.clustering.fedgmcc` names the paper), after Garipov
et al., "Loss Surfaces, Mode Connectivity, and Fast Ensembling of DNNs", NeurIPS 2018. A chain is two straight
pieces in weight space, joined by a bend. The inputs are drawn at random, in place of the clients' data; L(u)
is the mean squared distance, in [0, 2], between the class probabilities of the model at u and those of one
end of the chain.

The paper's only target is the end l, so its scores depend on the numbering of clients (``targets="later"``).
With ``targets="both"`` a bend minimises the mean of the distances to either end, and a pair's score is the
larger of the two directions'. Then no term depends on which end comes first:

- ½(‖f − f_k‖² + ‖f − f_l‖²) = ‖f − ½(f_k + f_l)‖² + ¼‖f_k − f_l‖², whose last term does not depend on the
  bend, so the fit takes as long as with one target;
- u runs from k to l, so a step at u alone would favour one end: a step uses u and 1 − u, with half of the
  mini-batch each, in the same time;
- one pass through the network gives the distances to both ends, so scoring does not take longer either.

At each step all pairs use the same u and the same mini-batch. So the fit of a pair does not depend on the
other pairs, on the batching or on the numbering of clients, and differences between scores come from the
models, not from the draws.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedclust.clustering.fedgmcc import Parameters, budget, connect, link, next_percentile
from fedclust.support.devices import exact_kernels, thread_pool
from fedclust.typing import BoolArray, FloatArray, IntArray, State

Point = TypeVar("Point", float, FloatArray, Tensor)


def chain(start: Point, end: Point, bend: Point, u: Any) -> Point:
    """Compute the model at `u` on the chain from one model over a bend to another.

    Source: FedGMCC, Eq. 3, with the misplaced bracket of its second line corrected: γ(0) = w_k,
    γ(1/2) = θ, γ(1) = w_l, straight in between.

    Parameters
    ----------
    start, end, bend
        w_k, w_l and θ: numbers, arrays or tensors of any one shape.
    u
        Position on the chain, in [0, 1]: a number, or anything that broadcasts with the models.

    Returns
    -------
    γ(u), of the same type.
    """
    first, middle, last = chain_weights(u)
    return first * start + middle * bend + last * end


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
    """
    return (start + 2 * bend + end) / 4


def chain_weights(u: Any) -> tuple[Any, Any, Any]:
    """Compute the weights of start, bend and end at `u`: max(1 − 2u, 0), the rest, and max(2u − 1, 0).

    Parameters
    ----------
    u
        Position on the chain, in [0, 1]: a number, an array or a tensor.

    Returns
    -------
    Three weights of the type of `u`, each in [0, 1], with sum 1; the farther end's is exactly 0.
    """
    # abs() works for all three types; a branch on u would not.
    away = abs(1 - 2 * u)  # from the bend: 1 at both ends
    return (away + (1 - 2 * u)) / 2, 1 - away, (away - (1 - 2 * u)) / 2


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
    """
    return (probabilities - target).square().sum(dim=-1).mean()


def curve_finding_loss(distances: FloatArray) -> FloatArray:
    """Average the loss over a chain: the objective that its bend minimises.

    Source: FedGMCC, Eq. 4, E_u L(u) for u ~ U(0, 1), by the trapezoidal rule.

    Parameters
    ----------
    distances
        L on a uniform grid over [0, 1], shape (…, points).

    Returns
    -------
    Shape (…,); ∞ where a value of the chain is not finite.
    """
    mean = (distances[..., :-1] + distances[..., 1:]).mean(axis=-1) / 2
    return np.where(np.isfinite(distances).all(axis=-1), mean, np.inf)


def steepest(distances: FloatArray) -> FloatArray:
    """Compute the steepest slope of the loss along a chain, the score of a pair of models.

    Source: FedGMCC, Eq. 5 and Algorithm 1, line 17, as max_u |∂L/∂u|. Central differences inside each half of
    the chain, never across the bend.

    Parameters
    ----------
    distances
        L on a uniform grid over [0, 1], shape (…, points); points odd and >= 5, so that the bend is on the
        grid.

    Returns
    -------
    Largest slope >= 0, shape (…,); ∞ where a value of the chain is not finite.
    """
    points = distances.shape[-1]
    with np.errstate(invalid="ignore"):  # ∞ − ∞ counts as not finite, below
        slopes = np.abs(distances[..., 2:] - distances[..., :-2]) * (points - 1) / 2
    # Entry i is at point i + 1; the entry at the bend would mix the two halves.
    largest = np.delete(slopes, (points - 1) // 2 - 1, axis=-1).max(axis=-1)
    return np.where(np.isfinite(distances).all(axis=-1), largest, np.inf)


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
    """
    shape = (num_inputs, *input_shape)
    if vocabulary_size is not None:
        return torch.randint(vocabulary_size, shape, generator=generator)
    inputs = torch.rand(shape, generator=generator)
    if not mean:
        return inputs
    across = (-1, *[1] * (len(shape) - 2))
    return (inputs - torch.tensor(mean).reshape(across)) / torch.tensor(std).reshape(across)


# Without gradients no activations are kept, so inputs of several mini-batches fit into the memory of one.
_MINI_BATCHES = 2


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


class Fitter:
    """Fits pairs on one device; holds the models, the surrogate inputs and the models' outputs on them.

    Parameters
    ----------
    models
        Full states of the network, n on the first axis of every tensor.
    fitting
        Network, inputs and settings.
    """

    def __init__(self, models: State, fitting: Fitting) -> None:
        device, inputs, parameters = torch.device(fitting.device), fitting.inputs, fitting.parameters
        self.network = copy.deepcopy(fitting.network).to(device).eval()
        self.parameters, self.device, self.models = parameters, device, models
        self.num_models = len(next(iter(models.values())))
        # A tied parameter has one name here and further names, its aliases, in the state.
        names = {id(tensor): name for name, tensor in self.network.named_parameters()}
        self.bending = [
            name for name, tensor in self.network.named_parameters() if tensor.is_floating_point()
        ]
        self.straight = [name for name, _ in self.network.named_buffers() if name in models]
        every = self.network.named_parameters(remove_duplicate=False)
        self.aliases = {name: names[id(tensor)] for name, tensor in every if name != names[id(tensor)]}

        self.pairs_per_batch = _pairs_per_batch(self.network, device, parameters)
        # On the CPU channels-last convolutions take a third to two thirds of the time; vmap cannot use them.
        self.channels_last = self.pairs_per_batch == 1 and device.type == "cpu" and inputs.ndim == 4
        self.inputs = inputs.to(device)
        if self.channels_last:
            self.inputs = self.inputs.to(memory_format=torch.channels_last)
        # One pair at a time leaves a core idle between operations; two pairs on two threads do not.
        alone = self.pairs_per_batch == 1 and device.type == "cpu"
        self.num_threads = torch.get_num_threads() if alone else 1
        self._thread = threading.local()
        self.outputs = torch.stack([self._outputs(position) for position in range(self.num_models)])

    def of_this_thread(self) -> "Fitter":
        """Return this thread's fitter, with its own network: functional calls swap a network's parameters."""
        if self.num_threads == 1:
            return self
        if not hasattr(self._thread, "fitter"):
            copied = copy.copy(self)
            copied.network = copy.deepcopy(self.network)
            del copied._thread  # would refer to the copy, and models and inputs would stay in memory
            self._thread.fitter = copied
        return self._thread.fitter

    def batches(self, num_pairs: int) -> Iterator[slice]:
        """Yield the pairs that are fitted at once, as slices of 0…`num_pairs` − 1."""
        for begin in range(0, num_pairs, self.pairs_per_batch):
            yield slice(begin, min(begin + self.pairs_per_batch, num_pairs))

    @torch.no_grad()
    def fit(self, pairs: IntArray, schedule: Sequence[tuple[float, Tensor]]) -> State:
        """Fit the bends of some pairs, starting halfway, with one SGD step per (u, rows of the inputs)."""
        start, end = self._gathered(pairs[:, 0]), self._gathered(pairs[:, 1])
        halfway = {name: _midpoint(start[name], end[name]) for name in start}
        bend = {name: halfway[name] for name in self.bending}
        target = self._targets(pairs).mean(dim=1)
        slope = self._over_pairs(grad(self._loss))
        for u, rows in schedule:
            rows = rows.to(self.device)
            points = [u]
            if self.parameters.targets == "both":
                points, rows = [u, 1 - u], rows[: -(-len(rows) // 2)]
            slopes = [
                slope(*self._at(start, end, halfway | bend, point), self.inputs[rows], target[:, rows])
                for point in points
            ]
            # Chain rule: a change of θ moves the model at u by the weight that θ has there, as at 1 − u.
            step = self.parameters.learning_rate * chain_weights(u)[1] / len(points)
            bend = {name: bend[name] - step * sum(each[name] for each in slopes) for name in self.bending}
        for name, tensor in bend.items():
            kept = _finite(tensor).reshape(-1, *[1] * (tensor.ndim - 1))
            halfway[name] = torch.where(kept, tensor, halfway[name])
        return halfway | {alias: halfway[name] for alias, name in self.aliases.items()}

    @torch.no_grad()
    def distances(self, pairs: IntArray, bend: State, grid: Tensor) -> FloatArray:
        """Evaluate L(u) of some chains on all inputs, shape (pairs, targets, len(grid)); NaN on overflow."""
        start, end = self._gathered(pairs[:, 0]), self._gathered(pairs[:, 1])
        targets = self._targets(pairs)
        value = self._over_pairs(self._distances)
        height = _MINI_BATCHES * self.parameters.batch_size
        totals = torch.zeros(*targets.shape[:2], len(grid), dtype=torch.float64)
        for column, u in enumerate(grid.tolist()):
            at_u = self._at(start, end, bend, u)
            for inputs, wanted in zip(self.inputs.split(height), targets.split(height, dim=2), strict=True):
                totals[..., column] += len(inputs) * value(*at_u, inputs, wanted).cpu().double()
        return (totals / len(self.inputs)).numpy()

    def _targets(self, pairs: IntArray) -> Tensor:
        """Stack the outputs that L compares with, model l's last, shape (pairs, targets, n_MC, …, C)."""
        ends = pairs if self.parameters.targets == "both" else pairs[:, 1:]
        return self.outputs[ends]

    def _gathered(self, positions: IntArray) -> State:
        return {name: tensor[positions].to(self.device) for name, tensor in self.models.items()}

    def _at(self, start: State, end: State, bend: State, u: float) -> tuple[State, State]:
        def at(names: Sequence[str]) -> State:
            return {
                name: chain(start[name], end[name], bend[name], u)
                if bend[name].is_floating_point()
                else bend[name]
                for name in names
            }

        return at(self.bending), at(self.straight)

    def _loss(self, bent: State, straight: State, inputs: Tensor, target: Tensor) -> Tensor:
        return output_distance(self._probabilities(bent, straight, inputs), target)

    def _distances(self, bent: State, straight: State, inputs: Tensor, targets: Tensor) -> Tensor:
        probabilities = self._probabilities(bent, straight, inputs)
        return torch.stack([output_distance(probabilities, target) for target in targets])

    def _probabilities(self, bent: State, straight: State, inputs: Tensor) -> Tensor:
        return functional_call(self.network, (bent, straight), (inputs,)).softmax(dim=-1)

    @torch.no_grad()
    def _outputs(self, position: int) -> Tensor:
        state = {name: tensor[position].to(self.device) for name, tensor in self.models.items()}
        chosen = {name: self._formatted(state[name]) for name in (*self.bending, *self.straight)}
        height = _MINI_BATCHES * self.parameters.batch_size
        parts = [functional_call(self.network, chosen, (part,)) for part in self.inputs.split(height)]
        return torch.cat(parts).softmax(dim=-1)

    def _over_pairs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Apply a function of one pair to a stack of pairs."""
        if self.pairs_per_batch > 1:
            return vmap(function, in_dims=(0, 0, None, 0))

        def one(bent: State, straight: State, inputs: Tensor, target: Tensor) -> Any:
            first = {name: self._formatted(tensor[0]) for name, tensor in bent.items()}
            others = {name: tensor[0] for name, tensor in straight.items()}
            result = function(first, others, inputs, target[0])
            if isinstance(result, dict):
                return {name: tensor[None] for name, tensor in result.items()}
            return result[None]

        return one

    def _formatted(self, tensor: Tensor) -> Tensor:
        if self.channels_last and tensor.ndim == 4:
            return tensor.to(memory_format=torch.channels_last)
        return tensor


def finite_models(models: State) -> BoolArray:
    """Return whether each model has only finite values, shape (n,)."""
    return torch.stack([_finite(tensor).cpu() for tensor in models.values()]).all(dim=0).numpy()


def _midpoint(start: Tensor, end: Tensor) -> Tensor:
    if start.is_floating_point():
        return (start + end) / 2
    return ((start.double() + end.double()) / 2).round().to(start.dtype)  # counters


def _pairs_per_batch(network: nn.Module, device: torch.device, parameters: Parameters) -> int:
    layers = list(network.modules())
    # torch cannot vectorise these, nor, on a GPU, the single operation that a GRU's step is there.
    recurrent = nn.LSTM if device.type == "cpu" else nn.RNNBase
    if any(isinstance(layer, recurrent | nn.MultiheadAttention) for layer in layers):
        return 1
    if parameters.pairs_per_batch != "auto":
        return parameters.pairs_per_batch
    if device.type != "cpu":
        return 64
    convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in layers)
    return 1 if convolutional else 16  # measured: the fastest on two cores


def _finite(stack: Tensor) -> Tensor:
    return stack.isfinite()[..., None].flatten(1).all(dim=1)  # the added axis is for stacks of numbers


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


def fit_pairs(fitting: Fitting, models: State, pairs: IntArray | None = None) -> Chains:
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
    fitting
        Network, inputs and settings.
    models
        Full states of the network, n on the first axis of every tensor.
    pairs
        Positions (k, l) of the models to join, k < l, shape (P, 2); all n (n − 1) / 2 pairs unless given.

    Returns
    -------
    The chains of the pairs; other pairs have score 0.
    """
    parameters, generator = fitting.parameters, fitting.generator
    with exact_kernels(fitting.network):
        fitter = Fitter(models, fitting)
        schedule = []
        for _ in range(parameters.steps):
            u = float(torch.rand((), generator=generator))
            rows = torch.randperm(len(fitting.inputs), generator=generator)[: parameters.batch_size]
            schedule.append((u, rows))
        n = fitter.num_models
        pairs = np.stack(np.triu_indices(n, k=1), axis=1) if pairs is None else np.asarray(pairs)
        bends = {name: tensor.new_empty((len(pairs), *tensor.shape[1:])) for name, tensor in models.items()}
        slopes, losses, scores = np.zeros(len(pairs)), np.zeros(len(pairs)), np.zeros((n, n))
        grid = torch.linspace(0, 1, parameters.num_points, dtype=torch.float64)

        def fitted(batch: slice) -> tuple[slice, State, FloatArray]:
            mine = fitter.of_this_thread()
            bend = mine.fit(pairs[batch], schedule)
            return batch, bend, mine.distances(pairs[batch], bend, grid)

        for batch, bend, distances in _each(fitted, list(fitter.batches(len(pairs))), fitter.num_threads):
            # Per pair the larger direction's slope, and the mean over the directions of what was minimised.
            slopes[batch] = np.where(finite_models(bend), steepest(distances).max(axis=1), np.inf)
            losses[batch] = curve_finding_loss(distances).mean(axis=1)
            for name, tensor in bend.items():
                bends[name][batch] = tensor.to(bends[name].device)
        scores[tuple(pairs.T)] = scores[tuple(pairs[:, ::-1].T)] = slopes
        finite = finite_models(models)
        scores[~finite] = scores[:, ~finite] = np.inf
        np.fill_diagonal(scores, 0)
        losses[np.isinf(scores[pairs[:, 0], pairs[:, 1]])] = np.inf
        return Chains(pairs=pairs, bends=bends, scores=scores, losses=losses)


def profile(
    fitting: Fitting, models: State, chains: Chains, which: Sequence[int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Compute the outputs' distances along fitted chains and along straight lines.

    Source: FedGMCC, Fig. 2.

    Parameters
    ----------
    fitting, models
        As for :func:`fit_pairs`.
    chains
        The result of :func:`fit_pairs`.
    which
        Rows of ``chains.pairs`` to use.

    Returns
    -------
    u
        Positions on the chain, from 0 at model k to 1 at model l, shape (``parameters.num_points``,).
    chain, line
        L(u) of the outputs of model l along the fitted chains and along straight lines, in [0, 2], shape
        (m, points); NaN where an output is not finite.
    """
    with exact_kernels(fitting.network):
        fitter, rows = Fitter(models, fitting), np.asarray(which, dtype=np.int64)
        grid = torch.linspace(0, 1, fitting.parameters.num_points, dtype=torch.float64)
        curved, straight = np.empty((len(rows), len(grid))), np.empty((len(rows), len(grid)))
        for batch in fitter.batches(len(rows)):
            pairs = chains.pairs[rows[batch]]
            bend = {name: tensor[rows[batch]].to(fitter.device) for name, tensor in chains.bends.items()}
            # The last target is model l, whatever `targets` is.
            curved[batch] = fitter.distances(pairs, bend, grid)[:, -1]
            straight[batch] = fitter.distances(pairs, fitter.fit(pairs, []), grid)[:, -1]
        return grid.numpy(), curved, straight


def _each(work: Callable[[slice], Any], batches: Sequence[slice], num_threads: int) -> Iterator[Any]:
    """Process all batches on `num_threads` threads of one core each; yield the results in order."""
    if num_threads == 1 or len(batches) == 1:
        yield from map(work, batches)
        return
    with thread_pool(num_threads, inside=1) as pool:
        yield from pool.map(work, batches)


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
        The fitted chains and their scores.
    connected
        Which of ``chains.pairs`` were averaged into their cluster's model, shape (P,).
    epsilon
        Largest score at which a pair connects, ε; None under `linkage`.
    silhouettes
        What :func:`link` returned; empty under `components`.
    """

    labels: IntArray
    models: State
    chains: Chains
    connected: BoolArray
    epsilon: float | None
    silhouettes: dict[int, float]


def cluster_models(models: State, chains: Chains, connected: BoolArray, labels: IntArray) -> State:
    """Average every cluster's models along its chains.

    Source: FedGMCC, Eq. 6, as a mean instead of a sum: the mean over connected pairs of E_u γ(u), which is
    (w_k + 2θ + w_l) / 4. Whole numbers, such as counters, become the largest of the cluster.

    Parameters
    ----------
    models
        Full states, n on the first axis of every tensor.
    chains
        The chains between them.
    connected
        Which of ``chains.pairs`` to average, shape (P,); pairs across clusters are always ignored.
    labels
        Cluster of each model, 0…M − 1, shape (n,).

    Returns
    -------
    One state per cluster, M on the first axis. The model of a single-client cluster does not change.
    """
    clusters = []
    for cluster in range(labels.max() + 1):
        members = labels == cluster
        clusters.append((members, np.flatnonzero(connected & members[chains.pairs].all(axis=1))))
    return {
        name: torch.stack(
            [
                stack[torch.as_tensor(members)].amax(0)
                if not stack.is_floating_point()  # a counter, such as BatchNorm's
                else _mean_of_chains(stack, chains.bends[name], chains.pairs[rows], rows)
                if rows.size
                else stack[int(np.flatnonzero(members)[0])]
                for members, rows in clusters
            ]
        )
        for name, stack in models.items()
    }


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
        That of the next round. After several clusters more pairs connect next time, after one cluster fewer
        (Section V-A).
    outcome
        Clusters, their models, and values for logs.
    """
    parameters, chains = fitting.parameters, fit_pairs(fitting, models)
    first, second = chains.pairs.T
    epsilon: float | None = None
    silhouettes: dict[int, float] = {}
    if parameters.grouping == "linkage":
        labels, silhouettes = link(chains.scores, parameters.min_silhouette)
        connected = labels[first] == labels[second]
    else:
        epsilon = budget(chains.losses, percentile)
        labels = connect(chains.scores, epsilon)
        connected = chains.scores[first, second] <= epsilon
        percentile = next_percentile(percentile, int(labels.max()) + 1, parameters.percentile_step)
    averaged = cluster_models(models, chains, connected, labels)
    return percentile, Outcome(labels, averaged, chains, connected, epsilon, silhouettes)


def _mean_of_chains(models: Tensor, bends: Tensor, pairs: IntArray, rows: IntArray) -> Tensor:
    """Average :func:`chain_mean` over some pairs: it is linear, so it is applied to the pairs' means."""

    def mean(stack: Tensor, positions: IntArray) -> Tensor:
        # Unused values are not multiplied by 0: 0 times a value that is not finite is not 0.
        which, counts = np.unique(positions, return_counts=True)
        weights = torch.as_tensor(counts / len(positions)).to(stack.device, models.dtype)
        return torch.tensordot(weights, stack[which].to(models.dtype), dims=1)

    return chain_mean(mean(models, pairs[:, 0]), mean(models, pairs[:, 1]), mean(bends, rows))


def chain_scores(fitting: Fitting, clusters: State, trained: State) -> tuple[FloatArray, FloatArray]:
    """Score the chain from each cluster's model to the client's trained copy, and those between clusters.

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
        Steepest slope to the client's model, shape (G,).
    apart
        Steepest slope between each two clusters' models, shape (G, G).
    """
    stacked = {name: torch.cat([clusters[name], trained[name]]) for name in clusters}
    number = len(next(iter(clusters.values())))
    each = np.arange(number)
    across = np.stack(np.triu_indices(number, k=1), axis=1)
    pairs = np.concatenate([np.stack([each, each + number], axis=1), across])
    scores = fit_pairs(fitting, stacked, pairs).scores
    return scores[each, each + number], scores[:number, :number]
