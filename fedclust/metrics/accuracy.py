"""Accuracy of models on the clients' own test data, and its fairness."""

import numpy as np

from fedclust.typing import FloatArray, IntArray

CLIENT_FIGURES = ("num-examples", "loss", "accuracy", "balanced-accuracy", "macro-f1", "auc")
"""What every client is measured by, under the names that its answer has; others are the user's own."""


def global_accuracy(accuracy: FloatArray, num_examples: IntArray) -> float:
    """Average the clients' accuracies, weighted by their numbers of test examples.

    Parameters
    ----------
    accuracy
        Accuracy A_k of each client in [0, 1], shape (K,); ignored for a client without test examples.
    num_examples
        Test examples n_k of each client, >= 0, shape (K,).

    Returns
    -------
    Σ n_k A_k / Σ n_k, the share of all test examples that are classified correctly.

    Raises
    ------
    ValueError
        If the shapes differ, the accuracy of a client with examples is outside [0, 1], a number of examples
        is negative, or there are no examples.
    """
    accuracy, num_examples = np.asarray(accuracy, dtype=np.float64), np.asarray(num_examples)
    if accuracy.ndim != 1 or accuracy.shape != num_examples.shape:
        raise ValueError(
            f"accuracy and num_examples must have shape (K,), got {accuracy.shape}, {num_examples.shape}"
        )
    if (num_examples < 0).any():
        raise ValueError(f"num_examples must be >= 0, got {num_examples.min()}")
    counted = num_examples > 0
    if not counted.any():
        raise ValueError(f"num_examples must be > 0 on some client, got none on {len(counted)} clients")
    return float(np.average(_checked(accuracy[counted]), weights=num_examples[counted]))


def fairness(accuracy: FloatArray) -> tuple[float, float]:
    """Compute the mean and the standard deviation of the clients' distances from perfect accuracy.

    Source: Clust-PSI-PFL, Section IV: average distance and standard deviation of the average distance.

    Parameters
    ----------
    accuracy
        Accuracy A_k of each client in [0, 1], shape (K,).

    Returns
    -------
    ad
        Mean of |A_k − 1|; 0 if every client's accuracy is 1.
    sdad
        Population standard deviation of |A_k − 1|; 0 if all clients have the same accuracy.

    Raises
    ------
    ValueError
        If there are no clients or an accuracy is outside [0, 1].
    """
    accuracy = np.asarray(accuracy, dtype=np.float64)
    if accuracy.ndim != 1 or not accuracy.size:
        raise ValueError(f"accuracy must have shape (clients,), at least one, got shape {accuracy.shape}")
    distance = np.abs(_checked(accuracy) - 1)
    return float(distance.mean()), float(distance.std())


