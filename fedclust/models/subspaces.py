"""The subspace of each class on each client, for PACFL."""

from collections.abc import Sequence

import numpy as np
import torch

from fedclust.models.encoders import Encoder
from fedclust.support.devices import exact_kernels
from fedclust.typing import FloatArray, IntArray

__all__ = ["basis", "class_subspaces"]


def class_subspaces(
    encoder: Encoder,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    rows: IntArray,
    num_classes: int,
    vectors: int,
    *,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    batch_size: int = 256,
    device: str | torch.device = "cpu",
) -> FloatArray:
    """Compute the first left singular vectors of each class's examples on one client.

    Parameters
    ----------
    encoder
        What makes a column of the data matrix of an example.
    inputs
        Rows of the dataset as it is stored, shape (N, *shape).
    labels
        Class of each row, shape (N,).
    rows
        The rows that the client holds, shape (n,).
    num_classes
        Number of classes C.
    vectors
        p, how many vectors per class, >= 1.
    mean, std
        The dataset's, per channel; see :meth:`~fedclust.models.Encoder.encode`.
    batch_size
        Examples per pass of the encoder.
    device
        Where the encoder computes.

    Returns
    -------
    Orthonormal columns, float32, shape (C, d, p); 0 beyond the rank of a class's matrix.

    Raises
    ------
    ValueError
        If there is more than one label per example.
    """
    if labels.dim() != 1:
        raise ValueError(f"labels must have shape (N,), one per example, got {tuple(labels.shape)}")
    own = torch.from_numpy(np.asarray(rows, dtype=np.int64))
    columns = np.zeros((len(own), encoder.dimension), dtype=np.float32)
    for start in range(0, len(own), batch_size):
        batch = inputs[own[start : start + batch_size]]
        with exact_kernels():
            columns[start : start + batch_size] = encoder.encode(batch, mean, std, device).cpu().numpy()
    classes = labels[own].numpy()
    found = [basis(columns[classes == index], vectors) for index in range(num_classes)]
    return np.stack(found).astype(np.float32)


def basis(examples: FloatArray, vectors: int) -> FloatArray:
    """Compute the first left singular vectors of a matrix that has examples as columns.

    Source: PACFL, Section 3, the truncated SVD of a client's data.

    Parameters
    ----------
    examples
        One example per *row*, shape (n, d); the matrix meant is its transpose.
    vectors
        p, how many vectors, >= 1.

    Returns
    -------
    Orthonormal columns, shape (d, p), float64. Columns beyond the matrix's rank, which is at most n, are 0.
    """
    rows = np.asarray(examples, dtype=np.float64)
    found = np.zeros((rows.shape[1], vectors))
    if len(rows):
        _, values, directions = np.linalg.svd(rows, full_matrices=False)
        real = values > values[0] * max(rows.shape) * np.finfo(np.float64).eps
        kept = min(vectors, int(real.sum()))
        found[:, :kept] = directions[:kept].T
    return found
