"""A dataset as two tensors, before it is partitioned over clients."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from fedclust.data.input_encoders import InputEncoder
from fedclust.typing import IntArray

__all__ = ["Dataset", "Refit"]

Refit: TypeAlias = Callable[[IntArray, Path], None]


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare tensors
class Dataset:
    """All examples of a dataset, decoded once.

    Attributes
    ----------
    name
        Name in ``conf/dataset``.
    inputs
        One row per example, shape (N, *shape): uint8 images (N, channels, height, width), int64 tokens
        (N, positions), or float32 numbers (N, columns).
    labels
        Class indices, int64, shape (N,), or (N, positions) where each position has its own.
    num_classes
        Number of classes C; labels are in [0, C).
    mean, std
        Per channel, over the training part's pixels divided by 255; empty if inputs are not images.
    class_names
        Names in label order, shape (C,).
    num_train
        Rows [0, num_train) are the official training part; the rest, possibly none, the official test part.
    natural
        Index of each row's writer, user or region, from 0, or -1 if it has none, shape (N,); None if the
        data has no such owners.
    fingerprint
        Hash of all of the above, and of what `refit` reads: the same on every machine that decodes the same
        examples.
    refit
        For data whose encoding is fitted, such as a scaler or a vocabulary: a function that fits it on the
        given rows only, encodes all rows, and writes ``inputs.npy`` into the given folder. `inputs` are
        encoded with a fit on the official training part, because partitions may use them before the
        clients' training rows are known. None if nothing is fitted.
    natural_names
        Names of the writers, users or regions, in index order; None if they have none.
    encoder
        Function that returns how raw rows become inputs, given the training rows that `refit` was called
        with, or all of the official training part, and the folder that it wrote into; it returns None, as a
        missing function does, if raw rows cannot be read.

    Raises
    ------
    ValueError
        If a shape or type is wrong, or a label is out of range.
    """

    name: str
    inputs: torch.Tensor
    labels: torch.Tensor
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    num_train: int
    natural: IntArray | None
    fingerprint: str
    refit: Refit | None = None
    natural_names: tuple[str, ...] | None = None
    encoder: Callable[[IntArray, Path], InputEncoder | None] | None = None

    def __post_init__(self) -> None:
        rows = len(self.inputs)
        if rows == 0:
            raise ValueError(f"dataset {self.name}: must have at least one example, got none")
        if len(self.labels) != rows or self.labels.ndim not in (1, 2):
            raise ValueError(
                f"dataset {self.name}: labels must have shape ({rows},) or ({rows}, positions), "
                f"got {tuple(self.labels.shape)}"
            )
        if self.labels.dtype != torch.int64:
            raise ValueError(f"dataset {self.name}: labels must be int64, got {self.labels.dtype}")
        low, high = (int(bound) for bound in self.labels.aminmax())
        if low < 0 or high >= self.num_classes:
            raise ValueError(
                f"dataset {self.name}: labels must be in [0, {self.num_classes}), got {low} to {high}"
            )
        if len(self.class_names) != self.num_classes:
            raise ValueError(
                f"dataset {self.name}: class_names must have {self.num_classes} names, "
                f"got {len(self.class_names)}"
            )
        if not 0 < self.num_train <= rows:
            raise ValueError(f"dataset {self.name}: num_train must be in [1, {rows}], got {self.num_train}")
        if self.natural is not None and self.natural.shape != (rows,):
            raise ValueError(
                f"dataset {self.name}: natural must have shape ({rows},), got {self.natural.shape}"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.inputs.shape[1:])
