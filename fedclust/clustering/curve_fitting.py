"""Fit chains between models so that outputs change little along them.

The curve finding of FedGMCC (Section IV-B), after Garipov et al., "Loss Surfaces, Mode Connectivity, and Fast
Ensembling of DNNs", NeurIPS 2018. The data set is a surrogate, drawn at random; L(u) is the mean squared
distance, in [0, 2], between the class probabilities of the model at u and of the model at the end.

All pairs see the same u and the same mini-batch at a step. So the fit of a pair does not depend on which
other pairs there are or how they are batched, and scores differ by the models alone, not by the draw.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedclust.clustering.chains import chain, chain_weights
from fedclust.clustering.fedgmcc_parameters import Parameters
from fedclust.threads import thread_pool
from fedclust.typing import FloatArray, IntArray, State

__all__ = ["Chains", "Profile", "draw_inputs", "fit_pairs", "profile"]

# Without gradients no activations are kept, so inputs of several mini-batches fit into the memory of one.
_MINI_BATCHES = 2


@dataclass(frozen=True, eq=False)
class Chains:
    """The fitted chain between every two models.

    Attributes
    ----------
    pairs
        Positions (k, l) of the two models, k < l, shape (P, 2).
    bends
        The bend θ of each chain, P on the first axis, on the device of the models.
    scores
        How fast the outputs change along the chain at most, max |∂L/∂u| >= 0; symmetric with diagonal 0,
        shape (n, n).
    """

    pairs: IntArray
    bends: State
    scores: FloatArray


@dataclass(frozen=True, eq=False)
class Profile:
    """L(u) along some chains, to draw the paper's Fig. 2.

    Attributes
    ----------
    pairs
        Positions (k, l) of the two models of each, shape (m, 2).
    u
        Where on the chain, from 0 at model k to 1 at model l, shape (points,).
    chain
        Loss along the fitted chain, in [0, 2], shape (m, points).
    line
        Loss along the straight line between the same models, shape (m, points).
    """

    pairs: IntArray
    u: FloatArray
    chain: FloatArray
    line: FloatArray


def draw_inputs(
    num_inputs: int,
    input_shape: Sequence[int],
    generator: torch.Generator,
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    vocabulary_size: int | None = None,
) -> Tensor:
    """Draw the surrogate of the clients' data.

    Source: FedGMCC, Section IV-B, X_MC ~ U(0, 1). Where clients normalise their images, so must the surrogate
    be: on inputs that no network was trained on, models of like clients disagree and fall apart. The paper
    embeds its DNA before the network; for networks that begin with tokens every token is equally likely.

    Parameters
    ----------
    num_inputs
        How many, >= 1.
    input_shape
        Shape of one input; channels first in an image.
    generator
        Where numbers come from, on the CPU, so that devices agree.
    mean, std
        What clients subtract from each channel and divide it by; empty where they do not.
    vocabulary_size
        Number of tokens, for a network that takes tokens; None for one that takes numbers.

    Returns
    -------
    Float32, U(0, 1) before normalisation, or int64 tokens, shape (num_inputs, *input_shape).

    Raises
    ------
    ValueError
        If `num_inputs` or `vocabulary_size` is below 1, or `mean` and `std` are not one number per channel.
    """
    if num_inputs < 1:
        raise ValueError(f"num_inputs must be >= 1, got {num_inputs}")
    shape = (num_inputs, *input_shape)
    if vocabulary_size is not None:
        if vocabulary_size < 1:
            raise ValueError(f"vocabulary_size must be >= 1, got {vocabulary_size}")
        return torch.randint(vocabulary_size, shape, generator=generator)
    inputs = torch.rand(shape, generator=generator)
    if not mean and not std:
        return inputs
    if not len(mean) == len(std) == shape[1]:
        raise ValueError(f"mean and std must have {shape[1]} numbers, one per channel, got {mean} and {std}")
    across = (-1, *[1] * (len(shape) - 2))
    return (inputs - torch.tensor(mean).reshape(across)) / torch.tensor(std).reshape(across)


def fit_pairs(
    network: nn.Module,
    models: State,
    inputs: Tensor,
    parameters: Parameters,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> Chains:
    """Fit and score a chain between every two models.

    Source: FedGMCC, Eqs. 3 to 5 and Algorithm 1, lines 12 to 17. The bend starts halfway (the paper's
    w_k + w_l is no average) and takes SGD steps on E_u L(u). Parameters bend; buffers, such as running
    statistics, go straight from one model's to the other's. Networks are in evaluation mode.

    A bend that SGD drives out of range is put back halfway. Time and the memory of the bends grow with the
    number of pairs, that of the fit with ``parameters.pairs_per_batch`` only.

    Parameters
    ----------
    network
        The architecture, from inputs to logits with classes last. Left as it is.
    models
        Its full states, n on the first axis of every tensor.
    inputs
        Surrogate inputs X, shape (n_MC, *input shape), as :func:`draw_inputs` makes them.
    parameters
        How to fit.
    generator
        Where u and mini-batches come from, on the CPU.
    device
        Where to fit.

    Returns
    -------
    The chains of all n (n − 1) / 2 pairs.

    Raises
    ------
    ValueError
        If the names in `models` are not the network's, or a value is not finite.
    """
    fitter = _Fitter(network, models, inputs, parameters, torch.device(device))
    size = min(parameters.batch_size, len(inputs))
    schedule = [
        (float(torch.rand((), generator=generator)), torch.randperm(len(inputs), generator=generator)[:size])
        for _ in range(parameters.steps)
    ]
    n = fitter.num_models
    pairs = np.stack(np.triu_indices(n, k=1), axis=1)
    bends = {name: tensor.new_empty((len(pairs), *tensor.shape[1:])) for name, tensor in models.items()}
    scores = np.zeros((n, n))
    grid = torch.linspace(0, 1, parameters.num_points, dtype=torch.float64)

    def fitted(batch: slice) -> tuple[slice, State, FloatArray]:
        mine = fitter.of_this_thread()
        bend = mine.fit(pairs[batch], schedule)
        return batch, bend, _steepest(mine.losses(pairs[batch], bend, grid))

    for batch, bend, slopes in _each(fitted, list(fitter.batches(len(pairs))), fitter.num_threads):
        scores[pairs[batch, 0], pairs[batch, 1]] = slopes
        scores[pairs[batch, 1], pairs[batch, 0]] = slopes
        for name, tensor in bend.items():
            bends[name][batch] = tensor.to(bends[name].device)
    return Chains(pairs=pairs, bends=bends, scores=scores)


def profile(
    network: nn.Module,
    models: State,
    inputs: Tensor,
    chains: Chains,
    which: Sequence[int],
    parameters: Parameters,
    device: torch.device | str = "cpu",
) -> Profile:
    """Compare the loss along fitted chains with that along straight lines.

    Source: FedGMCC, Fig. 2.

    Parameters
    ----------
    network, models, inputs, parameters, device
        As for :func:`fit_pairs`.
    chains
        What it returned.
    which
        Rows of ``chains.pairs`` to look at.

    Returns
    -------
    Losses on a grid of ``parameters.num_points`` points.

    Raises
    ------
    ValueError
        As for :func:`fit_pairs`.
    """
    fitter = _Fitter(network, models, inputs, parameters, torch.device(device))
    rows = np.asarray(which, dtype=np.int64).reshape(-1)
    grid = torch.linspace(0, 1, parameters.num_points, dtype=torch.float64)
    curved, straight = np.empty((len(rows), len(grid))), np.empty((len(rows), len(grid)))
    for batch in fitter.batches(len(rows)):
        pairs = chains.pairs[rows[batch]]
        bend = {name: tensor[rows[batch]].to(fitter.device) for name, tensor in chains.bends.items()}
        curved[batch] = fitter.losses(pairs, bend, grid)
        straight[batch] = fitter.losses(pairs, fitter.fit(pairs, []), grid)
    return Profile(pairs=chains.pairs[rows], u=grid.numpy(), chain=curved, line=straight)


class _Fitter:
    """Models, surrogate inputs and the models' outputs on them, ready to fit pairs on one device."""

    def __init__(
        self, network: nn.Module, models: State, inputs: Tensor, parameters: Parameters, device: torch.device
    ) -> None:
        self.network = copy.deepcopy(network).to(device).eval()
        self.parameters, self.device, self.models = parameters, device, models
        _check_models(self.network, models)
        self.num_models = len(next(iter(models.values())))
        # A tied parameter has one name here and further ones, its aliases, in the state.
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
        # One pair at a time leaves a core idle between operations: two pairs on two threads do not.
        self.num_threads = (
            torch.get_num_threads() if self.pairs_per_batch == 1 and device.type == "cpu" else 1
        )
        self._thread = threading.local()
        self.slope = self._over_pairs(grad(self._loss))
        self.value = self._over_pairs(self._loss)
        self.outputs = torch.stack([self._outputs(position) for position in range(self.num_models)])

    def of_this_thread(self) -> "_Fitter":
        """Get a fitter with a network of its own: a functional call swaps a network's parameters."""
        if self.num_threads == 1:
            return self
        if not hasattr(self._thread, "fitter"):
            twin = copy.copy(self)
            twin.network = copy.deepcopy(self.network)
            twin.slope, twin.value = twin._over_pairs(grad(twin._loss)), twin._over_pairs(twin._loss)
            self._thread.fitter = twin
        return self._thread.fitter

    def batches(self, num_pairs: int) -> Iterator[slice]:
        for begin in range(0, num_pairs, self.pairs_per_batch):
            yield slice(begin, min(begin + self.pairs_per_batch, num_pairs))

    @torch.no_grad()
    def fit(self, pairs: IntArray, schedule: Sequence[tuple[float, Tensor]]) -> State:
        """Fit the bends of some pairs, starting halfway, with one SGD step per (u, rows of the inputs)."""
        start, end = self._gathered(pairs[:, 0]), self._gathered(pairs[:, 1])
        halfway = {name: _midpoint(start[name], end[name]) for name in start}
        bend = {name: halfway[name] for name in self.bending}
        target = self.outputs[pairs[:, 1]]
        for u, rows in schedule:
            rows = rows.to(self.device)
            at_u = self._at(start, end, halfway | bend, u)
            slopes = self.slope(*at_u, self.inputs[rows], target[:, rows])
            # Chain rule: a change of θ moves the model at u by the weight that θ has there.
            step = self.parameters.learning_rate * chain_weights(u)[1]
            bend = {name: bend[name] - step * slopes[name] for name in self.bending}
        for name, tensor in bend.items():
            kept = _finite(tensor).reshape(-1, *[1] * (tensor.ndim - 1))
            halfway[name] = torch.where(kept, tensor, halfway[name])
        return halfway | {alias: halfway[name] for alias, name in self.aliases.items()}

    @torch.no_grad()
    def losses(self, pairs: IntArray, bend: State, grid: Tensor) -> FloatArray:
        """Evaluate L(u) of some chains on all inputs, shape (pairs, len(grid)); 2 where it is undefined."""
        start, end = self._gathered(pairs[:, 0]), self._gathered(pairs[:, 1])
        target = self.outputs[pairs[:, 1]]
        height = _MINI_BATCHES * self.parameters.batch_size
        totals = torch.zeros(len(pairs), len(grid), dtype=torch.float64)
        for column, u in enumerate(grid.tolist()):
            at_u = self._at(start, end, bend, u)
            for inputs, wanted in zip(self.inputs.split(height), target.split(height, dim=1), strict=True):
                totals[:, column] += len(inputs) * self.value(*at_u, inputs, wanted).cpu().double()
        return (totals / len(self.inputs)).nan_to_num(nan=2.0).numpy()

    def _gathered(self, positions: IntArray) -> State:
        return {name: tensor[positions].to(self.device) for name, tensor in self.models.items()}

    def _at(self, start: State, end: State, bend: State, u: float) -> tuple[State, State]:
        bent = {name: chain(start[name], end[name], bend[name], u) for name in self.bending}
        straight = {
            name: chain(start[name], end[name], bend[name], u)
            if bend[name].is_floating_point()
            else bend[name]
            for name in self.straight
        }
        return bent, straight

    def _loss(self, bent: State, straight: State, inputs: Tensor, target: Tensor) -> Tensor:
        # Where the network labels every position of an input, the mean is over positions too.
        probabilities = functional_call(self.network, (bent, straight), (inputs,)).softmax(dim=-1)
        return (probabilities - target).square().sum(dim=-1).mean()

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
            result = function(
                first, {name: tensor[0] for name, tensor in straight.items()}, inputs, target[0]
            )
            if isinstance(result, dict):
                return {name: tensor[None] for name, tensor in result.items()}
            return result[None]

        return one

    def _formatted(self, tensor: Tensor) -> Tensor:
        return (
            tensor.to(memory_format=torch.channels_last)
            if self.channels_last and tensor.ndim == 4
            else tensor
        )


