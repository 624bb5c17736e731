"""Fallbacks and memory limits."""

import logging
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from fedclust.training import LocalTraining
from fedclust.training.cohort import CohortUpdate, Work
from fedclust.training.trainer import Trainer, faster_together
from fedclust.training.vectorised import VectorisedTraining


def hyperparameters(**changes: Any) -> LocalTraining:
    return LocalTraining(**{"learning_rate": 0.1, "batch_size": 8, "epochs": 1, **changes})


def final(updates: list[CohortUpdate]) -> dict[int, torch.Tensor]:
    return {
        int(client): torch.cat([stacked[index].flatten() for stacked in update.state.values()])
        for update in updates
        for index, client in enumerate(update.clients)
    }


class Branching(nn.Module):
    """Chooses its head by looking at its data."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(32, 3), nn.Linear(32, 3)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(1)
        return self.heads[int(flat.mean() > 0)](flat)


class Mixing(nn.Module):
    """Subtracts the mean over the batch, and so sees what fills a short one."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(1)
        return self.head(flat - flat.mean(0))


def compare_with_sequential(small: Any, model: nn.Module, mode: str, data: Any = None) -> None:
    data = data or small.federation()
    jobs = small.jobs(data, small.start_of(model))
    trainer = Trainer(model, data, hyperparameters(mode=mode), seed=1)
    expected = Trainer(model, data, hyperparameters(mode="sequential"), seed=1)
    for server_round in (1, 2):
        got = final(list(trainer.train(jobs, server_round)))
        for client, values in final(list(expected.train(jobs, server_round))).items():
            torch.testing.assert_close(got[client], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["auto", "vectorised"])
def test_a_model_that_branches_on_data_trains_alone_and_says_so_once(
    small: Any, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING):
        compare_with_sequential(small, Branching(), mode)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "clients train one after another: training them together failed with RuntimeError: vmap: "
    )


