"""Partition a dataset over clients as the configuration's ``partition`` node specifies."""

from collections.abc import Mapping
from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedclust.data.client_rows import ClientRows, load_client_rows, save_client_rows
from fedclust.data.dataset import Dataset
from fedclust.data.partitioners.base import NOBODY, Assignment, ClientPartitioner, Examples, rows_by_client
from fedclust.data.protocols import Protocol, holdout, matched, uniform
from fedclust.support.rng import generator
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "ClientRows",
    "Protocol",
    "features",
    "load_client_rows",
    "partitioner_of",
    "rows_of_clients",
    "save_client_rows",
]

_DIMENSIONS = 32  # components; FedGMCC's codes have 98 for images and 30 for reads (Table II)
_FITTED = 10_000
_BLOCK = 10_000


def rows_of_clients(dataset: Dataset, partition: Mapping[str, Any], seed: int) -> ClientRows:
    """Partition a dataset over clients, each with a training and a test part.

    Parameters
    ----------
    dataset
        The dataset.
    partition
        The resolved ``partition`` node: `_target_` and arguments of a partitioner, from this package or any
        other flwr-datasets partitioner, and the keys of :class:`Protocol`.
    seed
        The run's seed.

    Returns
    -------
    The rows that each client holds; no row is held twice.

    Raises
    ------
    ValueError
        If the data cannot meet the request; the message gives the numbers.
    FileNotFoundError
        If the configured saved partition does not exist.
    """
    protocol = Protocol.of(partition)
    if protocol.file is not None:
        return load_client_rows(protocol.file, dataset)
    seed = seed if protocol.seed is None else protocol.seed

    pooled = protocol.test == "holdout"
    size = len(dataset.inputs)
    if not pooled and dataset.num_train == size:
        raise ValueError(
            f"partition.test={protocol.test} needs an official test part, {dataset.name} has none; "
            f"use partition.test=holdout"
        )
    columns = _Columns(dataset, size if pooled else dataset.num_train, seed)
    partitioner = partitioner_of(partition)
    if isinstance(partitioner, ClientPartitioner):
        examples = Examples(columns.size, columns, dataset.num_classes)
        assigned = partitioner.assignment(examples, seed)
    else:
        partitioner.dataset = columns.table()
        assigned = Assignment(_clients(partitioner))
    clients, num_clients = assigned.clients, assigned.num_clients

    labels = _labels(dataset)
    draws = generator(seed, "local test")
    if protocol.test == "holdout":
        held_out = holdout(clients, labels, protocol.test_fraction, draws)
        train, test = np.where(held_out, NOBODY, clients), np.where(held_out, clients, NOBODY)
    else:
        official = labels[dataset.num_train :]
        dealt = (
            matched(clients, labels, draws)
            if protocol.test == "matched"
            else uniform(official, num_clients, draws)
        )
        train = np.concatenate([clients, np.full(len(official), NOBODY)])
        test = np.concatenate([np.full(dataset.num_train, NOBODY), dealt])
    return ClientRows(
        train=rows_by_client(train, num_clients),
        test=rows_by_client(test, num_clients),
        groups=assigned.groups,
        shifts=assigned.shifts or (None,) * num_clients,
        seed=seed,
        left_out=assigned.left_out,
    )


def partitioner_of(node: Mapping[str, Any]) -> Any:
    """Build the partitioner of a ``partition`` node, with nested ones, without the keys of the protocol.

    Raises
    ------
    ValueError
        If it names no partitioner, or a key or value is not one of its own.
    """
    from hydra.utils import get_class

    own = {field.name for field in fields(Protocol)}
    arguments = {
        key: partitioner_of(value) if isinstance(value, Mapping) and "_target_" in value else value
        for key, value in node.items()
        if key not in own and not key.startswith("_")
    }
    # Not hydra's `instantiate`: it wraps every exception of a constructor in its own.
    cls = get_class(node["_target_"])
    if not issubclass(cls, ClientPartitioner):
        from flwr_datasets.partitioner import Partitioner

        if not issubclass(cls, Partitioner):
            raise ValueError(
                f"partition._target_ must be a flwr-datasets Partitioner, got {node['_target_']}"
            )
    known = signature(cls).parameters.keys()
    if unknown := [key for key in arguments if key not in known]:
        takes = ", ".join(sorted((known | own) - {"seed"}))
        got = ", ".join(f"{key}={arguments[key]}" for key in unknown)
        raise ValueError(
            f"partition {cls.__name__} takes {takes}, got {got}; to leave a key out: ~partition.{unknown[0]}"
        )
    return cls(**arguments)


