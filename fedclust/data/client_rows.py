"""The rows of a dataset that each client holds, in memory and in a file.

The file is Parquet, so that any tool can read or write it. It has one line per row of the dataset that a
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedclust.data.dataset import Dataset
from fedclust.data.shifts import Shift, shift_from_dict, shift_to_dict
from fedclust.typing import IntArray

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ClientRows", "load_client_rows", "save_client_rows"]

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
