"""The networks' base class, and functions to build configured networks with weights set by the seed."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Annotated, Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedclust.support.checks import few
from fedclust.support.hydra_versions import TRUSTED
from fedclust.support.rng import torch_seed

Size = Annotated[int, ">= 1"]
Sizes = Annotated[Sequence[int], "numbers >= 1"]


class WeightsError(ValueError):
    """Weights are not those of the network that they are for."""


def image_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape of an image; raise ValueError if it is not three numbers, each at least 1."""
    channels, height, width = _sizes(input_shape, "(channels, height, width)", 3)
    return channels, height, width


def num_positions(input_shape: Sequence[int]) -> int:
    """Return the length of a sequence of tokens; raise ValueError if it is not one number, at least 1."""
    return _sizes(input_shape, "(positions,)", 1)[0]


def num_columns(input_shape: Sequence[int]) -> int:
    """Count the numbers in one example; raise ValueError if the shape is empty or a size is below 1."""
    return prod(_sizes(input_shape, "one or more sizes", len(input_shape) or 1))


def _sizes(input_shape: Sequence[int], wanted: str, number: int) -> Sequence[int]:
    if len(input_shape) != number or min(input_shape) < 1:
        raise ValueError(f"input_shape must be {wanted}, each >= 1, got {tuple(input_shape)}")
    return input_shape


def build(config: Mapping[str, Any], seed: int) -> nn.Module:
    """Build a network.

    Parameters
    ----------
    config
        A resolved ``model:`` node: ``_target_`` and its arguments.
    seed
        The run's seed, >= 0. The same seed always gives the same initial weights.

    Returns
    -------
    The network, on the CPU, in training mode.

    Raises
    ------
    TypeError
        If the target does not build a ``torch.nn.Module``.
    ValueError
        If the seed is negative or the arguments are invalid, such as an image too small for the pooling.
    """
    model: nn.Module = construct(config, nn.Module, "model", seed)
    return model.train()


def build_for(
    config: Mapping[str, Any], seed: int, weights: Mapping[str, Sequence[int]], partial: bool = False
) -> nn.Module:
    """Build a network for weights that there are; one that they do not fit takes no memory.

    Parameters
    ----------
    config, seed
        As for :func:`build`.
    weights
        Shape of each array, by name.
    partial
        Whether the network may have further arrays.

    Raises
    ------
    WeightsError
        If the weights are not the network's; else as :func:`build`.

    Examples
    --------
    >>> huge = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 10**9}
    >>> build_for(huge, 0, {"weight": (3, 2), "bias": (3,)})
    Traceback (most recent call last):
        ...
    fedclust.models.construction.WeightsError: weight must have shape (1000000000, 2), got (3, 2)
    """
    with suppress(NotImplementedError), torch.device("meta"):  # on which there are no values to compute with
        wanted = {name: tuple(each.shape) for name, each in build(config, seed).state_dict().items()}
        there = {name: tuple(each) for name, each in weights.items()}
        more, less = sorted(there.keys() - wanted.keys()), sorted(wanted.keys() - there.keys())
        if more or (less and not partial):
            listed = f"unexpected are {few(more) or 'none'}, missing {few(less) or 'none'}"
            raise WeightsError(f"weights must be the network's: {listed}")
        for name, shape in there.items():
            if shape != wanted[name]:
                raise WeightsError(f"{name} must have shape {wanted[name]}, got {shape}")
    return build(config, seed)


def check_outputs(model: nn.Module, example: Tensor, labels: Tensor, num_classes: int) -> int:
    """Check with one example, taken twice, that a network accepts the data and has outputs enough.

    Parameters
    ----------
    model
        The network; it is not changed.
    example
        One example as the dataset stores it, shape (1, *shape), or (0, *shape) for none, which passes; types
        other than int64 are converted to float32.
    labels
        Its labels, shape (1,) or (1, positions).
    num_classes
        Number of outputs C that the data need: of classes, or of intervals of time.

    Returns
    -------
    How many outputs the network has; `num_classes` without an example.

    Raises
    ------
    ValueError
        If the network raises on the example, or returns anything but a tensor with at least C outputs for
        each label; if it has numbers that no message holds, such as complex ones, or that are not finite, or
        nothing to train.
    """
    for name, each in model.state_dict().items():
        if each.dtype not in _SENT:
            kinds = "float16, float32, float64, whole numbers or truth values"
            raise ValueError(
                f"model must hold {kinds}, got {name} of {each.dtype}; model.float() makes float32"
            )
        if not is_lazy(each) and not each.isfinite().all():
            raise ValueError(f"model must be finite, array {name!r} is not")
    if not any(each.requires_grad for each in model.parameters()):
        raise ValueError("model must have a parameter to train, got none with requires_grad=True")
    if not len(example):
        return num_classes
    training = model.training
    # A copy, as the network may change it; two rows, as BatchNorm without running statistics needs.
    inputs = torch.cat([example, example])
    try:
        with torch.no_grad():
            outputs: Any = model.eval()(inputs if inputs.dtype == torch.int64 else inputs.float())
    # The model is the user's code.
    except Exception as error:
        rule = f"model must take examples of shape {tuple(example.shape[1:])}"
        tokens = "; whole numbers are tokens, as for model=embedding_lstm, other inputs are float32"
        hint = tokens if inputs.dtype == torch.int64 else "; inputs are float32"
        raise ValueError(f"{rule}, it raises {type(error).__name__}: {error}{hint}") from error
    finally:
        model.train(training)
    wanted_shape = [len(inputs), *labels.shape[1:]]
    whole = isinstance(outputs, Tensor) and not outputs.is_floating_point()  # nothing to learn from
    if not isinstance(outputs, Tensor) or whole or list(outputs.shape[:-1]) != wanted_shape:
        got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        got = f"{got} of type {outputs.dtype}" if whole else got
        rule = f"model must return a tensor of shape {[*wanted_shape, num_classes]}, {_PER_OUTPUT}"
        each = (
            "with a class index each" if labels.dim() == 1 else f"with {labels.shape[1]} class indices each"
        )
        raise ValueError(f"{rule}, for {len(inputs)} examples {each}, got {got}")
    if outputs.shape[-1] < num_classes:
        rule = f"model must have >= {num_classes} outputs (model.num_classes), {_PER_OUTPUT}"
        raise ValueError(f"{rule}, got {outputs.shape[-1]}")
    return outputs.shape[-1]


