import pytest
import torch

from fedclust.models.dense import MLP


def test_one_hidden_layer_by_hand() -> None:
    model = MLP(input_shape=[1, 1, 2], num_classes=2, hidden=[2])
    model.body[1].weight.data = torch.tensor([[1.0, 1.0], [1.0, -1.0]])  # type: ignore[index]
    model.body[1].bias.data = torch.tensor([0.0, 1.0])  # type: ignore[index]
    model.head.weight.data = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    model.head.bias.data = torch.tensor([0.5, 0.0])
    # (1, 3): 1 + 3 = 4 and 1 - 3 + 1 = -1, which ReLU makes 0; then 4 + 0.5 and 2 · 4 + 3 · 0.
    torch.testing.assert_close(model(torch.tensor([[[[1.0, 3.0]]]])), torch.tensor([[4.5, 8.0]]))


def test_without_hidden_layers_it_is_linear() -> None:
    model = MLP(input_shape=[3], num_classes=2, hidden=[])
    one, two = torch.randn(2, 5, 3)
    bias = model(torch.zeros(5, 3))
    torch.testing.assert_close(model(one + two), model(one) + model(two) - bias)


def test_refuses_an_empty_layer() -> None:
    with pytest.raises(ValueError, match=r"hidden must be widths >= 1, got \[5, 0\]"):
        MLP(input_shape=[3], num_classes=2, hidden=[5, 0])
