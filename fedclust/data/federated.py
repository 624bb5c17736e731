"""A dataset together with the rows that each client holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from fedclust.data.input_encoders import ArrayEncoder, ImageEncoder, InputEncoder
from fedclust.typing import IntArray

__all__ = ["FederatedData"]


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare tensors
class FederatedData:
    """A decoded dataset and the rows that each client holds.

    A row belongs to at most one client, so a client's shift (other class names, noise, a rotation) is
    already applied to `inputs` and `labels`; training just reads the rows.

    Attributes
    ----------
    name
        Name of the dataset in ``conf/dataset``.
    inputs
        One row per example, shape (N, *shape): uint8 images (N, channels, height, width), int64 tokens
        (N, positions), or float32 numbers (N, columns). Treat as read-only: it may be a memory-mapped file
        that other processes share.
    labels
        Class indices, int64, shape (N,), or (N, positions) where each position has its own.
    train, test
        For each of the K clients, the rows of its training and of its test part.
    num_classes
        Number of classes C.
    mean, std
        Per channel, over the training part's pixels divided by 255; empty if inputs are not images.
    groups
        Known group of each client, an index from 0, shape (K,); None if there is none.
    class_names
        Names in label order, shape (C,).
    fingerprint
        Changes with the data, the partition and the seed.
    client_names
        Name of each client, shape (K,), if every client is a writer, user or region of the data; else None.
    left_out
        Names of the writers, users or regions that have too few examples to be a client, and how many.
    validation
        For each client, rows that nothing trains on and no final figure is measured on, which the proof is
        made on; empty where there are none.
    encoder
        Function that returns how raw rows become `inputs`, shifts aside; None if it is not known.

    Raises
    ------
    ValueError
        If `train`, `test`, `groups` and `client_names` have different numbers of clients, or a row is out of
        range or occurs twice.
    """

    name: str
    inputs: torch.Tensor
    labels: torch.Tensor
    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    groups: IntArray | None
    class_names: tuple[str, ...]
    fingerprint: str
    client_names: tuple[str, ...] | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    validation: tuple[IntArray, ...] = ()
    encoder: Callable[[], InputEncoder | None] | None = None

    def __post_init__(self) -> None:
        clients = len(self.train)
        if clients == 0:
            raise ValueError("train must hold at least one client's rows, got none")
        if len(self.test) != clients:
            raise ValueError(
                f"test must have one part per client, got {len(self.test)} for {clients} clients"
            )
        if self.groups is not None and self.groups.shape != (clients,):
            raise ValueError(f"groups must have shape ({clients},), got {self.groups.shape}")
        if self.client_names is not None and len(self.client_names) != clients:
            raise ValueError(
                f"client_names must have one name per client, got {len(self.client_names)} for "
                f"{clients} clients"
            )
        if self.validation and len(self.validation) != clients:
            raise ValueError(
                f"validation must have one part per client, got {len(self.validation)} for {clients} clients"
            )
        rows = np.concatenate([*self.train, *self.test, *self.validation])
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self.inputs):
            raise ValueError(f"rows must be in [0, {len(self.inputs)}), got {rows.min()} to {rows.max()}")
        uses = np.bincount(rows, minlength=len(self.inputs))
        if uses.max() > 1:
            raise ValueError(
                f"a row must belong to one part of one client, row {uses.argmax()} is used {uses.max()} times"
            )

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return len(self.train)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.inputs.shape[1:])

    def input_encoder(self) -> InputEncoder:
        """Return how raw rows become `inputs`; where that is not known, rows that are numbers already."""
        if self.encoder is not None and (known := self.encoder()) is not None:
            return known
        if self.mean:
            return ImageEncoder(self.input_shape, "none", self.mean, self.std)
        return ArrayEncoder(self.input_shape, "int64" if self.inputs.dtype == torch.int64 else "float32")

    def label_counts(self, part: Literal["train", "test"] = "train") -> IntArray:
        """Count each client's labels; labels per position are counted position by position.

        Parameters
        ----------
        part
            Part of each client's data to count.

        Returns
        -------
        Examples of each class, int64, shape (K, C).

        Raises
        ------
        ValueError
            If `part` is neither ``"train"`` nor ``"test"``.
        """
        if part not in ("train", "test"):
            raise ValueError(f"part must be 'train' or 'test', got {part!r}")
        labels = self.labels.numpy()
        clients = self.train if part == "train" else self.test
        return np.stack([np.bincount(labels[rows].ravel(), minlength=self.num_classes) for rows in clients])
