"""The user's own metrics."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedclust.metrics import CLIENT_FIGURES

Metric = Callable[[Tensor, Tensor], float | Tensor]
"""Function from a client's outputs, shape (n, C), and labels, shape (n,), to a number, or one per example.

Both are on the CPU, wherever the model computes.
"""

# Columns of clients.parquet, and keys of summary.json and of a round, which a metric of that name would
# replace.
_TAKEN = {
    *(name.replace("-", "_") for name in CLIENT_FIGURES), "ad", "adjusted_rand_index", "assignment",
    "balanced_accuracy", "bytes_down", "bytes_down_unbundled", "bytes_up", "bytes_up_unbundled", "client",
    "cluster", "cluster_sizes", "compare", "failed_replies", "failures", "gaussian_weight", "global_accuracy",
    "group", "label_counts", "mean_client_accuracy", "name", "num_clients", "num_clusters", "num_test",
    "num_train", "pooled_auc", "pooled_macro_f1", "rand_index", "round", "rounds",
    "sdad", "seconds", "seed", "share_weighted_accuracy", "strategy", "test_loss", "train_loss", "was",
    "wadb", "weighted_psi",
    "accuracy_finetune", "accuracy_none", "accuracy_prior", "balanced_accuracy_none", "brier_none",
    "confusion_none", "personal", "prior_shift",
    "validation_brier_finetune", "validation_brier_none", "validation_brier_prior",
}  # fmt: skip


def check_names(metrics: Mapping[str, Metric]) -> None:
    """Check that metrics are functions whose names are not taken.

    Raises
    ------
    ValueError
        If a name is taken or has other characters than letters, digits and underscores, or a metric is not a
        function.
    """
    for name, metric in metrics.items():
        if not name.isidentifier():
            raise ValueError(f"metrics must have names of letters, digits and underscores, got {name!r}")
        if name in _TAKEN:
            raise ValueError(f"metrics must not have the name of an existing figure, got {name!r}")
        if not callable(metric):
            raise ValueError(f"metrics.{name} must be a function of outputs and labels, got {metric!r}")


def measure_own(metrics: Mapping[str, Metric], outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Compute the user's own metrics for a client.

    Parameters
    ----------
    metrics
        The metrics, by name.
    outputs
        The model's outputs, shape (n, C), or (n, positions, C), on the CPU.
    labels
        Class indices, shape (n,), or (n, positions), on the CPU.

    Returns
    -------
    For each metric, the number that it returned, or the mean over the client's examples; NaN without
    examples.

    Raises
    ------
    ValueError
        If a metric raises, or returns neither a number nor one per example.
    """
    return {name: _number(name, metric, outputs, labels) for name, metric in metrics.items()}


def _number(name: str, metric: Metric, outputs: Tensor, labels: Tensor) -> float:
    if not len(labels):
        return float("nan")
    rule = f"metrics.{name} must return a number, or one per example, shape [{len(labels)}]"
    try:
        value = torch.as_tensor(metric(outputs, labels))
    except Exception as error:  # the metric is the user's code
        raise ValueError(f"{rule}: {type(error).__name__}: {error}") from error
    if value.shape not in ((), labels.shape[:1]):
        raise ValueError(f"{rule}, got shape {list(value.shape)}")
    return float(value.double().mean())
