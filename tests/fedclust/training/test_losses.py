"""Cross-entropy per example and per position."""

import math

import torch

from fedclust.training.losses import example_losses, mean_loss


def test_one_label_per_example() -> None:
    # Logits 0 and ln 3 are probabilities 1/4 and 3/4.
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, math.log(3.0)]])
    labels = torch.tensor([0, 1])
    torch.testing.assert_close(example_losses(logits, labels), torch.tensor([math.log(4), math.log(4 / 3)]))
    # (ln 4 + ln 4/3) / 2
    assert math.isclose(mean_loss(logits, labels).item(), math.log(16 / 3) / 2, rel_tol=1e-6)


def test_one_label_per_position() -> None:
    logits = torch.tensor([0.0, math.log(3.0)]).expand(2, 2, 2)
    labels = torch.tensor([[0, 1], [1, 1]])
    # Positions of the first example: ln 4 and ln 4/3; of the second: ln 4/3 twice.
    expected = torch.tensor([math.log(16 / 3) / 2, math.log(4 / 3)])
    torch.testing.assert_close(example_losses(logits, labels), expected)
    torch.testing.assert_close(mean_loss(logits, labels), expected.mean())