class _Columns(dict[str, NDArray[Any]]):
    """What partitioners read of a dataset's first `size` rows; features are made when they are read."""

    def __init__(self, dataset: Dataset, size: int, seed: int) -> None:
        super().__init__(row=np.arange(size), label=_labels(dataset)[:size])
        if dataset.natural is not None:
            self["natural"] = dataset.natural[:size]
        self.dataset, self.size, self.seed = dataset, size, seed

    def __missing__(self, name: str) -> NDArray[Any]:
        if name != "features":
            raise ValueError(
                f"a natural partition needs writers, users or regions, {self.dataset.name} has none"
            )
        draws = generator(self.seed, "features")
        return self.setdefault(name, features(self.dataset.inputs[: self.size], _DIMENSIONS, draws))

    def table(self) -> Any:
        """Make the table that partitioners of flwr-datasets read."""
        import datasets

        table = datasets.Dataset.from_dict(self)
        return table.cast_column("label", datasets.ClassLabel(num_classes=self.dataset.num_classes))


def _labels(dataset: Dataset) -> IntArray:
    """Return one class per row; for labels per position, the largest of the row.

    So one of FedGMCC's genomic reads counts as sensitive when any of its bases is.
    """
    labels = dataset.labels if dataset.labels.ndim == 1 else dataset.labels.amax(dim=1)
    return labels.numpy()


def _clients(partitioner: Any) -> IntArray:
    """Return the client of each row of the dataset of one of flwr-datasets' partitioners."""
    clients = np.full(len(partitioner.dataset), NOBODY, dtype=np.int64)
    for client in range(partitioner.num_partitions):
        rows = np.asarray(partitioner.load_partition(client).with_format("numpy")[:]["row"])
        if not len(rows):
            raise ValueError(f"every client must hold an example, got none for client {client}")
        if (clients[rows] != NOBODY).any():
            raise ValueError(f"an example must belong to one client, some of client {client}'s have another")
        clients[rows] = client
    return clients


def features(inputs: "torch.Tensor", dimensions: int, draws: np.random.Generator) -> FloatArray:
    """Project inputs onto their principal components.

    Replaces the autoencoders of FedGMCC's Appendix (Table II): there is nothing to train, and all methods
    get the same features. Numbers are projected unchanged, images after division by 255, and tokens as the
    share of each token in its row (on singular vectors, uncentred). Components are fitted on 10,000 random
    rows.

    Parameters
    ----------
    inputs
        One row per example, shape (N, *shape): uint8 images, int64 tokens or float32 numbers.
    dimensions
        Largest number of components to keep.
    draws
        Random generator for the rows to fit on and the solver's start.

    Returns
    -------
    Features, float32, shape (N, at most `dimensions`).
    """
    from scipy import sparse
    from sklearn.decomposition import PCA, TruncatedSVD

    values = inputs.numpy().reshape(len(inputs), -1)
    size, width = values.shape
    fitted = np.sort(draws.permutation(size)[:_FITTED])
    seed = int(draws.integers(2**31))
    if tokens := values.dtype == np.int64:
        width = int(values.max()) + 1

    def block(rows: NDArray[Any]) -> Any:
        if not tokens:
            return rows.astype(np.float32) / np.float32(255 if rows.dtype == np.uint8 else 1)
        owner = np.repeat(np.arange(len(rows)), rows.shape[1])
        shares = np.full(rows.size, 1 / rows.shape[1], dtype=np.float32)
        return sparse.csr_array((shares, (owner, rows.ravel())), shape=(len(rows), width))

    # One component fewer than columns is the most that the sparse solver finds.
    kept = min(dimensions, len(fitted), width - 1 if tokens else width)
    if kept < 1:
        return np.zeros((size, 1), dtype=np.float32)
    model = TruncatedSVD(kept, random_state=seed) if tokens else PCA(kept, random_state=seed)
    model.fit(block(values[fitted]))
    projected = [model.transform(block(values[start : start + _BLOCK])) for start in range(0, size, _BLOCK)]
    return np.concatenate(projected).astype(np.float32)
