"""Networks of dense layers, for tables and for anything small enough to be flattened."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedclust.models.classifier import Classifier, num_columns

__all__ = ["MLP"]


class MLP(Classifier):
    """Flatten, then dense layers with ReLU, then a linear head.

    Source: Clust-PSI-PFL, Section IV-A d: a single linear layer for ACSIncome (``linear``, `hidden` empty)
    and three layers of 500 units for Serengeti (``mlp_500``). ``mlp`` is ours, for the digits.

    Weights and biases between widths a and b number (a + 1) b, so with D inputs and C classes:

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

    def __init__(self, input_shape: Sequence[int], num_classes: int, hidden: Sequence[int]) -> None:
        if any(width < 1 for width in hidden):
            raise ValueError(f"hidden must be widths >= 1, got {list(hidden)}")
        widths = [num_columns(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), widths[-1], num_classes)
