"""Cross-entropy for one label per example and for one label per position."""

import torch
from torch.nn import functional

__all__ = ["example_losses", "mean_loss"]


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Average the cross-entropy over examples and, where labels have positions, over positions.

    Parameters
    ----------
    logits
        Shape (B, C), or (B, positions, C).
    labels
        Class indices, shape (B,), or (B, positions).

    Returns
    -------
    Loss in nats, a scalar.
    """
    return functional.cross_entropy(_precise(logits).flatten(0, -2), labels.flatten())


def example_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Give each example's cross-entropy, averaged over its positions where labels have them.

    Parameters
    ----------
    logits
        Shape (B, C), or (B, positions, C).
    labels
        Class indices, shape (B,), or (B, positions).

    Returns
    -------
    Losses in nats, shape (B,).
    """
    losses = functional.cross_entropy(_precise(logits).flatten(0, -2), labels.flatten(), reduction="none")
    return losses.unflatten(0, labels.shape).flatten(1).mean(1) if labels.dim() > 1 else losses


def _precise(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
