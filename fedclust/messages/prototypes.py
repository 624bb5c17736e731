"""A client's classes in an embedding: their prototypes, and the subspaces that they span."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedclust.messages.codec import (
    IN_ARRAYS,
    IN_CONFIG,
    Flag,
    Question,
    Reading,
    Real,
    Text,
    Values,
    Whole,
    train_rows,
)
from fedclust.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Prototypes:
    """A client's classes in a foundation model's embedding.

    Attributes
    ----------
    prototypes
        Mean embedding per class, shape (C, d); where the question pools the classes, C is 1.
    counts
        Training examples of each class, shape (C,).
    scatter
        Total variance of a class's embeddings around their mean, shape (C,); 0 for fewer than two examples.
    """

    prototypes: Annotated[FloatArray, Values(IN_ARRAYS, "f4", "C d")]
    counts: Annotated[IntArray, Values(IN_ARRAYS, "i8", "C", 0, train_rows, (1, train_rows))]
    scatter: Annotated[FloatArray, Values(IN_ARRAYS, "f8", "C", 0, float(np.finfo(np.float64).max))]

    @property
    def all(self) -> tuple[FloatArray, IntArray, FloatArray]:
        """The three arrays."""
        return self.prototypes, self.counts, self.scatter

    def check(self, at: Reading) -> None:
        """Check that all are of the same classes."""
        shapes = self.prototypes.shape, self.counts.shape, self.scatter.shape
        if not shapes[0][:1] == shapes[1] == shapes[2]:
            raise at.bad(
                f"prototypes must be (classes, width), counts and scatter (classes,), "
                f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )


@dataclass(frozen=True)
class PrototypesQuestion(Question[Prototypes]):
    """What clients are to average.

    Attributes
    ----------
    input
        What makes the embeddings: ``"encoder"``, the node's; ``"untrained"``, a network that every node draws
        from the same seed; or ``"pixels"``.
    pooled
        Whether all classes count as one.
    vocabulary_size
        Number of tokens, for an untrained network on texts; None for other inputs.
    min_examples
        Examples that a class must have for its prototype to be sent.
    max_norm
        Length to which each embedding is clipped before the mean; None for none.
    """

    kind = "query.prototypes"
    answer = Prototypes

    input: Annotated[str, Text(IN_CONFIG)] = "encoder"
    pooled: Annotated[bool, Flag(IN_CONFIG)] = False
    vocabulary_size: Annotated[int | None, Whole(IN_CONFIG)] = None
    min_examples: Annotated[int, Whole(IN_CONFIG, sparse=True)] = 1
    max_norm: Annotated[float | None, Real(IN_CONFIG)] = None


_ROUND_OFF = 1e-3  # of float32, in sums over a whole example


@dataclass(frozen=True, eq=False)
class Subspaces:
    """The subspaces that a client's classes span.

    Attributes
    ----------
    subspaces
        Orthonormal columns of each class, shape (C, d, p); 0 where the class has fewer than p.
    """

    subspaces: Annotated[FloatArray, Values(IN_ARRAYS, "f4", "C d p", -1 - _ROUND_OFF, 1 + _ROUND_OFF)]

    def check(self, at: Reading) -> None:
        """Check that there are as many columns as were asked for, orthonormal or 0."""
        vectors, bases = at.asked.vectors, self.subspaces
        if bases.shape[2] != vectors:
            raise at.bad(f"subspaces must have shape (classes, width, {vectors}), got {bases.shape}")
        products = np.einsum("cdp,cdq->cpq", bases, bases)
        lengths = np.diagonal(products, axis1=1, axis2=2)
        wanted = np.where(lengths < _ROUND_OFF, 0.0, 1.0)[:, None, :] * np.eye(vectors)
        if not (np.abs(products - wanted) <= _ROUND_OFF).all():
            raise at.bad("the vectors of a subspace must be orthonormal, or 0")


@dataclass(frozen=True)
class SubspacesQuestion(Question[Subspaces]):
    """The question which subspaces a client's classes span.

    Attributes
    ----------
    input
        What a column of the data matrix is: ``"pixels"`` or ``"encoder"``.
    vectors
        p, singular vectors per class, >= 1.
    """

    kind = "query.subspaces"
    answer = Subspaces

    input: Annotated[str, Text(IN_CONFIG)]
    vectors: Annotated[int, Whole(IN_CONFIG, 1)]
