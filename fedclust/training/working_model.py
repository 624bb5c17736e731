"""The instance of the model that a trainer computes with.

Its Dropout and BatchNorm layers are replaced, so that a client's result is the same alone and in a cohort.
"""

import contextlib
import copy
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedclust.support.devices import thread_pool, torch_threads
from fedclust.training.parameters import Precision
from fedclust.typing import State

_MASK = 0xFFFFFFFF
_NO_KEY = torch.zeros((), dtype=torch.int64)


class StepContext:
    """The step that a prepared model is about to run; its layers hold a reference to it.

    Attributes
    ----------
    key
        Number of (run, round, client, step) that dropout derives its masks from, an int64 scalar below 2**32.
    real
        1.0 for the real examples of a padded batch, 0.0 for padding, shape (B,); None if all are real.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self, key: Tensor = _NO_KEY, real: Tensor | None = None) -> None:
        """Start a forward pass."""
        self.key, self.real, self._calls = key, real, 0

    def next_call(self) -> int:
        """Count the uses of random layers in this forward pass: 1, 2, ..."""
        self._calls += 1
        return self._calls


def scramble(numbers: Tensor) -> Tensor:
    """Map 32-bit numbers one to one to random-looking ones.

    Source: the integer hash of Wellons, "Prospecting for Hash Functions" (2018), with the constants found by
    TheIronBorn; both are below 2**31, so int64 products of 32-bit numbers never overflow.

    Parameters
    ----------
    numbers
        int64, in [0, 2**32).

    Returns
    -------
    int64, in [0, 2**32), same shape.
    """
    numbers = ((numbers ^ (numbers >> 16)) * 0x21F0AAAD) & _MASK
    numbers = ((numbers ^ (numbers >> 15)) * 0x735A2D97) & _MASK
    return numbers ^ (numbers >> 15)


def step_keys(seed: int, clients: Tensor, steps: int) -> Tensor:
    """Derive the keys of all steps of a cohort's clients; a step's random numbers derive from its key.

    Parameters
    ----------
    seed
        Derived from the run's seed, the purpose of the draw, and the round; >= 0.
    clients
        Client ids, int64, shape (n,).
    steps
        Number of steps S.

    Returns
    -------
    Keys, int64, in [0, 2**32), shape (n, S).
    """
    client_keys = scramble(clients ^ int(scramble(torch.tensor(seed & _MASK))))
    return scramble(client_keys[:, None] ^ torch.arange(steps, device=clients.device))


_PLAIN_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# One odd multiplier per dimension turns an index into a number that does not depend on the tensor's
# shape, so padding a batch does not change the numbers of its real elements. Digits of pi, made odd.
_MULTIPLIERS = (0x243F6A89, 0x05A308D3, 0x13198A2F, 0x03707345, 0x24093823, 0x299F31D1)


def prepare(model: nn.Module) -> tuple[nn.Module, StepContext]:
    """Copy a model and replace its Dropout and BatchNorm layers by those of this module.

    Names and shapes of parameters and buffers do not change. Subclasses of these layers are not replaced,
    as they may compute something else.

    Parameters
    ----------
    model
        Any module.

    Returns
    -------
    The copy, and the context to set before each of its forward passes.
    """
    context = StepContext()
    copied = copy.deepcopy(model)
    replaced: dict[nn.Module, nn.Module] = {}

    def replacement(module: nn.Module) -> nn.Module:
        if module not in replaced:
            if type(module) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
                replaced[module] = ClientDropout(module, context)
            elif isinstance(module, _BatchNorm) and type(module) in _PLAIN_NORMS:
                replaced[module] = ClientBatchNorm(module, context)
            else:
                replaced[module] = module
                # named_children would leave out the second name of a layer that has two.
                for name, child in list(module._modules.items()):
                    if child is not None and replacement(child) is not child:
                        setattr(module, name, replacement(child))
        return replaced[module]

    return replacement(copied), context


class ClientDropout(nn.Module):
    """Dropout whose masks are a function of (run, round, client, step, use in the forward pass, element).

    Parameters
    ----------
    dropout
        Layer to replace; channel-wise ones (``Dropout2d`` and so on) drop whole channels.
    context
        Holds the key of the step.
    """

    def __init__(self, dropout: nn.Module, context: StepContext) -> None:
        super().__init__()
        self.p = float(dropout.p)  # type: ignore[arg-type]
        self.channelwise = type(dropout) is not nn.Dropout
        self.train(dropout.training)
        self._context = context
        self._numbers: tuple[tuple[tuple[int, ...], torch.device], Tensor] | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Drop elements (or channels) of `values`, the batch being its first dimension, if in training."""
        if not self.training or self.p == 0.0:
            return values
        return values * self.factors(values.shape, self._context.key, self._context.next_call(), values.dtype)

    def factors(
        self, shape: Sequence[int], keys: Tensor, call: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Compute the factors of the values: 0 where dropped, 1 / (1 - p) elsewhere.

        Parameters
        ----------
        shape
            Shape of one client's values, batch first.
        keys
            Key of the client's step; or of n clients, shape (n, 1, ...) with as many ones as `shape` is long.
        call
            Number of this use of a dropout layer in the forward pass, from 1.
        dtype
            Type of the result.

        Returns
        -------
        Factors, broadcasting with `shape`, or with (n, *shape).
        """
        if self.channelwise:
            shape = (*shape[:2], *[1] * (len(shape) - 2))
        elements = scramble(self._element_numbers(tuple(shape), keys.device) ^ scramble(keys ^ call))
        scale = 0.0 if self.p == 1.0 else 1.0 / (1.0 - self.p)
        return (elements >= int(self.p * 2**32)).to(dtype) * scale

    def _element_numbers(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        if self._numbers is None or self._numbers[0] != (shape, device):
            total = torch.zeros((), dtype=torch.int64, device=device)
            for dim, size in enumerate(shape):
                index = torch.arange(size, device=device) * _MULTIPLIERS[dim % len(_MULTIPLIERS)]
                total = total + index.view(-1, *[1] * (len(shape) - dim - 1))
            self._numbers = (shape, device), scramble(total & _MASK)
        return self._numbers[1]


class ClientBatchNorm(_BatchNorm):
    """BatchNorm over the real examples of a padded batch.

    Equal to ``nn.BatchNorm*d`` on the real examples, running statistics included, with one exception: for
    a batch with a single value per channel (one example, no positions), which torch refuses, the running
    statistics are used and not changed. So a client whose last batch has one example can train.

    Parameters
    ----------
    norm
        Layer to replace; its parameters and buffers are reused.
    context
        Holds which examples are real.
    """

    def __init__(self, norm: _BatchNorm, context: StepContext) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(vars(norm))  # its numbers, parameters and buffers
        self._context = context

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept all shapes of the three replaced classes: (B, C) and (B, C, ...)."""
        if input.dim() < 2:
            raise ValueError(f"input must have at least 2 dimensions, got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise `input`, shape (B, C, ...), over its real examples in training."""
        real = self._context.real
        one_value = input.numel() == input.shape[1]
        # torch reads the counter of an unweighted average as a Python number, which vmap refuses.
        averages = self.track_running_stats and self.momentum is None
        alone = one_value and self.running_mean is None  # torch refuses it, in evaluation, too
        plain = not self.training or (real is None and not one_value and not averages)
        if plain and not alone:
            # vmap's BatchNorm of a GPU refuses bfloat16 inputs beside running statistics in float32.
            precise = torch.promote_types(input.dtype, torch.float32)
            return super().forward(input.to(precise)).to(input.dtype)
        return self._masked(input, input.new_ones(len(input)) if real is None else real)

    def _masked(self, input: Tensor, real: Tensor) -> Tensor:
        if len(real) != len(input):
            raise RuntimeError(
                f"BatchNorm needs the batch as first dimension, got {len(input)} of {len(real)} examples"
            )
        dims = [0, *range(2, input.dim())]
        channels = (1, -1, *[1] * (input.dim() - 2))
        values = input.to(torch.promote_types(input.dtype, torch.float32))  # sums in bfloat16 are too coarse
        weights = real.view(-1, *[1] * (input.dim() - 1)).to(values.dtype)
        count = real.sum() * (input[0, 0].numel())
        mean = (values * weights).sum(dims) / count
        centred = values - mean.view(channels)
        variance = (centred.square() * weights).sum(dims) / count
        several = count > 1
        counter = self.num_batches_tracked
        if self.running_mean is not None and self.running_var is not None and counter is not None:
            factor = self._factor(counter, several, self.running_mean.dtype)
            unbiased = variance.detach() * count / (count - 1).clamp(min=1)
            self.running_mean.add_(factor * (mean.detach() - self.running_mean))
            self.running_var.add_(factor * (unbiased - self.running_var))
            mean = torch.where(several, mean, self.running_mean)
            variance = torch.where(several, variance, self.running_var)
            centred = values - mean.view(channels)
        normalised = centred * torch.rsqrt(variance + self.eps).view(channels)
        if self.weight is not None:
            normalised = normalised * self.weight.view(channels) + self.bias.view(channels)
        return normalised.to(input.dtype)

    def _factor(self, counter: Tensor, several: Tensor, dtype: torch.dtype) -> Tensor:
        """Count the batch; return its weight in the running statistics: 0 if it has only one value."""
        counted = several.to(dtype)
        # Without momentum it is the plain average over all batches, including this one.
        factor = counted / (counter + 1) if self.momentum is None else counted * self.momentum
        counter.add_(several.to(counter.dtype))
        return factor


def only_last_layer(model: nn.Module) -> nn.Module:
    """Copy a model and freeze all parameters but those of its last layer.

    Parameters
    ----------
    model
        Any model. Its last layer is the module with the last trainable parameter, in order of definition.

    Raises
    ------
    ValueError
        If no parameter is trainable.
    """
    copied = copy.deepcopy(model)
    trainable = [name for name, parameter in copied.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("model must have a trainable parameter, all are frozen")
    last = trainable[-1].rpartition(".")[0]
    for name, parameter in copied.named_parameters():
        if name.rpartition(".")[0] != last:
            parameter.requires_grad_(False)
    return copied


_POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


def _gradient_in_layout(_: nn.Module, __: object, output: Tensor) -> None:
    """Have the gradient of a layer's output in the output's own layout.

    A flattened output's gradient is not, and pooling would copy its input, not the gradient, to suit it.
    """
    if output.requires_grad and output.is_contiguous(memory_format=torch.channels_last):
        output.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))


class WorkingModel:
    """A model on a device, built once and reused for every client and round.

    Parameters
    ----------
    model
        Architecture; copied, with Dropout and BatchNorm replaced as in :func:`prepare`.
    device
        Device to compute on.
    precision
        Arithmetic of the forward pass.

    Attributes
    ----------
    model
        The prepared copy.
    context
        The step that its layers are about to run.
    tensors
        Name to tensor for everything in the model's ``state_dict``; loading and training change them in
        place.
    trainable
        Parameters that require gradients, without duplicates.
    trainable_names
        A name in `tensors` for each of them.
    constant
        Names of the frozen parameters.
    changing
        All other names in `tensors`.
    mixes_rows
        Whether a row's output depends on its batch even in evaluation, as with a BatchNorm without running
        statistics (``track_running_stats=False``). A batch then holds rows of one client only.
    convolves
        Whether it has convolutions of images.
    nbytes
        Size of one client's model.
    tied
        Further names of tensors that have an earlier name, mapped to that name.
    """

    def __init__(self, model: nn.Module, device: torch.device, precision: Precision) -> None:
        self.device = device
        prepared, self.context = prepare(model)
        self.model = prepared.to(device)
        self.convolves = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        if self.convolves:
            # Convolutions are faster with this layout, on CPUs and GPUs; names, shapes and values are the
            # same.
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for module in self.model.modules():
                if type(module) in _POOLS:
                    module.register_forward_hook(_gradient_in_layout)
        norms = (module for module in self.model.modules() if isinstance(module, _BatchNorm))
        self.mixes_rows = any(norm.running_mean is None for norm in norms)
        self.tensors: dict[str, Tensor] = self.model.state_dict(keep_vars=True)
        trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        self.trainable_names, self.trainable = list(trained), list(trained.values())
        frozen = {id(parameter) for parameter in self.model.parameters() if not parameter.requires_grad}
        self.constant = {name for name, tensor in self.tensors.items() if id(tensor) in frozen}
        self.changing = [name for name in self.tensors if name not in self.constant]
        first = {id(tensor): name for name, tensor in reversed(self.tensors.items())}
        names = ((name, first[id(tensor)]) for name, tensor in self.tensors.items())
        self.tied = {name: earlier for name, earlier in names if name != earlier}
        self.nbytes = sum(self.tensors[name].nbytes for name in self.changing if name not in self.tied)
        # Every attribute that holds a tensor, listed once even if its module has two names: functional_call
        # restores attributes that are listed twice incorrectly.
        places: dict[tuple[int, str], str] = {}
        for name in self.tensors:
            owner, _, attribute = name.rpartition(".")
            places.setdefault((id(self.model.get_submodule(owner)), attribute), name)
        self._places = {name: self.tied.get(name, name) for name in places.values()}
        self._buffers = [
            (module, own, self.tensors[f"{prefix}.{own}".lstrip(".")])
            for prefix, module in self.model.named_modules()
            for own in module._buffers
            if f"{prefix}.{own}".lstrip(".") in self.tensors
        ]
        self._precision = precision

    @torch.no_grad()
    def copy_replaced_buffers(self) -> None:
        """Copy buffers that the model has replaced (``self.n = self.n + 1``) into `tensors`.

        Raises
        ------
        RuntimeError
            If a buffer has another shape now; its old value is kept.
        """
        for module, name, tensor in self._buffers:
            current = module._buffers[name]
            if current is not tensor:
                module._buffers[name] = tensor
                if current is not None:
                    tensor.copy_(current)

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy a model's state to the working tensors."""
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        for name, tensor in self.tensors.items():
            if name not in self.tied:
                tensor.copy_(state[name])

    def check(self, state: State, owner: str) -> None:
        """Check that a state fits the model.

        Raises
        ------
        ValueError
            If a name is missing or unknown, or a shape or type differs: a site clips changes of its own
            model's floats.
        """
        if state.keys() != self.tensors.keys():
            missing = sorted(self.tensors.keys() - state.keys())
            unknown = sorted(state.keys() - self.tensors.keys())
            raise ValueError(f"{owner}: state must have the model's tensors, lacks {missing}, has {unknown}")
        for name, tensor in self.tensors.items():
            if state[name].shape != tensor.shape:
                raise ValueError(
                    f"{owner}: {name!r} must have shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}"
                )
            if state[name].dtype != tensor.dtype:
                rule = str(tensor.dtype).removeprefix("torch.")
                got = str(state[name].dtype).removeprefix("torch.")
                raise ValueError(f"{owner}: {name!r} must be of type {rule}, got {got}")

    def forward(
        self,
        inputs: Tensor,
        key: Tensor | None = None,
        real: Tensor | None = None,
        tensors: State | None = None,
    ) -> Tensor:
        """Run the model; in training, for the step with dropout key `key`.

        Parameters
        ----------
        inputs
            A batch.
        key
            Dropout key, a scalar; None in evaluation.
        real
            1.0 for real examples, 0.0 for padding, shape (B,); None when all are real.
        tensors
            Parameters and buffers to use in place of the working ones, by name; `tied` names are not read.

        Returns
        -------
        Logits.
        """
        if key is not None:
            self.context.begin(key, real)
        # One context per pass: autocast keeps its bfloat16 copies of the weights until the context ends.
        with self._autocast():
            if tensors is None:
                logits = self.model(inputs)
            else:
                placed = {name: tensors[first] for name, first in self._places.items()}
                before = dict(placed) if self._buffers else placed
                logits = functional_call(self.model, placed, (inputs,), tie_weights=False)
                # functional_call leaves in `placed` the tensors with which the model replaced a buffer.
                for name, tensor in before.items():
                    if placed[name] is not tensor:
                        tensor.copy_(placed[name].detach())
        # Under vmap and torch.compile the tensors of a step must not outlive its forward pass.
        self.context.begin()
        return logits

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        if self._precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Set torch's global settings (matrix precision on GPUs, random state), and restore them afterwards.

        The random state is used by layers that draw random numbers themselves, such as dropout inside an
        LSTM; see :meth:`seed`.
        """
        cuda = self.device.type == "cuda"
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        with torch.random.fork_rng(devices=[self.device] if cuda else []):
            if cuda:
                allowed = self._precision != "float32"
                torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
            try:
                yield
            finally:
                if cuda:
                    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    def seed(self, number: int) -> None:
        """Seed torch's own generator of the device, inside :meth:`settings`."""
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):  # otherwise the first GPU's generator would be seeded
                torch.cuda.manual_seed(number)


