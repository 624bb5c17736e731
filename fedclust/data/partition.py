"""Partition a dataset over clients as the configuration's ``partition`` node specifies, or as a file does.

``partition.test`` names how the rows that each client is tested on are chosen:

- ``holdout``: the dataset's official training and test parts are pooled and partitioned; a share of each
  client's rows is held out, stratified by class. Clust-PSI-PFL holds out 20 % of datasets without an official
  test part (Section IV-A (d)).
- ``matched``: the official training part is partitioned; the official test part is dealt so that each client
  is tested on its own classes in the proportions that it trains on. FedGWC ("500 training and 100 test
  images" per client, Appendix F) does so in its released partitions. Clust-PSI-PFL uses "official test sets
  when available" but does not specify how it deals them; its clients of one class (S = 0) have accuracies
  within 0.01 of 1 on average (Table IV), so they cannot have been tested on all classes.
- ``uniform``: the official training part is partitioned; every client gets an equal share of the official
  test part, with the same class mix. So one model's accuracy, averaged over the clients, is its accuracy on
  the official test part, as papers with one global model publish it.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

import fedclust.data.partitioners as partitioners
from fedclust.data.dataset import Dataset
from fedclust.data.partitioners import NOBODY
from fedclust.data.shifts import Shift, shift_from_dict, shift_to_dict
from fedclust.support.checks import Checked, check_entries, check_value, few, read_as
from fedclust.support.reasons import is_open
from fedclust.support.rng import generator
from fedclust.typing import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd
    import torch


Test = Literal["holdout", "matched", "uniform"]

_FEWEST = 3  # training rows of a client of which one is held out
_DIMENSIONS = 32  # components; FedGMCC's codes have 98 for images and 30 for reads (Table II)
_FITTED = 10_000
_BLOCK = 10_000
_KEY = b"fedclust"
_VERSION = 1
_PARTS = ("train", "test")
IN_BOTH_FILES = "a person must be in the training file or in the test file, some are in both"


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
    if protocol.group is not None and dataset.persons is None:
        rule = "partition.group must be null with a dataset that reads no key of persons, as csv and text do"
        raise ValueError(f"{rule}, got {protocol.group} with {dataset.name}")
    if protocol.file is not None:
        return load_client_rows(protocol.file, dataset)
    seed = seed if protocol.seed is None else protocol.seed

    pooled = protocol.test == "holdout"
    size = len(dataset.inputs)
    if not pooled and dataset.num_train == size:
        rule = f"partition.test={protocol.test} needs an official test part"
        raise ValueError(f"{rule}, {dataset.name} has none; use partition.test=holdout")
    divided = size if pooled else dataset.num_train
    partitioner = partitioner_of(partition)
    first, unit = _persons(dataset, divided, partitioner)
    labels = _labels(dataset)
    owners = None if dataset.natural is None else dataset.natural[first]
    if isinstance(partitioner, partitioners.ClientPartitioner):
        draws = generator(seed, "features")
        examples = partitioners.Examples(
            labels[first],
            dataset.num_classes,
            lambda: features(dataset.inputs[first], _DIMENSIONS, draws),
            owners,
            dataset.target,
        )
        assigned = partitioner.assignment(examples, seed)
    else:
        partitioner.dataset = _table(labels[first], dataset.num_classes, owners)
        assigned = partitioners.Assignment(_clients(partitioner))
    clients, num_clients = assigned.clients[unit], assigned.num_clients

    draws = generator(seed, "local test")
    if pooled:
        held_out = holdout(assigned.clients, labels[first], protocol.test_fraction, draws)[unit]
        train, test = np.where(held_out, NOBODY, clients), np.where(held_out, clients, NOBODY)
    else:
        official = labels[dataset.num_train :]
        if protocol.test == "matched":
            dealt = matched(clients, labels, draws)
        else:
            dealt = uniform(official, num_clients, draws)
        train = np.concatenate([clients, np.full(len(official), NOBODY)])
        test = np.concatenate([np.full(dataset.num_train, NOBODY), dealt])
    train_rows, test_rows = (partitioners.rows_by_client(part, num_clients) for part in (train, test))
    each = assigned.shifts or (None,) * num_clients
    return ClientRows(train_rows, test_rows, assigned.groups, each, seed, assigned.left_out)


def partitioner_of(node: Mapping[str, Any], place: str = "partition") -> Any:
    """Build the partitioner of a ``partition`` node, with nested ones, without the keys of the protocol.

    `place` is the node's key in the configuration, for messages.

    Raises
    ------
    ValueError
        If it names no partitioner, or the partitioner does not take a key or value.
    """
    from hydra.utils import get_class

    own = {field.name for field in fields(Protocol)}
    arguments = {
        key: partitioner_of(value, f"{place}.{key}")
        if isinstance(value, Mapping) and "_target_" in value
        else value
        for key, value in node.items()
        if key not in own and not key.startswith("_")
    }
    # Not hydra's `instantiate`: it wraps every exception of a constructor in its own.
    cls = get_class(node["_target_"])
    if not issubclass(cls, partitioners.ClientPartitioner):
        from flwr_datasets.partitioner import Partitioner

        if not issubclass(cls, Partitioner):
            raise ValueError(f"partition must be a flwr-datasets Partitioner, got {node['_target_']}")
    known = signature(cls).parameters.keys()
    if unknown := [key for key in arguments if key not in known]:
        takes = f"{cls.__name__} takes {', '.join(sorted((known | own) - {'seed'}))}"
        got = ", ".join(f"{key}={arguments[key]}" for key in unknown)
        raise ValueError(f"{place} {takes}, got {got}; to leave a key out: ~{place}.{unknown[0]}")
    return cls(**arguments)


def _persons(dataset: Dataset, size: int, partitioner: Any) -> tuple[Any, Any]:
    """Return each person's first row among a dataset's first `size` rows, and the person of each of these.

    Where owners are clients, a person is one of an owner's; persons without a key column are rows.
    """
    if dataset.persons is None:
        return slice(size), slice(None)
    if np.isin(dataset.persons[size:], dataset.persons[:size]).any():
        raise ValueError(IN_BOTH_FILES)
    rows = dataset.persons[:size, None]
    if isinstance(getattr(partitioner, "base", None) or partitioner, partitioners.Natural):
        rows = np.column_stack([rows, dataset.natural[:size]] if dataset.natural is not None else [rows])
    _, first, unit = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, unit.reshape(-1)


def _labels(dataset: Dataset) -> IntArray:
    """Return one class per row; for labels per position, the largest of the row.

    So one of FedGMCC's genomic reads counts as sensitive if any of its bases is.
    """
    return (dataset.labels if dataset.labels.ndim == 1 else dataset.labels.amax(dim=1)).numpy()


def _table(labels: IntArray, num_classes: int, natural: IntArray | None) -> Any:
    """Return the table that partitioners of flwr-datasets read."""
    import datasets

    owners = {} if natural is None else {"natural": natural}
    table = datasets.Dataset.from_dict({"row": np.arange(len(labels)), "label": labels, **owners})
    return table.cast_column("label", datasets.ClassLabel(num_classes=num_classes))


def _clients(partitioner: Any) -> IntArray:
    """Return the client of each row, for a partitioner of flwr-datasets."""
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

    # The sparse solver finds at most one component fewer than columns.
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
        for client in range(len(held.train))
        for part, rows in zip(_PARTS, (held.train, held.test), strict=True)
    )
    groups = [None] * len(held.train) if held.groups is None else held.groups
    numbers = [None if shift is None else distinct.index(shift) for shift in held.shifts]
    for name, of_client in (("group", groups), ("shift", numbers)):
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
    import pyarrow.parquet as pq

    try:
        return _read(pq.read_table(path), dataset)
    except ValueError as error:  # pyarrow's is among these
        raise ValueError(f"partition.file {path}: {error}") from error


def _read(table: Any, dataset: Dataset) -> ClientRows:
    if {"client", "part", "row"} - set(table.column_names):
        raise ValueError(f"must have columns client, part and row, got {table.column_names}")
    known, seed = _check_dataset(table.schema.metadata or {}, dataset)
    lines = table.to_pandas()
    _check_whole(lines["row"], len(dataset.inputs))
    if (twice := lines["row"].duplicated()).any():
        row = lines["row"][twice].iloc[0]
        raise ValueError(f"a row must belong to one part of one client, row {row} has two")
    _check_whole(lines["client"], len(lines))
    clients = range(int(lines["client"].max()) + 1)
    if not lines["part"].isin(_PARTS).all():
        raise ValueError(f"part must be 'train' or 'test', got {sorted(lines['part'].astype(str).unique())}")
    by_client = lines.groupby(["part", "client"], observed=True)["row"]
    held = {key: rows.to_numpy(np.int64) for key, rows in by_client}
    for part in _PARTS:
        if lacking := [client for client in clients if (part, client) not in held]:
            everybody = f"every client 0 to {len(clients) - 1}"
            raise ValueError(f"{everybody} must have {part} rows, got none for client {lacking[0]}")
    train, test = (tuple(held[part, client] for client in clients) for part in _PARTS)
    groups, numbers = _per_client(lines, "group"), _per_client(lines, "shift", partly=True)
    if numbers is not None and numbers.max() >= len(known):
        raise ValueError(f"shift must be in [0, {len(known)}), the list of shifts, got {numbers.max()}")
    shift_of = [-1] * len(clients) if numbers is None else numbers.tolist()
    each = tuple(None if number < 0 else known[number] for number in shift_of)
    return ClientRows(train, test, groups, each, seed)


def _check_dataset(metadata: Mapping[bytes, bytes], dataset: Dataset) -> tuple[list[Any], int | None]:
    """Check the file's metadata against the dataset; return its list of shifts and their seed."""
    if _KEY not in metadata:
        assumed = f"{dataset.name} with fingerprint {dataset.fingerprint}"
        warnings.warn(f"the saved partition names no dataset; it is assumed to be {assumed}", stacklevel=4)
        return [], None
    about: Mapping[str, Any] = read_as(Mapping[str, Any], json.loads(metadata[_KEY]))
    if about.get("version") != _VERSION:
        raise ValueError(f"version must be {_VERSION}, got {about.get('version')}")
    if (fingerprint := about.get("fingerprint")) != dataset.fingerprint:
        wanted = f"{dataset.name} with fingerprint {dataset.fingerprint}"
        raise ValueError(f"must belong to {wanted}, got one of {about.get('dataset')} with {fingerprint}")
    check_value("seed", seed := about.get("seed"), "a whole number >= 0 or None")
    shifts = read_as(tuple[Mapping[str, Any], ...], about.get("shifts", []))
    return [shift_from_dict(values) for values in shifts], seed