@pytest.mark.parametrize("mode", ["auto", "vectorised"])
@pytest.mark.parametrize("longest_is_bad", [False, True])
def test_a_model_that_mixes_examples_is_noticed(
    small: Any, mode: str, longest_is_bad: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    data = small.federation()
    if longest_is_bad:  # whose losses would agree with any others
        inputs = data.inputs.float()
        inputs[data.train[2]] = torch.nan
        object.__setattr__(data, "inputs", inputs)
    with caplog.at_level(logging.WARNING):
        compare_with_sequential(small, Mixing(), mode, data)
    (record,) = caplog.records
    assert "failed with ArithmeticError: losses are" in record.getMessage()


@pytest.mark.parametrize("mixing", [False, True])
def test_a_deep_network_at_a_large_learning_rate(
    small: Any, mixing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(6)]
    network = nn.Sequential(nn.Flatten(), *layers, Mixing() if mixing else nn.Linear(32, 3))
    data = small.federation()
    training = hyperparameters(mode="vectorised", learning_rate=10.0, momentum=0.9)
    with caplog.at_level(logging.WARNING):
        jobs = small.jobs(data, small.start_of(network))[2:3]
        list(Trainer(network, data, training, seed=1).train(jobs, 1))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == mixing
    assert all("ArithmeticError: losses are" in line for line in said)


@pytest.mark.parametrize(
    ("kind", "on_cpu", "on_gpu"),
    [
        ("linear", True, True),
        ("layer norm", True, True),
        ("convolution", False, True),
        ("batch norm", False, True),
        ("lstm", False, False),
        ("gru", False, False),
    ],
)
def test_the_kind_of_model_decides(small: Any, kind: str, on_cpu: bool, on_gpu: bool) -> None:
    model, data = small.build(kind), small.federation(kind)
    assert faster_together(model, torch.device("cpu")) == on_cpu
    assert faster_together(model, torch.device("cuda")) == on_gpu
    assert not faster_together(nn.MultiheadAttention(4, 2), torch.device("cuda"))
    assert Trainer(model, data, hyperparameters(), seed=1)._dispatcher.together == on_cpu
    for mode in ("sequential", "vectorised"):
        trainer = Trainer(model, data, hyperparameters(mode=mode), seed=1)
        assert trainer._dispatcher.together == (mode == "vectorised")


@pytest.mark.parametrize("kind", ["dropout", "convolution", "lstm"])
def test_the_default_repeats_to_the_bit(small: Any, kind: str) -> None:
    model, data = small.build(kind), small.federation(kind)
    jobs = small.jobs(data, small.start_of(model))
    first, second = (
        final(list(Trainer(model, data, hyperparameters(), seed=1).train(jobs, 1))) for _ in range(2)
    )
    assert all(torch.equal(first[client], second[client]) for client in first)


def test_memory_running_out_halves_the_pass(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = VectorisedTraining.train
    sizes = []

    def limited(self: VectorisedTraining, work: Work) -> CohortUpdate:
        sizes.append(len(work.jobs))
        if len(work.jobs) > 2:
            raise torch.OutOfMemoryError("too many")
        return honest(self, work)

    monkeypatch.setattr(VectorisedTraining, "train", limited)
    compare_with_sequential(small, small.build("linear"), "vectorised")
    # 5 = 2 + 3, 3 = 1 + 2, in each of two rounds; a single client is trained twice side by side
    assert sizes == [5, 2, 3, 2, 2] * 2


def test_a_failed_attempt_leaves_nothing_in_memory(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = VectorisedTraining.train
    taken: list[weakref.ref] = []

    def limited(self: VectorisedTraining, work: Work) -> CohortUpdate:
        assert not [ref for ref in taken if ref() is not None]
        if len(work.jobs) > 2:
            activations = torch.zeros(1000)
            taken.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("too many")
        return honest(self, work)

    monkeypatch.setattr(VectorisedTraining, "train", limited)
    compare_with_sequential(small, small.build("linear"), "vectorised")
    assert len(taken) == 4


def test_memory_running_out_for_one_client_trains_it_alone(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(self: VectorisedTraining, work: Work) -> CohortUpdate:
        raise torch.OutOfMemoryError("too many")

    monkeypatch.setattr(VectorisedTraining, "train", exhausted)
    compare_with_sequential(small, small.build("linear"), "vectorised")


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
def test_chunks_follow_memory(small: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The linear model has 32 * 6 + 6 + 6 * 3 + 3 = 219 parameters, 876 bytes. Two fit into 2,000 bytes when
    # only results add up; together each client needs several times as much, so one at a time.
    monkeypatch.setattr("fedclust.training.trainer._CPU_BYTES", 2000)
    model, data = small.build("linear"), small.federation()
    trainer = Trainer(model, data, hyperparameters(mode=mode), seed=1)
    updates = trainer.train(small.jobs(data, small.start_of(model)), 1)
    assert [len(update.clients) for update in updates] == ([2, 2, 1] if mode == "sequential" else [1] * 5)


def test_compiling_is_asked_for(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Compiling for real takes a minute; here it is enough that the right functions would be.
    compiled = []

    def pretend(function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            compiled.append(function)
            return function(*arguments)

        return run

    monkeypatch.setattr(torch, "compile", pretend)
    model, data = small.build("convolution"), small.federation()
    trainer = Trainer(model, data, hyperparameters(mode="vectorised", compile=True), seed=1)
    list(trainer.train(small.jobs(data, small.start_of(model)), 1))
    assert len(compiled) == 3  # client 2's 20 examples in batches of 8


def test_what_is_global_in_torch_stays_as_it_was(small: Any) -> None:
    model, data = small.build("dropout"), small.federation()
    trainer = Trainer(model, data, hyperparameters(mode="auto"), seed=1)
    before = torch.get_rng_state()
    for _ in trainer.train(small.jobs(data, small.start_of(model)), 1):
        torch.testing.assert_close(torch.get_rng_state(), before)


def test_a_cohort_of_bad_data_is_not_trained_together(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no client shows whether training together is correct, none are trained together."""
    data = small.federation()
    inputs = data.inputs.float()
    inputs[torch.from_numpy(data.train[2])] = torch.nan
    inputs[torch.from_numpy(data.train[4])] = torch.nan
    inputs[torch.from_numpy(data.train[1])] = torch.nan  # the three longest
    object.__setattr__(data, "inputs", inputs)
    torch.manual_seed(0)
    compare_with_sequential(small, Mixing(), "vectorised", data)
