"""Networks of dense layers, for tables and other small inputs."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedclust.models.construction import Classifier, Size, Sizes, num_columns
from fedclust.support.checks import checked


class MLP(Classifier):
    """Flatten, then dense layers with ReLU, then a linear head.

    Source: Clust-PSI-PFL, Section IV-A d: a single linear layer for ACSIncome (``linear``, `hidden` empty)
    and three layers of 500 units for Serengeti (``mlp_500``). ``mlp`` is ours, for the digits.

    A layer from width a to width b has (a + 1) b parameters, so with D inputs and C classes:

    ========== =============== ===================================== =========
    in conf    hidden          parameters                            example
    ========== =============== ===================================== =========
    linear     []              (D + 1) C                             D 64, C 10: 650
    mlp        [64]            (D + 1) 64 + 65 C                     D 64, C 10: 4,810
    mlp_500    [500, 500, 500] (D + 1) 500 + 2 · 501 · 500 + 501 C   D 64, C 10: 538,510
    ========== =============== ===================================== =========

    Parameters
    ----------
    input_shape
        Shape of one example; it is flattened.
    num_classes
        Number of classes C.
    hidden
        Widths of the hidden layers; empty for logistic regression.

    Raises
    ------
    ValueError
        If a size or width is below 1 or there are fewer than two classes.
    """

    @checked
    def __init__(self, input_shape: Sequence[int], num_classes: int, hidden: Sizes) -> None:
        widths = [num_columns(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), widths[-1], num_classes)


class TableEmbedding(Classifier):
    """Embed a table's categories, append them to its numbers; then dense layers with ReLU and a linear head.

    Source: entity embeddings, Guo & Berkhahn, arXiv:1604.06737 (2016).

    Number of parameters: with m numbers, categorical columns of s_1, s_2, … values and embeddings of length
    e, it is e (s_1 + s_2 + …) plus that of an :class:`MLP` with m + e · (number of categorical columns)
    inputs. For Adult, with m = 6, 8 such columns of 110 values in all, e = 8, one hidden layer of 64 and
    C = 2: 880 + 71 · 64 + 65 · 2 = 5,554.

    Parameters
    ----------
    input_shape
        Number of columns: first the numbers, then a column of whole numbers per category.
    num_classes
        Number of classes C.
    category_sizes
        For each categorical column, its number of values: 0 to size - 1.
    embedding
        Length e of an embedding.
    hidden
        Widths of the hidden layers.

    Raises
    ------
    ValueError
        If a size or width is below 1, there are no categorical columns or more than columns, or there are
        fewer than two classes.
    """

    @checked
    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        category_sizes: Sequence[int] | None,
        embedding: Size,
        hidden: Sizes,
    ) -> None:
        columns, sizes = num_columns(input_shape), list(category_sizes or ())
        if not 1 <= len(sizes) <= columns or min(sizes) < 1:
            raise ValueError(
                f"category_sizes must be 1 to {columns} sizes >= 1, one per column of categories with "
                f"dataset.encoding=index, got {category_sizes}"
            )
        dense = MLP([columns - len(sizes) + embedding * len(sizes)], num_classes, hidden)
        super().__init__(nn.Sequential(_Embedded(sizes, embedding), dense.body), dense.width, num_classes)


class _Embedded(nn.Module):
    """Concatenate numbers and embedded categories, (B, columns) to (B, width)."""

    def __init__(self, sizes: Sequence[int], length: int) -> None:
        super().__init__()
        self.num_categories = len(sizes)
        # One embedding table for all columns: a column's values follow those of the column before it.
        self.embedding = nn.Embedding(sum(sizes), length)
        begins = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("begins", begins, persistent=False)
        self.begins: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        numbers, categories = inputs[:, : -self.num_categories], inputs[:, -self.num_categories :]
        embedded = self.embedding(categories.long() + self.begins)
        return torch.cat([numbers, embedded.flatten(1)], dim=1)