def _check_whole(values: "pd.Series[Any]", size: int) -> None:
    """Check that a column holds whole numbers in [0, size)."""
    if not len(values) or values.dtype.kind not in "iu":
        raise ValueError(f"{values.name} must hold whole numbers, got {len(values)} of type {values.dtype}")
    check_entries(f"in [0, {size})", **{str(values.name): values.to_numpy()})


def _per_client(lines: "pd.DataFrame", name: str, *, partly: bool = False) -> IntArray | None:
    """Read a column with one value per client: None for an empty column, -1 for an allowed missing value."""
    if name not in lines or lines[name].isna().all():
        return None
    given = lines[name].dropna()
    if given.dtype.kind not in "biuf" or (given % 1).any():
        raise ValueError(f"{name} must hold whole numbers, got {few(given.unique().tolist())}")
    values = lines[name].fillna(-1)
    by_client = values.groupby(lines["client"])
    if by_client.nunique().max() > 1 or (values.min() < 0 and not partly):
        raise ValueError(f"{name} must be the same in all lines of a client, and given")
    return by_client.first().to_numpy(dtype=np.int64)


# -- Rows to be tested on, and rows held out for the proof -------------------------------------------------


@dataclass(frozen=True)
class Protocol(Checked):
    """The keys that every ``partition`` node has; all other keys are settings of its partitioner.

    Attributes
    ----------
    test
        How test rows are chosen; see the module.
    test_fraction
        Share of a client's rows that ``holdout`` holds out, in (0, 1).
    validation_fraction
        Share of a client's training rows that :func:`hold_out` holds out for the proof, in [0, 1).
        ``"auto"``, which a run's settings replace by a number, counts as 0.
    group
        Column with the key of the person that a row belongs to, or None; no person is divided.
    file
        A saved partition to use instead of all other keys, or None.
    seed
        Seed of the partition; None uses the run's.

    Raises
    ------
    ValueError
        If `test` is not a protocol, or a share is out of range.
    """

    test: Test = "holdout"
    test_fraction: Annotated[float, "in (0, 1)"] = 0.2
    validation_fraction: float | Literal["auto"] = 0.0
    group: str | None = None
    file: str | None = None
    seed: int | None = None

    node = "partition."

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction_of(self.validation_fraction)

    @classmethod
    def of(cls, partition: Mapping[str, Any]) -> "Protocol":
        """Create a protocol from its keys in a resolved ``partition`` node."""
        own = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in partition.items() if key in own})


