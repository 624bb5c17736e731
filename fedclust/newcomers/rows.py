"""Apply a method's rule for newcomers to rows, without a federation."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fedclust.clustering.placement import LabelRule, SubspaceRule
from fedclust.clustering.shared.placement import Placement
from fedclust.models.class_prototypes import class_subspaces, prototypes
from fedclust.models.embeddings import Examples
from fedclust.models.encoders import Encoder, PixelEncoder
from fedclust.newcomers.placing import Rule
from fedclust.typing import FloatArray


def mean_embedding(
    inputs: torch.Tensor, encoder: Callable[[], Encoder], mean: Sequence[float], std: Sequence[float]
) -> FloatArray:
    """Compute the mean embedding of rows, shape (d,); arguments as for :func:`place_rows`."""
    examples = Examples(inputs, torch.zeros(len(inputs), dtype=torch.int64), 1, mean, std)
    return prototypes(encoder(), examples, [np.arange(len(inputs))]).means[0, 0]


def place_rows(
    rule: Rule,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    encoder: Callable[[], Encoder],
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> Placement:
    """Place a client by its rows, as if it had answered the rule's question.

    Parameters
    ----------
    rule
        The method's rule.
    inputs
        The client's rows, not normalised, shape (n, *shape).
    labels
        Their classes, shape (n,).
    encoder
        Creates the frozen encoder that the run's clients used.
    num_classes
        Number of classes C.
    mean, std
        Normalisation of images per channel; empty for none.
    """
    rows, examples = np.arange(len(inputs)), Examples(inputs, labels, num_classes, mean, std)
    if isinstance(rule, LabelRule):
        return rule.place(np.bincount(labels.numpy().ravel(), minlength=num_classes))
    if isinstance(rule, SubspaceRule):
        chosen = PixelEncoder(tuple(inputs.shape[1:])) if rule.input == "pixels" else encoder()
        return rule.place(class_subspaces(chosen, examples, rows, rule.bases.shape[-1]))
    own = prototypes(encoder(), examples, [rows])
    return rule.place(own.means[0], own.counts[0])
