"""Local training of a whole cohort in one pass.

The clients' models are stacked along a first axis and take their t-th step together. Clients are sorted by
their number of steps, so those still training are always the first ones, and finished clients are left out of
later steps. Short batches are padded with repetitions that have weight 0 in the loss and that BatchNorm
ignores.

A step of any model runs under ``torch.func.vmap``. For small networks, most of the cost of vmap and autograd
is overhead, not arithmetic. For MLPs, the most common small networks, the gradient is therefore written out
here, as batched matrix products; plain SGD then updates the weights in the same product that computes the
gradient.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.func import grad_and_value, vmap
from torch.nn import functional

from fedclust.support.devices import thread_pool
from fedclust.training.cohort import CohortUpdate, Work, collect, start_state
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import Loss, cross_entropy, example_losses, mean_loss
from fedclust.training.parameters import LocalTraining
from fedclust.training.recorded import CudaGraphs, Inputs, RecordedPasses
from fedclust.training.working_model import ClientDropout, WorkingModel
from fedclust.typing import IntArray, State

Tensors = list[Tensor]


# -- From gradients to parameters ---------------------------------------------------------------------------


class LocalUpdate:
    """Updates parameters from gradients.

    A step adds the proximal term, clips the gradient, then updates like ``torch.optim.SGD`` (without
    dampening and Nesterov) or ``torch.optim.Adam`` (without AMSGrad): the same order as with FedProx's loss,
    ``clip_grad_norm_`` and ``torch.optim``, which would take 0.1 to 0.3 ms more per step in Python. The same
    code works on one client's parameters and, with a leading axis, on those of a whole cohort: every
    operation is element by element, and every client of a cohort takes its t-th step at the same time or has
    stopped before, so one step count serves all.

    Parameters
    ----------
    parameters
        Tensors that `step` will update; FedProx's penalty is the distance to their present values, and that
        of Ditto's second models the distance to the present values of the first.
    training
        Hyperparameters.
    work
        Determines the round's learning rate, FedProx's weight, and how second models train.
    stacked
        Whether the tensors have a leading client axis.

    Attributes
    ----------
    plain
        The factors of a step that is just ``parameter = kept * parameter - rate * gradient``, `kept` and
        `rate`; else None.
    """

    def __init__(self, parameters: Tensors, training: LocalTraining, work: Work, *, stacked: bool) -> None:
        proximal_mu: float | Tensor = work.proximal_mu
        paired, shares = work.pairs is not None, work.shares
        if work.pairs is not None and work.pairs.pull != proximal_mu:
            weights = torch.tensor([proximal_mu, work.pairs.pull], device=parameters[0].device)
            proximal_mu = weights.repeat(len(parameters[0]) // 2)
        pulled = isinstance(proximal_mu, Tensor) or bool(proximal_mu)
        self._training, self._rate = training, work.learning_rate
        self._proximal_mu, self._stacked = proximal_mu, stacked
        self._adam = training.optimizer == "adam"
        self._pulled, self._mixed = pulled, shares is not None
        self._changes_gradients = bool(pulled or self._mixed or training.clip_norm or training.weight_decay)
        kept = 1 - self._rate * training.weight_decay  # a float32 must hold it
        plain = kept > 0 and not (
            self._adam or training.momentum or pulled or self._mixed or training.clip_norm
        )
        self.plain = (kept, self._rate) if plain else None
        # torch's buffer starts as the first gradient; momentum * 0 + gradient is the same.
        moments = 2 if self._adam else int(training.momentum > 0)
        self._moments = [[torch.zeros_like(tensor) for tensor in parameters] for _ in range(moments)]
        self._start = [tensor.detach().clone() for tensor in parameters] if pulled else []
        if paired:
            for start in self._start:
                start[1::2] = start[::2]
        self._steps = 0
        self._own: Tensors = []
        if shares is not None and work.pairs is not None:
            self._share, self._adapts = shares.clone(), work.pairs.adapts
            self._every_share, self._result = self._share, shares
            self._own = [tensor[1::2].clone() for tensor in parameters]
            self._every = self._own
            self._mix(parameters)

    def narrow(self, clients: int) -> None:
        """Keep only the first `clients` clients of a stacked cohort."""
        self._moments = [[tensor[:clients] for tensor in tensors] for tensors in self._moments]
        self._start = [tensor[:clients] for tensor in self._start]
        if isinstance(self._proximal_mu, Tensor):
            self._proximal_mu = self._proximal_mu[:clients]
        if self._mixed:
            self._own = [tensor[: clients // 2] for tensor in self._own]
            self._share = self._share[: clients // 2]

    def finish(self, parameters: Tensors) -> None:
        """Put second models in the place of mixtures, after the last step; for all clients' parameters."""
        if self._mixed:
            for tensor, own in zip(parameters, self._every, strict=True):
                tensor[1::2] = own
            self._result.copy_(self._every_share)

    def _mix(self, parameters: Tensors) -> None:
        """Put mixtures in the place of second models: v̄ = α v + (1 − α) w, APFL's Algorithm 1."""
        for tensor, own in zip(parameters, self._own, strict=True):
            own.copy_(tensor[1::2])
            tensor[1::2] = torch.lerp(tensor[::2], own, _along(self._share, own))

    def _unmix(self, parameters: Tensors, gradients: Tensors) -> Tensor:
        """Put second models in the place of mixtures, and their gradients; return the shares from now on.

        The loss of v̄ has the gradient α g by v, and ⟨g, v − w⟩ by α (APFL, Eq. 10).
        """
        share, places = self._share, list(zip(parameters, self._own, gradients, strict=True))
        if self._adapts and not self._steps:
            slopes = (torch.linalg.vecdot(g[1::2].flatten(1), (v - p[::2]).flatten(1)) for p, v, g in places)
            share = (share - self._rate * sum(slopes)).clamp(0, 1)
        for tensor, own, gradient in places:
            gradient[1::2] *= _along(self._share, own)
            tensor[1::2] = own
        return share

    @torch.no_grad()
    def step(self, parameters: Tensors, gradients: Tensors) -> None:
        """Update `parameters` in place; `gradients` may be overwritten."""
        if self._changes_gradients:
            gradients = _without_shared_memory(gradients)
        if self._mixed:
            share = self._unmix(parameters, gradients)
            self._take(parameters, gradients)
            self._share.copy_(share)
            self._mix(parameters)
        else:
            self._take(parameters, gradients)

    def _take(self, parameters: Tensors, gradients: Tensors) -> None:
        training = self._training
        self._steps += 1
        if self._pulled:
            add_proximal_term(gradients, parameters, self._start, self._proximal_mu)
        if training.clip_norm is not None:
            clip_norm(gradients, training.clip_norm, stacked=self._stacked)
        if training.weight_decay:
            torch._foreach_add_(gradients, parameters, alpha=training.weight_decay)
        if self._adam:
            self._adam_step(parameters, gradients)
            return
        if training.momentum:
            (buffers,) = self._moments
            torch._foreach_mul_(buffers, training.momentum)
            torch._foreach_add_(buffers, gradients)
            gradients = buffers
        torch._foreach_add_(parameters, gradients, alpha=-self._rate)

    def _adam_step(self, parameters: Tensors, gradients: Tensors) -> None:
        (first, second), (beta1, beta2) = self._moments, self._training.betas
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        denominators = torch._foreach_sqrt(second)
        torch._foreach_div_(denominators, math.sqrt(1 - beta2**self._steps))
        torch._foreach_add_(denominators, self._training.adam_epsilon)
        torch._foreach_addcdiv_(parameters, first, denominators, -self._rate / (1 - beta1**self._steps))


