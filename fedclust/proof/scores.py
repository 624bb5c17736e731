"""Score predicted class probabilities row by row."""

import numpy as np
from numpy.typing import ArrayLike

from fedclust.support.checks import check_entries, check_shapes
from fedclust.typing import FloatArray, IntArray

SCALE = "Brier score: 0 for a prediction that is certain and right, 2 for one that is certain and wrong."
"""Explanation of a verdict's figures, for the line below it."""


def brier_scores(
    logits: FloatArray, labels: IntArray, log_prior_shift: ArrayLike | None = None
) -> FloatArray:
    """Score a model's class probabilities for each row.

    Source: Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78,
    1950: Σ_c (p_c − 1[y = c])². It is bounded, so no single row can decide a comparison, and smallest on
    average for the true probabilities.

    Parameters
    ----------
    logits
        The model's outputs before the softmax, shape (n, C), or (n, positions, C) for models that label
        every position of a row.
    labels
        True classes, 0…C − 1, shape (n,), or (n, positions).
    log_prior_shift
        Added to each row's logits, shape (C,): ln(class share on this client / class share the model was
        trained on), the label-prior correction; −∞ for a class that the client cannot have. None adds
        nothing.

    Returns
    -------
    Scores in [0, 2], shape (n,): 0 for certain and right, 2 for certain and wrong; averaged over the
    positions of a row, because rows are the sampled unit.

    Raises
    ------
    ValueError
        If the shapes do not fit, a label is not a class, or a value is not a number that can be scored.

    Examples
    --------
    >>> brier_scores(np.array([[0.0, 0.0]]), np.array([1]))  # probabilities of one half: 2·0.5²
    array([0.5])
    >>> brier_scores(np.array([[0.0, 0.0]]), np.array([1]), log_prior_shift=np.log([1.0, 3.0]))  # 2·0.25²
    array([0.125])
    """
    logits, labels = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    rows = "rows? positions?" if labels.ndim == 2 else "rows?"
    check_shapes(labels=(labels, rows), logits=(logits, f"{rows} classes"))
    check_entries(f"in [0, {logits.shape[-1]})", labels=labels)
    check_entries("finite", logits=logits)
    if log_prior_shift is not None:
        shift = np.asarray(log_prior_shift, dtype=np.float64)
        check_shapes(log_prior_shift=(shift, str(logits.shape[-1])))
        if not (shift < np.inf).all() or not np.isfinite(shift).any():
            raise ValueError(f"log_prior_shift must be finite or -inf, and finite somewhere, got {shift}")
        logits = logits + shift
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    happened = labels[..., None] == np.arange(logits.shape[-1])
    errors = weights / weights.sum(axis=-1, keepdims=True) - happened
    scores = np.square(errors).sum(axis=-1)
    return scores if scores.ndim == 1 else scores.mean(axis=1)


def hits(logits: FloatArray, labels: IntArray, log_prior_shift: FloatArray) -> FloatArray:
    """Return whether a model predicts each row right, shape (n,); of a row with positions, the share of them.

    Parameters
    ----------
    logits, labels, log_prior_shift
        As for :func:`brier_scores`.

    Examples
    --------
    >>> hits(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0]), np.zeros(2))
    array([1., 0.])
    """
    right: np.ndarray = np.add(logits, log_prior_shift).argmax(axis=-1) == np.asarray(labels)
    return right.astype(np.float64) if right.ndim == 1 else right.mean(axis=1)
