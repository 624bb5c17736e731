"""Find out whether a step can be recorded: whether it does the same operations every time."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["NotRecordable", "check_recordable"]

# What makes the host wait for a value, or decides a shape by it. Indexing with truth values does so on GPUs.
_WAITING = frozenset(("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim"))
_COPYING = frozenset(("copy_", "_to_copy"))
_INDEXING = frozenset(("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"))

# Recurrent layers make these anew from their weights whenever they are given others, as functional_call does.
_LISTS_OF_WEIGHTS = ("_flat_weights", "_flat_weight_refs")


class NotRecordable(Exception):
    """The reason why a model's step cannot be recorded."""


class _Trace(TorchDispatchMode):
    """Lists operations and everything that is fixed in them; collects tensors that were there before."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.operations: list[tuple[str, ...]] = []
        self.before: dict[int, torch.Tensor] = {}
        self._device = device
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        name = func._schema.name.removeprefix("aten::")
        self.operations.append((name, *map(self._fixed, leaves)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if name in _WAITING or (name in _INDEXING and any(_is_mask(each) for each in tensors[1:])):
            raise NotRecordable(f"the model or the loss reads values of tensors ({name})")
        for tensor in tensors:
            place = tensor.untyped_storage().data_ptr()
            if place not in self._made and place not in self.before:
                self.before[place] = tensor
        result = func(*args, **(kwargs or {}))
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        # A 0-d operand from the host is a number, which a recording keeps; a copy would read its memory anew.
        from_host = (self._elsewhere(each) and (each.dim() or name in _COPYING) for each in tensors)
        if any(from_host) and not all(map(self._elsewhere, results)):
            raise NotRecordable(f"the model or the loss copies tensors from the host ({name})")
        places = (each.untyped_storage().data_ptr() for each in results)
        self._made.update(place for place in places if place not in self.before)
        return result

    def _elsewhere(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type != self._device.type

    def _fixed(self, leaf: Any) -> str:
        """Describe what a recording keeps of an argument: all but the values of a tensor on the device."""
        if not isinstance(leaf, torch.Tensor):
            return repr(leaf)
        number = leaf.item() if self._elsewhere(leaf) and not leaf.dim() else ""
        return f"{leaf.dtype} {tuple(leaf.shape)} {leaf.device.type} {number}"


def _is_mask(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.bool, torch.uint8)


def check_recordable(model: nn.Module, step: Callable[[], None], device: torch.device) -> list[torch.Tensor]:
    """Run a step three times; refuse one that a recording could not repeat.

    The first run may fill caches. The other two must do the same operations with the same Python numbers, and
    leave the model's attributes as they are, apart from the values of tensors. Not seen: a change in an
    object that is no module, unless it shows in an operation, and one that comes after more than three steps.

    Parameters
    ----------
    model
        The model of the step, in training.
    step
        A training step.
    device
        Where it computes.

    Returns
    -------
    The tensors that the step read and did not make. As long as they are kept, their memory stays.

    Raises
    ------
    NotRecordable
        With the reason.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and module.dropout:
            kind = type(module).__name__
            raise NotRecordable(f"dropout inside of {kind} {name!r} draws from PyTorch's generator")
    random = _random_state(device)
    step()
    if not all(map(torch.equal, random, _random_state(device))):
        raise NotRecordable("the model or the loss draws from PyTorch's generator")
    attributes = dict(_attributes(model))
    traces = []
    for _ in range(2):
        with _Trace(device) as trace:
            step()
        traces.append(trace)
    for place, value in _attributes(model):
        if not _same(attributes.get(place), value):
            raise NotRecordable(f"the model replaces its attribute {place!r} at every step")
    first, second = (trace.operations for trace in traces)
    if first != second:
        pairs = zip(first, second, strict=False)
        changed = next((pair for pair in pairs if pair[0] != pair[1]), (("the number of operations",),) * 2)
        raise NotRecordable(f"two steps differ by more than the values of tensors ({changed[1][0]})")
    return list(traces[1].before.values())


def _random_state(device: torch.device) -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        for own, value in (*vars(module).items(), *module._buffers.items()):
            if not (isinstance(module, nn.RNNBase) and own in _LISTS_OF_WEIGHTS):
                yield f"{name}.{own}".lstrip("."), value


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, int | float | str) and one == other
