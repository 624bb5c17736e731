"""Partition a dataset over clients as the configuration's ``partition`` node specifies, or as a file does.

A file is Parquet, so that any tool can read or write it. It has one line per row of the dataset that a
client holds:

======== ======= ==========================================================================
client   int64   0 … K−1, each at least once in each part
part     string  ``train`` or ``test``
row      int64   position in the dataset, from 0: its official training part in file order, then its
                 official test part in file order; each row at most once
group    int64   known group of the client, from 0; null (or no such column) if there is none
shift    int64   position in the list of shifts below; null (or no such column) if the client has none
======== ======= ==========================================================================

The key ``fedclust`` of the schema's metadata holds a JSON object: ``version`` (1), ``dataset`` (its name),
``fingerprint`` (of the dataset), ``shifts``, a list of objects such as ``{"kind": "noise", "std": 0.2}``, and
``seed``, the seed of noise, a whole number; null (or no such key) for the seed of the run that loads it.
A file without the key is loaded with a warning, because it does not name its dataset.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedclust.data.dataset import Dataset
from fedclust.data.partitioners.base import NOBODY, Assignment, ClientPartitioner, Examples, rows_by_client
from fedclust.data.protocols import Protocol, holdout, matched, uniform
from fedclust.data.shifts import Shift, shift_from_dict, shift_to_dict
from fedclust.support.rng import generator
from fedclust.typing import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd
    import torch


_DIMENSIONS = 32  # components; FedGMCC's codes have 98 for images and 30 for reads (Table II)
_FITTED = 10_000
_BLOCK = 10_000
_KEY = b"fedclust"
_VERSION = 1
_PARTS = ("train", "test")


@dataclass(frozen=True, eq=False)  # the generated __eq__ cannot compare arrays
class ClientRows:
    """The rows of a dataset that each client holds.

    Attributes
    ----------
    train, test
        For each of the K clients, the rows of its training and of its test part.
    groups
        Known group of each client, an index from 0, shape (K,); None if there is none.
    shifts
        Shift of each client or None, K entries.
    seed
        Seed of the shifts; None uses the run's seed.
    left_out
        Writers, users or regions with too few examples to be a client: index to number of examples. Not
        saved.
    """

    train: tuple[IntArray, ...]
    test: tuple[IntArray, ...]
    groups: IntArray | None
    shifts: tuple[Shift | None, ...]
    seed: int | None = None
    left_out: Mapping[int, int] = field(default_factory=dict)

    @property
    def num_clients(self) -> int:
        """Number of clients K."""
        return len(self.train)


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


def save_client_rows(held: ClientRows, dataset: Dataset, path: Path | str) -> None:
    """Write a partition to a file, in the format that the module describes.

    Parameters
    ----------
    held
        The rows that each client holds.
    dataset
        The partitioned dataset.
    path
        File to write, usually ``*.parquet``; a missing folder is created.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    distinct = list(dict.fromkeys(shift for shift in held.shifts if shift is not None))
    lines = pd.concat(
        pd.DataFrame({"client": client, "part": part, "row": rows[client]})
        for client in range(held.num_clients)
        for part, rows in zip(_PARTS, (held.train, held.test), strict=True)
    )
    for name, of_client in (
        ("group", [None] * held.num_clients if held.groups is None else held.groups),
        ("shift", [None if shift is None else distinct.index(shift) for shift in held.shifts]),
    ):
        lines[name] = pd.array(of_client, dtype="Int64")[lines["client"].to_numpy()]
    about = {
        "version": _VERSION,
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "shifts": [shift_to_dict(shift) for shift in distinct],
        "seed": held.seed,
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pandas(lines, preserve_index=False)
    pq.write_table(table.replace_schema_metadata({_KEY: json.dumps(about)}), path)


def load_client_rows(path: Path | str, dataset: Dataset) -> ClientRows:
    """Read a partition that :func:`save_client_rows` or another tool wrote.

    Parameters
    ----------
    path
        The file.
    dataset
        The partitioned dataset.

    Returns
    -------
    The partition, rows in the order of the file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file has another format or belongs to another dataset, a row is out of range or occurs twice,
        a client lacks a part, or a client has two groups or shifts.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"partition.file must be a saved partition, there is no file {path}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"partition.file must be a Parquet file, got {path}: {error}") from error
    try:
        return _read(table, dataset)
    except ValueError as error:
        raise ValueError(f"partition {path}: {error}") from error


def _read(table: Any, dataset: Dataset) -> ClientRows:
    if {"client", "part", "row"} - set(table.column_names):
        raise ValueError(f"must have columns client, part and row, got {table.column_names}")
    shifts, seed = _check_dataset(table.schema.metadata or {}, dataset)
    lines = table.to_pandas()
    _check_whole(lines["row"], len(dataset.inputs))
    if (twice := lines["row"].duplicated()).any():
        raise ValueError(
            f"a row must belong to one part of one client, row {lines['row'][twice].iloc[0]} has two"
        )
    _check_whole(lines["client"], len(lines))
    clients = range(int(lines["client"].max()) + 1)
    if not lines["part"].isin(_PARTS).all():
        raise ValueError(f"part must be 'train' or 'test', got {sorted(lines['part'].astype(str).unique())}")
    held = lines.groupby(["part", "client"])["row"].agg(np.array)
    for part in _PARTS:
        if lacking := [client for client in clients if (part, client) not in held.index]:
            raise ValueError(
                f"every client 0 to {len(clients) - 1} must have {part} rows, "
                f"got none for client {lacking[0]}"
            )
    train, test = (tuple(held[part, client].astype(np.int64) for client in clients) for part in _PARTS)
    groups, numbers = _per_client(lines, "group"), _per_client(lines, "shift", partly=True)
    if numbers is not None and numbers.max() >= len(shifts):
        raise ValueError(f"shift must be in [0, {len(shifts)}), the list of shifts, got {numbers.max()}")
    shift_of = [-1] * len(clients) if numbers is None else numbers.tolist()
    each = tuple(None if number < 0 else shifts[number] for number in shift_of)
    return ClientRows(train, test, groups, each, seed)


def _check_dataset(metadata: Mapping[bytes, bytes], dataset: Dataset) -> tuple[list[Shift], int | None]:
    """Check the file's metadata against the dataset; return its list of shifts and their seed."""
    if _KEY not in metadata:
        warnings.warn(
            f"the saved partition does not name its dataset; it is assumed to be {dataset.name} "
            f"with fingerprint {dataset.fingerprint}",
            stacklevel=4,
        )
        return [], None
    about: dict[str, Any] = json.loads(metadata[_KEY])
    if about.get("version") != _VERSION:
        raise ValueError(f"version must be {_VERSION}, got {about.get('version')}")
    if about.get("fingerprint") != dataset.fingerprint:
        raise ValueError(
            f"must belong to {dataset.name} with fingerprint {dataset.fingerprint}, "
            f"got one of {about.get('dataset')} with fingerprint {about.get('fingerprint')}"
        )
    seed = about.get("seed")
    if seed is not None and (not isinstance(seed, int) or seed < 0):
        raise ValueError(f"seed must be a whole number >= 0 or null, got {seed}")
    return [shift_from_dict(values) for values in about.get("shifts", [])], seed


def _check_whole(values: "pd.Series[Any]", size: int) -> None:
    """Check that a column holds whole numbers in [0, size)."""
    if not len(values) or values.dtype.kind not in "iu":
        raise ValueError(f"{values.name} must hold whole numbers, got {len(values)} of type {values.dtype}")
    if values.min() < 0 or values.max() >= size:
        raise ValueError(f"{values.name} must be in [0, {size}), got {values.min()} to {values.max()}")


def _per_client(lines: "pd.DataFrame", name: str, *, partly: bool = False) -> IntArray | None:
    """Read a column with one value per client: None for an empty column, -1 for an allowed missing value."""
    if name not in lines or lines[name].isna().all():
        return None
    values = lines[name].fillna(-1)
    by_client = values.groupby(lines["client"])
    if by_client.nunique().max() > 1 or (values.min() < 0 and not partly):
        raise ValueError(f"{name} must be the same in all lines of a client, and given")
    return by_client.first().to_numpy(dtype=np.int64)