def fraction_of(validation_fraction: float | Literal["auto"]) -> float:
    """Return the share of rows that a ``partition`` node holds out; 0 for ``"auto"``.

    Raises
    ------
    ValueError
        If it is not in [0, 1).
    """
    fraction = 0.0 if validation_fraction == "auto" else validation_fraction
    check_value("partition.validation_fraction", fraction, "in [0, 1)")
    return fraction


def holdout(clients: IntArray, labels: IntArray, fraction: float, draws: np.random.Generator) -> BoolArray:
    """Hold out a share of each client's rows, stratified by class as closely as whole rows allow.

    Parameters
    ----------
    clients
        Client of each row, shape (N,); -1 for a row that no client holds.
    labels
        Class of each row, shape (N,).
    fraction
        Share to hold out, in (0, 1). Of a client's n rows, round(fraction·n) are held out, but at least 1 and
        at most n − 1; class quotas are rounded by largest remainders.
    draws
        Random generator for rows and for ties between classes.

    Returns
    -------
    Whether each row is held out, shape (N,).

    Raises
    ------
    ValueError
        If a client has a single row.
    """
    rows = np.flatnonzero(clients != NOBODY)
    sizes = np.bincount(clients[rows])
    if (single := np.flatnonzero(sizes == 1)).size:
        rule = "every client must have at least 2 rows, one to train on and one to be tested on"
        few = f"{single.size} of {len(sizes)} clients, the first is client {single[0]}"
        raise ValueError(f"{rule}, got 1 for {few}")
    order = rows[np.lexsort((draws.random(len(rows)), labels[rows], clients[rows]))]
    # A cell is the rows of one class on one client; rows are now sorted by cell, at random within.
    starts = np.flatnonzero(_changes(clients[order]) | _changes(labels[order]))
    cell_sizes = np.diff(starts, append=len(order))
    owner = clients[order[starts]]

    quotas = fraction * cell_sizes
    taken = np.floor(quotas + 1e-9).astype(np.int64)  # guards whole quotas against rounding error
    wanted = np.clip(np.round(fraction * sizes), 1, sizes - 1)
    missing = wanted - _sum(taken, owner, len(sizes))
    # Owners stay in ascending order, so a rank in this order is the rank among the owner's cells.
    by_remainder = np.lexsort((draws.random(len(owner)), taken - quotas, owner))
    taken[by_remainder] += _rank_within(np.flatnonzero(_changes(owner)), len(owner)) < missing[owner]

    held_out = np.zeros(len(clients), dtype=bool)
    held_out[order[_rank_within(starts, len(order)) < np.repeat(taken, cell_sizes)]] = True
    return held_out


