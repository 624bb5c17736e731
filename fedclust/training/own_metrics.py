"""The user's own metrics, measured on each client's rows."""

from collections.abc import Callable, Mapping, Sequence

import torch

from fedclust.metrics import CLIENT_FIGURES
from fedclust.typing import IntArray

__all__ = ["Metric", "check_names", "measure"]

Metric = Callable[[torch.Tensor, torch.Tensor], float | torch.Tensor]
"""From a client's outputs, shape (n, C), and labels, shape (n,), to a number, or one per example.

Both are on the CPU, wherever the model computes.
"""

# Columns of clients.parquet, and keys of summary.json and of a round, which such a metric would replace.
_TAKEN = {
    *(name.replace("-", "_") for name in CLIENT_FIGURES), "ad", "adjusted_rand_index", "assignment",
    "balanced_accuracy", "bytes_down", "bytes_down_unbundled", "bytes_up", "bytes_up_unbundled", "client",
    "cluster", "cluster_sizes", "compare", "failed_replies", "failures", "gaussian_weight", "global_accuracy",
    "group", "label_counts", "mean_client_accuracy", "name", "num_clients", "num_clusters", "num_test",
    "num_train", "pooled_auc", "pooled_macro_f1", "published", "rand_index", "round", "rounds",
    "sdad", "seconds", "seed", "share_weighted_accuracy", "strategy", "test_loss", "train_loss", "was",
    "wadb", "weighted_psi",
    "accuracy_finetune", "accuracy_prior", "personal", "personal_accuracy", "prior_shift",
    "validation_loss_finetune", "validation_loss_none", "validation_loss_prior",
}  # fmt: skip


def check_names(metrics: Mapping[str, Metric]) -> None:
    """Check that metrics are functions, with names that are not taken.

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


def measure(
    metrics: Mapping[str, Metric], counts: IntArray, outputs: torch.Tensor, labels: torch.Tensor
) -> list[dict[str, float]]:
    """Compute every client's metrics.

    Parameters
    ----------
    metrics
        By name.
    counts
        Examples of each client, shape (n,); examples lie client by client in the other arguments.
    outputs
        The model's outputs, shape (N, C), or (N, positions, C).
    labels
        Class indices, shape (N,), or (N, positions).

    Returns
    -------
    Per client, each metric: the number it returned, or the mean over the client's examples; NaN for a client
    without examples.

    Raises
    ------
    ValueError
        If a metric returns neither a number nor one per example.
    """
    sizes: Sequence[int] = counts.tolist()
    outputs, labels = outputs.cpu(), labels.cpu()  # NumPy and scikit-learn do not take a GPU's
    parts = zip(outputs.split(sizes), labels.split(sizes), strict=True)
    return [{name: _number(name, metric, *part) for name, metric in metrics.items()} for part in parts]


def _number(name: str, metric: Metric, outputs: torch.Tensor, labels: torch.Tensor) -> float:
    if not len(labels):
        return float("nan")
    value = torch.as_tensor(metric(outputs, labels))
    if value.shape not in ((), labels.shape[:1]):
        raise ValueError(
            f"metrics.{name} must return a number, or one per example, shape [{len(labels)}], "
            f"got shape {list(value.shape)}"
        )
    return float(value.double().mean())
