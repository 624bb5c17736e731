import torch
from torch import nn

from fedclust.models.sequences import BiLSTMTagger, EmbeddingDense, EmbeddingLSTM

SIZES: dict = {"input_shape": [6], "num_classes": 2, "vocabulary_size": 9, "embedding": 3}


def lstm_classifier() -> EmbeddingLSTM:
    return EmbeddingLSTM(**SIZES, hidden=4, dropout=0.5, input_dropout=0.2).eval()


def test_the_last_token_is_read_wherever_padding_stands() -> None:
    model = lstm_classifier()
    text = torch.tensor([[5, 7, 2]])
    alone = model.body.lstm(model.body.embed(text))[0][:, -1]  # type: ignore[operator,union-attr]
    behind = model.features(torch.tensor([[5, 7, 2, 0, 0, 0]]))
    torch.testing.assert_close(behind, alone)
    ahead = torch.tensor([[0, 0, 0, 5, 7, 2]])
    whole = model.body.lstm(model.body.embed(ahead))[0][:, -1]  # type: ignore[operator,union-attr]
    torch.testing.assert_close(model.features(ahead), whole)


def test_a_text_without_tokens_has_features_too() -> None:
    model = lstm_classifier()
    empty = torch.zeros(1, 6, dtype=torch.int64)
    first = model.body.lstm(model.body.embed(empty))[0][:, 0]  # type: ignore[operator,union-attr]
    torch.testing.assert_close(model.features(empty), first)


def test_the_lstm_has_the_papers_dropout_before_it() -> None:
    rates = [layer.p for layer in lstm_classifier().modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.5, 0.2]


def test_the_dense_network_sees_positions() -> None:
    model = EmbeddingDense(**SIZES, hidden=8)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    assert not torch.equal(model(tokens), model(tokens.flip(1)))
    vectors = model.body[0](tokens)  # type: ignore[index]
    torch.testing.assert_close(model.body[1](vectors), torch.cat([*vectors[0]])[None])  # type: ignore[index]


def test_padding_of_the_dense_network_is_zero_and_not_trained() -> None:
    model = EmbeddingDense(**SIZES, hidden=8)
    tokens = torch.tensor([[1, 2, 0, 0, 0, 0]])
    vectors = model.body[0](tokens)  # type: ignore[index]
    assert torch.equal(vectors[0, 2:], torch.zeros_like(vectors[0, 2:]))
    assert torch.equal(vectors[0, :2], model.body[0].weight[1:3])  # type: ignore[index,union-attr]
    (gradient,) = torch.autograd.grad(vectors.sum(), model.body[0].weight)  # type: ignore[index,union-attr]
    assert [bool(row.any()) for row in gradient[:4]] == [False, True, True, False]


def test_the_tagger_reads_both_directions_and_stacks_two() -> None:
    model = BiLSTMTagger(**SIZES, hidden=4).eval()
    assert (model.body.lstm.num_layers, model.body.lstm.bidirectional) == (2, True)  # type: ignore[union-attr]
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    logits = model(tokens)
    assert logits.shape == (1, 6, 2)
    for changed in (0, 5):  # either end reaches every position
        other = tokens.clone()
        other[0, changed] = 8
        assert (model(other) != logits).any(dim=2).all()
