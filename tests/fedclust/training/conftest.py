"""A small federation, a small model per kind of layer, and a literal loop, for the tests of this folder."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.data.dataset import FederatedData
from fedclust.support.rng import generator, torch_seed
from fedclust.training import LocalTraining
from fedclust.training.cohort import CohortUpdate, Job
from fedclust.training.losses import cross_entropy
from fedclust.training.trainer import Trainer
from fedclust.training.working_model import prepare, scramble, step_keys
from fedclust.typing import State

SIZES = (1, 9, 20, 8, 13)  # with batches of 8: one sample, one batch + 1, several, exactly one, one + 5


class Written(nn.Module):
    """Layers by name, and a forward pass that is written as a function of the network and its inputs."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], torch.Tensor], **layers: Any) -> None:
        super().__init__()
        self.written = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.written(self, inputs)


class TokenModel(nn.Module):
    """Embedding and a recurrent layer; logits for the last position, or for each."""

    def __init__(self, recurrent, num_classes: int = 3, every_position: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.lstm = recurrent(4, 5, batch_first=True)
        self.head = nn.Linear(5, num_classes)
        self.every_position = every_position

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        outputs = self.lstm(self.embedding(tokens))[0]
        return self.head(outputs if self.every_position else outputs[:, -1])


def build(kind: str) -> nn.Module:
    """Build the model that exercises one kind of layer, always with the same initial values."""
    torch.manual_seed(11)
    flat, conv, dense = nn.Flatten, nn.Conv2d, nn.Linear
    match kind:
        case "linear":
            layers = [flat(), dense(32, 6), nn.ReLU(), dense(6, 3)]
        case "dropout":
            layers = [flat(), dense(32, 8), nn.Dropout(0.4), nn.ReLU(), dense(8, 3)]
        case "layer norm":
            layers = [flat(), dense(32, 6), nn.LayerNorm(6), nn.Dropout(0.3), nn.GELU(), dense(6, 3)]
        case "tanh":
            layers = [flat(), dense(32, 6, bias=False), nn.Tanh(), dense(6, 3)]
        case "convolution":
            layers = [conv(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), flat(), dense(16, 3)]
        case "batch norm":
            layers = [conv(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), flat(), dense(16, 5), nn.BatchNorm1d(5)]
            layers.append(dense(5, 3))
        case "averaging batch norm":
            layers = [flat(), dense(32, 5), nn.BatchNorm1d(5, momentum=None), dense(5, 3)]
        case "group norm":
            layers = [conv(2, 4, 3), nn.GroupNorm(2, 4), flat(), dense(16, 3)]
        case "channel dropout":
            layers = [conv(2, 6, 3), nn.Dropout2d(0.5), flat(), dense(24, 3)]
        case _:
            return TokenModel(nn.GRU if kind == "gru" else nn.LSTM, every_position=kind == "positions")
    return nn.Sequential(*layers)


def federation(kind: str = "linear", sizes: tuple[int, ...] = SIZES, classes: int = 3) -> FederatedData:
    """Make a federation of random examples that suits `build(kind)`; as many test as training rows."""
    draws = np.random.default_rng(5)
    total = 2 * sum(sizes)
    if kind in ("lstm", "gru", "positions"):
        inputs = torch.from_numpy(draws.integers(0, 7, (total, 6)))
    else:
        inputs = torch.from_numpy(draws.integers(0, 256, (total, 2, 4, 4), dtype=np.uint8))
    shape = (total, 6) if kind == "positions" else (total,)
    rows = np.split(draws.permutation(total), np.cumsum((*sizes, *sizes))[:-1])
    return FederatedData(
        name="random",
        inputs=inputs,
        labels=torch.from_numpy(draws.integers(0, classes, shape)),
        train=tuple(rows[: len(sizes)]),
        test=tuple(rows[len(sizes) :]),
        num_classes=classes,
        mean=(0.4, 0.5) if inputs.dtype == torch.uint8 else (),
        std=(0.2, 0.3) if inputs.dtype == torch.uint8 else (),
        groups=None,
        class_names=tuple("abc"[:classes]),
        fingerprint="random",
    )


def hyperparameters(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"learning_rate": 0.1, "batch_size": 8, "epochs": 2, **changes})


def set_up(kind="linear", data=None, seed=1, threads=None, metrics=None, device="cpu", **options) -> Any:
    """Make a trainer of a model, by kind or as it is, and one job per client, all from one state."""
    name = kind if isinstance(kind, str) else "linear"
    model, data = build(kind) if isinstance(kind, str) else kind, data or federation(name)
    trainer = Trainer(model, data, hyperparameters(**options), seed, device, threads, metrics)
    start: State = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    jobs = [Job(client, rows, start) for client, rows in enumerate(data.train)]
    tests = [Job(client, rows, start) for client, rows in enumerate(data.test)]
    return SimpleNamespace(model=model, data=data, trainer=trainer, start=start, jobs=jobs, tests=tests)


def normalised(data: FederatedData, inputs: torch.Tensor) -> torch.Tensor:
    """Normalise images as the dataset says; other inputs stay as they are."""
    if inputs.dtype != torch.uint8:
        return inputs
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    return (inputs / 255 - mean) / std


