"""The papers' networks for text and DNA, from tokens to one label per sequence or position.

Token 0 is padding, as in `fedclust.data`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedclust.models.construction import Classifier, Size, num_positions
from fedclust.support.checks import checked

PADDING = 0


class EmbeddingLSTM(Classifier):
    """Embedding, dropout, one LSTM; its output at the last token goes to the head.

    Source: Clust-PSI-PFL, Section IV-A d, for Sent140 (``embedding_lstm``): "an embedding layer, a dropout
    layer (rate 0.5), an LSTM layer (10 units, dropout 0.2, recurrent dropout 0.2), and a dense output layer".
    The dropout of the LSTM's inputs is a separate layer here. Recurrent dropout is left out because torch's
    LSTM does not support it. The paper does not give the embedding's length.

    Parameters: V e for the embedding, 4 h (e + h + 2) for the LSTM (torch keeps two biases), (h + 1) C for
    the head. With V = 1,000 tokens, e = 32, h = 10 and C = 2: 32,000 + 1,760 + 22 = 33,782.

    Parameters
    ----------
    input_shape
        Number of positions L.
    num_classes
        Number of classes C.
    vocabulary_size
        Number of tokens V, padding included.
    embedding
        Length e of a token's embedding.
    hidden
        Units h of the LSTM.
    dropout
        Dropout rate after the embedding.
    input_dropout
        Dropout rate of the LSTM's inputs.

    Raises
    ------
    ValueError
        If a size is below 1 or there are fewer than two classes.
    """

    @checked
    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        vocabulary_size: Size,
        embedding: Size,
        hidden: Size,
        dropout: float,
        input_dropout: float,
    ) -> None:
        num_positions(input_shape)
        tokens = nn.Embedding(vocabulary_size, embedding)
        embed = nn.Sequential(tokens, nn.Dropout(dropout), nn.Dropout(input_dropout))
        lstm = nn.LSTM(embedding, hidden, batch_first=True)
        super().__init__(_LastOutput(embed, lstm), hidden, num_classes)


class TokenEmbedding(nn.Embedding):
    """An embedding in which padding, token 0, is a vector of zeros and not trained.

    Like ``padding_idx=0``, but clients can be trained together: vmap ignores that option.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Embed tokens, shape (B, positions), as (B, positions, embedding)."""
        return super().forward(input) * (input != 0).unsqueeze(-1)


class EmbeddingDense(Classifier):
    """Embedding, flattened, a small dense layer with ReLU, a head.

    Padding is a vector of zeros: with a trained vector, a short text's padding outweighs its words, and the
    few units of the dense layer die.

    Source: Clust-PSI-PFL, Section IV-A d, for Amazon reviews (``embedding_dense``): "a trainable embedding
    layer (vocabulary size V, embedding dimension d) followed by a Flatten layer, a small dense hidden layer
    with 8 ReLU units, and a softmax output". The paper gives neither V nor d.

    Parameters: V e + (L e + 1) 8 + 9 C. With V = 1,000 tokens, e = 32, L = 60 positions and C = 2: 32,000 +
    15,368 + 18 = 47,386.

    Parameters
    ----------
    input_shape
        Number of positions L.
    num_classes
        Number of classes C.
    vocabulary_size
        Number of tokens V, padding included.
    embedding
        Length e of a token's embedding, the paper's d.
    hidden
        Units of the dense layer.

    Raises
    ------
    ValueError
        If a size is below 1 or there are fewer than two classes.
    """

    @checked
    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        vocabulary_size: Size,
        embedding: Size,
        hidden: Size,
    ) -> None:
        body = nn.Sequential(
            TokenEmbedding(vocabulary_size, embedding),
            nn.Flatten(),
            nn.Linear(num_positions(input_shape) * embedding, hidden),
            nn.ReLU(),
        )
        super().__init__(body, hidden, num_classes)


class BiLSTMTagger(Classifier):
    """Embedding, two stacked bidirectional LSTMs, and a head at every position.

    Source: FedGMCC, Section V-A, for genomic reads (``bilstm_tagger``): "2 stacked bidirectional LSTMs that
    feed into a densely connected neural network", one label per base. The embedding replaces the
    paper's word vectors of 5-mers and is trained with the rest. The paper gives no widths.

    Parameters: V e for the embedding, 8 h (e + h + 2) for the first pair of LSTMs, 8 h (3 h + 2) for the
    second, (2 h + 1) C for the head. With V = 1,025 (the 4⁵ 5-mers and padding), e = 16, h = 32 and C = 2:
    16,400 + 12,800 + 25,088 + 130 = 54,418.

    Parameters
    ----------
    input_shape
        Number of positions L, and of labels.
    num_classes
        Number of classes C.
    vocabulary_size
        Number of tokens V, padding included.
    embedding
        Length e of a token's embedding.
    hidden
        Units h of each LSTM and direction.

    Raises
    ------
    ValueError
        If a size is below 1 or there are fewer than two classes.
    """

    @checked
    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        vocabulary_size: Size,
        embedding: Size,
        hidden: Size,
    ) -> None:
        num_positions(input_shape)
        embed = nn.Embedding(vocabulary_size, embedding)
        lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True, bidirectional=True)
        super().__init__(_AllOutputs(embed, lstm), 2 * hidden, num_classes)


class _AllOutputs(nn.Module):
    """The outputs of an LSTM over embedded tokens, (B, L) to (B, L, width)."""

    def __init__(self, embed: nn.Module, lstm: nn.LSTM) -> None:
        super().__init__()
        self.embed = embed
        self.lstm = lstm

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(self.embed(tokens))[0]
        return outputs


class _LastOutput(_AllOutputs):
    """The output at the last token that is not padding, (B, L) to (B, width).

    Padding may come before or after the text. For a text without tokens, the first position is used.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        last = (positions * (tokens != PADDING)).amax(dim=1)
        outputs = super().forward(tokens)
        # Unlike take_along_dim, this is exported for any number of rows.
        return outputs.gather(1, last[:, None, None].expand(-1, 1, outputs.shape[2])).squeeze(1)