def classification(labels: IntArray, probabilities: FloatArray) -> dict[str, float]:
    """Compute classification metrics from class probabilities.

    Parameters
    ----------
    labels
        True class of each example, 0…C − 1, shape (N,).
    probabilities
        Probability, or another score, of each class for each example, shape (N, C). The class with the
        largest is the prediction; the first of equal ones.

    Returns
    -------
    In [0, 1], NaN without examples:

    - ``accuracy``: share of correct predictions,
    - ``balanced_accuracy``: mean recall over the classes in `labels`,
    - ``macro_f1``: mean F1 over the classes in `labels` or among the predictions, as in scikit-learn,
    - ``auc``: mean area under the ROC curve, one class against the rest, over the classes that some but not
      all examples have; NaN if there is no such class.

    Raises
    ------
    ValueError
        If the shapes do not fit, a label is not a class, or a probability is not finite.
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not probabilities.shape[1]:
        raise ValueError(
            f"labels and probabilities must have shapes (examples,) and (examples, classes), "
            f"got {labels.shape}, {probabilities.shape}"
        )
    if not np.isfinite(probabilities).all():
        raise ValueError(f"probabilities must be finite, got {probabilities[~np.isfinite(probabilities)][0]}")
    nobody = np.zeros(len(labels), dtype=np.int64)
    figures = classification_by_client(
        nobody, labels, probabilities.argmax(axis=1), 1, probabilities.shape[1]
    )
    return {name: float(values[0]) for name, values in figures.items()} | {"auc": _auc(labels, probabilities)}


def classification_by_client(
    client_of_row: IntArray, labels: IntArray, predictions: IntArray, num_clients: int, num_classes: int
) -> dict[str, FloatArray]:
    """Compute classification metrics of many clients at once.

    Parameters
    ----------
    client_of_row
        Client of each example, 0…num_clients − 1, in any order, shape (N,).
    labels, predictions
        True and predicted class of each example, 0…num_classes − 1, shape (N,).
    num_clients
        Number of clients K.
    num_classes
        Number of classes C.

    Returns
    -------
    ``accuracy``, ``balanced_accuracy`` and ``macro_f1`` as in :func:`classification`, each of shape (K,); NaN
    for a client without examples. Memory grows with N + K·C.

    Raises
    ------
    ValueError
        If the shapes differ, or a client or class is outside its range.
    """
    client_of_row, labels, predictions = (np.asarray(a) for a in (client_of_row, labels, predictions))
    for name, values, limit in (
        ("client_of_row", client_of_row, num_clients),
        ("labels", labels, num_classes),
        ("predictions", predictions, num_classes),
    ):
        if values.ndim != 1 or values.shape != labels.shape:
            raise ValueError(f"{name} must have shape {labels.shape[:1]} like labels, got {values.shape}")
        if values.size and not 0 <= values.min() <= values.max() < limit:
            raise ValueError(f"{name} must be in [0, {limit}), got {values.min()} to {values.max()}")
    size = num_clients * num_classes
    true, predicted = client_of_row * num_classes + labels, client_of_row * num_classes + predictions
    hit = true[labels == predictions]
    # One bincount for three concatenated tables of shape (K, C).
    counts = np.bincount(np.concatenate([true, predicted + size, hit + 2 * size]), minlength=3 * size)
    there, named, right = counts.reshape(3, num_clients, num_classes)
    return {
        "accuracy": _ratio(right.sum(axis=1), there.sum(axis=1)),
        "balanced_accuracy": _mean_of_defined(_ratio(right, there)),
        "macro_f1": _mean_of_defined(_ratio(2 * right, there + named)),
    }


def _auc(labels: IntArray, probabilities: FloatArray) -> float:
    # The area is the Mann–Whitney statistic: of all pairs of an example of the class and another one, the
    # share in which the first scores higher; a tie counts one half. roc_auc_score is a hundred times slower
    # for 100 classes, and scipy.stats takes most of a second to import in every process that serves clients.
    positive = labels[:, None] == np.arange(probabilities.shape[1])
    num_positive = positive.sum(axis=0)
    num_negative = len(labels) - num_positive
    defined = (num_positive > 0) & (num_negative > 0)
    if not defined.any():
        return float("nan")
    areas = []
    for label in np.flatnonzero(defined):
        rest = np.sort(probabilities[~positive[:, label], label])
        own = probabilities[positive[:, label], label]
        twice = np.searchsorted(rest, own, side="left") + np.searchsorted(rest, own, side="right")
        areas.append(twice.sum() / 2 / (num_positive[label] * num_negative[label]))
    return float(np.mean(areas))


def _ratio(part: IntArray, whole: IntArray) -> FloatArray:
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)


def _mean_of_defined(values: FloatArray) -> FloatArray:
    defined = ~np.isnan(values)
    return _ratio(np.where(defined, values, 0.0).sum(axis=1), defined.sum(axis=1))


def _checked(accuracy: FloatArray) -> FloatArray:
    wrong = ~((accuracy >= 0) & (accuracy <= 1))
    if wrong.any():
        raise ValueError(f"accuracy must be in [0, 1], got {accuracy[wrong][0]}")
    return accuracy