def window(image: np.ndarray, key: int, place: int) -> np.ndarray:
    """Pad one raw image with zeros, cut out a window of its size and mirror it, pixel by pixel."""
    channels, height, width = image.shape
    number = int(scramble(scramble(torch.tensor(key)) ^ (place * 0x243F6A89) % 2**32))
    choice = number * 162 // 2**32  # 9 rows, 9 columns, mirrored or not
    down, right, mirrored = choice // 18, choice // 2 % 9, choice % 2
    padded = np.zeros((channels, height + 8, width + 8), dtype=image.dtype)
    padded[:, 4 : 4 + height, 4 : 4 + width] = image
    cut = padded[:, down : down + height, right : right + width]
    return (cut[:, :, ::-1] if mirrored else cut).copy()


def literal(model, data, training, client, start, seed=1, server_round=3, trained=None) -> tuple[State, list]:
    """Train one client the way a tutorial would: all of its parameters, or those named."""
    model, context = prepare(model)
    model.load_state_dict(start)
    model.train()
    parameters = [each for name, each in model.named_parameters() if trained is None or name in trained]
    common: dict[str, Any] = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    if training.optimizer == "adam":
        averages = {"betas": training.betas, "eps": training.adam_epsilon}
        optimiser: torch.optim.Optimizer = torch.optim.Adam(parameters, **averages, **common)
    else:
        optimiser = torch.optim.SGD(parameters, momentum=training.momentum, **common)
    anchors = [parameter.detach().clone() for parameter in parameters]
    rows, draws = data.train[client], generator(seed, "batches", server_round, client)
    keys, crops = (
        step_keys(torch_seed(seed, purpose, server_round), torch.tensor([client]), 100)[0]
        for purpose in ("dropout", "augmentation")
    )
    losses: list[float] = []
    epoch = 0
    while epoch < (training.epochs or 100):
        order = rows[draws.permutation(len(rows))]
        for first in range(0, len(order), training.batch_size):
            if training.steps is not None and len(losses) == training.steps:
                return dict(model.state_dict()), losses
            chosen = order[first : first + training.batch_size]
            inputs = data.inputs[chosen]
            if training.augmentation == "crop_flip":
                crop = int(crops[len(losses)])
                windows = [window(image.numpy(), crop, place) for place, image in enumerate(inputs)]
                inputs = torch.from_numpy(np.stack(windows))
            context.begin(keys[len(losses)])
            logits = model(normalised(data, inputs))
            if training.loss is cross_entropy:
                loss = functional.cross_entropy(logits.flatten(0, -2), data.labels[chosen].flatten())
            else:
                loss = training.loss(logits, data.labels[chosen]).mean()
            losses.append(loss.item())
            for parameter, anchor in zip(parameters, anchors, strict=True):
                if training.proximal_mu:
                    loss = loss + training.proximal_mu / 2 * (parameter - anchor).square().sum()
            model.zero_grad()
            loss.backward()
            if training.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)
            optimiser.step()
        epoch += 1
    return dict(model.state_dict()), losses


def by_client(updates: Sequence[CohortUpdate]) -> dict[int, tuple[State, np.ndarray]]:
    return {
        int(client): ({name: stacked[index] for name, stacked in update.state.items()}, update.losses[index])
        for update in updates
        for index, client in enumerate(update.clients)
    }


def assert_as_literal(made: Any, jobs: Sequence[Job] = (), rounds: Sequence[int] = (3,)) -> None:
    """Compare what all clients of a set-up learn in the last of some rounds with the literal loop."""
    for server_round in rounds:
        updates = list(made.trainer.train(jobs or made.jobs, server_round))
        assert not any(update.failed for update in updates)
    results = by_client(updates)
    assert sorted(results) == list(range(len(made.data.train)))
    for job in jobs or made.jobs:
        state, losses = results[job.client]
        expected = literal(made.model, made.data, made.trainer.training, job.client, job.state)
        torch.testing.assert_close(state, expected[0], rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(losses, expected[1], rtol=2e-4, atol=2e-5)


@pytest.fixture
def fallbacks(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return a function that lists the warnings that clients train one after another."""
    return lambda: [
        each.getMessage()
        for each in caplog.get_records("call")
        if each.getMessage().startswith("clients train one after another: ")
    ]


@pytest.fixture(autouse=True)
def _no_fallback(request: pytest.FixtureRequest, fallbacks: Callable[[], list[str]]) -> Iterator[None]:
    """Fail each test whose clients should train together and do not, unless it takes ``fallbacks``."""
    taken = "fallbacks" in inspect.signature(request.function).parameters
    yield
    assert taken or not fallbacks()


@pytest.fixture(name="small")
def small_fixture() -> Any:
    """Return the helpers above to tests, which cannot import a conftest."""
    helpers = [build, federation, set_up, hyperparameters, normalised, window, literal, by_client]
    helpers.append(assert_as_literal)
    shared = {each.__name__: each for each in helpers}
    return SimpleNamespace(sizes=SIZES, **shared)
