"""What a ClientApp of your own adds to a reply for methods that need more than a model and a loss.

Each function makes a record of NumPy arrays, by its name, for ``content.update(…)`` or ``RecordDict({…})``;
nothing here needs PyTorch. Flower's own strategies ignore these records.

=================== ========================== ================================================
a method needs      of a reply to              add to its content
=================== ========================== ================================================
FedGWC              ``train``                  ``reporting.losses(loss_of_each_step)``
ClustPSIPFL, HACCS  ``evaluate``               ``reporting.label_counts(labels, num_classes)``
FMCL                ``evaluate``               ``reporting.prototypes(embeddings, labels, num_classes)``
``compare_rows``    ``evaluate``, if it has    ``reporting.comparison(other, own, labels, config)``
                    a model ``compare-with``
=================== ========================== ================================================
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from numpy.typing import ArrayLike

from fedclust.proof.paired import evidence
from fedclust.proof.scores import brier_scores
from fedclust.support.checks import check_shapes, few
from fedclust.typing import FloatArray, IntArray


def losses(of_steps: Sequence[float] | ArrayLike) -> dict[str, ConfigRecord]:
    """Report the training loss before each local step.

    Parameters
    ----------
    of_steps
        In nats, shape (steps,).

    Raises
    ------
    ValueError
        If there is none.

    Examples
    --------
    >>> losses([0.7, 0.5])["losses"]["losses"]
    [0.7, 0.5]
    """
    values = np.asarray(of_steps, dtype=np.float64)
    check_shapes(of_steps=(values, "steps"))
    return {"losses": ConfigRecord({"losses": values.tolist()})}


def label_counts(labels: ArrayLike, num_classes: int) -> dict[str, ConfigRecord]:
    """Report how many rows there are of each class.

    Parameters
    ----------
    labels
        Class of each training row, in 0 … `num_classes` − 1, shape (n,).
    num_classes
        Number of classes C, the same on all clients.

    Raises
    ------
    ValueError
        If a label is not among the classes.

    Examples
    --------
    >>> label_counts([0, 2, 2], num_classes=3)["label-counts"]["label-counts"]
    [1, 0, 2]
    """
    return {"label-counts": ConfigRecord({"label-counts": _counts(labels, num_classes).tolist()})}


def prototypes(embeddings: ArrayLike, labels: ArrayLike, num_classes: int) -> dict[str, ArrayRecord]:
    """Report the mean embedding of each class, and how many rows it has.

    Parameters
    ----------
    embeddings
        Of each training row by an encoder that is the same on all clients, shape (n, d).
    labels, num_classes
        As for :func:`label_counts`; a class without rows has the mean 0.

    Raises
    ------
    ValueError
        If a label is not among the classes, or there is not one for each embedding.

    Examples
    --------
    >>> prototypes([[1.0, 0.0], [3.0, 0.0]], labels=[1, 1], num_classes=2)["prototypes"]["prototypes"].numpy()
    array([[0., 0.],
           [2., 0.]], dtype=float32)
    """
    rows, counts = np.asarray(embeddings, dtype=np.float64), _counts(labels, num_classes)
    check_shapes(embeddings=(rows, "n d"), labels=(np.asarray(labels), "n"))
    sums = np.zeros((num_classes, rows.shape[1]))
    np.add.at(sums, _classes(labels), rows)
    means = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
    return {"prototypes": ArrayRecord({"prototypes": Array(means), "counts": Array(counts)})}


def comparison(
    other: ArrayLike, own: ArrayLike, labels: ArrayLike, config: Mapping[str, Any]
) -> dict[str, ConfigRecord]:
    """Report how two models predict the same rows, by twelve numbers.

    Parameters
    ----------
    other
        Probabilities of the classes by the model ``message.content["compare-with"]``, shape (n, C).
    own
        The same by the model ``message.content["arrays"]``.
    labels
        Class of each row, shape (n,).
    config
        ``message.content["config"]``; it says how many rows count and by what margin a model must be better.

    Raises
    ------
    ValueError
        If the shapes do not fit, a label is not a class, or the probabilities of a row do not add up to 1.

    Examples
    --------
    >>> sent = {"rows": 10, "margin": 0.0}
    >>> found = comparison([[0.5, 0.5]], [[1.0, 0.0]], [0], sent)["difference"]  # Brier scores 0.5 and 0
    >>> found["count"], found["sums"]
    (1, [0.5, 0.25, 0.125])
    """
    first, second = _scores("other", other, labels), _scores("own", own, labels)
    counted = slice(int(config["rows"]))
    of = evidence((first - second)[counted], [float(config["margin"])])
    entries: dict[str, Any] = {"count": of.count, "sums": of.sums.tolist()}
    return {"difference": ConfigRecord(entries | {"log-wealth": of.log_wealth[0].tolist()})}


_ROUND_OFF = 0.01  # of sums of probabilities in few bits


def _scores(name: str, chances: ArrayLike, labels: ArrayLike) -> FloatArray:
    """Score probabilities of the classes; logits, which look alike, would be scored without an error."""
    values, classes = np.asarray(chances, dtype=np.float64), _classes(labels)
    rows = "n? positions?" if classes.ndim == 2 else "n?"
    check_shapes(**{"labels": (classes, rows), name: (values, f"{rows} classes")})
    right = (values >= 0).all(axis=-1) & (np.abs(values.sum(axis=-1) - 1) <= _ROUND_OFF)
    if not right.all():  # NaN is not
        rule = f"{name} must be probabilities >= 0 that add up to 1 in each row"
        raise ValueError(f"{rule}, got [{few(values[~right][0])}]")
    return brier_scores(np.log(np.maximum(values, 1e-30)), classes)


def _classes(labels: ArrayLike) -> IntArray:
    values = np.asarray(labels)
    if values.dtype.kind not in "biuf" or (values % 1).any():
        raise ValueError(f"labels must be whole numbers, got [{few(values.ravel())}]")
    return values.astype(np.int64)


def _counts(labels: ArrayLike, num_classes: int) -> IntArray:
    classes = _classes(labels)
    check_shapes(labels=(classes, "n?"))
    if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:
        raise ValueError(f"labels must be in 0 to {num_classes - 1}, got {classes.min()} to {classes.max()}")
    return np.bincount(classes, minlength=num_classes)
