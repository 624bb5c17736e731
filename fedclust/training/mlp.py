"""MLPs (linear layers and activations), trained for a whole cohort by batched matrix products.

Most of vmap's and autograd's cost on small networks is not arithmetic. For MLPs, the commonest small
networks, the gradient is written out here; plain SGD then updates the weights in the same product that
computes the gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn import functional

from fedclust.training.optimisers import LocalUpdate
from fedclust.training.working_model import ClientDropout, WorkingModel
from fedclust.typing import State

_ACTIVATIONS = {
    **dict.fromkeys((nn.ReLU, torch.relu, functional.relu, "relu", torch.relu_, "relu_"), "relu"),
    **dict.fromkeys((nn.Tanh, torch.tanh, functional.tanh, "tanh", torch.tanh_, "tanh_"), "tanh"),
}
_FLATTEN = (nn.Flatten, torch.flatten, "flatten")


@dataclass(frozen=True)
class Linear:
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


@dataclass(frozen=True)
class Mlp:
    """What a model computes, if it is an MLP.

    Attributes
    ----------
    layers
        Linear layers, ``"relu"``, ``"tanh"`` and dropout layers, in order; the first one that is not
        dropout is linear.
    flattens
        Whether an example is flattened first.
    """

    layers: tuple[Linear | str | ClientDropout, ...]
    flattens: bool


def find_mlp(working: WorkingModel) -> Mlp | None:
    """Read a model's forward pass; None if it is anything but a sequence of the layers known here."""
    if any(_has_hooks(module) for module in working.model.modules()):
        return None
    try:
        graph = _Tracer().trace(working.model)
    # A model that symbolic tracing cannot follow is not an MLP; tracing raises all kinds of exceptions.
    except Exception:
        return None
    layers: list[Linear | str | ClientDropout] = []
    flattens = False
    names = {id(module): name for name, module in working.model.named_modules()}
    nodes = list(graph.nodes)
    if [node.op for node in nodes].count("placeholder") != 1:
        return None
    for previous, node in itertools.pairwise(nodes):
        # Each node must use the one before, alone, and be used by the one after.
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
    # No layer twice, nothing frozen, nothing unused, no buffers.
    whole = sorted(parameters) == sorted(working.trainable_names) and len(parameters) == len(working.tensors)
    return Mlp(tuple(layers), flattens) if linear and whole else None


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
    """Steps of a stacked cohort whose model is an MLP; a :class:`.vectorised.Kernel`.

    Parameters
    ----------
    mlp
        The model.
    state
        Stacked parameters of n clients, updated in place.
    update
        What to do with their gradients, in the order of `state`.
    """

    def __init__(self, mlp: Mlp, state: State, update: LocalUpdate) -> None:
        self._mlp = mlp
        # No gradient is needed for what comes before this layer.
        self._first = next(layer for layer in mlp.layers if isinstance(layer, Linear))
        self._state = state
        self._update = update

    def narrow(self, clients: int) -> None:
        """Keep only the first `clients` clients."""
        self._state = {name: tensor[:clients] for name, tensor in self._state.items()}
        self._update.narrow(clients)

    @torch.no_grad()
    def step(
        self, inputs: torch.Tensor, labels: torch.Tensor, real: torch.Tensor | None, keys: torch.Tensor
    ) -> torch.Tensor:
        """Update the clients' models in place; see :class:`.vectorised.Kernel`."""
        values = inputs.flatten(2)
        used: list[torch.Tensor] = []  # per layer, what its backward pass needs
        drops = 0
        for layer in self._mlp.layers:
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

    def _linear(self, layer: Linear, values: torch.Tensor) -> torch.Tensor:
        weight = self._state[layer.weight].mT
        if layer.bias is None:
            return torch.bmm(values, weight)
        return torch.baddbmm(self._state[layer.bias].unsqueeze(1), values, weight)

    def _backward(self, used: Sequence[torch.Tensor], gradient: torch.Tensor) -> None:
        """Propagate the gradient of the logits back through the layers, and update them."""
        rate = self._update.plain_rate
        gradients: State = {}
        for layer, saved in zip(reversed(self._mlp.layers), reversed(used), strict=True):
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
                if rate is None:
                    gradients[layer.weight] = torch.bmm(of_outputs.mT, saved)
                    if layer.bias is not None:
                        gradients[layer.bias] = of_outputs.sum(1)
                else:
                    self._state[layer.weight].baddbmm_(of_outputs.mT, saved, alpha=-rate)
                    if layer.bias is not None:
                        self._state[layer.bias].sub_(of_outputs.sum(1), alpha=rate)
                if layer is self._first:
                    break
        if rate is None:
            self._update.step(list(self._state.values()), [gradients[name] for name in self._state])


def _cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, real: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
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
    # In float32 the last bit of a logarithm may depend on its place in the tensor, so on the other clients.
    logarithms = total.double().log().to(total.dtype)
    losses = ((logarithms - shifted.gather(2, chosen)).squeeze(2) * shares).sum(1)
    gradient = exponentials.div_(total)
    gradient.scatter_add_(2, chosen, gradient.new_full((1, 1, 1), -1.0).expand_as(chosen))
    return losses, gradient.mul_(shares.unsqueeze(2))
