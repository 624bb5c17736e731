"""Take the SGD steps that bend chains, and evaluate networks along them: many pairs of models at once.

:mod:`.curve_fitting` chooses pairs and mini-batches and scores the chains; this module runs the networks.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedclust.clustering.fedgmcc.chains import chain, chain_weights, output_distance
from fedclust.clustering.fedgmcc.parameters import Parameters
from fedclust.typing import BoolArray, FloatArray, IntArray, State

__all__ = ["Fitter", "finite_models"]

# Without gradients no activations are kept, so inputs of several mini-batches fit into the memory of one.
_MINI_BATCHES = 2


class Fitter:
    """Models, surrogate inputs and the models' outputs on them, ready to fit pairs on one device.

    Parameters
    ----------
    network
        The network, from inputs to logits with classes last. It is copied, and not changed.
    models
        Its full states, n on the first axis of every tensor.
    inputs
        Surrogate inputs X, shape (n_MC, *input shape).
    parameters
        Settings of the fit.
    device
        Device to fit on.

    Raises
    ------
    ValueError
        If the names in `models` are not the network's.
    """

    def __init__(
        self, network: nn.Module, models: State, inputs: Tensor, parameters: Parameters, device: torch.device
    ) -> None:
        self.network = copy.deepcopy(network).to(device).eval()
        self.parameters, self.device, self.models = parameters, device, models
        _check_models(self.network, models)
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
        # One pair at a time leaves a core idle between operations: two pairs on two threads do not.
        self.num_threads = (
            torch.get_num_threads() if self.pairs_per_batch == 1 and device.type == "cpu" else 1
        )
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
        bent = {name: chain(start[name], end[name], bend[name], u) for name in self.bending}
        straight = {
            name: chain(start[name], end[name], bend[name], u)
            if bend[name].is_floating_point()
            else bend[name]
            for name in self.straight
        }
        return bent, straight

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


def finite_models(models: State) -> BoolArray:
    """Return whether each model has only finite values, shape (n,)."""
    return torch.stack([_finite(tensor).cpu() for tensor in models.values()]).all(dim=0).numpy()


def _midpoint(start: Tensor, end: Tensor) -> Tensor:
    if start.is_floating_point():
        return (start + end) / 2
    return ((start.double() + end.double()) / 2).round().to(start.dtype)  # counters


def _pairs_per_batch(network: nn.Module, device: torch.device, parameters: Parameters) -> int:
    layers = list(network.modules())
    # torch has no rule to vectorise these; nor, on a GPU, the one operation of a GRU's step there.
    recurrent = nn.LSTM if device.type == "cpu" else nn.RNNBase
    if any(isinstance(layer, recurrent | nn.MultiheadAttention) for layer in layers):
        return 1
    if parameters.pairs_per_batch != "auto":
        return parameters.pairs_per_batch
    if device.type != "cpu":
        return 64
    convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in layers)
    return 1 if convolutional else 16  # measured: the fastest on two cores


def _check_models(network: nn.Module, models: State) -> None:
    expected = {name for name, value in network.state_dict().items() if isinstance(value, Tensor)}
    if set(models) != expected:
        raise ValueError(
            f"models must have the network's names, got {sorted(set(models) - expected)} too many "
            f"and {sorted(expected - set(models))} missing"
        )


def _finite(stack: Tensor) -> Tensor:
    return stack.isfinite()[..., None].flatten(1).all(dim=1)  # the added axis is for stacks of numbers