def matched(clients: IntArray, labels: IntArray, draws: np.random.Generator) -> IntArray:
    """Deal the official test part so that each client's test classes match its training classes.

    A client's quota of class c is its share of the training rows of class c, times the test rows of class c.
    Quotas are rounded up or down so that each client's total is its rounded total quota, if the rows of its
    classes suffice. Test rows that belong to no client's quota are left out.

    Parameters
    ----------
    clients
        Client of each row of the official training part, shape (T,); -1 for a row that no client holds.
    labels
        Class of each row of the dataset, shape (N,); rows T … N−1 are the official test part.
    draws
        Random generator for rows and for ties between cells.

    Returns
    -------
    Client of each row of the official test part, shape (N − T,); -1 for a row that no client holds.

    Raises
    ------
    ValueError
        If a client would get no test row.
    """
    size = len(clients)
    num_classes = int(labels.max()) + 1
    train_sizes = np.bincount(labels[:size], minlength=num_classes)
    stock = np.bincount(labels[size:], minlength=num_classes)

    rows = np.flatnonzero(clients != NOBODY)
    num_clients = int(clients.max()) + 1
    cells, held = np.unique(clients[rows] * num_classes + labels[rows], return_counts=True)
    owner, label = np.divmod(cells, num_classes)
    quotas = held * stock[label] / train_sizes[label]
    taken = np.floor(quotas + 1e-9).astype(np.int64)  # guards whole quotas against rounding error
    due = np.round(np.bincount(owner, weights=quotas, minlength=num_clients)).astype(np.int64)
    for at_most in (np.ones_like(due), due):  # clients that would get no row come first
        missing = np.maximum(at_most - _sum(taken, owner, num_clients), 0)
        left = stock - _sum(taken, label, num_classes)
        broken = np.flatnonzero(quotas - taken > 1e-9)
        # Ties are broken at random; with ties, the linear program takes several times as long.
        gain = 1 + quotas[broken] - taken[broken] + 1e-3 * draws.random(len(broken))
        taken[broken] += _round_up(owner[broken], label[broken], gain, missing, left)
    got = _sum(taken, owner, num_clients)
    if not got.all():
        none = f"none for {(got == 0).sum()} of {num_clients} clients, the first is client {got.argmin()}"
        rule = f"every client must get a row of the official test part, which has {len(labels) - size}"
        raise ValueError(f"{rule}, got {none}; ask for fewer clients or test=holdout")
    counts = np.zeros((num_clients, num_classes), dtype=np.int64)
    counts[owner, label] = taken
    return partitioners.deal(labels[size:], counts, draws)


