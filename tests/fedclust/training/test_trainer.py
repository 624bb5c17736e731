"""The trainer against a literal loop with torch.optim, in every mode."""

import copy
import functools
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.support.rng import generator, torch_seed
from fedclust.training import LocalTraining
from fedclust.training.cohort import CohortUpdate, Job, ModelMean
from fedclust.training.device_data import DeviceData
from fedclust.training.losses import Loss, binary_cross_entropy, cross_entropy
from fedclust.training.trainer import Trainer
from fedclust.training.vectorised import VectorisedTraining
from fedclust.training.working_model import WorkingModel, prepare, step_keys

MODES = ["sequential", "vectorised"]  # of which "auto" is one
KINDS = [
    "linear",
    "dropout",
    "convolution",
    "batch norm",
    "averaging batch norm",
    "group norm",
    "channel dropout",
    "layer norm",
    "tanh",
    "lstm",
    "gru",
    "positions",
]
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum and weight decay": {"momentum": 0.9, "weight_decay": 0.05},
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.01},
    "proximal": {"proximal_mu": 0.5},
    "clipping": {"clip_norm": 0.3, "momentum": 0.5},
    "steps": {"epochs": None, "steps": 4},
    "everything": {"momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1.0, "proximal_mu": 0.2},
}


def hyperparameters(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"learning_rate": 0.1, "batch_size": 8, "epochs": 2, **changes})


