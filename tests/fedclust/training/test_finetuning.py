"""Fine-tuning against torch's own loop, and shifted logits in evaluation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedclust.personal.layers import Finetune
from fedclust.training.working_model import only_last_layer


@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
@pytest.mark.parametrize(
    ("kind", "layers", "trained"),
    [
        ("linear", "all", ["1.weight", "1.bias", "3.weight", "3.bias"]),
        ("linear", "last", ["3.weight", "3.bias"]),
        ("convolution", "last", ["4.weight", "4.bias"]),
    ],
)
def test_as_torch_fine_tunes_one_client(small, kind, layers, trained, mode) -> None:
    # Of training in a round only the optimiser and the batch size count: not its steps, schedule and pull.
    optimiser = {"learning_rate": 0.2, "momentum": 0.5, "weight_decay": 0.01, "mode": mode}
    pull = {"epochs": None, "steps": 1, "schedule": "cosine", "schedule_rounds": 7, "proximal_mu": 2.0}
    made = small.set_up(kind, seed=3, **optimiser, **pull)
    tuner = made.trainer.finetuner(Finetune(epochs=3, layers=layers))
    updates = list(tuner.train(made.jobs, 8, proximal_mu=0.0))
    assert not any(update.failed for update in updates)
    results = small.by_client(updates)
    assert sorted(results) == [0, 1, 2, 3, 4]
    plain = small.hyperparameters(**optimiser, epochs=3)
    for client, (state, _) in results.items():
        expected, _ = small.literal(made.model, made.data, plain, client, made.start, 3, 8, trained)
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-5)
        assert {name for name in state if torch.equal(state[name], made.start[name])} == {*state} - {*trained}


def test_a_rate_of_its_own_and_training_stays_as_it_is(small) -> None:
    made = small.set_up(seed=3, learning_rate=0.2, epochs=None, steps=1, mode="sequential")
    training = made.trainer.training
    (before,) = made.trainer.train(made.jobs, 1)
    tuner = made.trainer.finetuner(Finetune(epochs=1, layers="last", learning_rate=0.05))
    (tuned,) = tuner.train(made.jobs, 1)
    (after,) = made.trainer.train(made.jobs, 1)
    for name, tensor in before.state.items():
        assert torch.equal(tensor, after.state[name])
    # Client 0 has one example, so one step: four times the rate takes it four times as far.
    first, other = (small.by_client([update])[0][0]["3.bias"] for update in (before, tuned))
    torch.testing.assert_close(4 * (other - made.start["3.bias"]), first - made.start["3.bias"])
    assert made.trainer.training is training


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
def test_evaluation_adds_each_client_s_shift(small, kind: str, batch_size: int) -> None:
    made = small.set_up(kind, evaluation_batch_size=batch_size)
    trainer = made.trainer
    shifts = [np.array([0.0, 2.0, -1.0]), None, np.array([3.0, 0, 0]), np.zeros(3), np.array([-4.0, 1, 1])]
    jobs = [replace(job, shift=shift) for job, shift in zip(made.tests, shifts, strict=True)]
    plain, scores = trainer.logits(made.tests), trainer.evaluate(jobs, full=True)
    outputs = trainer.logits(jobs)
    for job, (logits, labels), (found, _), got in zip(jobs, plain, outputs, scores, strict=True):
        moved = torch.from_numpy(logits if job.shift is None else logits + job.shift).float()
        torch.testing.assert_close(torch.from_numpy(found), moved)
        losses = functional.cross_entropy(moved.flatten(0, -2), torch.from_numpy(labels).flatten())
        assert got.figures["loss"] == pytest.approx(float(losses), rel=1e-5)
        assert got.figures["accuracy"] == pytest.approx(np.mean(moved.argmax(-1).numpy() == labels))