def _without_shared_memory(gradients: Tensors) -> Tensors:
    """Copy gradients that share memory with another or within themselves, so that each changes only once.

    Autograd returns one tensor for two parameters that only occur in a sum, as an LSTM's two biases do.
    """
    seen: set[int] = set()
    separate = []
    for gradient in gradients:
        place = gradient.data_ptr()
        separate.append(gradient.clone() if place in seen or 0 in gradient.stride() else gradient)
        seen.add(place)
    return separate


def _along(values: Tensor, tensor: Tensor) -> Tensor:
    """Shape a value per client, shape (n,), so that it multiplies each client's tensor."""
    return values.to(tensor.dtype).view(-1, *[1] * (tensor.dim() - 1))


def add_proximal_term(gradients: Tensors, parameters: Tensors, start: Tensors, mu: float | Tensor) -> None:
    """Add the gradient of ``mu / 2 * ||w - w_start||**2`` in place; `mu` for all, or of each row.

    Source: FedProx, Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Eq. 2.
    """
    if isinstance(mu, Tensor):
        apart = torch._foreach_sub(parameters, start)
        torch._foreach_mul_(apart, [_along(mu, tensor) for tensor in apart])
        torch._foreach_add_(gradients, apart)
        return
    torch._foreach_add_(gradients, torch._foreach_sub(parameters, start), alpha=mu)


