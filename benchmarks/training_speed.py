"""Clients trained per second by the trainer alone, several ways, interleaved in one run.

    python benchmarks/training_speed.py [--rounds 12] [--setting digits cnn] [--device cpu] [--write]
    python benchmarks/training_speed.py --device cuda [--setting digits cnn resnet18]

Settings: ``digits``, a 64-64-10 network, 100 clients of 10 to 26 examples, 5 epochs, batches of 16;
``cnn``, 28x28 images, convolutions 8-16-32 with pooling and a dense layer of 2048, 20 clients of 480
examples, 1 epoch, batches of 32; ``resnet18``, 32x32x3 images, ResNet-18 with the CIFAR stem, 20 clients of
500 examples, 1 epoch, batches of 64. Data are random: only their shapes matter here. The plain loop and the
bare vmapped loop get prepared batches; fedclust draws and gathers its own. All use one thread unless a row
says otherwise.
"""

import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import arguments, in_turns, machine, rates, show
from torch import nn
from torch.func import functional_call, grad_and_value, replace_all_batch_norm_modules_, vmap
from torch.nn import functional

from fedclust.data.dataset import FederatedData
from fedclust.models.images import ResNet18
from fedclust.training import LocalTraining
from fedclust.training.cohort import Batches, Job, ModelMean, draw_batches
from fedclust.training.trainer import Trainer


def digits_model() -> nn.Module:
    """Build the 64-64-10 network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn_model() -> nn.Module:
    """Build the convolutional network."""
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(288, 2048), nn.ReLU(), nn.Linear(2048, 10))


def resnet18_model() -> nn.Module:
    """Build ResNet-18 for images of 32 × 32."""
    return ResNet18(input_shape=[3, 32, 32], num_classes=10, stem="cifar")


def federation(sizes: list[int], side: int, channels: int = 1) -> FederatedData:
    """Make clients of random images."""
    draws = np.random.default_rng(0)
    total = sum(sizes)
    return FederatedData(
        name="random",
        inputs=torch.from_numpy(draws.integers(0, 256, (total, channels, side, side), dtype=np.uint8)),
        labels=torch.from_numpy(draws.integers(0, 10, total)),
        train=tuple(np.split(np.arange(total), np.cumsum(sizes)[:-1])),
        test=tuple(np.zeros(0, dtype=np.int64) for _ in sizes),
        num_classes=10,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        groups=None,
        class_names=tuple("0123456789"),
        fingerprint="random",
    )


def plain_loop(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    batches: Batches,
    lr: float,
    *,
    bf16: bool = False,
) -> None:
    """Train as a tutorial does: a new torch.optim optimiser for each client, under autocast with `bf16`."""
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for index, steps in enumerate(batches.steps):
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=lr)
        for step in range(steps):
            rows = torch.from_numpy(batches.rows[index, step, : batches.sizes[index, step]]).to(inputs.device)
            optimiser.zero_grad()
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16):
                loss = functional.cross_entropy(model(inputs[rows]), labels[rows])
            loss.backward()
            optimiser.step()
    model.load_state_dict(start)


def bare_vmap(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, batches: Batches, lr: float
) -> None:
    """Train all clients at once, each for the same number of full batches."""
    n, steps, _ = batches.rows.shape
    parameters = {
        name: tensor.detach().expand(n, *tensor.shape).clone() for name, tensor in model.named_parameters()
    }
    weights = torch.from_numpy(
        (np.arange(batches.rows.shape[2]) < batches.sizes[:, :, None])
        / np.maximum(batches.sizes[:, :, None], 1)
    ).to(inputs.device, torch.float32)

    def loss(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        logits = functional_call(model, own, (x,))
        return (functional.cross_entropy(logits, y, reduction="none") * w).sum()

    step_of_all = vmap(grad_and_value(loss))
    for step in range(steps):
        rows = torch.from_numpy(batches.rows[:, step]).to(inputs.device)
        gradients, _ = step_of_all(parameters, inputs[rows], labels[rows], weights[:, step])
        torch._foreach_add_(list(parameters.values()), list(gradients.values()), alpha=-lr)


def compiled_loop(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, batches: Batches, lr: float
) -> None:
    """Train like the plain loop, the whole step compiled, update included; batches must all be full."""
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    names = [name for name, _ in model.named_parameters()]

    def loss(parameters: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        own = dict(zip(names, parameters, strict=True))
        return functional.cross_entropy(functional_call(model, own, (x,)), y)

    @torch.compile
    def update(parameters: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> None:
        gradients, _ = grad_and_value(loss)(parameters, x, y)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=lr)

    for index, steps in enumerate(batches.steps):
        own = [
            parameter.detach().clone(memory_format=torch.preserve_format) for parameter in model.parameters()
        ]
        for step in range(steps):
            rows = torch.from_numpy(batches.rows[index, step, : batches.sizes[index, step]])
            update(own, inputs[rows], labels[rows])


@dataclass(frozen=True)
class Setting:
    """A model, the number of each client's examples, their shape, and hyperparameters."""

    model: Callable[[], nn.Module]
    sizes: list[int]
    side: int
    channels: int
    options: dict[str, Any]


