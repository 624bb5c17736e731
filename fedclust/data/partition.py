"""Partition a dataset over clients as the configuration's ``partition`` node specifies."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from datasets import ClassLabel, DatasetInfo, Features
from datasets import Dataset as TableDataset
from flwr_datasets.partitioner import Partitioner

from fedclust.data.client_rows import ClientRows, load_client_rows, save_client_rows
from fedclust.data.dataset import Dataset
from fedclust.data.features import features
from fedclust.data.partitioners.base import NOBODY, ClientPartitioner, rows_by_client
from fedclust.data.partitioners.plain import Natural
from fedclust.data.protocols import holdout, matched, uniform
from fedclust.data.validation import check_fraction
from fedclust.support.rng import generator
from fedclust.typing import IntArray

__all__ = ["ClientRows", "Protocol", "load_client_rows", "rows_of_clients", "save_client_rows"]

_FEATURES = 32  # components; FedGMCC's codes have 98 for images and 30 for reads (Table II)

Test = Literal["holdout", "matched", "uniform"]


@dataclass(frozen=True)
class Protocol:
    """The keys that every ``partition`` node has; all other keys are arguments of its partitioner.

    Attributes
    ----------
    test
        How test rows are chosen; see :mod:`fedclust.data.protocols`.
    test_fraction
        Share of a client's rows that ``holdout`` holds out.
    validation_fraction
        Share of a client's training rows that :func:`fedclust.data.load` holds out for the proof; see
        :mod:`fedclust.data.validation`. ``"auto"``, for which a run's settings put a number, is none.
    file
        A saved partition to use instead of all other keys, or None.
    seed
        Seed of the partition; None uses the run's.

    Raises
    ------
    ValueError
        If `test` is no protocol, or `validation_fraction` is not in [0, 1).
    """

    test: Test = "holdout"
    test_fraction: float = 0.2
    validation_fraction: float | Literal["auto"] = 0.0
    file: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.test not in get_args(Test):
            raise ValueError(f"partition.test must be one of {list(get_args(Test))}, got {self.test!r}")
        try:
            check_fraction(0 if self.validation_fraction == "auto" else self.validation_fraction)
        except ValueError as error:
            raise ValueError(f"partition.{error}") from error


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
    own = {field.name for field in fields(Protocol)}
    protocol = Protocol(**{key: value for key, value in partition.items() if key in own})
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
    partitioner = _build(partition, seed)
    partitioner.dataset = _table(dataset, partitioner, size if pooled else dataset.num_train, seed)
    clients = _clients(partitioner)
    num_clients = int(clients.max()) + 1

    labels = _labels(dataset)
    draws = generator(seed, "local test")
    if protocol.test == "holdout":
        held_out = holdout(clients, labels, protocol.test_fraction, draws)
        train, test = np.where(held_out, NOBODY, clients), np.where(held_out, clients, NOBODY)
    else:
        official = labels[dataset.num_train :]
        nobody = np.full(len(official), NOBODY)
        dealt = (
            matched(clients, labels, draws)
            if protocol.test == "matched"
            else uniform(official, num_clients, draws)
        )
        train = np.concatenate([clients, nobody])
        test = np.concatenate([np.full(dataset.num_train, NOBODY), dealt])
    ours = isinstance(partitioner, ClientPartitioner)
    return ClientRows(
        train=rows_by_client(train, num_clients),
        test=rows_by_client(test, num_clients),
        groups=partitioner.groups if ours else None,
        shifts=partitioner.shifts if ours else (None,) * num_clients,
        seed=seed,
        left_out=_left_out(partitioner),
    )


def _left_out(partitioner: Partitioner) -> Mapping[int, int]:
    """Return the writers, users or regions with too few examples to be a client: index to number."""
    natural = isinstance(partitioner, Natural) and partitioner.partition_by == "natural"
    return partitioner.assignment.left_out if natural else {}


def _build(node: Mapping[str, Any], seed: int) -> Any:
    """Build a partitioner and its nested partitioners, without the keys of the protocol."""
    from hydra.utils import get_class

    own = {field.name for field in fields(Protocol)}
    arguments = {
        key: _build(value, seed) if isinstance(value, Mapping) and "_target_" in value else value
        for key, value in node.items()
        if key not in own and not key.startswith("_")
    }
    # Not hydra's `instantiate`: it wraps every exception of a constructor in its own.
    cls = get_class(node["_target_"])
    if not issubclass(cls, Partitioner):
        raise ValueError(f"partition._target_ must be a flwr-datasets Partitioner, got {node['_target_']}")
    if issubclass(cls, ClientPartitioner):
        arguments["seed"] = seed
    known = signature(cls).parameters.keys()
    if unknown := [key for key in arguments if key not in known]:
        takes = ", ".join(sorted((known | own) - {"seed"}))
        got = ", ".join(f"{key}={arguments[key]}" for key in unknown)
        raise ValueError(
            f"partition {cls.__name__} takes {takes}, got {got}; to leave a key out: ~partition.{unknown[0]}"
        )
    return cls(**arguments)


def _labels(dataset: Dataset) -> IntArray:
    """Return one class per row; for labels per position, the largest of the row.

    So one of FedGMCC's genomic reads counts as sensitive when any of its bases is.
    """
    labels = dataset.labels if dataset.labels.ndim == 1 else dataset.labels.amax(dim=1)
    return labels.numpy()


def _table(dataset: Dataset, partitioner: Partitioner, size: int, seed: int) -> TableDataset:
    """Build a table of the columns that a partitioner reads, without inputs, for the first `size` rows."""
    columns: dict[str, Any] = {"row": np.arange(size), "label": _labels(dataset)[:size]}
    wanted = partitioner.columns if isinstance(partitioner, ClientPartitioner) else ()
    if dataset.natural is not None:
        columns["natural"] = dataset.natural[:size]
    elif "natural" in wanted:
        raise ValueError(f"a natural partition needs writers, users or regions, {dataset.name} has none")
    if "features" in wanted:
        values = features(dataset.inputs[:size], _FEATURES, generator(seed, "features"))
        columns["features"] = pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
    table = pa.table(columns)
    types = Features.from_arrow_schema(table.schema)
    types["label"] = ClassLabel(num_classes=dataset.num_classes)
    return TableDataset(table, info=DatasetInfo(features=types))


def _clients(partitioner: Any) -> IntArray:
    """Return the client of each row of the partitioner's dataset."""
    if isinstance(partitioner, ClientPartitioner):
        return partitioner.assignment.clients
    clients = np.full(len(partitioner.dataset), NOBODY, dtype=np.int64)
    for client in range(partitioner.num_partitions):
        rows = np.asarray(partitioner.load_partition(client).with_format("numpy")[:]["row"])
        if not len(rows):
            raise ValueError(f"every client must hold an example, got none for client {client}")
        if (clients[rows] != NOBODY).any():
            raise ValueError(f"an example must belong to one client, some of client {client}'s have another")
        clients[rows] = client
    return clients