def clip_norm(gradients: Tensors, largest: float, *, stacked: bool) -> None:
    """Scale gradients in place as ``torch.nn.utils.clip_grad_norm_`` does.

    Parameters
    ----------
    gradients
        Gradients of one client, or of n clients along a first axis.
    largest
        Largest norm, > 0.
    stacked
        Whether there is a client axis; each client is then clipped separately.
    """
    vectors = [
        gradient.reshape(len(gradient), -1) if stacked else gradient.reshape(-1) for gradient in gradients
    ]
    norms = torch.stack([torch.linalg.vector_norm(vector, dim=-1) for vector in vectors])
    # The 1e-6 is torch's, against division by zero.
    scale = (largest / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)) if stacked else scale)


# -- Steps of MLPs ------------------------------------------------------------------------------------------

_ACTIVATIONS = {
    **dict.fromkeys((nn.ReLU, torch.relu, functional.relu, "relu", torch.relu_, "relu_"), "relu"),
    **dict.fromkeys((nn.Tanh, torch.tanh, functional.tanh, "tanh", torch.tanh_, "tanh_"), "tanh"),
}
_FLATTEN = (nn.Flatten, torch.flatten, "flatten")


class Linear(NamedTuple):
    """A linear layer, by the names of its parameters.

    Attributes
    ----------
    weight
        Name of the weight, shape (out, in).
    bias
        Name of the bias, shape (out,), or None.
    """

    weight: str
    bias: str | None


Layer = Linear | ClientDropout | str
"""A layer of an MLP: linear, dropout, ``"relu"`` or ``"tanh"``."""


def find_mlp(working: WorkingModel, example_dims: int) -> list[Layer] | None:
    """Trace a model's forward pass; return its layers if it is an MLP, else None.

    Parameters
    ----------
    working
        The model.
    example_dims
        Number of dimensions of one example; if there are several, the model must flatten it first.

    Returns
    -------
    The layers in order; the first one that is not dropout is linear.
    """
    if any(_has_hooks(module) for module in working.model.modules()):
        return None
    try:
        graph = _Tracer().trace(working.model)
    # A model that symbolic tracing cannot follow is not an MLP; tracing raises all kinds of exceptions.
    except Exception:
        return None
    layers: list[Layer] = []
    flattens = False
    names = {id(module): name for name, module in working.model.named_modules()}
    nodes = list(graph.nodes)
    if [node.op for node in nodes].count("placeholder") != 1:
        return None
    for previous, node in itertools.pairwise(nodes):
        # Each node must use only the one before it, and be used by the one after it.
        if node.all_input_nodes != [previous]:
            return None
        module = working.model.get_submodule(node.target) if node.op == "call_module" else None
        kind = type(module) if module is not None else node.target
        if node.op == "output" or kind is nn.Identity:
            continue
        if isinstance(module, ClientDropout) and module.p == 0.0:  # the identity
            continue
        if kind in _FLATTEN and not layers and not flattens and _flattens_examples(node, module):
            flattens = True
        elif kind in _ACTIVATIONS and layers:
            layers.append(_ACTIVATIONS[kind])
        elif isinstance(module, ClientDropout) and not module.channelwise:
            layers.append(module)
        elif kind is nn.Linear and module is not None:
            name = names[id(module)]
            layers.append(Linear(f"{name}.weight", f"{name}.bias" if module.bias is not None else None))
        else:
            return None
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    parameters = [name for layer in linear for name in (layer.weight, layer.bias) if name is not None]
    # No layer twice, nothing unused, no buffers; what is not trained is held.
    whole = sorted(parameters) == sorted(working.tensors) and not working.tied
    return layers if linear and whole and (flattens or example_dims == 1) else None


