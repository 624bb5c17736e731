"""Cross-entropy per example and per position."""

import math

import pytest
import torch

import fedclust
from fedclust.data.arrays import from_arrays
from fedclust.training import LocalTraining, losses
from fedclust.training.cohort import Job
from fedclust.training.trainer import Trainer

# Logits 0 and ln 3: softmax probabilities 1/4 and 3/4, sigmoids 1/2 and 3/4.
LOGITS = torch.tensor([[0.0, math.log(3.0)], [0.0, math.log(3.0)]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (losses.cross_entropy, [math.log(4), math.log(4 / 3)]),
        # Label 0: (-ln 1/2 - ln 1/4) / 2 = ln 8 / 2; label 1: (-ln 1/2 - ln 3/4) / 2 = ln(8/3) / 2.
        (losses.binary_cross_entropy, [math.log(8) / 2, math.log(8 / 3) / 2]),
        # 2 rows of class 0 and 6 of class 1: weights 8/(2·2) = 2 and 8/(2·6) = 2/3.
        (losses.WeightedCrossEntropy().fitted([2, 6]), [2 * math.log(4), 2 / 3 * math.log(4 / 3)]),
    ],
    ids=["softmax", "sigmoids", "weighted"],
)
def test_losses_by_hand(loss: losses.Loss, expected: list[float]) -> None:
    values = torch.tensor(expected)
    torch.testing.assert_close(losses.example_losses(LOGITS, LABELS, loss), values)
    torch.testing.assert_close(losses.mean_loss(LOGITS, LABELS, loss), values.mean())
    # Two positions of one example: the mean of both.
    one = losses.example_losses(LOGITS.unsqueeze(0), LABELS.unsqueeze(0), loss)
    torch.testing.assert_close(one, values.mean().reshape(1))
    assert losses.least_loss(loss) == 0


def test_what_is_no_loss() -> None:
    logits, labels = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"one number per example, shape \[3\], got \[\]; .*reduction=none"):
        losses.example_losses(logits, labels, torch.nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="shape .3., got float"):
        losses.example_losses(logits, labels, lambda outputs, targets: 1.0)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="^loss must be a function of outputs and labels, got 'focal'$"):
        LocalTraining(learning_rate=0.1, batch_size=8, steps=1, loss="focal")  # type: ignore[arg-type]


def _raises(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    raise ValueError("mine")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (torch.nn.CrossEntropyLoss(), r"return one number per example, shape \[2\], got \[\]"),
        (lambda outputs, labels: None, r"return one number per example, shape \[2\], got NoneType"),
        (_raises, r"take outputs of shape \[2, 3\] and labels of shape \[2\], it raises ValueError: mine$"),
        (
            lambda outputs, labels: outputs.detach().sum(1),
            "have a gradient by the outputs, .* got one without",
        ),
        (lambda outputs, labels: labels, "have a gradient by the outputs, .* got one without"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_refused_before_round_1(loss, said: str) -> None:
    network, rows = torch.nn.Linear(4, 3), (torch.zeros(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    training = LocalTraining(learning_rate=0.1, batch_size=8, steps=1, loss=loss)
    with pytest.raises(ValueError, match=f"^loss must {said}"):
        fedclust.simulate("fedavg", network, [(rows, None, rows)] * 2, rounds=1, training=training)


def test_a_run_may_be_started_where_gradients_are_off() -> None:
    with torch.no_grad():
        losses.check_loss(losses.cross_entropy, LOGITS[:1], LABELS[:1])


def test_weights_of_classes() -> None:
    assert losses.WeightedCrossEntropy().fitted([2, 6]).class_weights == pytest.approx((2, 2 / 3))
    # A class without rows does not count: 4/(2·1), 4/(2·3).
    assert losses.WeightedCrossEntropy().fitted([1, 0, 3]).class_weights == pytest.approx((2, 1, 2 / 3))
    assert losses.WeightedCrossEntropy([1, 8]).fitted([5, 5]).class_weights == (1, 8)
    assert losses.least_loss("fedclust.training.losses.WeightedCrossEntropy") == 0


def test_weights_that_are_none() -> None:
    for weights in ([0.0, 1.0], [1.0, math.inf], [True, 1.0], ["a", 1.0]):
        with pytest.raises(ValueError, match="class_weights must be balanced or numbers > 0 and finite, got"):
            losses.WeightedCrossEntropy(weights)
    with pytest.raises(
        ValueError, match="class_weights must be balanced or numbers > 0 and finite, got 'even'"
    ):
        losses.WeightedCrossEntropy("even")
    with pytest.raises(ValueError, match="one for each of 3 classes, got 2"):
        losses.WeightedCrossEntropy([1.0, 2.0]).fitted([1, 1, 1])
    with pytest.raises(ValueError, match="must be numbers to compute a loss"):
        losses.example_losses(torch.zeros(1, 2), torch.tensor([0]), losses.WeightedCrossEntropy())


@pytest.mark.parametrize("mode", ["sequential", "vectorised"])
def test_clients_train_with_the_weights_of_all_of_them(mode) -> None:
    """One step on one row each: the gradient is the row's, times the weight of its class."""
    inputs = [torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, 0.5]])]
    # Client 0 has a row of class 0, client 1 three of class 1: weights 4/(2·1) = 2 and 4/(2·3) = 2/3.
    clients = [
        ((inputs[0], torch.tensor([0])), None, (inputs[0], torch.tensor([0]))),
        ((inputs[1].repeat(3, 1), torch.tensor([1, 1, 1])), None, (inputs[1], torch.tensor([1]))),
    ]
    data = from_arrays(clients, num_classes=2)
    network = torch.nn.Linear(2, 2)
    torch.nn.init.zeros_(network.weight)
    torch.nn.init.zeros_(network.bias)
    training = LocalTraining(
        learning_rate=0.1, batch_size=1, steps=1, mode=mode, loss=losses.WeightedCrossEntropy()
    )
    trainer = Trainer(network, data, training, 0)
    jobs = [Job(client, data.train[client], network.state_dict()) for client in range(2)]
    for update in trainer.train(jobs, 1):
        for place, client in enumerate(update.clients.tolist()):
            # Both classes have probability 1/2: the gradient of the logits is ±weight/2.
            weight, sign = ((2.0, 1.0), (2 / 3, -1.0))[client]
            step = 0.1 * weight / 2 * sign * torch.tensor([1.0, -1.0])
            torch.testing.assert_close(update.state["bias"][place], step)
            torch.testing.assert_close(update.state["weight"][place], step[:, None] * inputs[client])