SETTINGS = {
    "digits": Setting(
        digits_model,
        np.random.default_rng(1).integers(10, 27, 100).tolist(),
        side=8,
        channels=1,
        options={"learning_rate": 0.1, "batch_size": 16, "epochs": 5},
    ),
    "cnn": Setting(
        cnn_model,
        [480] * 20,
        side=28,
        channels=1,
        options={"learning_rate": 0.05, "batch_size": 32, "epochs": 1},
    ),
    "resnet18": Setting(
        resnet18_model,
        [500] * 20,
        side=32,
        channels=3,
        options={"learning_rate": 0.01, "batch_size": 64, "epochs": 1},
    ),
}


def measure(name: str, rounds: int, device: str, write: Path | None) -> None:
    """Time one setting and show its table."""
    setting, on_gpu = SETTINGS[name], device != "cpu"
    model, data = setting.model(), federation(setting.sizes, setting.side, setting.channels)
    options = setting.options
    # On the device, as a trainer's answers are in training.
    state = {key: tensor.clone().to(device) for key, tensor in model.state_dict().items()}
    jobs = [Job(client, rows, state) for client, rows in enumerate(data.train)]
    training = LocalTraining(**options)
    inputs, labels = ((data.inputs / 255 - 0.5) / 0.25).to(device), data.labels.to(device)
    batches = draw_batches(range(len(jobs)), data.train, training, 0, 1)

    def bare(loop: Callable[..., None], **more: bool) -> Callable[[int], None]:
        own = copy.deepcopy(model).to(device)
        if loop is bare_vmap:  # which cannot map over running statistics
            replace_all_batch_norm_modules_(own)
        return lambda _: loop(own, inputs, labels, batches, training.learning_rate, **more)

    def trainer(mode: str, threads: int = 1, **more: Any) -> Callable[[int], None]:
        wanted = LocalTraining(**options, mode=mode, **more)  # type: ignore[arg-type]
        built = Trainer(model, data, wanted, seed=0, device=device, threads=threads)

        def train(server_round: int) -> None:
            for update in built.train(jobs, server_round):
                mean = ModelMean()
                mean.add(update)
                mean.state()

        return train

    ways: dict[str, Callable[[int], None]] = {"plain loop, torch.optim": bare(plain_loop)}
    if on_gpu:
        ways["plain loop, torch.optim, bf16"] = bare(plain_loop, bf16=True)
        ways["bare vmapped loop"] = bare(bare_vmap)
        for mode, precision in product(("sequential", "vectorised"), ("float32", "tf32", "bf16")):
            ways[f"fedclust, {mode}, {precision}"] = trainer(mode, precision=precision)
    else:
        cores = os.cpu_count() or 1
        ways |= {
            "bare vmapped loop": bare(bare_vmap),
            "bare loop, the step compiled": bare(compiled_loop),
            "fedclust, sequential": trainer("sequential"),
            "fedclust, sequential, bf16": trainer("sequential", precision="bf16"),
            "fedclust, vectorised": trainer("vectorised"),
            "fedclust, auto": trainer("auto"),
            f"fedclust, auto, up to {cores} threads": trainer("auto", threads=cores),
            f"fedclust, auto, up to {cores} threads, bf16": trainer("auto", threads=cores, precision="bf16"),
        }
        if name != "cnn":
            del ways["bare loop, the step compiled"]  # its batches are not all full

    def rate(train: Callable[[int], None], turn: int) -> float:
        start = time.perf_counter()
        train(turn)
        if on_gpu:
            torch.cuda.synchronize()
        return len(jobs) / (time.perf_counter() - start)

    found = in_turns({way: partial(rate, train) for way, train in ways.items()}, rounds)
    text = rates("clients per second", found, "plain loop, torch.optim")
    where = f"{torch.cuda.get_device_name()}, {machine()}" if on_gpu else machine()
    show(f"{name}-{'gpu' if on_gpu else 'trainer'}", f"{where}, {rounds} rounds.\n\n{text}", write)


if __name__ == "__main__":
    parser = arguments(__doc__, page="PERFORMANCE")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=["digits", "cnn"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for setting in asked.setting:
        measure(setting, asked.rounds, asked.device, asked.write)
