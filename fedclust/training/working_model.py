"""The one instance of the model that a trainer computes with."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from fedclust.training.layers import prepare
from fedclust.training.parameters import Precision
from fedclust.typing import State

__all__ = ["WorkingModel"]


class WorkingModel:
    """A model on a device, its tensors at hand, built once and reused for every client and round.

    Parameters
    ----------
    model
        Architecture; copied, with Dropout and BatchNorm replaced as in :mod:`fedclust.training.layers`.
    device
        Where to compute.
    precision
        Arithmetic of the forward pass.

    Attributes
    ----------
    model
        The prepared copy.
    context
        What its layers know of the step.
    tensors
        Name to tensor for everything in the model's ``state_dict``; loading and training change them in
        place.
    trainable
        Parameters that require gradients, without repetitions.
    trainable_names
        A name in `tensors` for each of them.
    """

    def __init__(self, model: nn.Module, device: torch.device, precision: Precision) -> None:
        self.device = device
        prepared, self.context = prepare(model)
        self.model = prepared.to(device)
        if any(isinstance(module, nn.Conv2d) for module in self.model.modules()):
            # Convolutions read this layout faster, on CPUs and GPUs; names, shapes and values are the same.
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.tensors: dict[str, torch.Tensor] = self.model.state_dict(keep_vars=True)
        pairs = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.trainable_names = [name for name, _ in pairs]
        self.trainable: list[torch.Tensor] = [parameter for _, parameter in pairs]
        self._precision = precision

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy a model's state into the working tensors."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])

    def check(self, state: State, owner: str) -> None:
        """Refuse a state that does not fit the model.

        Raises
        ------
        ValueError
            If a name is missing or too many, or a shape differs.
        """
        if state.keys() != self.tensors.keys():
            missing = sorted(self.tensors.keys() - state.keys())
            unknown = sorted(state.keys() - self.tensors.keys())
            raise ValueError(f"{owner}: state must name the model's tensors, lacks {missing}, has {unknown}")
        for name, tensor in self.tensors.items():
            if state[name].shape != tensor.shape:
                raise ValueError(
                    f"{owner}: {name!r} must have shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}"
                )

    def forward(
        self, inputs: torch.Tensor, key: torch.Tensor | None = None, real: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Run the model, in training for the step with dropout key `key` and real examples `real`."""
        if key is not None:
            self.context.begin(key, real)
        if self._precision != "bf16":
            return self.model(inputs)
        # One region per pass: autocast keeps its bfloat16 copies of the weights until the region ends.
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return self.model(inputs)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """Set what is global in torch, and set it back: matrix precision on GPUs, the random state.

        The random state matters to layers that draw by themselves, such as dropout inside an LSTM; see
        :meth:`seed`.
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
        """Seed torch's own generator of the device, inside a settings."""
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(number)