def _each(work: Callable[[slice], Any], batches: Sequence[slice], num_threads: int) -> Iterator[Any]:
    """Do the work of every batch, in order, on so many threads of one core each."""
    if num_threads == 1 or len(batches) == 1:
        yield from map(work, batches)
        return
    with thread_pool(num_threads, inside=1) as pool:
        yield from pool.map(work, batches)


def _midpoint(start: Tensor, end: Tensor) -> Tensor:
    if start.is_floating_point():
        return (start + end) / 2
    return ((start.double() + end.double()) / 2).round().to(start.dtype)  # counters


def _steepest(losses: FloatArray) -> FloatArray:
    """Largest |∂L/∂u| on a grid: central differences inside each half, never across the bend."""
    points = losses.shape[1]
    differences = np.abs(losses[:, 2:] - losses[:, :-2]) * (points - 1) / 2
    # Entry i is at point i + 1; the one at the bend would mix the two halves.
    return np.delete(differences, (points - 1) // 2 - 1, axis=1).max(axis=1)


def _pairs_per_batch(network: nn.Module, device: torch.device, parameters: Parameters) -> int:
    layers = list(network.modules())
    if any(isinstance(layer, nn.LSTM | nn.MultiheadAttention) for layer in layers):
        return 1  # torch has no rule to vectorise them
    if parameters.pairs_per_batch != "auto":
        return parameters.pairs_per_batch
    if device.type != "cpu":
        return 64
    convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in layers)
    return 1 if convolutional else 16  # the fastest in benchmarks/curve_fitting.py


def _check_models(network: nn.Module, models: State) -> None:
    expected = {name for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    if set(models) != expected:
        raise ValueError(
            f"models must have the network's names, got {sorted(set(models) - expected)} too many "
            f"and {sorted(expected - set(models))} missing"
        )
    for name, tensor in models.items():
        finite = _finite(tensor)
        if not finite.all():
            raise ValueError(f"models must be finite, got model {int((~finite).nonzero()[0])}, {name}")


def _finite(stack: Tensor) -> Tensor:
    return stack.isfinite()[..., None].flatten(1).all(dim=1)  # the added axis is for stacks of numbers
