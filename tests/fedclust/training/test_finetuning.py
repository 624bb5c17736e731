"""Fine-tuning against torch's own loop, and shifted logits in evaluation."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.personal.layers import Finetune
from fedclust.training import LocalTraining
from fedclust.training.cohort import Job, draw_batches
from fedclust.training.trainer import Trainer
from fedclust.training.working_model import only_last_layer

MEAN, STD = torch.tensor([0.4, 0.5]).view(-1, 1, 1), torch.tensor([0.2, 0.3]).view(-1, 1, 1)


def _loop(
    model: nn.Module, data: Any, client: int, epochs: int, rate: float, trained: list[str]
) -> dict[str, torch.Tensor]:
    """Fine-tune one client as anybody would write it; its batches are those of round 8."""
    model.train()
    parameters = [parameter for name, parameter in model.named_parameters() if name in trained]
    optimiser = torch.optim.SGD(parameters, lr=rate, momentum=0.5, weight_decay=0.01)
    batches = draw_batches(
        [client],
        [data.train[client]],
        LocalTraining(learning_rate=1.0, batch_size=8, epochs=epochs),
        seed=3,
        server_round=8,
    )
    for rows, size in zip(batches.rows[0], batches.sizes[0], strict=True):
        chosen = torch.from_numpy(rows[:size])
        loss = functional.cross_entropy(model((data.inputs[chosen] / 255 - MEAN) / STD), data.labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.state_dict()


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
@pytest.mark.parametrize(
    ("kind", "layers", "trained"),
    [
        ("linear", "all", ["1.weight", "1.bias", "3.weight", "3.bias"]),
        ("linear", "last", ["3.weight", "3.bias"]),
        ("convolution", "last", ["4.weight", "4.bias"]),
    ],
)
def test_as_torch_fine_tunes_one_client(
    small: Any, kind: str, layers: Any, trained: list[str], mode: Any
) -> None:
    data, model = small.federation(kind), small.build(kind)
    # Of training in a round only the optimiser and the batch size count: not its steps, schedule and pull.
    training = LocalTraining(
        learning_rate=0.2,
        momentum=0.5,
        weight_decay=0.01,
        batch_size=8,
        steps=1,
        schedule="cosine",
        schedule_rounds=7,
        proximal_mu=2.0,
        mode=mode,
    )
    start = small.start_of(model)
    tuner = Trainer(model, data, training, seed=3).finetuner(Finetune(epochs=3, layers=layers))
    jobs = small.jobs(data, start)
    updates = list(tuner.train(jobs, 8, proximal_mu=0.0))
    assert sorted(client for update in updates for client in update.clients) == [0, 1, 2, 3, 4]
    for update in updates:
        assert not update.failed
        for place, client in enumerate(update.clients.tolist()):
            expected = _loop(small.build(kind), data, client, 3, 0.2, trained)
            for name, tensor in expected.items():
                torch.testing.assert_close(update.state[name][place], tensor, rtol=1e-4, atol=1e-5)
                assert torch.equal(update.state[name][place], start[name]) == (name not in trained)


def test_a_rate_of_its_own_and_training_stays_as_it_is(small: Any) -> None:
    data, model = small.federation(), small.build("linear")
    training = LocalTraining(learning_rate=0.2, batch_size=8, steps=1, mode="sequential")
    trainer, start = Trainer(model, data, training, seed=3), small.start_of(model)
    (before,) = trainer.train(small.jobs(data, start), 1)
    (tuned,) = trainer.finetuner(Finetune(epochs=1, layers="last", learning_rate=0.05)).train(
        small.jobs(data, start), 1
    )
    (after,) = trainer.train(small.jobs(data, start), 1)
    for name, tensor in before.state.items():
        assert torch.equal(tensor, after.state[name])
    # Client 0 has one example, so one step: four times the rate takes it four times as far.
    first, other = (update.clients.tolist().index(0) for update in (before, tuned))
    moved = before.state["3.bias"][first] - start["3.bias"]
    torch.testing.assert_close(4 * (tuned.state["3.bias"][other] - start["3.bias"]), moved)
    assert trainer.training is training


def test_the_last_layer_holds_the_last_trainable_parameter() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 2))
    model[2].requires_grad_(False)
    free = [name for name, each in only_last_layer(model).named_parameters() if each.requires_grad]
    assert free == ["1.0.weight", "1.0.bias"]
    assert all(each.requires_grad for each in model[0].parameters())  # a copy
    alone = only_last_layer(nn.Linear(2, 2))  # names without a dot
    assert all(each.requires_grad for each in alone.parameters())
    with pytest.raises(ValueError, match="^model must have a trainable parameter, all are frozen$"):
        only_last_layer(model.requires_grad_(False))


@pytest.mark.parametrize("kind", ["linear", "positions"])
@pytest.mark.parametrize("batch_size", [7, 1000])
def test_evaluation_adds_each_client_s_shift(small: Any, kind: str, batch_size: int) -> None:
    model, data = small.build(kind), small.federation(kind)
    training = LocalTraining(learning_rate=0.1, batch_size=8, epochs=1, evaluation_batch_size=batch_size)
    trainer, state = Trainer(model, data, training, seed=0), small.start_of(model)
    shifts = [
        np.array([0.0, 2.0, -1.0]),
        None,
        np.array([3.0, 0.0, 0.0]),
        np.zeros(3),
        np.array([-4.0, 1, 1]),
    ]
    jobs = [Job(client, data.test[client], state, shift=shifts[client]) for client in range(5)]
    plain = trainer.logits(jobs)
    for job, (logits, labels), got in zip(jobs, plain, trainer.evaluate(jobs, full=True), strict=True):
        moved = torch.from_numpy(logits if job.shift is None else logits + job.shift).float()
        losses = functional.cross_entropy(moved.flatten(0, -2), torch.from_numpy(labels).flatten())
        assert got.figures["loss"] == pytest.approx(float(losses), rel=1e-5)
        assert got.figures["accuracy"] == pytest.approx(np.mean(moved.argmax(-1).numpy() == labels))
