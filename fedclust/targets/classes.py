"""Classes: one of several names per row."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fedclust.proof.scores import brier_scores, hits
from fedclust.targets.base import Target
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Classes(Target):
    """A class: a logit per class, cross-entropy, Brier's score."""

    kind: ClassVar[str] = "classes"
    right: ClassVar[str] = "predicted right"

    def outputs(self, num_bins: int) -> int:
        """Return the number of classes."""
        return num_bins

    def bins(self, values: FloatArray | IntArray) -> IntArray:
        """Return the classes themselves."""
        return np.asarray(values, dtype=np.int64)

    def bin_names(self) -> tuple[str, ...]:
        """Return nothing: the data name their classes."""
        return ()

    def loss(self, outputs: "torch.Tensor", values: "torch.Tensor") -> "torch.Tensor":
        """Compute each row's cross-entropy in nats, shape (n,)."""
        from fedclust.training.losses import cross_entropy

        return cross_entropy(outputs, values)

    def scores(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Compute each row's Brier score, see :func:`~fedclust.proof.scores.brier_scores`."""
        return brier_scores(outputs, np.asarray(values), correction)

    def hits(
        self, outputs: FloatArray, values: FloatArray | IntArray, correction: FloatArray | None = None
    ) -> FloatArray:
        """Return whether each row is predicted right, see :func:`~fedclust.proof.scores.hits`."""
        added = np.zeros(np.shape(outputs)[-1]) if correction is None else correction
        return hits(outputs, np.asarray(values), added)

    def correction(self, sent: FloatArray, outputs: FloatArray, values: FloatArray | IntArray) -> FloatArray:  # noqa: ARG002
        """Return the label-prior correction that was sent."""
        return sent

    def without_inputs(self, values: FloatArray | IntArray, num_bins: int) -> FloatArray:
        """Return the logarithm of the class shares, shape (C,); of no row, of equal ones.

        Examples
        --------
        >>> np.exp(Classes().without_inputs(np.array([0, 0, 1, 1]), 3))
        array([0.5, 0.5, 0. ])
        """
        counts = np.bincount(np.asarray(values).ravel(), minlength=num_bins)
        own = counts if counts.any() else np.ones(num_bins)
        with np.errstate(divide="ignore"):
            return np.log(own / own.sum())

    def figures(self, outputs: FloatArray, values: FloatArray | IntArray) -> dict[str, float]:  # noqa: ARG002
        """Return nothing: an evaluation has accuracy, balanced accuracy, F1 and AUC."""
        return {}


CLASSES = Classes()
"""The target of data that say nothing else."""