def literal(
    model: nn.Module, data: Any, training: LocalTraining, client: int, start: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train one client in round 3 of seed 1 the way a tutorial would."""
    model, context = prepare(model)
    model.load_state_dict(start)
    model.train()
    if training.optimizer == "adam":
        optimiser: torch.optim.Optimizer = torch.optim.Adam(
            model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay
        )
    else:
        optimiser = torch.optim.SGD(
            model.parameters(),
            lr=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
    anchors = [parameter.detach().clone() for parameter in model.parameters()]
    rows = data.train[client]
    draws = generator(1, "batches", 3, client)
    keys = step_keys(torch_seed(1, "dropout", 3), torch.tensor([client]), 100)[0]
    losses: list[float] = []
    epoch = 0
    while epoch < (training.epochs or 100):
        order = rows[draws.permutation(len(rows))]
        for first in range(0, len(order), training.batch_size):
            if training.steps is not None and len(losses) == training.steps:
                return dict(model.state_dict()), losses
            chosen = order[first : first + training.batch_size]
            inputs = data.inputs[chosen]
            if inputs.dtype == torch.uint8:
                mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
                inputs = (inputs / 255 - mean) / std
            context.begin(keys[len(losses)])
            logits = model(inputs)
            if training.loss is cross_entropy:
                loss = functional.cross_entropy(logits.flatten(0, -2), data.labels[chosen].flatten())
            else:
                loss = training.loss(logits, data.labels[chosen]).mean()
            losses.append(loss.item())
            for parameter, anchor in zip(model.parameters(), anchors, strict=True):
                if training.proximal_mu:
                    loss = loss + training.proximal_mu / 2 * (parameter - anchor).square().sum()
            optimiser.zero_grad()
            loss.backward()
            if training.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
            optimiser.step()
        epoch += 1
    return dict(model.state_dict()), losses


def by_client(updates: list[CohortUpdate]) -> dict[int, tuple[dict[str, torch.Tensor], np.ndarray]]:
    return {
        int(client): ({name: stacked[index] for name, stacked in update.state.items()}, update.losses[index])
        for update in updates
        for index, client in enumerate(update.clients)
    }


def assert_as_literal(small: Any, kind: str, training: LocalTraining) -> None:
    model, data = small.build(kind), small.federation(kind)
    start = small.start_of(model)
    trainer = Trainer(model, data, training, seed=1)
    updates = list(trainer.train(small.jobs(data, start), 3))
    assert all(not update.failed for update in updates)
    results = by_client(updates)
    assert sorted(results) == list(range(len(small.sizes)))
    for client, (state, losses) in results.items():
        expected, expected_losses = literal(model, data, training, client, start)
        torch.testing.assert_close(state, expected, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(losses, expected_losses, rtol=2e-4, atol=2e-5)


def focal(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A loss of a user's own, which sees how sure the model is (Lin et al., 2017, with gamma 2)."""
    chances = outputs.softmax(-1).gather(-1, labels.unsqueeze(-1)).flatten(1)
    return (-((1 - chances) ** 2) * chances.log()).mean(1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loss", [focal, binary_cross_entropy], ids=["focal", "binary"])
@pytest.mark.parametrize("kind", ["linear", "batch norm", "lstm", "positions"])
def test_every_loss_trains_as_the_literal_loop(small: Any, kind: str, loss: Loss, mode: str) -> None:
    # Clients of 1, 9, 20, 8 and 13 rows in batches of 8: padding must weigh nothing in any loss.
    assert_as_literal(small, kind, hyperparameters(mode=mode, momentum=0.5, loss=loss))


@pytest.mark.parametrize("threads", [1, 3])
def test_every_loss_trains_on_threads(small: Any, threads: int) -> None:
    model, data = small.build("convolution"), small.federation("convolution")
    start = small.start_of(model)
    training = hyperparameters(mode="sequential", loss=focal)
    results = by_client(
        list(Trainer(model, data, training, seed=1, threads=threads).train(small.jobs(data, start), 3))
    )
    for client, (state, _) in results.items():
        expected, _ = literal(model, data, training, client, start)
        torch.testing.assert_close(state, expected, rtol=2e-4, atol=2e-5)


def test_the_kernel_for_cross_entropy_is_for_nothing_else(small: Any) -> None:
    model, data = small.build("linear"), small.federation("linear")
    device = torch.device("cpu")
    working, rows = WorkingModel(model, device, "float32"), DeviceData(data, device)
    named = hyperparameters(loss=functools.partial(cross_entropy))  # as a configuration names it
    assert VectorisedTraining(working, rows, named).mlp is not None
    assert VectorisedTraining(working, rows, hyperparameters(loss=focal)).mlp is None


def test_a_loss_that_is_averaged_already_fails_each_client(small: Any) -> None:
    model, data = small.build("linear"), small.federation("linear")
    training = hyperparameters(mode="sequential", loss=nn.CrossEntropyLoss())
    (update,) = Trainer(model, data, training, seed=1).train(small.jobs(data, small.start_of(model)), 1)
    assert sorted(update.failed) == [0, 1, 2, 3, 4]
    assert "loss must return one number per example, shape [8], got []" in update.failed[2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_option_trains_as_the_literal_loop(
    small: Any, kind: str, options: dict[str, Any], mode: str
) -> None:
    assert_as_literal(small, kind, hyperparameters(mode=mode, **options))


@pytest.mark.parametrize("mode", MODES)
def test_chunks_hold_at_most_so_many_clients_and_change_nothing(small: Any, mode: str) -> None:
    training = hyperparameters(mode=mode, chunk=2)
    model, data = small.build("linear"), small.federation()
    updates = list(Trainer(model, data, training, seed=1).train(small.jobs(data, small.start_of(model)), 3))
    assert [len(update.clients) for update in updates] == [2, 2, 1]
    assert_as_literal(small, "linear", training)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["dropout", "batch norm"])
def test_a_client_learns_the_same_alone_and_in_a_cohort(small: Any, kind: str, mode: str) -> None:
    model, data = small.build(kind), small.federation(kind)
    trainer = Trainer(model, data, hyperparameters(mode=mode, momentum=0.9), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    together = by_client(list(trainer.train(jobs, 2)))
    for job in jobs:
        alone = by_client(list(trainer.train([job], 2)))[job.client]
        torch.testing.assert_close(together[job.client][0], alone[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(together[job.client][1], alone[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_client_with_bad_data_fails_alone(small: Any, mode: str) -> None:
    model, data = small.build("linear"), small.federation(sizes=(9, 9, 9))
    inputs = (data.inputs / 255 - 0.5).float()
    poisoned = inputs.clone()
    poisoned[data.train[1][4]] = float("nan")
    clean, dirty = (copy.copy(data) for _ in range(2))
    object.__setattr__(clean, "inputs", inputs)
    object.__setattr__(dirty, "inputs", poisoned)
    start = small.start_of(model)
    jobs = small.jobs(data, start)
    training = hyperparameters(mode=mode, momentum=0.9, clip_norm=1.0)
    (update,) = Trainer(model, dirty, training, seed=1).train(jobs, 1)
    expected = by_client(list(Trainer(model, clean, training, seed=1).train(jobs, 1)))
    results = by_client([update])
    # Client 1 meets its bad row in the batch that holds it: the first or the second of its epoch.
    order = data.train[1][generator(1, "batches", 1, 1).permutation(9)]
    step = 1 if data.train[1][4] in order[:8] else 2
    assert update.failed == {1: f"non-finite loss at step {step}"}
    torch.testing.assert_close(results[1][0], start, rtol=0, atol=0)
    for client in (0, 2):
        torch.testing.assert_close(results[client][0], expected[client][0], rtol=0, atol=0)
        np.testing.assert_array_equal(results[client][1], expected[client][1])
    mean = ModelMean()
    mean.add(update)
    assert all(tensor.isfinite().all() for tensor in mean.state().values())


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_diverges_at_the_last_step_is_found(small: Any, mode: str) -> None:
    model, data = small.build("linear"), small.federation(sizes=(4, 4))
    training = LocalTraining(learning_rate=1e38, batch_size=4, steps=1, weight_decay=1e30, mode=mode)
    (update,) = Trainer(model, data, training, seed=1).train(small.jobs(data, small.start_of(model)), 1)
    assert set(update.failed.values()) == {"non-finite parameters after the last step"}


@pytest.mark.parametrize("mode", MODES)
def test_a_client_without_training_rows_fails(small: Any, mode: str) -> None:
    model, data = small.build("linear"), small.federation()
    start = small.start_of(model)
    jobs = [Job(0, data.train[0], start), Job(1, np.zeros(0, dtype=np.int64), start)]
    updates = list(Trainer(model, data, hyperparameters(mode=mode), seed=1).train(jobs, 1))
    assert {client: reason for update in updates for client, reason in update.failed.items()} == {
        1: "no training examples"
    }
    assert sorted(client for update in updates for client in update.clients) == [0, 1]
    torch.testing.assert_close(by_client(updates)[1][0], start)


class Picky(nn.Module):
    """Raises when its batch has an odd sum."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if int(tokens.sum()) % 2:
            raise KeyError("an odd batch")
        return self.head(tokens.float())


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_costs_its_client_only(small: Any, mode: str) -> None:
    data = small.federation("lstm", sizes=(5, 5, 5, 5, 5, 5))
    odd = {client for client, rows in enumerate(data.train) if int(data.inputs[rows].sum()) % 2}
    assert 0 < len(odd) < 6
    model = Picky()
    jobs = small.jobs(data, small.start_of(model))
    updates = list(Trainer(model, data, hyperparameters(mode=mode), seed=1).train(jobs, 1))
    failed = {client: reason for update in updates for client, reason in update.failed.items()}
    assert failed == dict.fromkeys(odd, "KeyError: 'an odd batch'")


class Growing(nn.Module):
    """Enlarges a buffer for an odd batch, so its state cannot be sent back."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if int(tokens.sum()) % 2:
            self.seen = torch.zeros(2)
        return self.head(tokens.float())


def test_a_buffer_that_changes_its_shape_costs_its_client_only(small: Any) -> None:
    data = small.federation("lstm", sizes=(5, 5, 5, 5, 5, 5))
    odd = {client for client, rows in enumerate(data.train) if int(data.inputs[rows].sum()) % 2}
    assert 0 < len(odd) < 6
    model = Growing()
    trainer = Trainer(model, data, hyperparameters(mode="sequential"), seed=1)
    for _ in range(2):
        (update,) = trainer.train(small.jobs(data, small.start_of(model)), 1)
        assert update.failed.keys() == odd
        assert [reason[:14] for reason in update.failed.values()] == ["RuntimeError: "] * len(odd), (
            update.failed
        )


@pytest.mark.parametrize("mode", MODES)
def test_clients_of_several_clusters_start_from_their_own_models(small: Any, mode: str) -> None:
    model, data = small.build("linear"), small.federation()
    first = small.start_of(model)
    second = {name: -tensor for name, tensor in first.items()}
    states = [first, second, second, first, second]
    jobs = [Job(client, data.train[client], state) for client, state in enumerate(states)]
    training = hyperparameters(mode=mode, proximal_mu=0.3)
    for client, (state, _) in by_client(list(Trainer(model, data, training, seed=1).train(jobs, 3))).items():
        expected, _ = literal(model, data, training, client, states[client])
        torch.testing.assert_close(state, expected, rtol=2e-4, atol=2e-5)


class Frozen(nn.Module):
    """A frozen encoder, an unused parameter, a layer with two names and one that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(32, 6).requires_grad_(False)
        self.hidden = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6, bias=False)
        self.again.weight = self.hidden.weight
        self.head = nn.Linear(6, 3)
        self.alias = self.head
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.alias(self.again(self.hidden(torch.relu(self.encoder(inputs.flatten(1))))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clusters", [1, 2])
def test_frozen_unused_and_tied_parameters(small: Any, mode: str, clusters: int) -> None:
    torch.manual_seed(0)
    model, data = Frozen(), small.federation()
    states = [small.start_of(model)]
    states.append({name: 2 * tensor for name, tensor in states[0].items()})
    jobs = [Job(client, rows, states[client % clusters]) for client, rows in enumerate(data.train)]
    training = hyperparameters(mode=mode, weight_decay=0.1, momentum=0.5)
    for client, (state, _) in by_client(list(Trainer(model, data, training, seed=1).train(jobs, 3))).items():
        start = states[client % clusters]
        expected, _ = literal(model, data, training, client, start)
        torch.testing.assert_close(state, expected, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(state["unused"], start["unused"], rtol=0, atol=0)
        torch.testing.assert_close(state["alias.weight"], state["head.weight"], rtol=0, atol=0)
        torch.testing.assert_close(state["again.weight"], state["hidden.weight"], rtol=0, atol=0)


class Summed(nn.Module):
    """Two weights that only occur in their sum: autograd gives both the same tensor as gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(3, 32) / 6), nn.Parameter(torch.randn(3, 32) / 6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs.flatten(1), self.one + self.other)


class Spread(nn.Module):
    """A parameter whose gradient is one number seen through several places."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.shift = nn.Linear(32, 3), nn.Parameter(torch.zeros(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs.flatten(1)) * (1 + self.shift.sum())


class Counting(nn.Module):
    """Replaces its buffer by another tensor in every step, and computes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count = self.count + 1
        return self.head(inputs.flatten(1)) / self.count.clamp(min=1)


class TwoNames(nn.Module):
    """A BatchNorm and a Dropout that are each used under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = self.again = nn.BatchNorm1d(6)
        self.drop = self.once_more = nn.Dropout(0.3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.norm(self.first(inputs.flatten(1))).relu())
        return self.head(self.once_more(self.again(self.second(hidden))))


def hooked() -> nn.Module:
    """An MLP, apart from a hook that doubles the output of a layer."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 3))
    model[1].register_forward_hook(lambda _, __, output: 2 * output)
    return model


def idle_dropout() -> nn.Module:
    """A dropout that drops nothing before one that does."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(32, 6), nn.Dropout(0.0), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", ["adam", "everything"])
@pytest.mark.parametrize("make", [Summed, Spread, Counting, TwoNames, hooked, idle_dropout])
def test_models_with_peculiarities(small: Any, make: Any, options: str, mode: str) -> None:
    torch.manual_seed(0)
    model, data = make(), small.federation()
    start = small.start_of(model)
    training = hyperparameters(mode=mode, **OPTIONS[options])
    trainer = Trainer(model, data, training, seed=1, threads=1)
    for _ in range(2):  # nothing of a call is left for the next
        updates = list(trainer.train(small.jobs(data, start), 3))
        assert not any(update.failed for update in updates)
    for client, (state, losses) in by_client(updates).items():
        expected, expected_losses = literal(model, data, training, client, start)
        np.testing.assert_allclose(losses, expected_losses, rtol=2e-4, atol=2e-5)
        torch.testing.assert_close(state, expected, rtol=2e-4, atol=2e-5)


def test_layers_that_draw_by_themselves_are_seeded_per_client(small: Any) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(32, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(functional.dropout(inputs.flatten(1), 0.5, self.training))

    torch.manual_seed(0)
    model, data = Noisy(), small.federation()
    trainer = Trainer(model, data, hyperparameters(mode="sequential"), seed=1)
    jobs = small.jobs(data, small.start_of(model))
    before = torch.get_rng_state()
    together = by_client(list(trainer.train(jobs, 1)))
    torch.testing.assert_close(torch.get_rng_state(), before)
    alone = by_client(list(trainer.train([jobs[2]], 1)))
    torch.testing.assert_close(together[2][0], alone[2][0], rtol=0, atol=0)


def test_batch_norm_agrees_to_float64(small: Any) -> None:
    # Normalising batches of two or three examples magnifies rounding; in float64 little is left to magnify.
    model, data = small.build("batch norm").double(), small.federation(sizes=(11, 3, 10, 1))
    object.__setattr__(data, "inputs", data.inputs.double() / 255)
    jobs = small.jobs(data, small.start_of(model))
    alone, *others = (
        by_client(list(Trainer(model, data, hyperparameters(mode=mode, momentum=0.9), seed=1).train(jobs, 1)))
        for mode in MODES
    )
    for client, (state, _) in alone.items():
        for other in others:
            torch.testing.assert_close(other[client][0], state, rtol=1e-9, atol=1e-11)


def test_precision_bf16_is_near_float32(small: Any) -> None:
    model, data = small.build("convolution"), small.federation()
    jobs = small.jobs(data, small.start_of(model))
    exact, rough = (
        by_client(list(Trainer(model, data, hyperparameters(precision=precision), seed=1).train(jobs, 1)))
        for precision in ("float32", "bf16")
    )
    for client in exact:
        torch.testing.assert_close(rough[client][0], exact[client][0], rtol=0.1, atol=0.03)
        assert all(tensor.dtype == torch.float32 for tensor in rough[client][0].values())


def test_learning_rate_follows_the_schedule(small: Any) -> None:
    # Without momentum one step moves by learning rate times gradient: a quarter of the way in round 3.
    model, data = small.build("linear"), small.federation(sizes=(4,))
    start = small.start_of(model)

    def moved(**changes: Any) -> torch.Tensor:
        training = hyperparameters(epochs=1, **changes)
        (update,) = Trainer(model, data, training, seed=1).train(small.jobs(data, start), 3)
        return update.state["1.weight"][0] - start["1.weight"]

    torch.testing.assert_close(moved(schedule="exponential", decay=0.5), moved() / 4, rtol=1e-4, atol=1e-7)


def test_a_proximal_weight_given_with_the_call_counts(small: Any) -> None:
    model, data = small.build("linear"), small.federation()
    jobs = small.jobs(data, small.start_of(model))
    configured = Trainer(model, data, hyperparameters(proximal_mu=0.4), seed=1).train(jobs, 1)
    given = Trainer(model, data, hyperparameters(), seed=1).train(jobs, 1, proximal_mu=0.4)
    for first, second in zip(configured, given, strict=True):
        torch.testing.assert_close(first.state, second.state)


def test_nothing_given_changes(small: Any) -> None:
    model, data = small.build("batch norm"), small.federation()
    state = small.start_of(model)
    before = copy.deepcopy(state)
    trainer = Trainer(model, data, hyperparameters(), seed=1)
    list(trainer.train(small.jobs(data, state), 1))
    torch.testing.assert_close(state, before, rtol=0, atol=0)
    torch.testing.assert_close(small.start_of(model), before, rtol=0, atol=0)


class TestRefusals:
    @pytest.fixture
    def trainer(self, small: Any) -> Trainer:
        return Trainer(small.build("linear"), small.federation(), hyperparameters(), seed=1)

    def test_a_state_of_another_model(self, small: Any, trainer: Trainer) -> None:
        job = Job(3, np.arange(2), {"w": torch.ones(1)})
        (update,) = trainer.train([job], 1)
        assert re.match(
            r"client 3: state must have .* lacks \['1.bias', .* has \['w'\]", update.failed.pop(3)
        )
        assert update.failed == {}
        with pytest.raises(ValueError, match="client 3: state must have"):
            trainer.evaluate([job])

    def test_a_state_of_another_shape(self, small: Any, trainer: Trainer) -> None:
        state = small.start_of(small.build("linear")) | {"1.bias": torch.ones(5)}
        fits = small.start_of(small.build("linear"))
        jobs = [Job(client, np.arange(2), fits if client == 1 else state) for client in (0, 1, 3)]
        failed: dict[int, str] = {}
        for update in trainer.train(jobs, 1):
            failed |= update.failed
        # Those that share it are named each; who has another model trains.
        assert failed == {
            client: f"client {client}: '1.bias' must have shape (6,), got (5,)" for client in (0, 3)
        }

    @pytest.mark.parametrize("mu", [-1.0, float("nan"), float("inf")])
    def test_a_proximal_weight_out_of_range(self, trainer: Trainer, mu: float) -> None:
        with pytest.raises(ValueError, match=f"proximal_mu must be >= 0 and finite, got {mu}"):
            list(trainer.train([], 1, proximal_mu=mu))

    def test_a_label_out_of_range(self, small: Any) -> None:
        data = small.federation()
        data.labels[7] = 3
        with pytest.raises(ValueError, match=r"labels must be in \[0, 3\), got 0 to 3"):
            Trainer(small.build("linear"), data, hyperparameters(), seed=1)