_WHOLE = torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
_SENT = {*_WHOLE, torch.float16, torch.float32, torch.float64}
_PER_OUTPUT = "an output per class, amount or interval of time"


def construct(config: Mapping[str, Any], kind: Any, name: str, seed: int) -> Any:
    """Call a node's ``_target_`` with the node's other values; nested nodes are passed unchanged.

    Parameters
    ----------
    config
        The node.
    kind
        Required class of the result.
    name
        The node's name; together with `seed` it determines all random numbers. No other random state changes.

    Raises
    ------
    TypeError
        If the result is something else.
    ValueError
        If the target raises one; its message is kept, without Hydra's.
    """
    try:
        with seeded(seed, name):
            built = instantiate(config, _recursive_=False, _convert_="all", **TRUSTED)
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        if isinstance(error.__cause__, ImportError):
            target = config.get("_target_")
            raise ValueError(
                f"{name}._target_ must be importable, got {target}: {error.__cause__}"
            ) from error
        raise
    if "_target_" not in config:
        raise ValueError(
            f"{name} must have a _target_, the class or function to call, got {', '.join(config)}"
        )
    if not isinstance(built, kind):
        got = f"got {type(built).__name__} from {config.get('_target_')}"
        raise TypeError(f"{name}._target_ must build an object of class {kind.__name__}, {got}")
    return built


def reinitialised(model: nn.Module, seed: int) -> nn.Module:
    """Copy a network and redraw its weights with each layer's own ``reset_parameters``; what is frozen stays.

    That is each parameter that does not require a gradient, and the buffers of layers of which none does.

    Parameters
    ----------
    model
        The network; it is not changed.
    seed
        The same seed gives the same weights.

    Raises
    ------
    ValueError
        If a parameter's module has no ``reset_parameters``; the message names the module.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    >>> drawn = reinitialised(network, 0)
    >>> [torch.equal(old.weight, new.weight) for old, new in zip(network, drawn)]
    [True, False]
    """
    drawn = copy.deepcopy(model)
    frozen = {name for name, each in model.named_parameters(remove_duplicate=False) if not each.requires_grad}
    with seeded(seed, "reinitialised"):
        for name, module in drawn.named_modules():
            own = list(module.parameters(recurse=False))
            around, part = own, name  # a layer without parameters is as the part of the network that it is in
            while part and not around:
                part = part.rpartition(".")[0]
                around = list(drawn.get_submodule(part).parameters())
            if around and not any(each.requires_grad for each in around):
                frozen |= {
                    f"{name}.{buffer}".lstrip(".") for buffer, _ in module.named_buffers(recurse=False)
                }
            elif hasattr(module, "reset_parameters"):
                module.reset_parameters()
            elif own:
                kind = type(module).__name__
                raise ValueError(f"module {name or kind!r} must have reset_parameters, a {kind} has none")
    before = model.state_dict()  # a module may reset those within it, too
    drawn.load_state_dict(
        {name: before[name] if name in frozen else each for name, each in drawn.state_dict().items()}
    )
    return drawn


@contextmanager
def seeded(seed: int, purpose: str) -> Iterator[None]:
    """Seed torch's global CPU generator inside the context and restore its state afterwards.

    Layers draw their initial weights from that generator only.
    """
    # Not torch.manual_seed, which also reseeds the GPUs' generators.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, purpose))
        yield


def last_layer(network: nn.Module) -> frozenset[str]:
    """List the names of the last layer's arrays: those of the last module that has parameters of its own.

    "Last" refers to the order in which the network defines its modules.

    Raises
    ------
    ValueError
        If the network has no parameters.
    """
    own = [pair for pair in network.named_modules() if any(True for _ in pair[1].parameters(recurse=False))]
    if not own:
        raise ValueError(f"network must have parameters, a {type(network).__name__} has none")
    name, module = own[-1]
    return frozenset(f"{name}.{key}".lstrip(".") for key in module.state_dict() if "." not in key)


class Classifier(nn.Module):
    """A body that computes features and a linear head that scores classes.

    Parameters
    ----------
    body
        Maps a batch of inputs to features, shape (B, width) or (B, positions, width).
    width
        Length of a feature vector.
    num_classes
        Number of classes C, or of outputs for another target, see :mod:`fedclust.data.targets`.

    Raises
    ------
    ValueError
        If there is no class.
    """

    def __init__(self, body: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes must be >= 1, got {num_classes}")
        self.body = body
        self.head = nn.Linear(width, num_classes)

    @property
    def width(self) -> int:
        """Length of a feature vector."""
        return self.head.in_features

    def features(self, inputs: Tensor) -> Tensor:
        """Compute the input of the head, shape (B, width) or (B, positions, width)."""
        features: Tensor = self.body(inputs)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the logits, shape (B, C) or (B, positions, C)."""
        logits: Tensor = self.head(self.body(inputs))
        return logits