def _has_hooks(module: nn.Module) -> bool:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(module, kind) for kind in kinds)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return isinstance(module, ClientDropout) or super().is_leaf_module(module, qualified_name)


def _flattens_examples(node: fx.Node, module: nn.Module | None) -> bool:
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    arguments = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | node.kwargs
    return arguments in ({"start_dim": 1}, {"start_dim": 1, "end_dim": -1})


class MlpKernel:
    """Steps of a stacked cohort whose model is an MLP; a kernel like :class:`VmapKernel`.

    Parameters
    ----------
    layers
        The model's layers, in order.
    state
        Stacked parameters of n clients; those that are trained are updated in place.
    trained
        Names of these.
    update
        Applies their gradients, in the order of `trained`.
    """

    def __init__(
        self, layers: Sequence[Layer], state: State, trained: Collection[str], update: LocalUpdate
    ) -> None:
        self._layers = layers
        # No gradient is needed for what comes before this layer.
        linear = [layer for layer in layers if isinstance(layer, Linear)]
        self._first = next(layer for layer in linear if not {*layer}.isdisjoint(trained))
        self._state, self._trained = state, trained
        self._update = update

    def narrow(self, clients: int) -> None:
        """Keep only the first `clients` clients."""
        self._state = {name: tensor[:clients] for name, tensor in self._state.items()}
        self._update.narrow(clients)

    @torch.no_grad()
    def step(self, inputs: Tensor, labels: Tensor, real: Tensor | None, keys: Tensor) -> Tensor:
        """Update the clients' models in place; see :class:`VmapKernel`."""
        values = inputs.flatten(2)
        used: list[Tensor] = []  # what each layer's backward pass needs
        drops = 0
        for layer in self._layers:
            if isinstance(layer, Linear):
                used.append(values)
                values = self._linear(layer, values)
            elif isinstance(layer, ClientDropout):
                drops += 1
                factors = layer.factors(values.shape[1:], keys.view(-1, 1, 1), drops)
                used.append(factors)
                values = values * factors
            else:
                values = values.relu() if layer == "relu" else values.tanh()
                used.append(values)
        losses, gradient = _cross_entropy(values, labels, real)
        self._backward(used, gradient)
        return losses

    def _linear(self, layer: Linear, values: Tensor) -> Tensor:
        weight = self._state[layer.weight].mT
        if layer.bias is None:
            return torch.bmm(values, weight)
        return torch.baddbmm(self._state[layer.bias].unsqueeze(1), values, weight)

    def _backward(self, used: Sequence[Tensor], gradient: Tensor) -> None:
        """Propagate the gradient of the logits back through the layers, and update them."""
        plain = self._update.plain
        gradients: State = {}
        for layer, saved in zip(reversed(self._layers), reversed(used), strict=True):
            if layer == "relu":
                gradient = torch.ops.aten.threshold_backward(gradient, saved, 0)
            elif layer == "tanh":
                gradient = torch.ops.aten.tanh_backward(gradient, saved)
            elif isinstance(layer, ClientDropout):
                gradient = gradient * saved
            elif isinstance(layer, Linear):
                of_outputs = gradient
                if layer is not self._first:
                    gradient = torch.bmm(of_outputs, self._state[layer.weight])
                weight = layer.weight if layer.weight in self._trained else None
                bias = layer.bias if layer.bias in self._trained else None
                if plain is None:
                    if weight is not None:
                        gradients[weight] = torch.bmm(of_outputs.mT, saved)
                    if bias is not None:
                        gradients[bias] = of_outputs.sum(1)
                else:
                    kept, rate = plain
                    if weight is not None:
                        self._state[weight].baddbmm_(of_outputs.mT, saved, beta=kept, alpha=-rate)
                    if bias is not None:
                        self._state[bias].mul_(kept).sub_(of_outputs.sum(1), alpha=rate)
                if layer is self._first:
                    break
        if plain is None:
            names = self._trained
            self._update.step([self._state[each] for each in names], [gradients[each] for each in names])