def uniform(labels: IntArray, num_clients: int, draws: np.random.Generator) -> IntArray:
    """Deal the official test part evenly, class by class.

    Parameters
    ----------
    labels
        Class of each row of the official test part, shape (M,).
    num_clients
        Number of clients K.
    draws
        Random generator for the rows and the first client.

    Returns
    -------
    Client of each row, shape (M,); clients' totals differ by at most one row, and so do their classes'.

    Raises
    ------
    ValueError
        If there are more clients than rows.
    """
    if num_clients > len(labels):
        rows = f"the {len(labels)} rows of the official test part"
        raise ValueError(f"num_clients must be at most {rows}, got {num_clients}")
    clients = np.empty(len(labels), dtype=np.int64)
    by_class = np.lexsort((draws.random(len(labels)), labels))
    clients[by_class] = draws.permutation(num_clients)[np.arange(len(labels)) % num_clients]
    return clients


def hold_out_client(num_rows: int, fraction: float, seed: int, client: int) -> IntArray:
    """Draw which of one client's training rows are held out.

    Parameters
    ----------
    num_rows
        Its training rows n.
    fraction
        Share to hold out, in [0, 1). With n >= 3, round(fraction·n) rows are held out, at least 1 and at
        most n − 1; with fewer, none, as too little would be left to train on.
    seed, client
        The draw depends on these alone, not on the other clients or on the test rows.

    Returns
    -------
    Positions in 0…n − 1, sorted.
    """
    count = min(max(1, round(fraction * num_rows)), num_rows - 1)
    if not fraction or num_rows < _FEWEST:
        return np.zeros(0, dtype=np.int64)
    return np.sort(generator(seed, "validation", client).permutation(num_rows)[:count])


