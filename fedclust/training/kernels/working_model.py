"""The instance of the model that a trainer computes with."""

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedclust.training.kernels.layers import prepare
from fedclust.training.parameters import Precision
from fedclust.typing import State

__all__ = ["WorkingModel"]


class WorkingModel:
    """A model on a device, built once and reused for every client and round.

    Parameters
    ----------
    model
        Architecture; copied, with Dropout and BatchNorm replaced as in :mod:`.layers`.
    device
        Where to compute.
    precision
        Arithmetic of the forward pass.

    Attributes
    ----------
    model
        The prepared copy.
    context
        What its layers know about the step.
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
        Whether a row's output depends on the batch that it is in, in evaluation, too: a BatchNorm without
        running statistics (``track_running_stats=False``). A batch is then of one client.
    tied
        Second names of tensors that the model also has under an earlier name, to that name.
    """

    def __init__(self, model: nn.Module, device: torch.device, precision: Precision) -> None:
        self.device = device
        prepared, self.context = prepare(model)
        self.model = prepared.to(device)
        if any(isinstance(module, nn.Conv2d) for module in self.model.modules()):
            # Convolutions read this layout faster, on CPUs and GPUs; names, shapes and values are the same.
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.mixes_rows = any(
            isinstance(module, _BatchNorm) and module.running_mean is None for module in self.model.modules()
        )
        self.tensors: dict[str, torch.Tensor] = self.model.state_dict(keep_vars=True)
        pairs = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.trainable_names = [name for name, _ in pairs]
        self.trainable: list[torch.Tensor] = [parameter for _, parameter in pairs]
        self.constant = {
            name
            for name, tensor in self.tensors.items()
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        }
        self.changing = [name for name in self.tensors if name not in self.constant]
        first_names: dict[int, str] = {}
        for name, tensor in self.tensors.items():
            first_names.setdefault(id(tensor), name)
        names = ((name, first_names[id(tensor)]) for name, tensor in self.tensors.items())
        self.tied = {name: first for name, first in names if name != first}
        # Every attribute that holds a tensor, listed once even if its module has two names:
        # functional_call would restore an attribute listed twice wrongly.
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

    def batch_keys(self, states: Sequence[State]) -> list[Hashable]:
        """Return a key for each job: rows of jobs with the same key may share a batch in evaluation.

        Parameters
        ----------
        states
            The model of each job. Those that are one object share a key, unless the model mixes rows.
        """
        return [(id(state), place if self.mixes_rows else 0) for place, state in enumerate(states)]

    @property
    def nbytes(self) -> int:
        """Size of one client's model."""
        return sum(self.tensors[name].nbytes for name in self.changing if name not in self.tied)

    @torch.no_grad()
    def copy_replaced_buffers(self) -> None:
        """Copy buffers that the model has replaced (``self.n = self.n + 1``) into `tensors`.

        Raises
        ------
        RuntimeError
            If one has another shape now; its old value is kept.
        """
        for module, name, tensor in self._buffers:
            current = module._buffers[name]
            if current is not tensor:
                module._buffers[name] = tensor
                if current is not None:
                    tensor.copy_(current)

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy a model's state into the working tensors."""
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        for name, tensor in self.tensors.items():
            if name not in self.tied:
                tensor.copy_(state[name])

    def check(self, state: State, owner: str) -> None:
        """Refuse a state that does not fit the model.

        Raises
        ------
        ValueError
            If a name is missing or unknown, or a shape differs.
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

    def forward(
        self,
        inputs: torch.Tensor,
        key: torch.Tensor | None = None,
        real: torch.Tensor | None = None,
        tensors: State | None = None,
    ) -> torch.Tensor:
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
        # One region per pass: autocast keeps its bfloat16 copies of the weights until the region ends.
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
        self.context.end()
        return logits

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        if self._precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Set torch's global settings, and restore them: matrix precision on GPUs, the random state.

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
            with torch.cuda.device(self.device):  # not the first GPU's where another computes
                torch.cuda.manual_seed(number)