def _cross_entropy(logits: Tensor, labels: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute each client's mean loss over its real examples, shape (a,), and its gradient by the logits."""
    if real is None:
        shares = torch.full((1, 1), 1.0 / labels.shape[1], device=logits.device)
    else:
        shares = real / real.sum(1, keepdim=True)
    chosen = labels.unsqueeze(2)
    # log_softmax over a short last dimension is several times slower on CPUs than these steps.
    shifted = logits - logits.amax(2, keepdim=True)
    exponentials = shifted.exp()
    total = exponentials.sum(2, keepdim=True)
    # In float32 the last bit of a logarithm may depend on its position in the tensor, hence on other clients.
    logarithms = total.double().log().to(total.dtype)
    losses = ((logarithms - shifted.gather(2, chosen)).squeeze(2) * shares).sum(1)
    gradient = exponentials.div_(total)
    gradient.scatter_add_(2, chosen, gradient.new_full((1, 1, 1), -1.0).expand_as(chosen))
    return losses, gradient.mul_(shares.unsqueeze(2))


# -- Steps of any model -------------------------------------------------------------------------------------


class VmapKernel:
    """Steps of the first clients of a stacked cohort, for any model.

    Parameters
    ----------
    training
        Knows the loss of all clients, and the parameters that it depends on.
    state
        Stacked tensors of n clients, updated in place.
    update
        Applies the gradients of the parameters that the loss depends on.
    """

    def __init__(self, training: VectorisedTraining, state: State, update: LocalUpdate) -> None:
        self._training, self._update = training, update
        working = training.working
        used = training.used
        self._parameters = {name: state[name] for name in used}
        trained = {*used, *working.tied}
        # A frozen parameter that all clients share is one tensor, not n.
        shared = {name for name in working.constant if state[name].stride(0) == 0}
        self._shared = {name: state[name][0] for name in shared - trained}
        self._own = {name: tensor for name, tensor in state.items() if name not in trained | shared}

    def narrow(self, clients: int) -> None:
        """Keep only the first `clients` clients."""
        self._parameters = {name: tensor[:clients] for name, tensor in self._parameters.items()}
        self._own = {name: tensor[:clients] for name, tensor in self._own.items()}
        self._update.narrow(clients)

    def step(self, inputs: Tensor, labels: Tensor, real: Tensor | None, keys: Tensor) -> Tensor:
        """Update the clients' models in place.

        Parameters
        ----------
        inputs, labels
            Their batches, shapes (a, B, *shape) and (a, B) or (a, B, positions).
        real
            1.0 for real examples, 0.0 for padding, shape (a, B); None if all are real.
        keys
            Dropout keys, shape (a,).

        Returns
        -------
        Losses before the step, shape (a,).
        """
        loss = self._training.losses[real is not None]
        rest = self._own, self._shared, inputs, labels, real, keys
        if self._training.inside:
            by_name, losses = loss(self._parameters, *rest)
            gradients = list(by_name.values())
        else:
            leaves = {name: tensor.detach().requires_grad_() for name, tensor in self._parameters.items()}
            losses = loss(leaves, *rest)
            # The clients' losses are independent: their sum's gradient is each client's own.
            gradients = list(torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True))
        self._update.step(list(self._parameters.values()), gradients)
        return losses.detach()


# -- A pass -------------------------------------------------------------------------------------------------


# Multiplications of a step's forward pass, of all clients, that justify one more thread. On two cores, two
# threads took 1.1 times as long as one with 25 million, 0.7 times with 50 million and 0.65 with 80 million.
_PRODUCTS_PER_THREAD = 20_000_000


def cuts(steps: IntArray, parts: int) -> list[int]:
    """Choose where to divide clients among threads, so that each part has about as many steps.

    A batched product of one matrix uses another kernel than that of several. A client gets the same bits,
    whatever the number of threads, as no part has one that trains alone but at the end of the whole pass.

    Parameters
    ----------
    steps
        Steps of each client, in decreasing order, shape (n,).
    parts
        Largest number of parts.

    Returns
    -------
    Where each part but the first begins.

    Examples
    --------
    >>> cuts(np.array([7, 7, 7, 7]), parts=2)
    [2]
    >>> cuts(np.array([9, 5, 5, 3, 2, 1]), parts=2)  # of 3, 2 and 1, the first would end alone
    []
    """
    before = np.cumsum(steps) - steps
    possible = [place for place in range(2, len(steps) - 1) if steps[place] == steps[place + 1]]
    chosen = [0]
    for part in range(1, parts if possible else 0):
        nearest = min(possible, key=lambda place: abs(before[place] - steps.sum() * part / parts))
        if nearest >= chosen[-1] + 2:
            chosen.append(nearest)
    return chosen[1:]


