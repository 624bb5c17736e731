"""Choose the number of threads to train a model with.

Threads wait for each other after every operation. For a small model the wait is longer than the operation,
and longer still on a busy machine: with two threads on two busy cores, a 64-64-10 network trained 4 to 20
times more slowly than with one. Processes (``engine=ray``) do not wait for each other.
"""

import math
from functools import partial

import torch
from torch import nn

from fedclust.models import Classifier

__all__ = ["worthwhile_threads"]

# Least number of floating-point operations per thread in a batch's forward pass; a few ms of work.
_OPERATIONS_PER_THREAD = 50e6

# Whose operations are known from their outputs, those that PyTorch counts as none, and those around them.
_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Linear)
_FREE = (
    *(
        nn.AvgPool2d,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.Dropout,
        nn.Embedding,
        nn.Flatten,
        nn.GELU,
        nn.GroupNorm,
    ),
    *(nn.Identity, nn.LayerNorm, nn.MaxPool2d, nn.ReLU, nn.Sigmoid, nn.Softmax, nn.Tanh, nn.Unflatten),
)
_AROUND = (nn.Sequential.forward, Classifier.forward)


def worthwhile_threads(model: nn.Module, example: torch.Tensor, batch_size: int, most: int) -> int:
    """Return the number of threads to train a model with on CPUs.

    Parameters
    ----------
    model
        The model.
    example
        One example as the dataset stores it, shape (1, *shape); types other than int64 become float32.
    batch_size
        Examples per step.
    most
        Number of available threads.

    Returns
    -------
    A number in [1, most].
    """
    if most == 1:
        return 1
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            operations = _operations(model, example if example.dtype == torch.int64 else example.float())
    finally:
        model.train(training)
    return max(1, min(most, int(operations * batch_size / _OPERATIONS_PER_THREAD)))


def _operations(model: nn.Module, inputs: torch.Tensor) -> int:
    """Count a forward pass's multiplications and additions, those of matrix products and convolutions."""
    if not all(
        type(module) in (*_COUNTED, *_FREE) or type(module).forward in _AROUND for module in model.modules()
    ):
        # PyTorch's own counter knows every operation, and takes a second to import.
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            model(inputs)
        return counter.get_total_flops()
    counts: list[int] = []

    def count(weight: torch.Tensor, _module: nn.Module, _inputs: object, outputs: torch.Tensor) -> None:
        counts.append(2 * outputs.numel() // len(weight) * math.prod(weight.shape))

    counted = [module for module in model.modules() if isinstance(module, _COUNTED)]
    hooks = [module.register_forward_hook(partial(count, module.weight)) for module in counted]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)
