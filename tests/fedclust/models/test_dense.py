import torch

from fedclust.models.dense import MLP, TableEmbedding


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


def test_embedded_categories_by_hand() -> None:
    # One number, then categories of 2 and 3 values, embedded in one number each: rows 0-1 and 2-4 of a table.
    model = TableEmbedding([3], num_classes=2, category_sizes=[2, 3], embedding=1, hidden=[])
    embedding, head = model.body[0].embedding, model.head  # type: ignore[index, union-attr]
    embedding.weight.data = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])
    head.weight.data, head.bias.data = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]]), torch.zeros(2)
    # (0.5, 1, 2) becomes (0.5, 20, 50), (7, 0, 0) becomes (7, 10, 30).
    rows = torch.tensor([[0.5, 1.0, 2.0], [7.0, 0.0, 0.0]])
    torch.testing.assert_close(model(rows), torch.tensor([[70.5, 190.5], [47.0, 117.0]]))
    assert TableEmbedding([2], 2, category_sizes=[2, 3], embedding=1, hidden=[]).head.in_features == 2
