"""Classes: one of several names per row."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedclust.data.targets.base import Block, Scores, Target, check_no_moments
from fedclust.metrics import auc, classification_by_client, outcomes
from fedclust.proof.coalitions import Fit, balance, fit_of, ranking
from fedclust.proof.scores import brier_scores, hits
from fedclust.support.checks import few
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Classes(Target):
    """A class: a logit per class, cross-entropy, Brier's score."""

    kind: ClassVar[str] = "classes"
    right = "predicted right"
    predicted: ClassVar[str] = "probabilities"
    numeric: ClassVar[bool] = False
    fits_correction: ClassVar[bool] = False  # it follows from label counts: the label-prior correction

    @classmethod
    def agreed(cls, values: FloatArray, **given: Any) -> "Classes":  # noqa: ARG003
        """Return classes: the data name them."""
        return CLASSES

    def agreed_again(self, values: FloatArray) -> "Classes":  # noqa: ARG002
        """Return itself."""
        return self

    @classmethod
    def strata(cls, values: FloatArray | IntArray) -> IntArray:
        """Return the rank of each row's label, which may still be a name.

        Examples
        --------
        >>> Classes.strata(np.array(["well", "ill", "well"]))
        array([1, 0, 1])
        """
        return np.unique(values, return_inverse=True)[1].reshape(-1)

    @classmethod
    def read(cls, values: Any, num_bins: int | None = None) -> IntArray:
        """Convert class indices to int64.

        Raises
        ------
        ValueError
            If a value is not a class index, or not one of `num_bins`.

        Examples
        --------
        >>> Classes.read([1.0, 2.0])
        array([1, 2])
        """
        labels = np.asarray(values)
        bad = labels[~((labels >= 0) & np.isfinite(labels) & (labels == np.round(labels)))]
        if len(bad):
            raise ValueError(f"targets must be class indices, whole numbers >= 0, got {bad[0]}")
        if num_bins is not None and len(labels) and labels.max() >= num_bins:
            raise ValueError(f"targets must be below {num_bins}, got {int(labels.max())}")
        return labels.astype(np.int64)

    def correction(self, outputs: FloatArray, values: FloatArray | IntArray) -> FloatArray:  # noqa: ARG002
        """Return zeros: a client is sent its correction."""
        return np.zeros(np.shape(outputs)[-1])

    def outputs(self, num_bins: int) -> int:
        """Return the number of classes."""
        return num_bins

    def predictions(
        self,
        outputs: "torch.Tensor",
        moments: Sequence[float] | None = None,
        num_bins: int | None = None,
    ) -> "torch.Tensor":
        """Return the probabilities of all classes, in the shape of the outputs.

        Examples
        --------
        >>> import torch
        >>> Classes().predictions(torch.tensor([[0.0, 0.0]]))
        tensor([[0.5000, 0.5000]])
        """
        check_no_moments(self, moments)
        return outputs.softmax(-1)[..., :num_bins]

    def table(
        self,
        outputs: "torch.Tensor",
        class_names: Sequence[str],
        moments: Sequence[float] | None = None,
        margin: float | None = None,  # noqa: ARG002
    ) -> "tuple[list[str], torch.Tensor]":
        """Return a column of probabilities for each class."""
        return list(class_names), self.predictions(outputs, moments, len(class_names))

    def saved(self, truth: FloatArray, predicted: FloatArray, class_names: Sequence[str]) -> dict[str, Any]:
        """Return ``label`` and ``predicted`` as names, and ``p: <class>`` for each class.

        Examples
        --------
        >>> Classes().saved(np.array([1.0]), np.array([[0.75, 0.25]]), ["ill", "well"])["label"]
        array(['well'], dtype=object)
        """
        names, labels = np.array(class_names, dtype=object), truth.ravel().astype(np.int64)
        known = len(names) <= predicted.shape[-1] and np.isin(truth, np.arange(len(names))).all()
        if not known or truth.shape != predicted.shape[:-1]:
            raise ValueError(f"predictions must be of {len(names)} classes")
        flat = predicted.reshape(-1, predicted.shape[-1])[:, : len(names)]
        chances = {f"p: {each}": flat[:, place] for place, each in enumerate(class_names)}
        return {"label": names[labels], "predicted": names[flat.argmax(axis=1)], **chances}

    def log_chances(self, outputs: "torch.Tensor") -> "torch.Tensor | None":
        """Return log-probabilities; each position counts as a row."""
        return outputs.log_softmax(-1).flatten(0, -2)

    def named(self, table: FloatArray, class_names: Sequence[str]) -> list[str]:
        """Return the most probable class of each row."""
        return [class_names[label] for label in table.argmax(-1).ravel().tolist()]

    def coded(self, labels: Iterable[Any], class_names: Sequence[str], numbered: bool = False) -> list[int]:
        """Return the class indices of names, or of what names are written from.

        Examples
        --------
        >>> Classes().coded(["2", 1.0, True], ["1", "2"])
        [1, 0, 0]
        >>> Classes().coded(["well", 0.0], ["ill", "well"], numbered=True)
        [1, 0]
        """
        codes = {name: code for code, name in enumerate(class_names)}
        if numbered and not any(name.isdecimal() for name in class_names):
            codes |= {str(code): code for code in range(len(class_names))}
        numbers = bool | np.bool_ | np.floating  # truth values are named 0 and 1, as a run names them
        named = [name_of(float(label) if isinstance(label, numbers) else label) for label in labels]
        if unknown := sorted(set(named) - codes.keys()):
            raise ValueError(f"labels must be among {', '.join(class_names)}, got {few(unknown)}")
        return [codes[name] for name in named]

    @classmethod
    def stated(cls, values: FloatArray, floor: int) -> tuple[Block, ...]:  # noqa: ARG003
        """Return nothing: sites state their labels."""
        return ()

    @classmethod
    def from_stated(cls, blocks: Iterable[Block], **given: Any) -> "Classes":  # noqa: ARG003
        """Return classes."""
        return CLASSES

    def bins(self, values: FloatArray | IntArray) -> IntArray:
        """Return the classes themselves."""
        return np.asarray(values, dtype=np.int64)

    def bin_names(self) -> tuple[str, ...]:
        """Return nothing: the data name their classes."""
        return ()

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

    def fit_classes(self, num_bins: int) -> int:
        """Return the number of classes."""
        return num_bins

    def ranking(
        self, outputs: FloatArray, values: FloatArray | IntArray, fold: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Measure the area under the curve, see :func:`~fedclust.proof.coalitions.ranking`."""
        return ranking(outputs, np.asarray(values), fold)

    def balance(self, right: FloatArray, values: FloatArray | IntArray) -> tuple[FloatArray, FloatArray]:
        """Measure balanced accuracies, see :func:`~fedclust.proof.coalitions.balance`."""
        return balance(right > 0, np.asarray(values))

    def fit(
        self, outputs: FloatArray, values: FloatArray | IntArray, fold: IntArray, *, within: bool = False
    ) -> Fit:
        """Measure how well a model fits rows, see :func:`~fedclust.proof.coalitions.fit_of`."""
        return fit_of(outputs, np.asarray(values), fold, within=within)

    def kept(self, outputs: "torch.Tensor", width: int, full: bool) -> "tuple[torch.Tensor, ...]":
        """Return the predicted classes and, for a full evaluation, the probabilities of all."""
        output = (outputs.softmax(-1) if full else outputs)[..., :width]
        return (output.argmax(-1), output) if full else (output.argmax(-1),)

    def measured(
        self,
        counts: IntArray,
        losses: FloatArray,
        values: FloatArray | IntArray,
        kept: Sequence[Any],
        num_bins: int,
        full: bool,
    ) -> list[Scores]:
        """Reduce results per row to scores per client; see :func:`scores_by_client`."""
        return scores_by_client(
            counts, losses, np.asarray(values), kept[0], num_bins, kept[1] if full else None
        )


def name_of(value: Any) -> str:
    """Write a label or an owner; a column of whole numbers becomes floats when some are missing."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


CLASSES = Classes()
"""The target of data that say nothing else."""


def scores_by_client(
    counts: IntArray,
    losses: FloatArray,
    labels: IntArray,
    predictions: IntArray,
    num_classes: int,
    probabilities: FloatArray | None = None,
) -> list[Scores]:
    """Reduce per-example results to scores per client, as :mod:`fedclust.metrics` defines them.

    If labels have positions, every position counts as one prediction.

    Parameters
    ----------
    counts
        Examples of each client, shape (n,); examples lie client by client in the other arguments.
    losses
        Loss of each example in nats, shape (N,).
    labels, predictions
        Class indices, shape (N,) or (N, positions).
    num_classes
        Number of classes C.
    probabilities
        Class probabilities, shape (N, C) or (N, positions, C), for a full evaluation; else None.

    Returns
    -------
    Scores of each client; NaN if undefined, as without examples or with probabilities that are not finite.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    positions = int(np.prod(labels.shape[1:]))
    figures = classification_by_client(
        np.repeat(owner, positions), labels.ravel(), predictions.ravel(), len(counts), num_classes
    )
    with np.errstate(invalid="ignore"):
        means = np.bincount(owner, weights=losses, minlength=len(counts)) / counts
    names = "num-examples", "loss", "accuracy", "balanced-accuracy"
    columns = counts.astype(float), means, figures["accuracy"], figures["balanced_accuracy"]
    rows = [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)]
    if probabilities is None:
        return [Scores(row) for row in rows]
    ends = np.cumsum(counts * positions)[:-1]
    flat = (labels.ravel(), predictions.ravel(), probabilities.reshape(-1, num_classes))
    parts = zip(*[np.split(each, ends) for each in flat], strict=True)
    scores = []
    for row, f1, part in zip(rows, figures["macro_f1"].tolist(), parts, strict=True):
        counted = outcomes(*part)
        # The probabilities of a diverged model have no order.
        area = auc(part[0], part[2]) if counted.bins is not None else float("nan")
        scores.append(Scores(row | {"macro-f1": f1, "auc": area}, counted))
    return scores
