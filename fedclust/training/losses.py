"""Losses per example: cross-entropy, with or without weights, binary cross-entropy, or the user's own.

PyTorch is imported only when a loss is computed, as settings are checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedclust.support.checks import check_value

if TYPE_CHECKING:
    import torch


Loss = Callable[[Any, Any], Any]
"""Function from outputs, shape (B, C), and labels, shape (B,), to losses, shape (B,), all tensors.

If each position of an example has its own label, outputs have shape (B, positions, C) and labels (B,
positions); there is still one loss per example.
"""


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute each example's cross-entropy, averaged over positions if labels have them.

    Parameters
    ----------
    outputs
        Logits, shape (B, C), or (B, positions, C).
    labels
        Class indices, shape (B,), or (B, positions).

    Returns
    -------
    Losses in nats, shape (B,).
    """
    from torch.nn import functional

    losses = functional.cross_entropy(_precise(outputs).flatten(0, -2), labels.flatten(), reduction="none")
    return _of_examples(losses, labels)


def binary_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute each example's binary cross-entropy: one sigmoid per class against the one-hot label.

    The loss of FedGMCC's training (Section V), averaged over the classes like ``torch.nn.BCELoss``.

    Parameters
    ----------
    outputs
        Logits, shape (B, C), or (B, positions, C).
    labels
        Class indices, shape (B,), or (B, positions).

    Returns
    -------
    Losses in nats, shape (B,).
    """
    import torch
    from torch.nn import functional

    classes = torch.arange(outputs.shape[-1], device=outputs.device)
    logits = _precise(outputs)
    truth = (labels.unsqueeze(-1) == classes).to(logits.dtype)
    return functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").flatten(1).mean(1)


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """Cross-entropy in which each class has a weight, for classes of very different sizes.

    Attributes
    ----------
    class_weights
        ``"balanced"``: n / (C·n_c) for a class with n_c of the n training rows of all clients, so that the
        mean over those rows is 1 (King and Zeng, 2001; scikit-learn's rule); 1 for a class without rows. Or a
        weight > 0 for each class, shape (C,).

    Raises
    ------
    ValueError
        If the weights are neither.
    """

    class_weights: Literal["balanced"] | Sequence[float] = "balanced"

    def __post_init__(self) -> None:
        check_value("loss.class_weights", self.class_weights, "balanced or numbers > 0 and finite")
        if not isinstance(self.class_weights, str):
            object.__setattr__(self, "class_weights", tuple(map(float, self.class_weights)))

    def fitted(self, label_counts: Sequence[int]) -> WeightedCrossEntropy:
        """Return the loss with its weights as numbers.

        Parameters
        ----------
        label_counts
            Number of training rows of each class on all clients together, shape (C,).

        Raises
        ------
        ValueError
            If there is not one weight for each class.
        """
        counts = [int(count) for count in label_counts]
        if isinstance(self.class_weights, str):
            present = [count for count in counts if count]
            return WeightedCrossEntropy(
                [sum(present) / (len(present) * count) if count else 1.0 for count in counts]
            )
        if len(self.class_weights) != len(counts):
            wanted = f"one for each of {len(counts)} classes"
            raise ValueError(f"loss.class_weights must be {wanted}, got {len(self.class_weights)}")
        return self

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Compute each example's loss, shape (B,); see :func:`cross_entropy`."""
        if isinstance(self.class_weights, str):
            raise ValueError("loss.class_weights must be numbers to compute a loss, got 'balanced'")
        import torch
        from torch.nn import functional

        logits, classes = _precise(outputs).flatten(0, -2), labels.flatten()
        # Without `device=`, which would make the host wait until a GPU has finished all queued work.
        weights = torch.tensor(self.class_weights, dtype=logits.dtype).to(logits.device, non_blocking=True)
        losses = weights[classes] * functional.cross_entropy(logits, classes, reduction="none")
        return _of_examples(losses, labels)


def least_loss(loss: Loss | str) -> float:
    """Return the least possible value of a loss, given itself or its name; minus infinity if unknown."""
    known = (cross_entropy, binary_cross_entropy, WeightedCrossEntropy)
    names = [f"{each.__module__}.{each.__qualname__}" for each in known]
    named = loss in known or loss in names or isinstance(loss, WeightedCrossEntropy)
    return 0.0 if named else -math.inf


def example_losses(outputs: torch.Tensor, labels: torch.Tensor, loss: Loss = cross_entropy) -> torch.Tensor:
    """Compute each example's loss.

    Parameters
    ----------
    outputs
        Logits, shape (B, C), or (B, positions, C).
    labels
        Class indices, shape (B,), or (B, positions).
    loss
        The loss to compute.

    Returns
    -------
    Losses, shape (B,).

    Raises
    ------
    ValueError
        If `loss` does not return one number per example.
    """
    if not len(labels):
        return outputs.new_zeros(0)
    losses: torch.Tensor = loss(_precise(outputs), labels)
    if getattr(losses, "shape", None) != labels.shape[:1]:
        got = list(losses.shape) if hasattr(losses, "shape") else type(losses).__name__
        wanted = f"one number per example, shape [{labels.shape[0]}]"
        raise ValueError(f"loss must return {wanted}, got {got}; a loss of torch.nn needs reduction=none")
    return losses


def check_loss(loss: Loss, outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Check with one example, taken twice, that a loss can be trained with.

    Parameters
    ----------
    loss
        The loss, which may be the user's.
    outputs
        Possible outputs for the example, shape (1, C), or (1, positions, C).
    labels
        What it has, of length 1; of length 0 for no example, which passes.

    Raises
    ------
    ValueError
        If the loss raises, does not return one number per example, or none that depends on the outputs.

    Examples
    --------
    >>> import torch
    >>> check_loss(lambda outputs, labels: outputs.detach().sum(1), torch.zeros(1, 3), torch.zeros(1))
    Traceback (most recent call last):
        ...
    ValueError: loss must have a gradient by the outputs, as of PyTorch's operations on them, got one without
    """
    import torch

    if not len(labels):
        return
    outputs, labels = torch.cat([outputs, outputs]).requires_grad_(), torch.cat([labels, labels])
    try:
        with torch.enable_grad():  # as training does
            losses = loss(outputs, labels)
    except Exception as error:  # the loss may be the user's code
        rule = (
            f"loss must take outputs of shape {list(outputs.shape)} and labels of shape {list(labels.shape)}"
        )
        raise ValueError(f"{rule}, it raises {type(error).__name__}: {error}") from error
    if not example_losses(outputs, labels, lambda *_: losses).requires_grad:
        rule = "loss must have a gradient by the outputs, as of PyTorch's operations on them"
        raise ValueError(f"{rule}, got one without")


def mean_loss(outputs: torch.Tensor, labels: torch.Tensor, loss: Loss = cross_entropy) -> torch.Tensor:
    """Average the loss over examples, and cross-entropy over positions if labels have them.

    Parameters
    ----------
    outputs
        Logits, shape (B, C), or (B, positions, C).
    labels
        Class indices, shape (B,), or (B, positions).
    loss
        The loss to compute.

    Returns
    -------
    Loss, a scalar.

    Raises
    ------
    ValueError
        If `loss` does not return one number per example.
    """
    from torch.nn import functional

    if loss is cross_entropy:  # in one call, which is faster
        return functional.cross_entropy(_precise(outputs).flatten(0, -2), labels.flatten())
    return example_losses(outputs, labels, loss).mean()


def _precise(outputs: torch.Tensor) -> torch.Tensor:
    """Convert half precision to float32."""
    return outputs.float() if outputs.dtype.itemsize < 4 else outputs


def _of_examples(losses: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Average losses of all labels, flattened, over the positions of each example."""
    return losses.unflatten(0, labels.shape).flatten(1).mean(1) if labels.dim() > 1 else losses
