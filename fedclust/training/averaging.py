"""Weighted means of models."""

from collections.abc import Mapping

import torch

from fedclust.typing import IntArray, State

__all__ = ["WeightedMean"]


class WeightedMean:
    """A weighted mean of models that is added to as models become available.

    Sums are held in float64, so that the mean of a cohort hardly depends on how it was cut into passes or
    spread over nodes. Integer buffers, such as batch norm's counter, get the rounded mean.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self.total = 0.0

    def add(self, stacked: Mapping[str, torch.Tensor], positions: IntArray, weights: IntArray) -> None:
        """Add some of the models of a pass.

        Parameters
        ----------
        stacked
            Models stacked on the first axis, each array of shape (n, *shape).
        positions
            Which of them to add, shape (m,).
        weights
            Their weights, such as numbers of samples, shape (m,).

        Raises
        ------
        ValueError
            If a weight is not above 0.
        """
        if len(weights) and not (weights > 0).all():
            raise ValueError(f"weights must be > 0, got {weights}")
        for name, tensor in stacked.items():
            if name not in self._sums:
                self._dtypes[name] = tensor.dtype
                self._sums[name] = torch.zeros(tensor.shape[1:], dtype=torch.float64, device=tensor.device)
            # One model at a time: a cohort of large models in float64 at once would not fit.
            for position, weight in zip(positions.tolist(), weights.tolist(), strict=True):
                self._sums[name].add_(tensor[position].double(), alpha=float(weight))
        self.total += float(weights.sum())

    def state(self) -> State:
        """Give the mean, in the types the models came in.

        Raises
        ------
        ValueError
            If nothing has been added.
        """
        if not self.total:
            raise ValueError("a mean must have at least one model, none was added")
        means = {name: total / self.total for name, total in self._sums.items()}
        return {
            name: (mean if self._dtypes[name].is_floating_point else mean.round()).to(self._dtypes[name])
            for name, mean in means.items()
        }