class VectorisedTraining:
    """Trains cohorts together; results equal those of training one after another up to float tolerance.

    Parameters
    ----------
    working
        The model; its own tensors are not touched.
    data
        The dataset.
    training
        Hyperparameters.
    threads
        Largest number of threads that each take the steps of a part of an MLP's clients, >= 1.

    Attributes
    ----------
    working
        The model.
    used
        Names of the parameters that the loss depends on; empty until they are known.
    inside
        Whether the loss returns its gradient, too.
    losses
        The loss of all clients, without padding and with it.
    mlp
        The model's layers, if it is an MLP that :class:`MlpKernel` can train; else None.
    passes
        Takes the steps of passes, from recordings on a GPU.
    """

    def __init__(
        self, working: WorkingModel, data: DeviceData, training: LocalTraining, threads: int = 1
    ) -> None:
        self.working, self._threads = working, threads
        self._data = data
        self._training = training
        # The kernel implements only the gradient of this loss, for one label per example.
        plain = training.loss is cross_entropy and not data.labels_have_positions
        suits = plain and training.precision != "bf16"
        self.mlp = find_mlp(working, data.example_dims) if suits else None
        # vmap can batch recurrent layers only inside a grad transform; for other models, differentiating
        # outside of vmap spends less time in Python.
        self.inside = any(isinstance(module, nn.RNNBase) for module in working.model.modules())
        self.losses = [self._map(padded) for padded in (False, True)]
        self.used: list[str] = []
        # A GPU spends more time on starting a step's operations than on computing them.
        recordable = data.rows_device.type == "cuda" and not training.compile
        self.passes = RecordedPasses(CudaGraphs(data.rows_device) if recordable else None)

    def _map(self, padded: bool) -> Callable:
        """Map a client's loss over all clients, with padding or without."""
        loss = partial(client_loss, self.working, self._training.loss)  # not of self, which holds it
        function = grad_and_value(loss) if self.inside else loss
        in_dims = (0, 0, None, 0, 0, 0 if padded else None, 0)
        mapped = vmap(function, in_dims=in_dims, randomness="error")
        return torch.compile(mapped) if self._training.compile else mapped

    def train(self, work: Work) -> CohortUpdate:
        """Train the clients of a pass together.

        Parameters
        ----------
        work
            The clients, longest first.

        Returns
        -------
        Their update, in the order of ``work.jobs``.
        """
        working, batches, device = self.working, work.batches, self._data.device
        state = start_state(working, work.jobs)
        working.model.train()
        self._find_used(work)
        # Without waiting for a GPU's queue: the driver has copied the rows when this returns.
        rows = torch.from_numpy(batches.rows).to(self._data.rows_device, non_blocking=True)
        sizes = torch.from_numpy(batches.sizes).to(device, non_blocking=True)
        with warnings.catch_warnings():
            # vmap warns about a layer without a batching rule, which is slow but correct.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            inputs = [rows, sizes, work.keys, *([] if work.augmentation is None else [work.augmentation])]
            places = self._cuts(work, state)
            if places:
                losses = self._in_parts(work, state, inputs, places)
            else:
                take = self._run if work.pairs else partial(self.passes.take, self._run)
                losses = take(work, state, inputs)
        return collect(working, work, state, losses, {})

    def _find_used(self, work: Work) -> None:
        """Find the parameters that the loss depends on; like torch.optim, the others are not updated.

        Otherwise weight decay would shrink them. Determined once, from the gradient of one client's batch.
        """
        if not self.used:
            loss = first_loss(self.working, self._data, self._training, work)
            gradients = torch.autograd.grad(loss, self.working.trainable, allow_unused=True)
            pairs = zip(self.working.trainable_names, gradients, strict=True)
            self.used = [name for name, gradient in pairs if gradient is not None]

    def _cuts(self, work: Work, state: State) -> list[int]:
        """Choose where to divide a pass among threads; nowhere unless its steps are long.

        Only the kernel for MLPs has no state of its own, and operations that use several threads themselves
        leave no core.
        """
        if self.mlp is None or work.pairs or torch.get_num_threads() > 1:
            return []
        values = sum(state[layer.weight].numel() for layer in self.mlp if isinstance(layer, Linear))
        worthwhile = values * work.batches.rows.shape[2] // _PRODUCTS_PER_THREAD
        return cuts(work.batches.steps, min(self._threads, worthwhile))

    def _in_parts(self, work: Work, state: State, inputs: Inputs, places: list[int]) -> Tensor:
        """Take all steps of a pass with a thread for each part of its clients."""
        ends = [0, *places, len(work.jobs)]
        widths = work.batches.sizes.max(axis=0)
        losses = torch.zeros(work.batches.sizes.shape)

        def take(begin: int, end: int) -> None:
            own = {name: tensor[begin:end] for name, tensor in state.items()}
            part = [each[begin:end] for each in inputs]
            taken = self._run(work.select(range(begin, end)), own, part, widths)
            losses[begin:end, : taken.shape[1]] = taken

        with thread_pool(len(ends) - 1, 1) as pool:
            list(pool.map(take, ends, ends[1:]))
        return losses

    def _run(self, work: Work, state: State, inputs: Inputs, widths: IntArray | None = None) -> Tensor:
        """Take all steps of a pass; see :data:`fedclust.training.recorded.Take`.

        `widths` are the rows of each step's batches with their padding; by default those of the largest.
        """
        batches, (rows, sizes, keys, *augmentation) = work.batches, inputs
        losses = torch.zeros(batches.sizes.shape, device=self._data.device)
        parameters = {name: state[name] for name in self.used}
        update = LocalUpdate(list(parameters.values()), self._training, work, stacked=True)
        mlp = self.mlp
        kernel: VmapKernel | MlpKernel = VmapKernel(self, state, update)
        if mlp is not None:
            kernel = MlpKernel(mlp, state, self.used, update)
        places = torch.arange(batches.rows.shape[2], device=self._data.device)
        active_at = (batches.sizes > 0).sum(axis=0).tolist()
        padded = (batches.sizes.max(axis=0) if widths is None else widths).tolist()
        active = len(work.jobs)
        for step, (clients, width) in enumerate(zip(active_at, padded, strict=False)):
            if clients != active:
                kernel.narrow(clients)
                active = clients
            crops = augmentation[0][:clients, step] if augmentation else None
            examples, labels = self._data.batch(rows[:clients, step, :width], crops)
            ragged = bool((batches.sizes[:clients, step] < width).any())
            real = (places[:width] < sizes[:clients, step, None]).float() if ragged else None
            losses[:clients, step] = kernel.step(examples, labels, real, keys[:clients, step])
        update.finish(list(parameters.values()))
        return losses


def client_loss(
    working: WorkingModel, loss: Loss, parameters: State, own: State, shared: State, *batch: Any
) -> Tensor:
    """Compute one client's loss.

    Parameters
    ----------
    working, loss
        The model and the loss of an example.
    parameters, own, shared
        Its tensors by name.
    batch
        Inputs, labels, mask of real examples, and dropout key.
    """
    inputs, labels, real, key = batch
    logits = working.forward(inputs, key, real, {**parameters, **own, **shared})
    if real is None:
        return mean_loss(logits, labels, loss)
    return (example_losses(logits, labels, loss) * real).sum() / real.sum()


def first_loss(working: WorkingModel, data: DeviceData, training: LocalTraining, work: Work) -> Tensor:
    """Compute the loss of the first client's first batch, in the working model."""
    working.load(work.jobs[0].whole)
    rows = torch.from_numpy(work.batches.rows[0, 0, : work.batches.sizes[0, 0]])
    inputs, labels = data.batch(rows.to(data.rows_device))
    return mean_loss(working.forward(inputs, work.keys[0, 0]), labels, training.loss)