# -- Threads ------------------------------------------------------------------------------------------------

T = TypeVar("T")
R = TypeVar("R")

# CPU seconds of a step that justify one more thread; Python takes about 0.3 ms of them. Measured on two cores
# for networks of 50,000 to 1.8 million parameters: two threads take as long as one with steps of 0.5 ms, 0.75
# times as long with 0.8 ms and 0.55 times with 2 ms and more.
_SECONDS_PER_LANE = 4e-4


class Lanes:
    """Threads, each with a copy of the model, that compute for several clients at once.

    During a long step, Python has time to start the steps of other clients: on two cores, two clients of a
    convolutional network train twice as fast on two threads as one after the other, and faster than with two
    threads inside every operation, which wait for each other. With short steps, threads only wait for
    Python's lock. The number of threads depends on measured times, but does not change how an item is
    computed.

    Parameters
    ----------
    working
        The model; the calling thread uses it.
    most
        Largest number of threads, >= 1; always one on a GPU.

    Attributes
    ----------
    working
        The calling thread's model.
    most
        Largest number of threads.
    """

    def __init__(self, working: WorkingModel, most: int) -> None:
        self.working = working
        self.most = most if working.device.type == "cpu" else 1
        # Copied now, because a module that stores a result of its forward pass can no longer be copied.
        self._template = copy.deepcopy(working) if self.most > 1 else working
        self._models = [working]
        self._seconds: dict[Hashable, float] = {}

    def each(
        self,
        kind: Hashable,
        work: Callable[[WorkingModel, T], R],
        items: Sequence[T],
        steps: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[R]:
        """Call a function for every item, on as many threads as are worthwhile.

        Parameters
        ----------
        kind
            Kind of the items; steps of one kind have similar cost.
        work
            Function of a model and an item.
        items
            The items; started in this order.
        steps
            Number of steps of each item, >= 1; None if each has one.
        seeds
            Seed of torch's own generator for each item, for models that draw from it, which use one thread
            only. None if nothing can be drawn.

        Returns
        -------
        The results of `work`, in the order of `items`.
        """
        results: list[R | None] = [None] * len(items)
        waiting = iter(range(len(items)))  # a thread takes the next item when it has finished one

        def do(model: WorkingModel, index: int) -> None:
            start = time.thread_time()  # does not count waiting for a core or for Python's lock
            results[index] = work(model, items[index])
            seconds = (time.thread_time() - start) / (steps[index] if steps else 1)
            self._seconds[kind] = min(seconds, self._seconds.get(kind, seconds))

        def serve(model: WorkingModel) -> None:
            try:
                for index in waiting:
                    do(model, index)
            finally:
                deque(waiting, maxlen=0)  # after an error, leave nothing for the other threads

        def serve_alone(most: int | None = None) -> None:
            for index in itertools.islice(waiting, most):
                before = None
                if seeds is not None:
                    self.working.seed(seeds[index])
                    before = torch.get_rng_state() if self.most > 1 else None
                do(self.working, index)
                if before is not None and not torch.equal(before, torch.get_rng_state()):
                    self.most = 1  # several threads would draw from one generator in any order

        # Not from the number of lanes: rounding would then depend on measured times.
        inside = max(1, torch.get_num_threads() // max(1, min(self.most, len(items))))
        with torch_threads(inside):
            if kind not in self._seconds:
                serve_alone(1)
            worthwhile = int(self._seconds.get(kind, 0.0) / _SECONDS_PER_LANE)
            lanes = max(1, min(self.most, len(items), worthwhile))
            if lanes == 1:
                serve_alone()
            else:
                self._models += [copy.deepcopy(self._template) for _ in range(lanes - len(self._models))]
                with thread_pool(lanes, inside) as pool:
                    try:
                        list(pool.map(serve, self._models[:lanes]))
                    finally:
                        deque(waiting, maxlen=0)  # after an interrupt, too, the threads must stop early
        return results  # type: ignore[return-value]  # every item has been done