def hold_out(
    train: Mapping[int, IntArray], fraction: float, seed: int, persons: IntArray | None = None
) -> tuple[tuple[IntArray, ...], tuple[IntArray, ...]]:
    """Divide each client's training rows into those to train on and those to hold out.

    Parameters
    ----------
    train
        Each client's training rows, by the number that its draw depends on.
    fraction, seed
        As for :func:`hold_out_client`.
    persons
        Number of each row's person, shape (N,), none of whom is divided, not even where several clients have
        rows of one. None if each row is one of its own.

    Returns
    -------
    Rows to train on and rows held out of each client, in their original order.
    """
    held = []
    drawn, chosen = np.zeros((2, 0 if persons is None else int(persons.max(initial=-1)) + 1), dtype=bool)
    for client, rows in train.items():
        if persons is None:
            held.append(hold_out_client(len(rows), fraction, seed, client))
            continue
        people = np.unique(persons[rows])
        new = people[~drawn[people]]
        chosen[new[hold_out_client(len(new), fraction, seed, client)]] = True
        drawn[people] = True
        held.append(np.flatnonzero(chosen[persons[rows]]))
    pairs = list(zip(train.values(), held, strict=True))
    return tuple(np.delete(rows, each) for rows, each in pairs), tuple(rows[each] for rows, each in pairs)


def _round_up(
    clients: IntArray, labels: IntArray, gain: FloatArray, missing: IntArray, left: IntArray
) -> BoolArray:
    """Choose the cells (n,) that get one more row so that their total gain (n,) is largest.

    No client may get more rows than it lacks (K,), and no class may supply more than it has left (C,). The
    linear program has whole-number solutions because its matrix is that of a bipartite graph.
    """
    if not missing.any() or not len(clients):
        return np.zeros(len(clients), dtype=bool)
    from scipy import sparse
    from scipy.optimize import linprog

    one, cells = np.ones(len(clients)), np.arange(len(clients))
    pairs = (clients, missing), (labels, left)
    sums = sparse.vstack([sparse.csr_array((one, (to, cells)), (len(of), len(cells))) for to, of in pairs])
    limits = np.concatenate([missing, left]).astype(float)
    # The type stubs accept dense matrices only.
    solution = linprog(-gain, A_ub=sums, b_ub=limits, bounds=(0, 1))  # type: ignore[call-overload]
    return np.asarray(solution.x > 0.5)


def _sum(values: IntArray, keys: IntArray, size: int) -> IntArray:
    """Sum whole numbers by key."""
    return np.bincount(keys, weights=values, minlength=size).astype(np.int64)


def _changes(values: IntArray) -> BoolArray:
    """Mark where each run of equal values starts."""
    return np.diff(values, prepend=NOBODY - 1) != 0


def _rank_within(starts: IntArray, size: int) -> IntArray:
    """Count from 0 within each run, given the runs' starts."""
    return np.arange(size) - np.repeat(starts, np.diff(starts, append=size))


def named_groups(groups: IntArray, names: Sequence[str], train: Sequence[IntArray]) -> tuple[str, ...]:
    """Return the name of the group that each client is put in.

    Parameters
    ----------
    groups, names
        Index of each row's group, −1 for none, shape (N,), and the groups' names.
    train
        Training rows of each client.

    Raises
    ------
    ValueError
        If a client has rows of several groups, or of none; in the user's own process it says which.

    Examples
    --------
    >>> named_groups(np.array([0, 1, 1]), ["ge", "siemens"], [np.array([1, 2]), np.array([0])])
    ('siemens', 'ge')
    """
    found = []
    for client, rows in enumerate(train):
        if len(held := np.unique(groups[rows])) > 1 or held[0] < 0:
            got = few([names[each] if each >= 0 else "none" for each in held.tolist()])
            rule = "dataset.groups must be a column with one value in all rows of a client"
            raise ValueError(rule + (f", got {got} for client {client}" if is_open() else ""))
        found.append(names[held[0]])
    return tuple(found)
