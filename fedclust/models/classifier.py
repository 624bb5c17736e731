"""The base class of our networks: features and a linear head."""

import torch
from torch import nn

__all__ = ["Classifier"]


class Classifier(nn.Module):
    """A body that computes features and a linear head that scores classes.

    Parameters
    ----------
    body
        Maps a batch of inputs to features, shape (B, width) or (B, positions, width).
    width
        Length of a feature vector.
    num_classes
        Number of classes C.

    Raises
    ------
    ValueError
        If there are fewer than two classes.
    """

    def __init__(self, body: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"num_classes must be >= 2, got {num_classes}")
        self.body = body
        self.head = nn.Linear(width, num_classes)

    @property
    def width(self) -> int:
        """Length of a feature vector."""
        return self.head.in_features

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the input of the head, shape (B, width) or (B, positions, width)."""
        features: torch.Tensor = self.body(inputs)
        return features

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the logits, shape (B, C) or (B, positions, C)."""
        logits: torch.Tensor = self.head(self.body(inputs))
        return logits
