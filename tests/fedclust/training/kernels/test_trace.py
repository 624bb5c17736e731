"""Which steps may be recorded, and the reasons why others may not."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedclust.training.kernels.trace import NotRecordable, check_recordable

CPU = torch.device("cpu")


class Model(nn.Module):
    """A linear layer, and whatever `change` does with the model and the outputs."""

    def __init__(
        self, change: Callable[[Any, torch.Tensor], torch.Tensor] = lambda _, outputs: outputs
    ) -> None:
        super().__init__()
        self.head, self.change = nn.Linear(3, 2), change
        self.calls = 0
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.change(self, self.head(inputs))


def steps_of(model: nn.Module, rate: float | torch.Tensor = 0.1) -> Callable[[], None]:
    inputs = torch.linspace(-1, 1, 12).view(4, 3)

    def step() -> None:
        parameters = list(model.parameters())
        found = torch.autograd.grad(model(inputs).square().sum(), parameters, materialize_grads=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter.sub_(rate * gradient)

    return step


def replaced(model: Any, outputs: torch.Tensor) -> torch.Tensor:
    model.count = model.count + 1
    return outputs


def counted(model: Any, outputs: torch.Tensor) -> torch.Tensor:
    model.calls += 1
    return outputs


def kept(model: Any, outputs: torch.Tensor) -> torch.Tensor:
    model.last = outputs
    return outputs


def branching(_: Any, outputs: torch.Tensor) -> torch.Tensor:
    return outputs if outputs.sum() > 0 else -outputs


def chosen(_: Any, outputs: torch.Tensor) -> torch.Tensor:
    return outputs[outputs > 0]


def scaled_by_python(_: Any, outputs: torch.Tensor) -> torch.Tensor:
    return outputs * random.random()


def drawn(_: Any, outputs: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(outputs, 0.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replaced, r"the model replaces its attribute 'count' at every step"),
        (counted, r"the model replaces its attribute 'calls' at every step"),
        (kept, r"the model replaces its attribute 'last' at every step"),
        (branching, r"the model or the loss reads values of tensors \(_local_scalar_dense\)"),
        (chosen, r"the model or the loss reads values of tensors \(index\)"),
        (scaled_by_python, r"two steps differ by more than the values of tensors \(mul\)"),
        (drawn, r"the model or the loss draws from PyTorch's generator"),
    ],
)
def test_what_cannot_be_recorded(change: Any, reason: str) -> None:
    model = Model(change)
    with pytest.raises(NotRecordable, match=f"^{reason}$"):
        check_recordable(model, steps_of(model), CPU)


def updated_in_place(model: Any, outputs: torch.Tensor) -> torch.Tensor:
    model.count += 1
    return outputs / model.count


def filled_once(model: Any, outputs: torch.Tensor) -> torch.Tensor:
    if model.calls == 0:
        model.calls = 1
        model.mask = torch.tensor([1.0, 0.0])
    return outputs * model.mask


@pytest.mark.parametrize("change", [lambda _, outputs: outputs, updated_in_place, filled_once])
def test_what_can(change: Any) -> None:
    model = Model(change)
    check_recordable(model, steps_of(model), CPU)


def test_a_number_that_changes_between_steps_must_be_a_tensor() -> None:
    # Adam's bias correction: 1 - 0.9^t is 0.1, 0.19, 0.271 in the first three steps.
    def adam(count: int | torch.Tensor) -> Callable[[], None]:
        model, steps = Model(), [count]

        def step() -> None:
            steps[0] += 1
            steps_of(model, 1 - 0.9 ** steps[0])()

        return step

    with pytest.raises(NotRecordable, match=r"^two steps differ by more than the values of tensors \(mul\)$"):
        check_recordable(Model(), adam(0), CPU)
    check_recordable(Model(), adam(torch.zeros((), dtype=torch.float64)), CPU)


def test_dropout_inside_of_a_recurrent_layer() -> None:
    model = nn.Sequential(nn.LSTM(3, 2, num_layers=2, dropout=0.1))
    with pytest.raises(NotRecordable, match=r"dropout inside of LSTM '0' draws from PyTorch's generator"):
        check_recordable(model, lambda: None, CPU)


def test_a_tensor_on_the_host_is_refused_but_not_a_number() -> None:
    # Without a GPU the device is "meta", whose tensors have no values; the CPU is the host then.
    meta = torch.device("meta")
    values = torch.zeros(2, device=meta)
    check_recordable(Model(), lambda: values.mul_(torch.tensor(2.0)), meta)
    with pytest.raises(NotRecordable, match=r"copies tensors from the host \(copy_\)"):
        check_recordable(Model(), lambda: values.copy_(torch.zeros(2)), meta)
    with pytest.raises(NotRecordable, match=r"copies tensors from the host \(_to_copy\)"):
        check_recordable(Model(), lambda: torch.tensor(2.0).to("meta"), meta)
    check_recordable(Model(), lambda: torch.zeros(2).add_(1), meta)
    numbers = iter([1.0, 2.0, 3.0])
    with pytest.raises(
        NotRecordable, match=r"two steps differ by more than the values of tensors \(lift_fresh\)"
    ):
        check_recordable(Model(), lambda: values.mul_(torch.tensor(next(numbers))), meta)


def test_what_a_step_reads_is_kept() -> None:
    model = Model(filled_once)
    read = check_recordable(model, steps_of(model), CPU)
    places = {tensor.untyped_storage().data_ptr() for tensor in read}
    wanted = [model.head.weight, model.head.bias, model.mask]
    assert {tensor.untyped_storage().data_ptr() for tensor in wanted} <= places
    made = model(torch.ones(1, 3))
    assert made.untyped_storage().data_ptr() not in places
