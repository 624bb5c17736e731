"""What an FMCL client reports: the mean embedding of each of its classes, and its number of examples.

Source: FMCL, Section 3.2.1: Eqs. 1 and 2, Algorithm 2. The paper's clients report each class's share; ours
report its number of examples, from which the shares follow.

What a PACFL client reports is computed here, too: the subspace of each of its classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedclust.data.cache import cache_root, digest, map_array, prepared
from fedclust.data.dataset import FederatedData
from fedclust.models.embeddings import Examples, embeddings
from fedclust.models.encoders import Device, Encoder
from fedclust.typing import FloatArray, IntArray


class ClassPrototypes(NamedTuple):
    """Statistics of some clients' classes under an encoder.

    Attributes
    ----------
    means
        μ_{k,c}, float32, shape (K, C, d); 0 where the client has no example of the class.
    counts
        Examples of each class on each client, int64, shape (K, C).
    """

    means: NDArray[np.float32]
    counts: NDArray[np.int64]


def prototypes(
    encoder: Encoder,
    data: Examples | FederatedData,
    rows_by_client: Sequence[IntArray],
    device: Device = "cpu",
) -> ClassPrototypes:
    """Compute the mean of each client's embeddings of each class.

    Batches run across clients, so that many small clients cost no more than one large one.

    Parameters
    ----------
    encoder
        Frozen encoder.
    data
        The dataset.
    rows_by_client
        For each of the K clients, the rows it holds, each shape (n_k,).
    device
        Where the encoder computes.

    Returns
    -------
    Means and counts, each with a row per client.

    Raises
    ------
    ValueError
        If there is more than one label per example.
    """
    num_classes = data.num_classes
    num_clients = len(rows_by_client)
    rows = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *rows_by_client]).astype(np.int64))
    owner = np.repeat(np.arange(num_clients), [len(own) for own in rows_by_client])
    # One group per client and class; sums in float64 so that the order of the rows does not matter.
    groups = torch.from_numpy(owner) * num_classes + _classes(data, rows)
    counts = torch.bincount(groups, minlength=num_clients * num_classes)
    sums = torch.zeros(num_clients * num_classes, encoder.dimension, dtype=torch.float64)
    start = 0
    for batch in embeddings(encoder, data, rows, device):
        sums.index_add_(0, groups[start : start + len(batch)], batch.to(torch.float64))
        start += len(batch)
    means = sums.div_(counts.clamp(min=1).unsqueeze(1)).view(num_clients, num_classes, -1)
    return ClassPrototypes(means.to(torch.float32).numpy(), counts.view(num_clients, num_classes).numpy())


def _classes(data: Examples | FederatedData, rows: Tensor) -> Tensor:
    if data.labels.dim() != 1:
        raise ValueError(f"labels must have shape (N,), one per example, got {tuple(data.labels.shape)}")
    return data.labels[rows]


def pooled(reported: ClassPrototypes) -> ClassPrototypes:
    """Merge all classes into one.

    Parameters
    ----------
    reported
        Prototypes of C classes.

    Returns
    -------
    Means and counts as if all examples of a client were of one class: C is 1.
    """
    means, counts = reported.means.astype(np.float64), reported.counts[:, :, None]
    number = reported.counts.sum(axis=1, keepdims=True)
    mean = (counts * means).sum(axis=1, keepdims=True) / np.maximum(number, 1)[:, :, None]
    return ClassPrototypes(mean.astype(np.float32), number)


def cached_prototypes(
    encoder: Encoder,
    data: FederatedData,
    clients: Sequence[int],
    device: Device = "cpu",
    cache_dir: Path | None = None,
) -> ClassPrototypes:
    """Compute :func:`prototypes` of some clients' training parts, or read those that an earlier run computed.

    The cache is keyed by the fingerprints of federation and encoder and by the clients.

    Parameters
    ----------
    encoder, data, device
        See :func:`prototypes`.
    clients
        Client ids, shape (n,).
    cache_dir
        Where prepared data lives; see :func:`fedclust.data.cache.cache_root`.

    Returns
    -------
    As for :func:`prototypes`, with rows in the order of `clients`.

    Raises
    ------
    ValueError
        As for :func:`prototypes`.
    OSError
        If the cache cannot be written.
    """

    def write(folder: Path) -> None:
        computed = prototypes(encoder, data, [data.train[client] for client in clients], device)
        for name, values in computed._asdict().items():
            np.save(folder / f"{name}.npy", values)

    # The names of the stored arrays are part of the key: earlier versions stored shares in place of counts.
    names = ClassPrototypes._fields
    key = digest(names, data.fingerprint, encoder.fingerprint, [int(client) for client in clients])
    folder = prepared(cache_root(cache_dir) / "prototypes" / key, write)
    return ClassPrototypes(*(map_array(folder / f"{name}.npy") for name in names))


def class_subspaces(
    encoder: Encoder, data: Examples | FederatedData, rows: IntArray, vectors: int, device: Device = "cpu"
) -> FloatArray:
    """Compute the first left singular vectors of each class's examples on one client.

    Parameters
    ----------
    encoder
        Encoder that makes a column of the data matrix from an example.
    data
        The dataset.
    rows
        The rows that the client holds, shape (n,).
    vectors
        p, number of vectors per class, >= 1.
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
    held = torch.from_numpy(np.asarray(rows, dtype=np.int64))
    columns = torch.cat([torch.zeros(0, encoder.dimension), *embeddings(encoder, data, held, device)]).numpy()
    classes = _classes(data, held).numpy()
    each = [basis(columns[classes == index], vectors) for index in range(data.num_classes)]
    return np.stack(each).astype(np.float32)


def basis(examples: FloatArray, vectors: int) -> FloatArray:
    """Compute the first left singular vectors of a matrix that has examples as columns.

    Source: PACFL, Section 3, the truncated SVD of a client's data.

    Parameters
    ----------
    examples
        One example per *row*, shape (n, d): the transpose of that matrix.
    vectors
        p, number of vectors, >= 1.

    Returns
    -------
    Orthonormal columns, shape (d, p), float64. Columns beyond the matrix's rank, which is at most n, are 0.
    """
    rows = np.asarray(examples, dtype=np.float64)
    columns = np.zeros((rows.shape[1], vectors))
    if len(rows):
        _, values, directions = np.linalg.svd(rows, full_matrices=False)
        real = values > values[0] * max(rows.shape) * np.finfo(np.float64).eps
        kept = min(vectors, int(real.sum()))
        columns[:, :kept] = directions[:kept].T
    return columns
